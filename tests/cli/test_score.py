"""`deltaenergy score`, `calibrate` and `methods` as a user would type them."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import deltaenergy as de
from deltaenergy.detector.verdict import verdict_columns
from tests.cli.runner import Runner
from tests.data.archives import write_tar


@pytest.fixture
def base(tiny_clip_folder: Path) -> list[str]:
    return ["--model", str(tiny_clip_folder), "--classes", "dog,cat,red car"]


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_a_folder_gives_one_row_per_image(command: Runner, base: list[str], photos: Path, tiny_clip: de.Model) -> None:
    result = command("score", photos, *base)
    assert result.code == 0
    rows = rows_of(result.out)
    classifier = de.ZeroShotClassifier(tiny_clip, ["dog", "cat", "red car"])
    words = tiny_clip.encode_texts([f"a photo of a {word}." for word in de.Detector(classifier).words.kept])
    cosines = tiny_clip.encode_images(photos) @ words.T
    expected = de.scores.delta_energy_words(classifier.similarities(photos), cosines, weight=0)
    np.testing.assert_allclose([float(row["score"]) for row in rows], expected, rtol=1e-4)
    threshold = 0.5 * np.log(3 / len(words))
    assert [row["is_ood"] for row in rows] == [str(bool(value < threshold)) for value in expected]
    assert all(row["p_value"] == "" for row in rows) and "guaranteed" in result.err and "--id" in result.err
    without = command("score", photos, *base, "--score", "mcm")
    assert [row["is_ood"] for row in rows_of(without.out)] == [""] * 8 and "mcm" in without.err


def test_files_globs_tables_and_standard_input_give_the_same(
    command: Runner, base: list[str], photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = sorted(map(str, photos.rglob("*.png")))
    expected = [row["score"] for row in rows_of(command("score", *files, *base).out)]
    assert len(expected) == 8
    table = tmp_path / "list.csv"
    table.write_text("path\n" + "\n".join(files), encoding="utf-8")
    for argument in (f"{photos}/*/*.png", table):
        assert [row["score"] for row in rows_of(command("score", argument, *base).out)] == expected
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(files) + "\n\n"))
    assert [row["score"] for row in rows_of(command("score", "-", *base).out)] == expected


def test_pictures_in_parquet_files_and_archives_give_the_same(
    command: Runner, base: list[str], photos: Path, tmp_path: Path
) -> None:
    files = sorted(photos.rglob("*.png"))
    expected = [(file.name, row["score"]) for file, row in zip(files, rows_of(command("score", photos, *base).out))]
    pictures = [file.read_bytes() for file in files]
    (tmp_path / "parts").mkdir()
    for part in range(2):
        rows = slice(4 * part, 4 * part + 4)
        columns = {"image": pictures[rows], "id": [file.name for file in files[rows]]}
        pq.write_table(pa.table(columns), tmp_path / f"parts/train-0000{part}-of-00002.parquet")
        write_tar(tmp_path / f"{part}.tar", {f"{4 * part + i:03}.png": data for i, data in enumerate(pictures[rows])})
    for argument in (tmp_path / "parts", f"{tmp_path}/parts/*.parquet", f"{tmp_path}/{{0..1}}.tar"):
        out = tmp_path / "out.csv"
        result = command("score", argument, *base, "--out", out)
        assert result.code == 0
        rows_found = rows_of(out.read_text())
        assert [row["score"] for row in rows_found] == [score for _, score in expected]
    names = [row["path"] for row in rows_of(command("score", tmp_path / "parts", *base).out)]
    assert names == unique([file.name for file in files])


def unique(names: list[str]) -> list[str]:
    """Names that repeat get a number."""
    return [name if names.index(name) == place else f"{name} (2)" for place, name in enumerate(names)]


def test_known_images_give_verdicts(command: Runner, base: list[str], photos: Path) -> None:
    """Eight images, half kept on average: the threshold is the ⌊0.5 · 9⌋ = 4th lowest score, which three are below."""
    result = command("score", photos, *base, "--score", "mcm", "--id", photos, "--keep", "0.5")
    verdicts = [row["is_ood"] for row in rows_of(result.out)]
    assert verdicts.count("True") == 3


def test_the_default_score_needs_no_known_images(command: Runner, base: list[str], photos: Path) -> None:
    assert command("score", photos, *base, "--json").json["score"] == "delta-energy+words(weight=0)"
    assert command("score", photos, *base, "--id", photos, "--json").json["score"] == "delta-energy+words"


def test_one_score(command: Runner, base: list[str], photos: Path) -> None:
    result = command("score", photos, *base, "--score", "energy(temperature=0.1)", "--json")
    assert result.json["score"] == "energy(temperature=0.1)" == result.json["images"][0]["score_name"]
    several = command("score", photos, *base, "--score", "msp,mcm", "--json")
    assert several.code == 2 and "--score" in several.err and "evaluate" in several.err


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_tables_on_disk(command: Runner, base: list[str], photos: Path, tmp_path: Path, ending: str) -> None:
    file = tmp_path / f"Ergebnis ü.{ending}"
    assert command("score", photos, *base, "--id", photos, "--out", file).code == 0
    if ending == "csv":
        rows: list[dict[str, object]] = list(csv.DictReader(file.open(encoding="utf-8")))
    elif ending == "jsonl":
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    else:
        rows = pq.read_table(file).to_pylist()
    assert len(rows) == 8
    assert list(rows[0]) == verdict_columns()
    assert {row["verdict"] for row in rows} <= {"known", "none of these"}


def test_unreadable_images_are_listed_all_others_done_exit_code_1(
    command: Runner, base: list[str], photos: Path
) -> None:
    good = photos / "cat" / "0.png"
    (photos / "cat" / "empty.jpg").touch()
    (photos / "cat" / "text.jpg").write_text("This is a text.")
    (photos / "cat" / "cut.png").write_bytes(good.read_bytes()[:700])
    (photos / "cat" / "gone.png").symlink_to(photos / "nowhere.png")
    result = command("score", photos, *base)
    assert result.code == 1
    assert len(rows_of(result.out)) == 8
    for name in ("empty.jpg", "text.jpg", "cut.png", "gone.png"):
        assert name in result.err
    as_json = command("score", photos, *base, "--json")
    assert as_json.code == 1
    assert len(as_json.json["unreadable"]) == 4


def test_unusual_pictures_are_read(command: Runner, base: list[str], tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (30, 20, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    folder = tmp_path / "Bilder – 写真"
    folder.mkdir()
    image.convert("CMYK").save(folder / "cmyk.jpg")
    Image.fromarray(pixels[:, :, 0].astype(np.uint16) * 256).save(folder / "sixteen-bit.png")
    image.convert("P").save(folder / "palette.png", transparency=0)
    image.save(folder / "moving.gif", save_all=True, append_images=[image.rotate(90)])
    result = command("score", folder, *base)
    assert result.code == 0, result.err
    assert len(rows_of(result.out)) == 4


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_permission_is_listed(command: Runner, base: list[str], photos: Path) -> None:
    (photos / "cat" / "0.png").chmod(0)
    result = command("score", photos, *base)
    assert result.code == 1
    assert "0.png" in result.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--classes", ""], "--classes is empty"),
        (["--classes", "dog", "--template", "a photo"], "exactly one {}"),
        (["--classes", "dog", "--score", "delta-enrgy"], "Did you mean 'delta-energy'"),
        (["--classes", "dog", "--out", "x.xls"], "unknown ending '.xls'"),
        (["--classes", "names.txt"], "names.txt does not exist"),
        (["--classes", "dog", "--model", "lit"], "Did you mean 'lite'"),
        ([], "--classes"),
        (["--detector", "nowhere"], "nowhere is not a folder"),
        (["--detector", ".", "--classes", "dog"], "--classes"),
        (["--detector", ".", "--keep", "0.9"], "--keep"),
        (["--detector", ".", "--score", "mcm"], "--score"),
        (["--detector", ".", "--id", "."], "--id"),
        (["--detector", ".", "--model", "lite"], "--model"),
        (["--classes", "dog", "--keep", "0.9"], "--id"),
        (["--classes", "dog", "--workers", "2"], "--ray"),
        (["--classes", "dog", "--keep", "2", "--id", "."], "--keep"),
    ],
)
def test_wrong_use_is_one_message_and_exit_code_2(
    command: Runner, tiny_clip_folder: Path, photos: Path, arguments: list[str], message: str
) -> None:
    model = [] if {"--model", "--detector"} & set(arguments) else ["--model", tiny_clip_folder]
    result = command("score", photos, *model, *[photos if a == "." else a for a in arguments])
    assert result.code == 2
    assert message in result.err
    assert "Traceback" not in result.err
    assert result.out == ""


def test_paths_that_do_not_exist_are_wrong_use(command: Runner, base: list[str], photos: Path) -> None:
    result = command("score", photos / "cta", *base)
    assert result.code == 2
    assert "cat" in result.err
    empty = photos / "empty"
    empty.mkdir()
    assert command("score", empty, *base).code == 2


def test_calibrate_then_score_with_the_detector(command: Runner, base: list[str], photos: Path, tmp_path: Path) -> None:
    saved = command(
        "calibrate",
        photos,
        *base,
        "--out",
        tmp_path / "d",
        "--score",
        "mcm",
        "--keep",
        "0.5",
        "--json",
    )
    assert saved.code == 0
    assert saved.json["images"] == 8
    result = command("score", photos, "--detector", tmp_path / "d", "--json")
    assert result.json["threshold"] == saved.json["threshold"]
    assert sum(row["is_ood"] for row in result.json["images"]) == 3
    again = command("calibrate", photos, "--detector", tmp_path / "d", "--out", tmp_path / "e", "--score", "msp")
    assert again.code == 0
    assert "needs 19 images" in " ".join(again.err.split())
    assert command("calibrate", photos, *base, "--out", tmp_path / "d", "-s", "msp,mcm").code == 2
    (photos / "dog" / "empty.jpg").touch()
    partly = command("calibrate", photos, *base, "--out", tmp_path / "f")
    assert partly.code == 1
    assert (tmp_path / "f" / "detector.json").exists()


def test_methods_lists_every_score(command: Runner) -> None:
    rows = command("methods", "--json").json
    assert {row["name"] for row in rows} >= set(de.list_scores())
    assert all(row["formula"] and row["paper"] for row in rows)
    shown = command("methods", "mcm").out
    assert "Ming et al., NeurIPS 2022" in shown
    wrong = command("methods", "mcn")
    assert wrong.code == 2
    assert "Did you mean 'mcm'" in wrong.err


def test_help_and_version(command: Runner) -> None:
    assert command("--version").out.strip() == f"deltaenergy {de.__version__}"
    shown = command("--help").out
    for name in ("score", "calibrate", "evaluate", "methods", "demo"):
        assert name in shown
    assert command("scoer").code == 2


def test_an_interrupted_score_says_where_its_rows_are(
    command: Runner, tiny_clip_folder: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deltaenergy.models.towers.clip import ClipModel

    original, calls = ClipModel.image_features, []

    def interrupted(self: ClipModel, pixels: Any) -> Any:
        calls.append(len(pixels))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(self, pixels)

    monkeypatch.setattr(ClipModel, "image_features", interrupted)
    file = tmp_path / "table.csv"
    base = ["--model", tiny_clip_folder, "--classes", "dog,cat"]
    result = command("score", photos, *base, "--on", "batch=2", "--out", file)
    assert result.code == 130
    assert "The first 4 rows are in" in result.err and not file.exists()
    assert len(rows_of((tmp_path / "table.partial-1.csv").read_text())) == 4


def test_a_store_gives_the_table_that_its_images_give(
    command: Runner, tiny_clip: de.Model, tiny_clip_folder: Path, photos: Path, tmp_path: Path
) -> None:
    de.build_store(tiny_clip, photos, tmp_path / "photos.store", shard_size=3)
    base = ["--model", tiny_clip_folder, "--classes", "dog,cat", "--id", photos]
    for source, name in ((photos, "images.jsonl"), (tmp_path / "photos.store", "store.jsonl")):
        assert command("score", source, *base, "--out", tmp_path / name).code == 0
    texts = ((tmp_path / name).read_text(encoding="utf-8") for name in ("images.jsonl", "store.jsonl"))
    images, stored = ([json.loads(line) for line in text.splitlines()] for text in texts)
    assert [row["path"] for row in stored] == [row["path"] for row in images]
    assert [row["score"] for row in stored] == pytest.approx([row["score"] for row in images], rel=1e-5)
    assert [row["is_ood"] for row in stored] == [row["is_ood"] for row in images]
