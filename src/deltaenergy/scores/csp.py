"""CSP: NegLabel's score on a conjugated semantic pool (Chen et al., NeurIPS 2024).

The pool excludes people, quantities, groups and pertainyms, and turns each adjective into a superclass with a property
("fluffy object"), which an image can show. Prompts are averaged over several templates before normalising; words closer
than 0.95 to a class are taken last. `csp+delta-energy` is ΔE(x; Y_in) − ΔE(x; Y_neg) on this pool (ΔEnergy, NeurIPS
2025).

As in `neglabel`, the classes' similarities are the classifier's. The paper also averages its noun templates for
classes: for its exact form build the classifier with `templates=NOUN_TEMPLATES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from deltaenergy.core.classes import Templates
from deltaenergy.core.specs import PositiveShare
from deltaenergy.scores.negatives.pools import CSP_EXCLUDED
from deltaenergy.scores.neglabel import MinedScore, NegLabel, NegLabelDeltaEnergy
from deltaenergy.scores.registry import register_score

NOUN_TEMPLATES = (
    "a close-up photo of the nice {}.",
    "a photo with the nice {}.",
    "a good photo with the nice {}.",
    "a photo of the nice {}.",
    "{}",
    "the {}",
    "the good {}",
    "the nice {}",
)
ADJECTIVE_TEMPLATES = ("{}", "a nice photo of {}", "a good photo of {}", "a close-up photo of {}")
_NOUNS, _ADJECTIVES = "|".join(NOUN_TEMPLATES), "|".join(ADJECTIVE_TEMPLATES)
SUPERCLASSES = "environment space object scene place item area view thing pattern structure landscape vista creature"


@dataclass(frozen=True)
class CspPool(MinedScore):
    """The defaults of CSP's pool."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}  # neglabel's has another pool
    exclude: str = " ".join(CSP_EXCLUDED)
    noun_templates: Templates = _NOUNS
    adjective_templates: Templates = _ADJECTIVES
    class_templates: Templates | Literal[""] = _NOUNS
    superclasses: str = SUPERCLASSES
    too_close: PositiveShare = 0.95


@register_score
@dataclass(frozen=True)
class Csp(CspPool, NegLabel):
    """`neglabel` on CSP's pool."""

    name = "csp"
    summary = "neglabel's score on a pool of nouns and of superclasses with a property"
    formula = "mean_g σ(lse(s/T) − lse(s_g/T)) over G groups of mined negatives"
    paper = "Chen et al., NeurIPS 2024"


@register_score
@dataclass(frozen=True)
class CspDeltaEnergy(CspPool, NegLabelDeltaEnergy):
    """ΔEnergy over the classes minus ΔEnergy over all of CSP's negatives."""

    name = "csp+delta-energy"
    summary = "ΔEnergy over the classes minus ΔEnergy over csp's negatives"
    formula = "ΔE(x; Y_in) − ΔE(x; Y_neg)"
    paper = "ΔEnergy, NeurIPS 2025, with the pool of Chen et al., NeurIPS 2024"
