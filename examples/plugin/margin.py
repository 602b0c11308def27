"""A score in one file: the margin between the two most similar classes.

score = s_(1) − s_(2); with one class there is no second, and the score is s_(1)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from deltaenergy.scores import Score, ScoreInputs, Scorer, array_function


@array_function
def margin(similarities: torch.Tensor) -> torch.Tensor:
    """The margin of each row; tensors or arrays in, the same out."""
    top = similarities.topk(min(2, similarities.shape[1]), dim=1).values
    return top[:, 0] if top.shape[1] == 1 else top[:, 0] - top[:, 1]


@dataclass(frozen=True)
class Margin(Score):
    """`margin` as a Score."""

    name = "margin"
    summary = "the margin between the two most similar classes"
    formula = "s_(1) − s_(2)"
    paper = "an example"

    def compute(self, inputs: ScoreInputs, scorer: Scorer) -> torch.Tensor:
        """Scores (N,)."""
        return margin.kernel(inputs.similarities)
