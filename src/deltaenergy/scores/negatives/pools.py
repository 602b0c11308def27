"""Candidate words for negative labels, pools of WordNet 3.0 by lexicographer file or a user's list; their features.

A pool is a rule over WordNet's lexicographer files. Each file's list has the first word of every synset, in lower case
(made by `training/wordnet/make_pools.py`). The files of a pool are read in the order of their names and a word counts
where it is met first, so one that is both an adjective and a noun counts as an adjective.

            nouns               adjectives          published
NegLabel    56,788              14,006              56,909 and 13,091
CSP         46,446              11,047              46,560 and 10,060

The published counts do not follow from a rule. The lists released with CSP, which continues NegLabel, follow the rule
above but come from a later WordNet: noun.shape equals WordNet 3.1's ("lemniscate" is not in 3.0). And their adj.all
lacks about a thousand words, and some have a stray bracket ("[unthinkable"), as if the bracketed clusters of the source
had not been read fully. That leaves fewer adjectives, and more nouns where a word is both. WordNet 3.1 by the rule
above gives 56,838 and 14,021 for NegLabel.
"""

from __future__ import annotations

import functools
import gzip
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import torch

from deltaenergy.core.classes import names_in_file
from deltaenergy.core.progress import Progress, part_of
from deltaenergy.errors import InputError, did_you_mean
from deltaenergy.files import hash_strings
from deltaenergy.files.cache import cache_folder, load_cached, store_cached
from deltaenergy.models.base import Model, require_text

NEGLABEL_EXCLUDED = ("noun.animal", "noun.food")
CSP_EXCLUDED = ("noun.animal", "noun.food", "noun.person", "noun.quantity", "noun.group", "adj.pert")
# A chunk takes a CLIP text tower about half a minute on a laptop, so an interruption costs little.
PROMPTS_PER_CHUNK = 8192


@dataclass(frozen=True)
class Pool:
    """Candidate words; nouns and adjectives are prompted and selected separately."""

    nouns: tuple[str, ...]
    adjectives: tuple[str, ...] = ()

    @property
    def words(self) -> tuple[str, ...]:
        return self.nouns + self.adjectives


@functools.cache
def lexicographer_lists() -> dict[str, tuple[str, ...]]:
    """WordNet's nouns and adjectives by lexicographer file, each list sorted."""
    packed = resources.files("deltaenergy.scores.negatives").joinpath("data/wordnet-3.0.txt.gz").read_bytes()
    lists: dict[str, list[str]] = {}
    for line in gzip.decompress(packed).decode("utf-8").splitlines():
        if line.startswith("# "):
            lists[line[2:]] = words = []
        else:
            words.append(line)
    return {name: tuple(words) for name, words in lists.items()}


def wordnet_pool(exclude: Iterable[str] = NEGLABEL_EXCLUDED) -> Pool:
    """All of WordNet's nouns and adjectives but those of the lexicographer files in `exclude`."""
    lists = lexicographer_lists()
    excluded = set(exclude)
    for name in excluded - set(lists):
        raise InputError(f"exclude: WordNet has no lexicographer file {name!r}.{did_you_mean(name, lists)}")
    first_met: dict[str, str] = {}
    for name in sorted(set(lists) - excluded):
        for word in lists[name]:
            first_met.setdefault(word, name)
    return Pool(
        nouns=tuple(word for word, name in first_met.items() if name.startswith("noun.")),
        adjectives=tuple(word for word, name in first_met.items() if name.startswith("adj.")),
    )


def read_words(path: str | Path) -> Pool:
    """A user's candidates from a text file, one per line, as nouns; blank lines and duplicates are skipped."""
    return Pool(nouns=tuple(dict.fromkeys(names_in_file(Path(path).expanduser(), "words"))))


def encode_candidates(
    model: Model, prompts: Sequence[Sequence[str]], *, progress: Progress | None = None, resume: bool = True
) -> torch.Tensor:
    """Unit features (M, D): row i is the direction of the mean of the un-normalised vectors of `prompts[i]`.

    With `resume`, finished chunks are read from the cache folder, and new chunks are written there. A chunk is stored
    under a hash of the model and its prompts, so an interrupted run resumes, and another class list, or another pool
    with the same chunk, need not encode it again.
    """
    total = sum(map(len, prompts))
    done = 0
    features = [torch.zeros(0, model.feature_dim)]
    for chunk in _chunks(prompts):
        path = _chunk_path(model, chunk)
        cached = load_cached(path) if resume else None
        if cached is None:
            encoded = _encode(model, chunk, part_of(progress, done, total))
            if resume:
                store_cached(path, {"features": encoded})
        else:
            encoded = cached["features"]
        features.append(encoded)
        done += sum(map(len, chunk))
        if progress is not None:
            progress(done, total)
    return torch.cat(features)


def _chunks(prompts: Sequence[Sequence[str]]) -> list[list[Sequence[str]]]:
    """Words in runs of at most `PROMPTS_PER_CHUNK` prompts, but at least one word."""
    words = max(1, PROMPTS_PER_CHUNK // max(map(len, prompts), default=1))
    return [list(prompts[start : start + words]) for start in range(0, len(prompts), words)]


def _chunk_path(model: Model, chunk: list[Sequence[str]]) -> Path:
    lengths = [str(len(texts)) for texts in chunk]
    key = hash_strings([model.fingerprint, str(model.dtype), *lengths, *(text for texts in chunk for text in texts)])
    return cache_folder() / "candidates" / f"{key}.safetensors"


def _encode(model: Model, chunk: list[Sequence[str]], progress: Progress | None) -> torch.Tensor:
    tower = require_text(model, "mining negative labels")
    vectors = tower.project([text for texts in chunk for text in texts], progress=progress)
    means = torch.stack([part.mean(dim=0) for part in torch.split(vectors, [len(texts) for texts in chunk])])
    return tower.finish(means).float().cpu()
