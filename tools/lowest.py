"""Print the lowest versions that pyproject.toml allows, one requirement per line, for `make test-lowest`.

    python tools/lowest.py demo serve       # of the package itself and of these extras

torch is left out: tests always run on the version in constraints.txt.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

PROJECT = tomllib.loads((Path(__file__).resolve().parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def lowest(*extras: str) -> list[str]:
    """`numpy>=1.26` -> `numpy==1.26`, of the dependencies and of extras."""
    wanted = list(PROJECT["dependencies"])
    for extra in extras:
        wanted += PROJECT["optional-dependencies"][extra]
    return [requirement.replace(">=", "==") for requirement in wanted if not requirement.startswith("torch>")]


if __name__ == "__main__":
    print("\n".join(lowest(*sys.argv[1:])))
