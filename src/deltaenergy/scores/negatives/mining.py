"""Negative mining: keep the candidate words that are farthest from all classes (Jiang et al., NegLabel, ICLR 2024).

    d_w = q-quantile over the classes k of cos(w, t_k);   keep the share `keep` of the words with the lowest d_w,
                                                          nouns and adjectives apart
CSP (Chen et al., NeurIPS 2024) joins each adjective to a random superclass word ("fluffy object"), averages several
templates, and moves words with max_k cos(w, t_k) above 0.95 to the end. Everything random comes from one seed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from deltaenergy.core.classes import Templates, fill
from deltaenergy.core.progress import Progress
from deltaenergy.core.specs import Settings
from deltaenergy.files import hash_strings
from deltaenergy.files.cache import cache_folder, load_cached, store_cached
from deltaenergy.scores.negatives.pools import NEGLABEL_EXCLUDED, Pool, encode_candidates, read_words, wordnet_pool

if TYPE_CHECKING:
    from deltaenergy.models.base import Model

# Cosines of a block of candidates with all classes: 4 MB of float32.
BLOCK_ENTRIES = 1_048_576


@dataclass(frozen=True)
class MiningSettings:
    """How candidates become negatives.

    Attributes:
        noun_templates: prompts of a noun; several are averaged before normalising.
        adjective_templates: prompts of an adjective.
        superclasses: nouns of which one, chosen at random, follows each adjective.
        quantile: q of the formula above.
        keep: share of candidates to keep.
        too_close: words with a larger cosine to any class are used last; 1 turns this off.
        seed: of the superclass choice and of the final order.
    """

    noun_templates: tuple[str, ...] = ("the nice {}",)
    adjective_templates: tuple[str, ...] = ("This is a {} photo",)
    superclasses: tuple[str, ...] = ()
    quantile: float = 0.95
    keep: float = 0.15
    too_close: float = 1.0
    seed: int = 0


@dataclass(frozen=True)
class WordPool(Settings):
    """Shared settings of scores over words.

    Words are WordNet's nouns and adjectives without the lexicographer files in `exclude`, or those of the text file
    `words`, one per line. Templates are separated by `|`.
    """

    words: str = ""
    exclude: str = " ".join(NEGLABEL_EXCLUDED)
    noun_templates: Templates = "the nice {}"
    adjective_templates: Templates = "This is a {} photo"

    @property
    def pool(self) -> Pool:
        return read_words(self.words) if self.words else wordnet_pool(self.exclude.split())

    @property
    def mining(self) -> MiningSettings:
        return MiningSettings(tuple(self.noun_templates.split("|")), tuple(self.adjective_templates.split("|")))

    @property
    def prompts(self) -> int:
        """How many prompts are encoded."""
        pool, mining = self.pool, self.mining
        return len(pool.nouns) * len(mining.noun_templates) + len(pool.adjectives) * len(mining.adjective_templates)

    def encode_words(self, model: Model, progress: Progress | None = None) -> torch.Tensor:
        """Unit features (M, D) of all words, nouns first; cached on disk."""
        return encode_candidates(model, prompts_of(self.pool, self.mining), progress=progress)


@dataclass(frozen=True)
class Negatives:
    """Mined words in random order (fixed by the seed), their unit features (M, D), and their texts."""

    words: tuple[str, ...]
    features: torch.Tensor
    phrases: tuple[str, ...] = ()


def mine(
    model: Model,
    class_features: torch.Tensor,
    pool: Pool,
    settings: MiningSettings | None = None,
    *,
    without: Collection[str] = (),
    cache: bool = True,
    progress: Progress | None = None,
) -> Negatives:
    """The negatives of `pool` for classes with unit text features (K, D), none of which is a word of `without`.

    Deterministic. The result is cached on disk by model, pool, settings and class features; candidate features, which
    take longest, by model and prompts, so mining for another class list takes seconds.
    """
    settings = settings or MiningSettings()
    words = pool.words
    path = _cache_path(model, class_features, pool, settings, without)
    mined = load_cached(path) if cache else None
    if mined is None:
        candidates = encode_candidates(model, prompts_of(pool, settings), progress=progress, resume=cache)
        rest = torch.tensor([i for i, word in enumerate(words) if word not in without], dtype=torch.int64)
        nouns = int((rest < len(pool.nouns)).sum())
        index = rest[select(candidates[rest].to(class_features), class_features, nouns, settings)]
        mined = {"index": index, "features": candidates[index]}
        if cache:
            store_cached(path, mined)
    kept, texts = mined["index"].tolist(), phrases(pool, settings)
    return Negatives(
        words=tuple(words[i] for i in kept),
        features=mined["features"].to(model.device),
        phrases=tuple(texts[i] for i in kept),
    )


def phrases(pool: Pool, settings: MiningSettings) -> list[str]:
    """The text of every candidate for the templates, nouns first: an adjective may be followed by a superclass."""
    chosen = random.Random(settings.seed)
    adjectives = [
        f"{adjective} {chosen.choice(settings.superclasses)}" if settings.superclasses else adjective
        for adjective in pool.adjectives
    ]
    return [*pool.nouns, *adjectives]


def prompts_of(pool: Pool, settings: MiningSettings) -> list[list[str]]:
    """The prompts of every candidate, nouns first."""
    texts, nouns = phrases(pool, settings), len(pool.nouns)
    return [[fill(template, noun) for template in settings.noun_templates] for noun in texts[:nouns]] + [
        [fill(template, adjective) for template in settings.adjective_templates] for adjective in texts[nouns:]
    ]


def select(
    candidates: torch.Tensor, class_features: torch.Tensor, nouns: int, settings: MiningSettings
) -> torch.Tensor:
    """Indices of the kept candidates, permuted; the first `nouns` rows of `candidates` are nouns."""
    distance, nearest = class_similarity(candidates, class_features, settings.quantile)
    if settings.too_close < 1:
        distance = distance.where(nearest <= settings.too_close, torch.inf)
    kept = torch.cat(
        [lowest(distance[:nouns], settings.keep), nouns + lowest(distance[nouns:], settings.keep)],
    ).cpu()
    generator = torch.Generator().manual_seed(settings.seed)
    return kept[torch.randperm(len(kept), generator=generator)]


def class_similarity(
    candidates: torch.Tensor, class_features: torch.Tensor, quantile: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """For each candidate the quantile (linear interpolation) and the maximum of its cosines with the classes."""
    position = quantile * (len(class_features) - 1)
    below, fraction = math.floor(position), position - math.floor(position)
    quantiles, maxima = [candidates.new_zeros(0)], [candidates.new_zeros(0)]
    for block in torch.split(candidates, max(1, BLOCK_ENTRIES // len(class_features))):
        # The top of the order down to the one below the quantile: far less than a full sort for high quantiles.
        top = (block @ class_features.T).topk(len(class_features) - below, dim=1).values
        above = top[:, -2] if fraction else top[:, -1]
        quantiles.append(torch.lerp(top[:, -1], above, fraction))
        maxima.append(top[:, 0])
    return torch.cat(quantiles), torch.cat(maxima)


def lowest(values: torch.Tensor, share: float) -> torch.Tensor:
    """Indices of the lowest ⌊share · n⌋ values, at least one of a list that is not empty; ties in list order."""
    # The product is rounded first: 0.29 · 100 is 28.999999999999996 in floating point.
    count = min(len(values), max(1, math.floor(round(share * len(values), 9))))
    return values.argsort(stable=True)[:count]


def class_prompt_features(model: Model, classes: Sequence[str], templates: Sequence[str]) -> torch.Tensor:
    """Class features as CSP makes them: un-normalised vectors averaged over the templates, then normalised."""
    texts = [[fill(template, name) for template in templates] for name in classes]
    return encode_candidates(model, texts).to(model.device)


def _cache_path(
    model: Model, class_features: torch.Tensor, pool: Pool, settings: MiningSettings, without: Collection[str]
) -> Path:
    classes = hashlib.sha256(class_features.detach().float().cpu().contiguous().numpy().tobytes()).hexdigest()
    values = [f"{name}={value!r}" for name, value in dataclasses.asdict(settings).items()]
    words = [str(len(pool.nouns)), *pool.words, *(f"without {word}" for word in sorted(without))]
    key = hash_strings([model.fingerprint, str(model.dtype), classes, *values, *words])
    return cache_folder() / "negatives" / f"{key}.safetensors"
