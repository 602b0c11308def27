"""Benchmarks as data: protocols, cases, runs and tables."""
