"""Help, --quiet, what is told once, the table of methods, and `python -m deltaenergy`."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import deltaenergy as de
from deltaenergy.cli.examples import EXAMPLES, paragraphs
from deltaenergy.cli.main import app
from tests.cli.runner import Runner

GROUP = typer.main.get_command(app)


def commands() -> dict[str, object]:
    found = {}
    for name, command in GROUP.commands.items():  # type: ignore[attr-defined]
        inner = getattr(command, "commands", None)
        found |= {f"{name} {one}": entry for one, entry in inner.items()} if inner else {name: command}
    return found


@pytest.mark.parametrize("name", sorted(commands()))
def test_every_help_has_examples_whose_options_exist(command: Runner, name: str) -> None:
    assert name in EXAMPLES, "every command has an example"
    known = {option for parameter in commands()[name].params for option in parameter.opts}  # type: ignore[attr-defined]
    for line in EXAMPLES[name]:
        assert f"deltaenergy {name}" in line
        used = re.findall(r"(?<= )--?[a-z][a-z-]*", line.split("deltaenergy", 1)[1])
        assert set(used) <= known, line
    shown = command(*name.split(), "--help").out
    assert "Examples" in shown and f"deltaenergy {name}" in " ".join(shown.split())


def test_paragraphs_are_one_line_each() -> None:
    assert paragraphs("One\n    two.\n\n    Three\n    four.\n    ") == "One two.\n\nThree four."


def test_quiet_leaves_results_warnings_and_errors(command: Runner, photos: Path, tiny_clip_folder: Path) -> None:
    base = ["--model", tiny_clip_folder, "--classes", "dog,cat"]
    assert "8 scored" in command("score", photos, *base).err
    for arguments in (["--quiet", "score", photos, *base], ["score", photos, *base, "--quiet"]):
        result = command(*arguments)
        assert result.code == 0 and result.err == "" and len(result.out.splitlines()) == 9
    (photos / "broken.jpg").write_text("x")
    assert "broken.jpg" in command("score", photos, *base, "--quiet").err
    assert "Did you mean" in command("score", photos, *base, "--quiet", "-s", "mcn").err
    assert "8 scored" in command("score", photos, *base).err, "the next run speaks again"


def test_what_lite_is_is_told_once(command: Runner, photos: Path, own_cache: Path) -> None:
    from deltaenergy.models.lite import model as lite

    note = "lite is a demonstration model"
    for expected in (True, False):
        lite._say_what_it_is.cache_clear()
        result = command("score", photos / "cat" / "0.png", "--classes", "dog,cat")
        assert result.code == 0 and (note in result.err) is expected
    assert (own_cache / "told" / "lite").is_file()


def test_methods_are_a_short_table_with_advice(command: Runner) -> None:
    shown = command("methods").out
    for name in (*de.list_scores(), *de.list_methods()):
        assert re.search(rf"^{re.escape(name)} ", shown, re.M), name
    assert "choose" in shown and "start with" in shown
    assert "NeurIPS" not in shown, "papers are told of one at a time"
    assert "formula" in command("methods", "mcm").out


def test_python_m() -> None:
    result = subprocess.run([sys.executable, "-m", "deltaenergy", "--version"], capture_output=True, text=True)
    assert result.returncode == 0 and result.stdout.strip() == f"deltaenergy {de.__version__}"
