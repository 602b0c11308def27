"""Few-shot samples: labelled images per class, balanced over classes and domains, reproducible by seed."""

from __future__ import annotations

import warnings
import zlib
from collections import defaultdict
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from deltaenergy.core.classes import class_indices
from deltaenergy.data.items import ImageItem
from deltaenergy.errors import InputError
from deltaenergy.files import hash_strings


@dataclass(frozen=True)
class FewShot:
    """The images that were drawn: `items[i]` is of class `labels[i]`."""

    classes: tuple[str, ...]
    items: list[ImageItem]
    labels: list[int]
    shots: int
    seed: int

    @property
    def hash(self) -> str:
        """Identity of the sample: which images, in which order, under which class."""
        return hash_strings(f"{label} {item.id}" for item, label in zip(self.items, self.labels))

    def record(self) -> dict[str, Any]:
        """The sample as JSON values, to repeat and check it."""
        return {
            "shots": self.shots,
            "seed": self.seed,
            "hash": self.hash,
            "images": [
                {"id": item.id, "class": self.classes[label], **({"domain": item.domain} if item.domain else {})}
                for item, label in zip(self.items, self.labels)
            ],
        }


def sample_few_shots(
    items: Sequence[ImageItem], classes: Sequence[str], shots: int, seed: int, *, skip: Container[str] = ()
) -> FewShot:
    """Draw `shots` images per class, spread evenly over the class's domains.

    Each class and domain has its own generator, so more classes do not change the draw. If domains do not divide the
    shots, the remainder goes to other domains from class to class; if a domain has too few images, the others fill up.
    A class with fewer images than shots uses all, with a warning. Images whose id is in `skip` are skipped, and the
    next in order replace them.
    """
    if shots < 1:
        raise InputError(f"shots must be at least 1, got {shots}.")
    pools: dict[int, dict[str, list[ImageItem]]] = defaultdict(lambda: defaultdict(list))
    for item, label in zip(items, class_indices(items, classes, "Training images")):
        pools[label][item.domain or ""].append(item)
    missing = [name for k, name in enumerate(classes) if k not in pools]
    if missing:
        raise InputError(f"There is no training image of {_listed(missing)}. Add some, or remove the class.")
    chosen: list[ImageItem] = []
    labels: list[int] = []
    short: list[str] = []
    for k, name in enumerate(classes):
        drawn = _draw(pools[k], shots, seed, k, name, skip)
        if not drawn:
            raise InputError(f"No training image of {name!r} could be read. Add some, or remove the class.")
        if len(drawn) < shots:
            short.append(f"{name!r} ({len(drawn)})")
        chosen += drawn
        labels += [k] * len(drawn)
    if short:
        warnings.warn(
            f"Fewer than {shots} training images, so all of them are used: {', '.join(short[:10])}"
            f"{f' and {len(short) - 10} more classes' if len(short) > 10 else ''}. Results depend on the classes' "
            "sizes; add images, or use fewer shots.",
            stacklevel=3,
        )
    return FewShot(tuple(classes), chosen, labels, shots, seed)


def _draw(
    pool: dict[str, list[ImageItem]], shots: int, seed: int, position: int, name: str, skip: Container[str]
) -> list[ImageItem]:
    """Up to `shots` images of one class, in turn from each of its domains."""
    domains = sorted(pool)
    queues = []
    for domain in domains:
        rng = np.random.default_rng([seed, zlib.crc32(name.encode()), zlib.crc32(domain.encode())])
        ordered = sorted(pool[domain], key=lambda item: item.id)
        permuted = [ordered[i] for i in rng.permutation(len(ordered))]
        queues.append([item for item in permuted if item.id not in skip])
    drawn: list[ImageItem] = []
    turn = position  # another domain starts in every class, so the remainder spreads over the domains
    while len(drawn) < shots and any(queues):
        queue = queues[turn % len(queues)]
        if queue:
            drawn.append(queue.pop(0))
        turn += 1
    return drawn


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:10]))
    return shown + (f" and {len(names) - 10} more" if len(names) > 10 else "")
