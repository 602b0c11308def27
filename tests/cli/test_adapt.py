"""`deltaenergy adapt`: every output says that order matters, and none has a p-value."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from tests.cli.runner import Runner


@pytest.fixture
def base(tiny_clip_folder: Path, tmp_path: Path) -> list[str]:
    words = tmp_path / "words.txt"
    words.write_text("\n".join(["hut", "moss", "ink", "quilt", "elk", "vase"]), encoding="utf-8")
    adapter = f"adaneg(keep=1.0,batch=3,words='{words}')"
    return ["--model", str(tiny_clip_folder), "--classes", "dog,cat,red car", "--method", adapter]


def test_a_table_names_the_adapter_in_every_row(command: Runner, base: list[str], photos: Path) -> None:
    result = command("adapt", photos, *base, "--id", photos)
    assert result.code == 0
    rows = list(csv.DictReader(io.StringIO(result.out)))
    assert len(rows) == 8
    assert all(row["score_name"].startswith("adaneg(") and row["is_ood"] in ("True", "False") for row in rows)
    assert all(row["p_value"] == "" for row in rows)
    assert "Order-dependent" in result.err


def test_json_declares_it(command: Runner, base: list[str], photos: Path) -> None:
    result = command("adapt", photos, *base, "--json")
    found = json.loads(result.out)
    assert "depend" in found["note"]
    assert found["threshold"] is None and len(found["images"]) == 8
    assert all(image["p_value"] is None and image["is_ood"] is None for image in found["images"])
    assert "Order-dependent" in result.err


def test_wrong_use(command: Runner, base: list[str], photos: Path, tmp_path: Path) -> None:
    result = command("adapt", photos, *base[:-1], "adanag")
    assert result.code == 2 and "Did you mean 'adaneg'" in result.err
    result = command("adapt", photos / "nowhere", *base)
    assert result.code == 2 and "does not exist" in result.err


def test_methods_lists_adapters_apart(command: Runner) -> None:
    rows = {row["name"]: row for row in json.loads(command("methods", "--json").out)}
    assert {name for name, row in rows.items() if row["kind"] == "stream adapter"} == {"adaneg", "tanl"}
    assert rows["tanl"]["paper"] and rows["tanl"]["formula"] and "in order" in rows["tanl"]["needs"][-1]


def test_its_table_has_the_columns_of_score(command: Runner, base: list[str], photos: Path) -> None:
    (row, *_) = csv.DictReader(io.StringIO(command("adapt", photos, *base, "--id", photos).out))
    assert {"path", "label", "confidence", "score", "is_ood", "verdict"} <= row.keys()
    assert row["verdict"] in ("known", "none of these")
