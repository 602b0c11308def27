"""Training of the bundled model `lite`."""
