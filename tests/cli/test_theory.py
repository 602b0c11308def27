"""`deltaenergy theory` end to end."""

from __future__ import annotations

from pathlib import Path

import deltaenergy as de
from deltaenergy import Model
from tests.cli.runner import Runner
from tests.labelled_pictures import CLASSES, write_pictures


def test_the_command(command: Runner, tiny_clip: Model, tmp_path: Path) -> None:
    pictures = write_pictures(tmp_path / "train")
    for method in ("coop", "ebm"):
        tuned = de.tune(tiny_clip, CLASSES, pictures, method, shots=3, views=1, recipe={"epochs": 3})
        de.Detector(tuned, "delta-energy").calibrate(pictures).save(tmp_path / method)
    options = ["--id", pictures, "--against", tmp_path / "coop", "--open", pictures / "cat"]
    done = command("theory", tmp_path / "ebm", *options, "--report", tmp_path / "theory.html")
    assert done.code == 0, done.err
    for name in ("Theorem 1", "Theorem 2", "Theorem 3", "Theorem 4"):
        assert name in done.out
    assert "closer together" in done.out
    page = (tmp_path / "theory.html").read_text()
    assert "<svg" in page and "bound broken" in page and "coop+ebm" in page and "http://" not in page
    found = command("theory", tmp_path / "ebm", *options, "--json").json
    assert found["theorem_4"]["with"]["distance"] > 0 and found["theorem_4"]["without"]["distance"] > 0
    wrong = command("theory", tmp_path / "emb", "--id", pictures)
    assert wrong.code == 2 and "not a folder" in wrong.err
