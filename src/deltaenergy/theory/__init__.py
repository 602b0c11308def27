"""The ΔEnergy paper's theorems, checked on a trained model and real images: what holds, and which assumption fails."""

from deltaenergy.theory.check import TheoryReport, check_theory

__all__ = ["TheoryReport", "check_theory"]
