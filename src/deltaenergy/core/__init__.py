"""What every room uses: specifications, registries, class names and labels, progress, display."""
