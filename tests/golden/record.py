"""Record golden outputs: `OMP_NUM_THREADS=1 python -m tests.golden.record [SECTION …]`.

Do it when a number is meant to move, and name the number and the reason in the commit.
"""

from __future__ import annotations

import os
import sys

import pytest

if __name__ == "__main__":
    os.environ["DELTAENERGY_RECORD_GOLDENS"] = "1"
    chosen = " or ".join(sys.argv[1:])
    arguments = ["-q", "-m", "", "tests/golden/test_golden.py"]
    sys.exit(pytest.main([*arguments, *(["-k", chosen] if chosen else [])]))
