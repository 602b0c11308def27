"""CoOp: learn the words around the class names (Zhou et al., Learning to Prompt for Vision-Language Models, IJCV 2022).

L = CE(L · z·t_k(v), y),   v the learned context
"""

from __future__ import annotations

from dataclasses import dataclass

from deltaenergy.classifiers.methods import register_method
from deltaenergy.classifiers.prompt import PromptMethod


@register_method
@dataclass(frozen=True)
class CoOp(PromptMethod):
    """A shared context of 16 vectors before the names, trained by cross-entropy."""

    name = "coop"
    summary = "a learned context before the class names"
    formula = "CE(L·z·t_k(v), y)"
    paper = "Zhou et al., IJCV 2022"
