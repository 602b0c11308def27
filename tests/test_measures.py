"""The package may get smaller and clearer; it must not grow again unnoticed: counts of tools/measure.py only fall."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from tools import measure

TEXT = '''"""A module."""

from x import y  # why


class Detector:
    """One."""

    def __init__(self):
        """Nothing
        is known."""
        self.threshold = None

    def _check_that(self, a, b, c, d, e, f, g, h, *, i):
        return """not a
docstring"""


def predict(images: list[str] | Any):
    # a comment
    return is_store(images) or isinstance(images, str | Store)


def requires(images: object, detector):
    detector.keep = 1


class _Hidden: ...
'''


def test_counts_worked_by_hand(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(TEXT)
    (tmp_path / "two.py").write_text(
        "class Detector: ...\n\n\nclass _Hidden: ...\n\nanswer.threshold = self.keep = 2\n"
    )
    (tmp_path / "cli" / "commands").mkdir(parents=True)
    (tmp_path / "cli" / "commands" / "three.py").write_text("class Options: ...\n")
    (tmp_path / "four.py").write_text("class Options: ...\n")
    assert measure.measure_sources(tmp_path) == {
        "code lines": 12 + 3 + 1 + 1,
        "lines": 28 + 6 + 1 + 1,
        "files": 4,
        "check, require and validate functions": 2,
        "public class names that exist twice": 1,
        "functions with more than 8 parameters": 1,
        "signatures with images: Any or object": 2,
        "questions about the kind of images": 2,
        "files that write detector state": 1,
    }


@pytest.fixture(scope="module")
def now() -> measure.Measures:
    return measure.measure()


@pytest.mark.parametrize("name", measure.read_record()["counts"])
def test_counts_only_fall(now: measure.Measures, name: str) -> None:
    most = measure.read_record()["counts"][name]
    assert now[name] <= most, (
        f"{name}: {now[name]:,}, recorded {most:,}. Make it smaller, or say in the commit why not."
    )
    if now[name] < most:
        warnings.warn(f"{name} fell to {now[name]:,}: record it with `python tools/measure.py --write`.", stacklevel=1)


@pytest.mark.campaign
def test_walks_only_get_shorter() -> None:
    now, most = measure.measure_walks(), measure.read_record()["walks"]
    longer = {
        name: (walk, most[name]) for name, walk in now.items() if any(walk[key] > most[name][key] for key in walk)
    }
    assert not longer
