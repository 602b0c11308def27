"""Help, --quiet, what is told once, the table of methods, and `python -m deltaenergy`."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import deltaenergy as de
from deltaenergy.cli.main import app
from deltaenergy.cli.shell.app import EXAMPLES, paragraphs
from deltaenergy.scores.registry import DEFAULT_SCORE
from tests.cli.runner import Runner

GROUP = typer.main.get_command(app)
ENTRIES: dict[str, object] = GROUP.commands  # type: ignore[attr-defined]


def letters(text: str) -> str:
    """The text without spaces and the frames of tables, which fold it."""
    return re.sub(r"[\s│]", "", text)


@pytest.mark.parametrize("name", sorted(ENTRIES))
def test_every_word_of_the_help_is_shown(command: Runner, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rich takes [brackets] for markup and drops them: defaults that stood in such were never seen."""
    monkeypatch.setenv("COLUMNS", "200")
    page = command(name, "--help").out
    entry = ENTRIES[name]
    for parameter in entry.params:  # type: ignore[attr-defined]
        assert letters(parameter.help or "") in letters(page), parameter.name
        if isinstance(parameter.default, (int, float, str)) and not isinstance(parameter.default, bool):
            assert f"[default: {parameter.default}]" in page, parameter.name
        if isinstance(parameter.show_default, str):
            assert letters(f"[default: ({parameter.show_default})]") in letters(page), parameter.name
    for paragraph in paragraphs(entry.help).split("\n\n"):  # type: ignore[attr-defined]
        assert letters(paragraph) in letters(page)
    assert not re.search(r"\d{9}", page), "bounds nobody meets are not shown"


@pytest.mark.parametrize("line", [line for lines in EXAMPLES.values() for line in lines])
def test_every_example_is_a_complete_call(line: str) -> None:
    program, name, *words = shlex.split(line.split("|")[-1])
    assert program == "deltaenergy"
    ENTRIES[name].make_context("example", words)  # type: ignore[attr-defined] # a missing or unknown argument raises


@pytest.mark.parametrize("name", ["adapt", "calibrate", "check-model", "score", "sort", "tune"])
def test_commands_of_one_score_offer_one(name: str) -> None:
    for option in ENTRIES[name].params:  # type: ignore[attr-defined]
        if "--score" in option.opts:
            assert "Repeat" not in option.help and "all" not in option.help.split()


@pytest.mark.parametrize("name", sorted(ENTRIES))
def test_every_help_has_examples_whose_options_exist(command: Runner, name: str) -> None:
    assert name in EXAMPLES, "every command has an example"
    known = {option for parameter in ENTRIES[name].params for option in parameter.opts}  # type: ignore[attr-defined]
    for line in EXAMPLES[name]:
        assert f"deltaenergy {name}" in line
        used = re.findall(r"(?<= )--?[a-z][a-z0-9-]*", line.split("deltaenergy", 1)[1])
        assert set(used) <= known, line
    shown = command(name, "--help").out
    assert "Examples" in shown and f"deltaenergy {name}" in " ".join(shown.split())


def test_paragraphs_are_one_line_each() -> None:
    assert paragraphs("One\n    two.\n\n    Three\n    four.\n    ") == "One two.\n\nThree four."


def test_quiet_leaves_results_warnings_and_errors(command: Runner, photos: Path, tiny_clip_folder: Path) -> None:
    base = ["--model", tiny_clip_folder, "--classes", "dog,cat"]
    assert "none of these" in command("score", photos, *base).err
    for arguments in (["--quiet", "score", photos, *base], ["score", photos, *base, "--quiet"]):
        result = command(*arguments)
        assert result.code == 0 and result.err == "" and len(result.out.splitlines()) == 9
    (photos / "broken.jpg").write_text("x")
    assert "broken.jpg" in command("score", photos, *base, "--quiet").err
    assert "Did you mean" in command("score", photos, *base, "--quiet", "-s", "mcn").err
    assert "none of these" in command("score", photos, *base).err, "the next run speaks again"


def test_what_lite_is_is_said_on_a_terminal(command: Runner, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from deltaenergy.cli.shell.console import PlainConsole
    from deltaenergy.models.lite import model as lite

    note = "lite is a demo model"
    for terminal in (True, False, True):
        lite._say_what_it_is.cache_clear()
        monkeypatch.setattr(PlainConsole, "is_terminal", terminal)
        result = command("score", photos / "cat" / "0.png", "--classes", "dog,cat")
        assert result.code == 0 and (note in result.err) is terminal


def test_methods_are_a_short_table_with_advice(command: Runner) -> None:
    shown = command("methods").out
    for name in (*de.list_scores(), *de.list_methods()):
        assert re.search(rf"^{re.escape(name)} ", shown, re.M), name
    assert "choose" in shown and f"start with {DEFAULT_SCORE}," in shown
    assert "NeurIPS" not in shown, "papers are told of one at a time"
    assert "formula" in command("methods", "mcm").out


def test_an_unknown_method_lists_each_name_once(command: Runner) -> None:
    listed = command("methods", "mcn").err.partition("Known: ")[2].strip().rstrip(".").split(", ")
    assert "mcm" in listed and len(listed) == len(set(listed))


def test_python_m() -> None:
    result = subprocess.run([sys.executable, "-m", "deltaenergy", "--version"], capture_output=True, text=True)
    assert result.returncode == 0 and result.stdout.strip() == f"deltaenergy {de.__version__}"
