"""Side-by-side timing: two peers run in turn, so that a noisy machine is noisy for both; the median ratio counts."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Ratio:
    """Seconds of both sides in each round."""

    ours: list[float]
    peer: list[float]

    @property
    def ours_over_peer(self) -> float:
        """Median over rounds of our time divided by the peer's."""
        return statistics.median(a / b for a, b in zip(self.ours, self.peer))


def seconds(function: Callable[[], Any]) -> float:
    """Wall-clock time of one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def alternate(ours: Callable[[], Any], peer: Callable[[], Any], rounds: int = 7) -> Ratio:
    """Run both in turn, after one unmeasured round each."""
    ours(), peer()
    pairs = [(seconds(ours), seconds(peer)) for _ in range(rounds)]
    return Ratio([a for a, _ in pairs], [b for _, b in pairs])


def report(name: str, ratio: Ratio, kind: str, goal: str) -> None:
    """Print one line: the ratio as a cost (`time`) or as a gain (`speed-up`), and its goal."""
    value = ratio.ours_over_peer if kind == "time" else 1 / ratio.ours_over_peer
    print(
        f"{name}: {value:.2f}× (goal {goal}×; ours {statistics.median(ratio.ours):.3f} s, "
        f"peer {statistics.median(ratio.peer):.3f} s)"
    )
