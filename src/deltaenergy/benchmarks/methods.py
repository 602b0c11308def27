"""What is compared: `score` (zero-shot), `tuner/score`, or `{tuner,…}/{score,…}` for every pair.

msp                           zero-shot with msp
ebm/delta-energy              tuned with ebm, scored with delta-energy
coop(epochs=50)/mcm           parameters in parentheses, on either side
{coop,ebm}/{mcm,delta-energy} four methods
locoop                        a tuner alone takes the score that its paper tests it with
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from deltaenergy.errors import InputError, did_you_mean
from deltaenergy.scores.registry import list_scores, make_score

ZERO_SHOT = "zero-shot"


@dataclass(frozen=True)
class Method:
    """A tuner (None = zero-shot) and a score, each in its shortest spelling."""

    tuner: str | None
    score: str

    @property
    def label(self) -> str:
        """`score` or `tuner/score`: what a result is called."""
        return self.score if self.tuner is None else f"{self.tuner}/{self.score}"


def parse_methods(texts: Sequence[str]) -> list[Method]:
    """Methods from the command line or a benchmark's own list, without doubles, in the given order."""
    found: dict[Method, None] = {}
    for text in texts:
        for part in _split(text):
            found.update(dict.fromkeys(_expand(part)))
    if not found:
        raise InputError("--methods is empty. Write for example --methods msp,delta-energy,ebm/delta-energy.")
    return list(found)


def _expand(text: str) -> list[Method]:
    left, slash, right = text.partition("/")
    if not slash:
        return [_single(text)]
    tuners, scores = _alternatives(left), _alternatives(right)
    if not tuners or not scores:
        raise InputError(f"method {text!r} is not of the form score, tuner/score or {{tuner,…}}/{{score,…}}.")
    return [Method(_tuner(tuner), make_score(score).spec) for tuner, score in itertools.product(tuners, scores)]


def _single(text: str) -> Method:
    name = re.split(r"[:(]", text)[0].strip()
    if name in list_scores():
        return Method(None, make_score(text).spec)
    tuners = _tuner_names()
    if name.split("+")[0] in tuners:
        return Method(_tuner(text), default_score(text))
    hint = did_you_mean(name, [*list_scores(), *tuners])
    raise InputError(f"Unknown method {text!r}: neither a score nor a tuner.{hint}")


def _alternatives(text: str) -> list[str]:
    text = text.strip()
    if text.startswith("{") and text.endswith("}"):
        return _split(text[1:-1])
    return [text] if text else []


def _split(text: str) -> list[str]:
    """The parts between commas; commas inside (…) or {…} belong to what stands there."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "({") - (letter in ")}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def _tuner(text: str) -> str | None:
    """The shortest spelling of a tuner, or None for zero-shot."""
    from deltaenergy.classifiers.methods import make_method

    return None if text == ZERO_SHOT else make_method(text).spec


def _tuner_names() -> list[str]:
    from deltaenergy.classifiers.methods import list_methods

    return list_methods()


def default_score(tuner: str) -> str:
    """The score with which the paper tests a tuner."""
    from deltaenergy.classifiers.methods import make_method

    return make_method(tuner).usual_score
