"""What makes the files that the package carries."""
