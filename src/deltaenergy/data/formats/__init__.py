"""One module for each format that images come in."""
