"""CLIPN: the score, the "no" text tower behind it, and that tower's training."""

from deltaenergy.scores.clipn.score import Clipn, clipn

__all__ = ["Clipn", "clipn"]
