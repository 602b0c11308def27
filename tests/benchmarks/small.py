"""A small benchmark for tests: drawn pictures, two closed sets, one open set."""

from __future__ import annotations

from deltaenergy.benchmarks.spec import BenchmarkSpec, parse_spec

TEXT = """
title: Small
methods: [msp, delta-energy]
seeds: [1, 2]
shots: 2
template: a {}.
recipe: {epochs: 2}
cases:
  - name: drawn
    dataset: drawn
    classes: drawn/closed
    train: {split: train, domains: [flat]}
    closed:
      flat: {split: test, domains: [flat], per_class: 3}
      noisy: {split: test, domains: [noisy], kind: shifted, per_class: 2}
    open:
      open: {split: test, domains: [flat], per_class: 2}
"""


def small_spec(*changes: tuple[str, str]) -> BenchmarkSpec:
    """The benchmark, with pieces of its text replaced."""
    text = TEXT
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return parse_spec(text, "small", "small.yaml")
