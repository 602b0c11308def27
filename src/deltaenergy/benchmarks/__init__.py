"""Metrics, protocols and the field's benchmarks as data."""
