"""`deltaenergy theory` end to end."""

from __future__ import annotations

from pathlib import Path

import deltaenergy as de
from deltaenergy import Model
from tests.cli.runner import Runner
from tests.labelled_pictures import CLASSES, write_pictures
from tests.report.checks import check_page


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
    assert "closer together" in done.out and done.out.count("Figure 1 ") == 5
    page = (tmp_path / "theory.html").read_text()
    assert "<svg" in page and "bound broken" in page and "coop+ebm" in page and "http://" not in page
    check_page(page)
    assert all(f"Figure 1{part}" in page for part in (": does it hold", "A: ΔEnergy", "B: masking known images"))
    found = command("theory", tmp_path / "ebm", *options, "--json").json
    assert found["theorem_4"]["with"]["distance"] > 0 and found["theorem_4"]["without"]["distance"] > 0
    assert len(found["figure_1"]["claims"]) == 5 and found["figure_1"]["sets"]["unknown"]["images"] == 6
    for claim in found["figure_1"]["claims"]:
        said = f"Figure 1 {'holds' if claim['holds'] else 'does not hold'}: {claim['claim']}. {claim['found']}"
        assert said in " ".join(done.out.split())
    wrong = command("theory", tmp_path / "emb", "--id", pictures)
    assert wrong.code == 2 and "not a folder" in wrong.err


def test_figure_1_needs_unknown_images_and_pixels(command: Runner, tiny_clip: Model, tmp_path: Path) -> None:
    pictures = write_pictures(tmp_path / "train")
    de.Detector(de.ZeroShotClassifier(tiny_clip, CLASSES)).calibrate(pictures).save(tmp_path / "detector")
    done = command("theory", tmp_path / "detector", "--id", pictures)
    assert done.code == 0 and "Figure 1: Not checked" in done.out
    de.build_store(tiny_clip, pictures / "cat", tmp_path / "store")
    found = command("theory", tmp_path / "detector", "--id", pictures, "--open", tmp_path / "store", "--json").json
    assert found["figure_1"] is None and found["theorem_1"]["with_open_set"]
    wrong = command("theory", tmp_path / "nowhere", "--id", pictures, "--method", "grad-cm")
    assert wrong.code == 2 and "grad-cam" in wrong.err
