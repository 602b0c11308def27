"""Contract checks that other packages can run on their own scores, as this package runs them on every one of its own.

from deltaenergy.testing import SCORE_CHECKS, check_score, tiny_model

check_score("my-score(tau=2)")                        # all of them; the first that fails raises AssertionError

@pytest.mark.parametrize("check", SCORE_CHECKS, ids=lambda check: check.__name__)
def test_my_score(check):
check(MyScore())
"""

from deltaenergy.testing.models import tiny_model
from deltaenergy.testing.scores import SCORE_CHECKS, check_score

__all__ = ["SCORE_CHECKS", "check_score", "tiny_model"]
