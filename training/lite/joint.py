"""The joint space of pictures and words, from the image tower's own classifier and WordNet; no pictures needed.

A class k of the 1,000 that the tower was trained on has
    c_k  its classifier row, centred over the classes and normalised: what it looks like, and
    s_k  its meaning: WordNet ancestors (weighted by rarity) and the text teacher's embedding, centred.
The joint space is spanned by the leading principal directions Q of the rows [c_k, s_k]. A picture with pooled features
f enters it as
    normalise( normalise((f - mu) Q_look) + sum_k softmax(logits(f))_k s_k Q_meaning ):
the linear part keeps details, the second says which *kind* of thing the tower believes to see (Norouzi et al.,
Zero-Shot Learning by Convex Combination of Semantic Embeddings, ICLR 2014), without which "dog" would be a poor name
for pictures of 118 breeds.
"""

import csv
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from training.lite import wordnet

CLASSES_FILE = Path(__file__).parents[2] / "src" / "deltaenergy" / "data" / "catalogue" / "names" / "imagenet.csv"
DIMENSIONS = 509  # three constant coordinates make it 512
ANCESTOR_WEIGHT = 0.3
TEACHER_WEIGHT = 0.2
# Unseen words: exp(SHARPNESS (cos - 1)) on teacher embeddings, mixed with the ancestor kernel; ridge penalty.
SHARPNESS, TEACHER_SHARE, RIDGE = 3.5, 0.8, 0.1


def class_list() -> list[tuple[str, str]]:
    """(synset, name) of the 1,000 classes in the canonical order."""
    with CLASSES_FILE.open(encoding="utf-8") as file:
        return [(row["key"], row["name"]) for row in csv.DictReader(file)]


def mean_features(scale: Tensor, shift: Tensor) -> Tensor:
    """Mean pooled features from the last batch normalisation: E[relu6(shift + scale * N(0, 1))] per channel."""
    points = torch.linspace(-4, 4, 401, dtype=torch.float64)
    weights = torch.exp(-points.square() / 2)
    values = (shift.double()[:, None] + scale.double()[:, None] * points).clamp(0, 6)
    return (values * (weights / weights.sum())).sum(1).float()


@dataclass
class Joint:
    """What turns features of the image tower into vectors of the joint space."""

    look: Tensor  # (1280, D): (f - mean) @ look, normalised, is a picture's linear part
    meaning: Tensor  # (classes, D): rows to be mixed by the classifier's probabilities
    mean: Tensor  # (1280,)
    classes: Tensor  # (classes, D), unit
    _rows: Tensor  # (classes, 1280 + S), not normalised
    _basis: Tensor  # (1280 + S, D)

    def picture(self, features: Tensor, logits: Tensor) -> Tensor:
        """Unit vectors of pictures."""
        linear = normalize((features - self.mean) @ self.look, dim=-1)
        return normalize(linear + torch.softmax(logits, -1) @ self.meaning, dim=-1)


class JointSpace:
    """Builds `Joint` and the targets of every synset. `seen` restricts it to some of the classes, for validation."""

    def __init__(self, keys: list[str], rows: Tensor, mean: Tensor, embeddings: dict[str, Tensor]) -> None:
        self.keys = keys
        self.members = wordnet.members(keys)
        self.embeddings = embeddings
        self.ancestors = sorted(self.members)
        self.ancestor_index = {key: i for i, key in enumerate(self.ancestors)}
        self.rarity = torch.tensor([math.log(len(keys) / len(self.members[a])) for a in self.ancestors]).sqrt()
        self.teacher_mean = torch.stack([embeddings[key] for key in keys]).mean(0)
        self.looks = normalize(rows - rows.mean(0), dim=1)
        meanings = self._raw_meanings(keys)
        self.meaning_mean = meanings.mean(0)
        self.meanings = meanings - self.meaning_mean
        stacked = torch.cat([self.looks, self.meanings], 1)
        basis = torch.linalg.svd(stacked.double(), full_matrices=False)[2][:DIMENSIONS].T.float()
        # The sign of a principal direction is arbitrary; fix it so that every machine gets the same space.
        basis = basis * torch.sign(basis[basis.abs().argmax(0), torch.arange(basis.shape[1])])
        width = rows.shape[1]
        self.joint = Joint(
            look=basis[:width],
            meaning=self.meanings @ basis[width:],
            mean=mean,
            classes=normalize(stacked @ basis, dim=1),
            _rows=stacked,
            _basis=basis,
        )
        kernel = self._kernel(keys)
        self._dual = torch.linalg.solve(kernel + RIDGE * torch.eye(len(keys)), self.looks)

    def _ancestor_rows(self, keys: list[str]) -> Tensor:
        rows = torch.zeros(len(keys), len(self.ancestors))
        for i, key in enumerate(keys):
            known = [self.ancestor_index[a] for a in wordnet.ancestors(key) if a in self.ancestor_index]
            rows[i, known] = self.rarity[known]
        return normalize(rows, dim=1)

    def _teacher_rows(self, keys: list[str]) -> Tensor:
        return normalize(torch.stack([self.embeddings[key] for key in keys]) - self.teacher_mean, dim=1)

    def _raw_meanings(self, keys: list[str]) -> Tensor:
        return torch.cat(
            [ANCESTOR_WEIGHT**0.5 * self._ancestor_rows(keys), TEACHER_WEIGHT**0.5 * self._teacher_rows(keys)], 1
        )

    def _kernel(self, keys: list[str]) -> Tensor:
        teacher = torch.exp(SHARPNESS * (self._teacher_rows(keys) @ self._teacher_rows(self.keys).T - 1))
        ancestors = self._ancestor_rows(keys) @ self._ancestor_rows(self.keys).T
        return TEACHER_SHARE * teacher + (1 - TEACHER_SHARE) * ancestors

    def predicted(self, keys: list[str], chunk: int = 4096) -> Tensor:
        """Rows [look, meaning] of synsets without pictures: the look by kernel ridge regression, their own meaning."""
        parts = []
        for start in range(0, len(keys), chunk):
            some = keys[start : start + chunk]
            look = normalize(self._kernel(some) @ self._dual, dim=1)
            parts.append(torch.cat([look, self._raw_meanings(some) - self.meaning_mean], 1) @ self.joint._basis)
        return torch.cat(parts)

    def grouped(self, keys: list[str]) -> Tensor:
        """Rows of synsets that have classes below them: the mean of those classes."""
        rows = torch.stack([self.joint._rows[self.members[key]].mean(0) for key in keys])
        return rows @ self.joint._basis

    def targets(self, keys: list[str]) -> dict[str, Tensor]:
        """The unit vector in the joint space of every synset."""
        above = [key for key in keys if key in self.members]
        others = [key for key in keys if key not in self.members]
        found = dict(zip(above, normalize(self.grouped(above), dim=1))) if above else {}
        if others:
            found |= dict(zip(others, normalize(self.predicted(others), dim=1)))
        return found


def load_rows() -> tuple[Tensor, Tensor, Tensor]:
    """Classifier rows (1000, 1280), their biases, and the mean features of the image tower."""
    from deltaenergy.models.lite.network import load_network

    network = load_network()
    norm = network._bn1
    return network._fc.weight.data, network._fc.bias.data, mean_features(norm.weight.data.abs(), norm.bias.data)


def embeddings_by_key(keys: list[str], rows: np.ndarray) -> dict[str, Tensor]:
    """Rows as tensors, by synset."""
    return dict(zip(keys, torch.from_numpy(rows)))
