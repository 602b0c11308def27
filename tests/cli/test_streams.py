"""Standard output that is closed, full, broken or in a poor encoding: one message and one exit code."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from deltaenergy.cli.main import run
from tests.cli.hostile import VALID
from tests.cli.test_hostile import fill
from tests.cli.world import World
from tests.sampling import sampled, spread

RUN = "from deltaenergy.cli.main import run; run()"
# Commands that print, and what.
PRINTING = [
    ["methods"],
    ["methods", "--json"],
    ["bench", "--json"],
    ["datasets"],
    ["datasets", "--json"],
    ["datasets", "{root}", "--json"],
    ["score", *VALID["score"]],
    ["score", *VALID["score"], "--json"],
    ["calibrate", *VALID["calibrate"], "--json"],
    ["choose", *VALID["choose"]],
    ["choose", *VALID["choose"], "--json"],
    ["evaluate", *VALID["evaluate"]],
    ["evaluate", *VALID["evaluate"], "--json"],
    ["theory", *VALID["theory"]],
    ["theory", *VALID["theory"], "--json"],
    ["features", *VALID["features"]],
    ["--help"],
    ["score", "--help"],
    ["--version"],
]


def shown(value: list[str] | str) -> str:
    """The name of a case."""
    return value if isinstance(value, str) else " ".join(value)


class Failing(io.TextIOWrapper):
    """Standard output of a process whose disk is full, or whose reader is gone."""

    def __init__(self, number: int) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8")
        self.number = number

    def flush(self) -> None:
        if not self.closed:
            raise OSError(self.number, os.strerror(self.number))

    def __del__(self) -> None:
        """Closing would flush once more."""


def call(arguments: list[str], world: World, inside: Path) -> int:
    with pytest.raises(SystemExit) as stop:
        run(fill(arguments, world, inside / "out"))
    return int(stop.value.code or 0)


@pytest.mark.parametrize(("arguments", "kind"), spread(PRINTING, ["full", "closed"], 2), ids=shown)
def test_output_that_cannot_be_written_is_an_error(
    kind: str,
    arguments: list[str],
    world: World,
    inside: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", Failing(errno.ENOSPC) if kind == "full" else None)
        assert call(arguments, world, inside) == 2
    said = capsys.readouterr().err
    assert said.count("Standard output could not be written") == 1 and "--out" in said
    assert ("no space is left" in said) == (kind == "full") and ("it is closed" in said) == (kind == "closed")


@pytest.mark.parametrize("arguments", sampled(PRINTING, 2, kind=len), ids=" ".join)
def test_a_reader_that_is_gone_is_no_error(
    arguments: list[str],
    world: World,
    inside: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", Failing(errno.EPIPE))
        assert call(arguments, world, inside) == 0
    said = capsys.readouterr().err
    assert "Error" not in said and "pipe" not in said.lower()


@pytest.mark.parametrize(("arguments", "encoding"), spread(PRINTING, ["ascii", "latin-1", "cp1252"], 3), ids=shown)
def test_letters_that_an_encoding_lacks_are_escaped(
    encoding: str, arguments: list[str], world: World, inside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        assert call(arguments, world, inside) == 0
    stream.flush()
    text = stream.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]
    assert text.strip()
    if "--json" in arguments:
        json.loads(text)


def test_notes_that_cannot_be_written_cost_nothing(
    world: World, inside: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for stderr in (None, Failing(errno.ENOSPC), Failing(errno.EPIPE)):
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stderr", stderr)
            assert call(["score", *VALID["score"], "--id", "{images}"], world, inside) == 0
            assert call(["methods", "nope"], world, inside) == 2
        assert "0.png" in capsys.readouterr().out


def test_the_streams_are_put_back(world: World, inside: Path) -> None:
    before = sys.stdout, sys.stderr
    call(["methods", "mcm"], world, inside)
    assert (sys.stdout, sys.stderr) == before


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize(
    ("shell", "code", "said"),
    [
        ("{run} datasets --json > /dev/full", 2, "no space is left"),
        ("{run} datasets --json >&-", 2, "it is closed"),
        ("{run} datasets nope >&- 2>&- <&-", 2, ""),
        ("{run} datasets nope 2> /dev/full", 2, ""),
        ("{run} datasets --json | head -c 1 > /dev/null; exit ${{PIPESTATUS[0]}}", 0, ""),
        ("{run} --help | true; exit ${{PIPESTATUS[0]}}", 0, ""),
        ("PYTHONIOENCODING=ascii {run} datasets", 0, ""),
        ("LC_ALL=C PYTHONCOERCECLOCALE=0 PYTHONUTF8=0 {run} datasets", 0, ""),
        ("TERMINAL_WIDTH=wide {run} --help", 0, ""),
        ("FORCE_COLOR=x TTY_COMPATIBLE=x {run} methods mcm", 0, ""),
        ("ulimit -v 300000; {run} methods", 2, "Out of memory"),
        ("printf 'caf\\351.png\\n' | PYTHONIOENCODING=ascii {run} score - --classes a,b --model nope", 2, "neither"),
    ],
)
def test_real_processes(shell: str, code: int, said: str, tmp_path: Path) -> None:
    command = shell.format(run=f'"{sys.executable}" -c "{RUN}"')
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr
    if not said:
        assert "Error: Standard output" not in done.stderr


def test_a_pipe_gets_the_table_while_a_terminal_shows_the_bar(world: World, tmp_path: Path) -> None:
    """A bar that catches standard output would send the table to the terminal."""
    pty = pytest.importorskip("pty")
    main, terminal = pty.openpty()
    arguments = ["score", str(world["images"]), "--detector", str(world["detector"])]
    environment = {**os.environ, "TERM": "xterm", "PYTHONPATH": os.pathsep.join(sys.path), "DELTAENERGY_PROGRESS": "1"}
    with (tmp_path / "table.csv").open("wb") as table:
        done = subprocess.Popen(
            [sys.executable, "-c", RUN, *arguments], stdout=table, stderr=terminal, stdin=terminal, env=environment
        )
    os.close(terminal)
    shown = b""
    with contextlib.suppress(OSError):  # a terminal whose other end is closed
        while part := os.read(main, 65536):
            shown += part
    os.close(main)
    assert done.wait() == 0
    lines = (tmp_path / "table.csv").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 7 and lines[0].startswith("path,label,")
    assert b"Scoring" in shown and b"0.png" not in shown and b"6 known" in shown
