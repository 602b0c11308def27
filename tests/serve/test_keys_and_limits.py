"""Keys come from a file and only their hashes stay; limits make sense, or are refused by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")

import deltaenergy as de
from deltaenergy.errors import InputError
from deltaenergy.serve.guard import Keys
from deltaenergy.serve.server import Limits, listen, make_engine, named
from tests.colours import ColourModel

KEY = "0123456789abcdef"


def test_keys_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"# ours\n{KEY}\n\n  another-key-of-length \n")
    keys = Keys.read(path)
    assert keys.accepts(KEY) and keys.accepts("another-key-of-length")
    assert (
        not keys.accepts("")
        and not keys.accepts(KEY[:-1])
        and not keys.accepts("# ours")
        and not keys.accepts("\ud800")
    )
    assert KEY not in repr(vars(keys))


@pytest.mark.parametrize(
    ("text", "said"), [("", "contains no key"), ("short\n", "key 1 must have 16"), ("ä" * 20, "ASCII")]
)
def test_files_that_hold_none(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "keys"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=said):
        Keys.read(path)
    with pytest.raises(InputError, match="cannot be read"):
        Keys.read(tmp_path / "absent")
    path.write_bytes(b"\xff\xfe" * 20)
    with pytest.raises(InputError, match="not a text file"):
        Keys.read(path)


@pytest.mark.parametrize(
    "wrong", [{"seconds": 0}, {"body_mb": float("nan")}, {"files": -1}, {"queue": 3, "files": 4}, {"files": 1001}]
)
def test_limits(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        Limits(**wrong)  # type: ignore[arg-type]


def test_names_of_detectors(tmp_path: Path) -> None:
    assert named("photos=some/folder") == ("photos", "some/folder")
    assert named(str(tmp_path / "mine")) == ("mine", str(tmp_path / "mine"))
    assert named("a/b=c") == ("b=c", "a/b=c")
    with pytest.raises(InputError, match="printable"):
        named("\n=x")


def test_a_port_that_is_taken_is_told_before_anything_is_loaded() -> None:
    with listen("127.0.0.1", 0) as first:
        first.listen()
        with pytest.raises(InputError, match="Try another `port`"):
            listen("127.0.0.1", first.getsockname()[1])


def test_a_detector_that_judges_images_by_their_neighbours_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    classifier = de.ZeroShotClassifier(ColourModel(), ["red", "green"])
    detector = de.Detector(classifier, "mcm").calibrate(np.eye(3, dtype=np.float32)[[0, 1, 0]], confidence=None)
    assert make_engine([("mine", detector)], None).detectors
    monkeypatch.setattr(type(classifier), "batch_dependent", True)
    with pytest.raises(InputError, match=r"'mine'.*batch-dependent"):
        make_engine([("mine", detector)], None)
