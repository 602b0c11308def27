"""Mutants: one small fault each, put into a copy of the package to see whether a test notices (`make mutants`)."""
