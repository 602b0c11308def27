"""Benchmark datasets and class names, as data."""
