"""`deltaenergy bench` and `report`: from nothing to tables, what is missing, and wrong use."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from tests.benchmarks.small import TEXT
from tests.cli.runner import Runner


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    file = tmp_path / "small.yaml"
    file.write_text(TEXT)
    return file


def test_bench_then_report(spec: Path, tmp_path: Path, tiny_clip_folder: Path, command: Runner) -> None:
    out = tmp_path / "results"
    arguments = ["bench", spec, "--model", tiny_clip_folder, "--out", out, "--methods", "msp,ebm", "--seeds", "1"]
    done = command(*arguments, "--json")
    assert done.code == 0
    answer = done.json
    assert (answer["computed"], answer["found"], answer["skipped"]) == (2, 0, [])
    again = command(*arguments)
    assert again.code == 0
    assert "0 results computed, 2 found" in " ".join(again.err.split())
    assert "| coop+ebm/delta-energy |" in again.out
    markdown, latex = tmp_path / "tables.md", tmp_path / "tables.tex"
    assert command("report", out, "--out", out / "report.html", "--out", markdown, "--out", latex).code == 0
    assert "coop+ebm/delta-energy" in (out / "report.html").read_text(encoding="utf-8")
    assert "| coop+ebm/delta-energy |" in markdown.read_text(encoding="utf-8")
    assert r"\bottomrule" in latex.read_text(encoding="utf-8")


def test_long_steps_tell_how_far_they_are_where_there_is_no_bar(
    spec: Path, tmp_path: Path, tiny_clip_folder: Path, command: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deltaenergy.cli.commands.bench.SECONDS_PER_LINE", 0)
    arguments = ["--model", tiny_clip_folder, "--out", tmp_path / "results", "--seeds", "1"]
    done = command("bench", spec, *arguments, "--methods", "neglabel:quick,msp")
    assert done.code == 0
    assert "Encoding images: " in done.err and "prompts of neglabel:quick: " in done.err


def test_without_a_name_the_benchmarks_are_listed(command: Runner) -> None:
    listed = command("bench")
    assert listed.code == 0
    assert "setup2" in listed.out
    assert "conventional" in listed.out


def test_setup2_runs_on_what_is_there_and_names_what_is_not(
    shared_data: Path, tmp_path: Path, tiny_clip_folder: Path, command: Runner
) -> None:
    out = tmp_path / "results"
    arguments = ["--model", tiny_clip_folder, "--data", shared_data / "images", "--out", out, "--limit", 7]
    done = command("bench", "setup2", *arguments, "--methods", "msp", "--json")
    assert done.code == 0
    answer = done.json
    assert answer["computed"] == 4  # the four domains of PACS
    assert {skip["case"] for skip in answer["skipped"]} == {
        "vlcs/Caltech101",
        "vlcs/LabelMe",
        "vlcs/SUN09",
        "vlcs/VOC2007",
    }
    assert all("VLCS is not there" in skip["reason"] for skip in answer["skipped"])
    assert command("report", out, "--out", tmp_path / "tables.md").code == 0
    text = (tmp_path / "tables.md").read_text(encoding="utf-8")
    assert "PACS vs Caltech101, FPR95" in text
    assert "Not measured here: VLCS vs DTD, AUROC" in text
    # All of it is a part of the paper's data, so that no figure of the paper stands beside it.
    assert "[a] measured on a part: dtd: 240 of 5,640 images; pacs: 1,008 of 9,991 images; at most 7 images" in text
    assert "| MSP |" in text and "(97.9)" not in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bench", "setup3"], "Did you mean 'setup2'"),
        (["bench", "mini", "--methods", "mps"], "Did you mean 'msp'"),
        (["bench", "mini", "--protocol", "crof"], "Did you mean 'croft'"),
        (["bench", "mini", "--seeds", "one"], "whole numbers separated by commas"),
        (["bench", "setup2", "--data", "nowhere"], "--data nowhere is not a folder"),
        (["report", "nowhere"], "nowhere is not a folder"),
    ],
)
def test_wrong_use_is_one_message(
    arguments: list[str],
    message: str,
    command: Runner,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    done = command(*arguments)
    assert done.code == 2
    assert message in " ".join(done.err.split())
    assert list(tmp_path.iterdir()) == []


def test_a_benchmark_without_any_of_its_data_says_so(tmp_path: Path, tiny_clip_folder: Path, command: Runner) -> None:
    arguments = ["--model", tiny_clip_folder, "--out", tmp_path / "results", "--methods", "msp"]
    done = command("bench", "conventional", *arguments)
    assert done.code == 2
    error = " ".join(done.err.split())
    assert "as --data" in error
    assert "Nothing of conventional could be run" in error


def test_openood_runs_on_what_is_there_and_names_the_rest(
    tmp_path: Path, tiny_clip_folder: Path, command: Runner
) -> None:
    root = tmp_path / "data"
    places = [f"imagenet/val/{wnid}/{i}.png" for wnid in ("n01440764", "n01443537") for i in range(2)]
    places += [f"NINCO_all/NINCO_OOD_classes/{name}/0.png" for name in ("caracal", "pyramid", "scissors")]
    places += ["imagenet-c/fog/3/n01440764/0.png", "dtd/images/banded/0.png", "dtd/images/bubbly/0.png"]
    for i, place in enumerate(places):
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (32, 32), (i * 20, 255 - i * 20, i * 7)).save(root / place)
    arguments = ["--model", tiny_clip_folder, "--data", root, "--out", tmp_path / "results", "--methods", "msp"]
    done = command("bench", "openood-v1.5", *arguments, "--json")
    assert done.code == 0, done.err
    reasons = " ".join(skip["reason"] for skip in done.json["skipped"])
    for missing in ("SSB-hard is not there", "OpenImage-O is not there", "ImageNet-V2 is not there"):
        assert missing in reasons
    assert "NINCO is not there" not in reasons and "ImageNet-C is not there" not in reasons
    assert command("report", tmp_path / "results", "--out", tmp_path / "tables.md").code == 0
    text = (tmp_path / "tables.md").read_text(encoding="utf-8")
    assert "NINCO, FPR95-OOD" in text and "AdaNeg †" in text
    assert "scripts/ood/neglabel/official.sh" in text
