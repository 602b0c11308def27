"""Files and names that come from anywhere: told of or passed over, never obeyed, and shown so that nothing obeys."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from deltaenergy.core.text import from_cell
from tests.cli.runner import Runner
from tests.cli.test_hostile import check
from tests.cli.world import World, content, write_images
from tests.sampling import spread

pytestmark = pytest.mark.usefixtures("no_hang")

DEEP = 100_000
CONTENTS: dict[str, bytes] = {
    "empty": b"",
    "nul": b"\0" * 64,
    "deep json": b"[" * DEEP,
    "deep json, closed": b"[" * DEEP + b"]" * DEEP,
    "deep objects": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "deep yaml": b"- " * 5000 + b"x",
    "yaml bomb": b"l0: &l0 [x]\n"
    + b"".join(b"l%d: &l%d [%s]\n" % (i, i, b",".join([b"*l%d" % (i - 1)] * 9)) for i in range(1, 30)),
    "yaml that runs": b"!!python/object/apply:os.system ['touch ran']",
    "huge number": b"1" * 5000,
    "huge float": b'{"format": 1e99999}',
    "nan": b'{"format": NaN, "threshold": NaN}',
    "a list": b"[]",
    "null": b"null",
    "text": b"not what you think",
    "utf-16": "title: x".encode("utf-16"),
    "latin-1": b"caf\xe9,\xff\xfe",
    "lone surrogate": b'{"format": "\\ud800"}',
    "bom": b"\xef\xbb\xbf{}",
}


READERS = [
    ["bench", "{file}.yaml", "--model", "{model}", "--out", "{out}"],
    ["score", "{file}.csv", "--classes", "cat,dog", "--model", "{model}"],
    ["score", "{file}.jsonl", "--classes", "cat,dog", "--model", "{model}"],
    ["score", "{file}.parquet", "--classes", "cat,dog", "--model", "{model}"],
    ["score", "{file}.tar", "--classes", "cat,dog", "--model", "{model}"],
    ["score", "{images}", "--classes", "{file}.txt", "--model", "{model}"],
    ["score", "{images}", "--detector", "{detectors}"],
    ["score", "{images}", "--classes", "cat,dog", "--model", "{models}"],
    ["report", "{reports}"],
    ["features", "{images}", "--model", "{model}", "--out", "{stores}"],
    ["score", "{images}", "--model", "{model}", "--classes", "cat,dog", "--score", "neglabel(words='{file}.txt')"],
]


@pytest.mark.parametrize(
    ("arguments", "kind"),
    spread(READERS, CONTENTS, 4),
    ids=lambda value: " ".join(value)[:48] if isinstance(value, list) else value,
)
def test_contents(
    kind: str,
    arguments: list[str],
    command: Runner,
    world: World,
    untouched: dict[Path, tuple[int, str]],
    inside: Path,
) -> None:
    given = CONTENTS[kind]
    for ending in ("yaml", "csv", "jsonl", "parquet", "tar", "txt"):
        (inside / f"hostile.{ending}").write_bytes(given)
    for folder, files in {
        "detectors": ["detector.json", "tensors.safetensors"],
        "models": ["config.json", "model.safetensors"],
        "reports/cells": ["0.json"],
        "reports/runs": ["0.json"],
        "stores": ["manifest.json", "store.json"],
    }.items():
        (inside / folder).mkdir(parents=True)
        for file in files:
            (inside / folder / file).write_bytes(given)
    places = {**world, "file": inside / "hostile", "out": inside / "out"}
    places |= {name: inside / name for name in ("detectors", "models", "reports", "stores")}
    filled = []
    for argument in arguments:
        for name, path in places.items():
            argument = argument.replace(f"{{{name}}}", str(path))
        filled.append(argument)
    check(command(*filled))
    assert not (inside / "ran").exists()
    assert content(world) == untouched


NAMES = [
    "=HYPERLINK(1).png",
    "+1.png",
    "-1.png",
    "@SUM.png",
    "\tx.png",
    "'=x.png",
    "a\x1b[31mred.png",
    "b\x07\x08\x7f.png",
    "c\u202egnp.exe.png",
    "d\nline.png",
    "e\r.png",
    "[red]f.png",
    ":smile:.png",
    "<script>.png",
    "%s {} $(x).png",
    "–写真🙂.png",
]


@pytest.fixture
def named(inside: Path) -> Path:
    """Images with these names, and one whose name is no text at all."""
    folder = write_images(inside / "named" / "[red]c", NAMES)
    write_images(inside / "named" / "[", ["g].png"])  # together a closing tag
    odd = os.fsencode(folder) + b"/caf\xe9.png"
    Path(os.fsdecode(odd)).write_bytes((folder / NAMES[0]).read_bytes())
    return inside / "named"


def test_names_in_csv_are_no_formulas_and_steer_nothing(
    command: Runner, named: Path, world: World, inside: Path
) -> None:
    result = command("score", named, "--classes", "=cat,dog", "--model", world["model"])
    check(result)
    assert result.code == 0
    rows = list(csv.DictReader(io.StringIO(result.out)))
    assert len(rows) == len(NAMES) + 2
    assert all(row["label"] in {"'=cat", "dog"} for row in rows)
    # Paths begin with the folder; a table of relative paths shows the names themselves.
    table = inside / "named" / "[red]c" / "list.jsonl"
    table.write_text("\n".join(json.dumps({"path": name}) for name in NAMES), encoding="utf-8")
    os.chdir(table.parent)
    listed = command("score", *[f"./{name}" for name in NAMES], "--classes", "cat,dog", "--model", world["model"])
    check(listed)
    assert listed.code == 0


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_tables_on_disk_keep_names(
    command: Runner, named: Path, world: World, inside: Path, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(named / "[red]c")
    out = inside / f"out.{ending}"
    # Given one by one, an image is called as it was given.
    result = command("score", *NAMES[:2], *NAMES[3:], "--classes", "cat,dog", "--model", world["model"], "--out", out)
    check(result)
    assert result.code == 0, result.err
    if ending == "parquet":
        names = [row["path"] for row in pq.read_table(out).to_pylist()]
    elif ending == "jsonl":
        names = [json.loads(line)["path"] for line in out.read_text(encoding="utf-8").splitlines()]
    else:
        with out.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        cells = [row["path"] for row in rows]
        assert all(cell[:1] not in "=+-@\t\r" for cell in cells)
        assert not any(ord(letter) < 32 for cell in cells for letter in cell)
        assert all(float(row["score"]) is not None for row in rows)
        names = [from_cell(cell) for cell in cells]
        printable = [name for name in [*NAMES[:2], *NAMES[3:]] if name.isprintable()]
        assert set(printable) <= set(names)
        return
    assert names == [*NAMES[:2], *NAMES[3:]], "the other formats keep names as they are"


@pytest.mark.parametrize(
    "arguments",
    [
        ["score", "{named}", "--classes", "[red]cat[/],\x1b[31mdog", "--json"],
        ["calibrate", "{named}", "--classes", "[/cat],dog", "--out", "{out}"],
        ["evaluate", "--id", "{named}", "--report", "{out}/[red].html"],
        ["evaluate", "--id", "{named}", "--classes", "[/x],y", "--json"],
        ["features", "{named}", "--out", "{out}/[/red]"],
        ["choose", "--id", "{named}", "--score", "mcm"],
        ["tune", "--train", "{named}", "--out", "{out}/\u202e", "--shots", "1", "--recipe", "epochs=1"],
        ["score", "{broken}", "--classes", "a,b", "--json"],
        ["calibrate", "{broken}", "--classes", "a,b", "--out", "{out}"],
        ["evaluate", "--id", "{broken}", "--classes", "a,b"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_names_everywhere(
    arguments: list[str], command: Runner, named: Path, world: World, inside: Path, tmp_path: Path
) -> None:
    broken = write_images(inside / "broken", ["0.png", "1.png"])
    for name in NAMES:
        (broken / name).write_bytes(b"no image")
    places = {"named": named, "broken": broken, "out": inside / "out"}
    filled = [argument.format(**places) if "{" in argument else argument for argument in arguments]
    result = command(*filled, "--model", world["model"])
    check(result)
    if "{broken}" in arguments:
        assert result.code == 1 and "\\x1b[31mred.png" in result.err
    if "--json" in arguments:
        assert result.json


def test_the_terminal_s_table_shows_names_written_out(
    command: Runner, named: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deltaenergy.cli.shell.exits.GuardedStream.isatty", lambda stream: stream._results)
    monkeypatch.setattr("deltaenergy.cli.shell.console.out.width", 400)
    monkeypatch.setenv("TERM", "xterm")
    result = command("score", named, "--classes", "[red]cat[/],dog", "--model", world["model"], "--id", named)
    check(result)
    for name in ("[red]f.png", "[/g].png", ":smile:.png", "a\\x1b[31mred.png", "c\\u202egnp.exe.png", "d\\nline.png"):
        assert name in result.out
