"""kNN: minus the distance to the k-th nearest ID image (Sun et al., ICML 2022).

    score = −‖z − z_(k)‖,   z_(k) the k-th nearest unit image feature among those of the calibration images

An image is not its own neighbour: a calibration image is at distance 0 from itself, nearer than any new image. Images
within `SAME` count as the image itself and are skipped, unless there is nothing else. If fewer than k images remain,
the farthest counts.

The features of the calibration images are saved with the detector: at most `MAX_KEPT`, evenly spaced.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from deltaenergy.core.arrays import round_to_block
from deltaenergy.core.needs import Need
from deltaenergy.core.specs import Count
from deltaenergy.errors import InputError
from deltaenergy.scores.arrays import array_function, as_rows
from deltaenergy.scores.base import Score, ScoreInputs, Scorer
from deltaenergy.scores.neglabel import BLOCK_ENTRIES, in_blocks
from deltaenergy.scores.registry import register_score

# Features of 512 entries: 20 MB.
MAX_KEPT = 10_000
# Encoding an image again in another batch or precision changes its unit feature by far less; another image differs by
# more.
SAME = 0.01


@array_function
def knn(features: torch.Tensor, known: Any, k: Count = 1) -> torch.Tensor:
    """The score (formula above) of unit features (N, D), with those of ID images in `known` (M, D)."""
    bank = as_rows(known, "known").to(features)
    if not len(bank) or bank.shape[1] != features.shape[1]:
        raise InputError(
            f"known must be features of ID images, here (…, {features.shape[1]}), got shape {tuple(bank.shape)}."
        )
    block = round_to_block(BLOCK_ENTRIES // len(bank))
    return in_blocks(lambda rows: _distances(features[rows], bank, k), len(features), block)


def _distances(features: torch.Tensor, bank: torch.Tensor, k: int) -> torch.Tensor:
    """−‖z − z_(k)‖; the product finds the neighbour, the difference of the two measures it without cancellation."""
    closeness = features @ bank.T
    itself = closeness > 1 - SAME**2 / 2
    closeness = closeness.masked_fill(itself, -torch.inf)
    others = len(bank) - itself.sum(dim=1)
    order = closeness.topk(min(k, len(bank)), dim=1)
    rank = (others.clamp(max=order.indices.shape[1]) - 1).clamp(min=0)
    neighbour = bank[order.indices.gather(1, rank[:, None])[:, 0]]
    distance = torch.linalg.vector_norm(features - neighbour, dim=1)
    return -torch.where(others > 0, distance, 0.0)


def evenly(features: torch.Tensor, most: int) -> torch.Tensor:
    """At most `most` rows, evenly spaced."""
    if len(features) <= most:
        return features
    return features[torch.linspace(0, len(features) - 1, most, dtype=torch.float64).long()]


@register_score
@dataclass(frozen=True)
class Knn(Score):
    """`knn` as a Score that stores the features of the calibration images."""

    name = "knn"
    summary = "nearness to the calibration images"
    formula = "−‖z − z_(k)‖ over the features of ID images"
    paper = "Sun et al., ICML 2022"
    needs = frozenset({Need.FEATURES, Need.ID_DATA})
    k: Count = 1

    def learn(self, inputs: ScoreInputs, scorer: Scorer) -> dict[str, torch.Tensor]:
        return {"known": evenly(inputs.features, MAX_KEPT).float().contiguous()}

    def compute(self, inputs: ScoreInputs, scorer: Scorer) -> torch.Tensor:
        return knn.kernel(inputs.features, scorer.learned("known"), self.k)
