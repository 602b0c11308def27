"""The ΔEnergy paper on a trained model and real images: its theorems and its Figure 1, what holds and what fails."""

from deltaenergy.theory.check import TheoryReport, check_paper, check_theory
from deltaenergy.theory.figure1 import Figure1

__all__ = ["Figure1", "TheoryReport", "check_paper", "check_theory"]
