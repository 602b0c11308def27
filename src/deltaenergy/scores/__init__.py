"""Scores turn similarities into one number per image, larger = more in-distribution.

Pure functions first (`deltaenergy.scores.delta_energy(similarities)`: tensors or NumPy arrays in, the same out);
a thin `Score` class for each, in a registry that knows its needs, defaults, formula and paper.
"""

from deltaenergy.needs import Need
from deltaenergy.scores.base import Score, ScoreInputs
from deltaenergy.scores.clipn import clipn
from deltaenergy.scores.delta_energy import delta_energy
from deltaenergy.scores.gl_mcm import local_mcm
from deltaenergy.scores.logits import energy, entropy, max_logit, mcm, msp
from deltaenergy.scores.multi_delta_energy import multi_delta_energy
from deltaenergy.scores.neglabel import neglabel
from deltaenergy.scores.registry import get_score_class, list_scores, make_score, register_score

__all__ = [
    "Need",
    "Score",
    "ScoreInputs",
    "clipn",
    "delta_energy",
    "energy",
    "entropy",
    "get_score_class",
    "list_scores",
    "local_mcm",
    "make_score",
    "max_logit",
    "mcm",
    "msp",
    "multi_delta_energy",
    "neglabel",
    "register_score",
]
