"""Scores turn similarities into one number per image, larger = more in-distribution.

Pure functions first (`deltaenergy.scores.delta_energy(similarities)`: tensors or NumPy arrays in, the same out);
a thin `Score` class for each, in a registry that knows its needs, defaults, formula and paper. A score has only
settings; bound to a classifier it is a `Scorer`, which has what was learned.
"""

from deltaenergy.core.needs import Need
from deltaenergy.scores.arrays import array_function
from deltaenergy.scores.base import Score, ScoreInputs, Scorer
from deltaenergy.scores.clipn import clipn
from deltaenergy.scores.delta_energy import delta_energy
from deltaenergy.scores.delta_energy_words import delta_energy_words
from deltaenergy.scores.energy import energy
from deltaenergy.scores.entropy import entropy
from deltaenergy.scores.gen import gen
from deltaenergy.scores.gl_mcm import local_mcm
from deltaenergy.scores.knn import knn
from deltaenergy.scores.logit_gap import logit_gap
from deltaenergy.scores.lsn import lsn
from deltaenergy.scores.mahalanobis import mahalanobis
from deltaenergy.scores.max_logit import max_logit
from deltaenergy.scores.mcm import mcm
from deltaenergy.scores.msp import msp
from deltaenergy.scores.multi_delta_energy import multi_delta_energy
from deltaenergy.scores.neglabel import neglabel
from deltaenergy.scores.odin import odin
from deltaenergy.scores.react import react
from deltaenergy.scores.registry import get_score_class, list_scores, make_score, register_score

__all__ = [
    "Need",
    "Score",
    "ScoreInputs",
    "Scorer",
    "array_function",
    "clipn",
    "delta_energy",
    "delta_energy_words",
    "energy",
    "entropy",
    "gen",
    "get_score_class",
    "knn",
    "list_scores",
    "local_mcm",
    "logit_gap",
    "lsn",
    "mahalanobis",
    "make_score",
    "max_logit",
    "mcm",
    "msp",
    "multi_delta_energy",
    "neglabel",
    "odin",
    "react",
    "register_score",
]
