"""The line that shows progress in Python sessions: on terminals, off by a setting, and never in the way."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import deltaenergy as de
from deltaenergy.core import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    found = Terminal()
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=found))  # pytest has sys.stderr for itself
    monkeypatch.setattr(progress, "_FIRST_AFTER", 0.0)
    monkeypatch.setattr(progress, "_AGAIN_AFTER", 0.0)
    monkeypatch.delenv("DELTAENERGY_PROGRESS", raising=False)
    de.show_progress(None)  # commands that ran in this process before turned it off
    yield found
    de.show_progress(None)


def test_a_terminal_sees_how_far_it_is_and_then_nothing(terminal: Terminal) -> None:
    show = progress.shown("Encoding images")
    assert show is not None
    show(6, 24)
    assert "Encoding images" in terminal.getvalue() and "6/24" in terminal.getvalue()
    assert terminal.getvalue().count("█") == 6  # a quarter of its width
    show(12, None)
    assert terminal.getvalue().endswith("12")
    show(24, 24)
    assert terminal.getvalue().endswith("\r\033[K")


def test_no_terminal_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=io.StringIO()))
    assert progress.shown("x") is None
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=None))
    assert progress.shown("x") is None


def test_it_is_off_by_a_setting(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    de.show_progress(False)
    assert progress.shown("x") is None
    de.show_progress(None)
    assert progress.shown("x") is not None
    monkeypatch.setenv("DELTAENERGY_PROGRESS", "0")
    assert progress.shown("x") is None
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=io.StringIO()))
    de.show_progress(True)
    assert progress.shown("x") is not None


def test_short_work_shows_nothing(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_FIRST_AFTER", 1e6)
    show = progress.shown("x")
    assert show is not None
    show(1, 3)
    show(3, 3)
    assert terminal.getvalue() == ""


def test_images_show_it_and_a_callback_takes_its_place(
    terminal: Terminal, tiny_clip: de.TowerModel, photos: Path
) -> None:
    tiny_clip.encode_images(photos, batch_size=2)
    assert "/8" in terminal.getvalue()
    terminal.truncate(0)
    seen: list[int] = []
    tiny_clip.encode_images(photos, batch_size=2, progress=lambda done, total: seen.append(done))
    assert terminal.getvalue().strip("\0") == "" and seen[-1] == 8


def test_a_terminal_that_fails_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Terminal):
        def write(self, text: str) -> int:
            raise OSError("gone")

    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=Broken()))
    monkeypatch.setattr(progress, "_FIRST_AFTER", 0.0)
    show = progress.shown("x")
    assert show is not None
    show(1, 3)
    show(2, 3)


def test_a_stage_is_a_bar_that_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Terminal()
    monkeypatch.setattr("sys.stderr", found)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("DELTAENERGY_PROGRESS", raising=False)
    de.show_progress(None)
    before = sys.stdout
    with progress.stage("Encoding images") as move:
        move(3, 8)
        assert sys.stdout is before, "results that are printed meanwhile go where they go"
        with progress.stage("Within it") as inner:
            inner(1, 2)
        assert progress.shown("A line within it") is None
    shown = found.getvalue()
    assert "Encoding images" in shown and "3/8" in shown and "Within it" not in shown
    assert shown.endswith("\x1b[2K"), "the last thing is to erase it"
    assert progress.shown("After it") is not None


@pytest.mark.parametrize("setting", [False, None])
def test_no_stage_where_none_is_wanted(setting: bool | None, monkeypatch: pytest.MonkeyPatch) -> None:
    found = io.StringIO() if setting is None else Terminal()
    monkeypatch.setattr("sys.stderr", found)
    de.show_progress(setting)
    with progress.stage("x") as move:
        move(1, 2)
    assert found.getvalue() == ""
    de.show_progress(None)
