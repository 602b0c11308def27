"""Contract checks that other packages can run on their own scores and tuning methods."""
