"""Contract checks that other packages can run on their own scores and methods, as this package does on its own.

from deltaenergy.testing import METHOD_CHECKS, SCORE_CHECKS, check_method, check_score, tiny_model

check_score("my-score(tau=2)")                        # all checks; the first that fails raises AssertionError
check_method("my-method")

@pytest.mark.parametrize("check", SCORE_CHECKS, ids=lambda check: check.__name__)
def test_my_score(check):
check(MyScore())
"""

from deltaenergy.testing.methods import METHOD_CHECKS, check_method
from deltaenergy.testing.samples import tiny_model
from deltaenergy.testing.scores import SCORE_CHECKS, check_score

__all__ = ["METHOD_CHECKS", "SCORE_CHECKS", "check_method", "check_score", "tiny_model"]
