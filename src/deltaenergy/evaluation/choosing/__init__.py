"""What `choose` found, and what it is judged on."""
