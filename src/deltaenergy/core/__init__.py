"""Shared by all packages: specifications, registries, class names and labels, progress, display."""
