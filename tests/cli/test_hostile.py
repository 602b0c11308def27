"""Whatever is typed: one message, an exit code that means something, no traceback, no hang, no user's file changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.hostile import TRIED, VALID, Call, calls
from tests.cli.runner import Result, Runner
from tests.cli.world import World, content
from tests.sampling import sampled

pytestmark = pytest.mark.usefixtures("no_hang")


def fill(arguments: tuple[str, ...] | list[str], world: World, out: Path) -> list[str]:
    """`{images}` and such by their paths; any other braces are the argument's own."""
    filled = []
    for argument in arguments:
        for name, path in {**world, "out": out}.items():
            argument = argument.replace(f"{{{name}}}", str(path))
        filled.append(argument)
    return filled


def check(result: Result) -> None:
    """An exit code of ours with its message, and nothing that a terminal would obey."""
    assert result.code in {0, 1, 2, 130}
    for stream in (result.out, result.err):
        assert "Traceback" not in stream and "\x1b" not in stream and "\u202e" not in stream
    if result.code:
        assert "Error: " in result.err or "Usage: " in result.out + result.err or result.code != 2, "it says why"
    if result.code == 1:
        assert "Skipped " in result.err or " skipped" in result.err


def command_of(call: Call) -> str:
    return next((name for name in TRIED if call.arguments[:1] == (name,)), "")


USAGE = [call for call in calls() if call.kind == "usage"]
# An option has six values or more, so each is tried with one of them at least.
VALUES = [call for call in calls() if call.kind != "usage"]


@pytest.mark.parametrize(
    "call",
    [*sampled(VALUES, 5, kind=lambda call: (call.kind, command_of(call))), *sampled(USAGE, 10, kind=command_of)],
    ids=lambda call: call.id,
)
def test_arguments(
    call: Call, command: Runner, world: World, untouched: dict[Path, tuple[int, str]], inside: Path
) -> None:
    check(command(*fill(call.arguments, world, inside / "out")))
    assert content(world) == untouched


@pytest.mark.parametrize("name", [name for name in TRIED if name != "demo"])
def test_the_calls_that_are_made_hostile_are_valid_without(
    name: str, command: Runner, world: World, inside: Path
) -> None:
    result = command(name, *fill(VALID[name], world, inside / "out"))
    assert result.code == 0, result.err
