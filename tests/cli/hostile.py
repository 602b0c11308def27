"""Hostile calls of the command line: every option of every command with values that nobody should give.

    python -m tests.cli.hostile      # how many there are, by kind

The values are generated from the commands' own signatures, so that a new option is tried without being listed here.
"""

from __future__ import annotations

import math
import types
import typing
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from typer.models import ArgumentInfo

from deltaenergy.cli.main import app  # which registers the commands
from deltaenergy.cli.shell.app import COMMANDS, options_of, parameters

assert app
# It would wait for requests; its own tests start it.
TRIED = sorted(name for name in COMMANDS if name != "serve")
# A call of each command that would succeed. {…} are places of the world (see test_hostile.py).
VALID: dict[str, list[str]] = {
    "adapt": ["{images}", "--classes", "cat,dog", "--model", "{model}", "--method", "tanl(count=2,words='{words}')"],
    "bench": ["{spec}", "--model", "{model}", "--out", "{out}", "--methods", "msp", "--seeds", "1"],
    "calibrate": ["{images}", "--classes", "cat,dog", "--model", "{model}", "--out", "{out}"],
    "check-model": ["{model}", "--id", "{images}", "--on", "int8", "--score", "mcm"],
    "choose": ["--id", "{images}", "--model", "{model}", "--score", "mcm"],
    "datasets": ["{root}"],
    # It would run for real, and take its time: with this model it ends after all arguments are checked.
    "demo": ["--model", "{root}", "--out", "{out}"],
    "evaluate": ["--id", "{images}", "--open", "{others}", "--model", "{model}", "--score", "mcm"],
    "explain": ["{images}", "--detector", "{detector}", "--out", "{out}.html", "--method", "value-path"],
    "features": ["{images}", "--model", "{model}", "--out", "{out}"],
    "methods": ["mcm"],
    "monitor": ["{images}", "--detector", "{detector}", "--state", "{out}.json"],
    "report": ["{results}", "--out", "{out}.html"],
    "score": ["{images}", "--classes", "cat,dog", "--model", "{model}"],
    "sort": ["{images}", "--detector", "{detector}", "--into", "{out}"],
    "theory": ["{detector}", "--id", "{images}"],
    "tune": ["--train", "{images}", "--model", "{model}", "--out", "{out}", "--shots", "1", "--recipe", "epochs=1"],
    "undo": ["{sorted}/undo-1.jsonl", "--dry-run"],
    "verify": ["{store}"],
}
WHOLE = ["-1", "0", "99999999999999999999", "1e3", "²", "nan", "", "0x10", "1_0", "--1", " ", "inf", "½", "true"]
FLOAT = ["nan", "inf", "-inf", "-1", "0", "1e400", "abc", "", "²", "1,5", "--", "5e-324", "1e308"]
TEXT = [
    "",
    " ",
    ",",
    "\0",
    "a\0b",
    "\udc80",
    "[/red]",
    "[red]x[/]",
    "[link=x]",
    ":smile:",
    "\x1b[31mred",
    "\u202egpj.exe",
    "line\nbreak",
    "\r\x08",
    "x" * 5000,
    "../nope/nope",
    "./nope",
    "~nobody/x",
    "/dev/null",
    "/dev/full",
    "/dev/zero",
    "{pipe}",
    "/dev/stdin/x",
    "/proc/self/mem",
    "-",
    "{}",
    "{0}",
    "%s%n",
    "$(x)",
    "*",
    "[",
    "**/[",
    "(((",
    "mcm(",
    "msp(temperature=abc)",
    "delta-energy(tau=nan)",
    "delta-energy(tau=)",
    "delta-energy(tau=[1])",
    "ebm(weight=-1)+ebm",
    "coop(context_length=1e9)",
    "((" * 4000,
    "http://127.0.0.1:1/x.png",
    "nope.txt",
    "🙂",
    "ﬁ",
    "None",
    "0",
    "cuda:99",
    "openvino,fp16",
    "batch=",
    "epochs=²",
]
# So many values are tried on each option; another choice for each.
NUMBERS_EACH, TEXTS_EACH = 8, 6


@dataclass(frozen=True)
class Call:
    """One call: its kind, and the arguments with places still in braces."""

    kind: str
    arguments: tuple[str, ...]

    @property
    def id(self) -> str:
        """A short name for test reports."""
        text = " ".join(self.arguments)[:100]
        return f"{self.kind}: " + text.encode("unicode_escape", "surrogatepass").decode("ascii")


def calls() -> list[Call]:
    """All calls with hostile arguments."""
    return [*_options(), *_missing(), *_bare(), *_met()]


def _options() -> Iterator[Call]:
    for command in TRIED:
        for position, (name, kind, is_argument) in enumerate(_parameters(command)):
            numbers = {int: WHOLE, float: FLOAT}.get(kind)
            label = "texts" if numbers is None else "numbers"
            if numbers is not None:
                values = _some(numbers, NUMBERS_EACH, position + len(command))
            else:
                values = ["x"] if kind is bool else _some(TEXT, TEXTS_EACH, 7 * position + 5 * len(command))
            for value in values:
                yield Call(label, (command, *_with(VALID[command], name, value, is_argument)))


def _some(values: list[str], count: int, start: int) -> list[str]:
    """`count` of the values, spread over all of them and beginning at `start`."""
    step = next(step for step in (3, 5, 7, 1) if math.gcd(step, len(values)) == 1)
    return [values[(start + step * i) % len(values)] for i in range(min(count, len(values)))]


def _with(valid: list[str], name: str, value: str, is_argument: bool) -> list[str]:
    """The valid call with one option set anew, or its first positional argument replaced."""
    if is_argument:
        return ["--", value] if not valid or valid[0].startswith("--") else [*valid[1:], "--", value]
    kept, skip = [], False
    for argument in valid:
        if skip:
            skip = False
        elif argument == name:
            skip = True
        else:
            kept.append(argument)
    return [*kept, f"{name}={value}"]


def _missing() -> Iterator[Call]:
    """Options without a value, options twice, options that do not exist, and nothing at all."""
    for command in TRIED:
        if command != "demo":  # which runs without any
            yield Call("usage", (command,))
        yield Call("usage", (command, "--no-such-option"))
        yield Call("usage", (command, "--no-such-option=\x1b[31m[/red]"))
        yield Call("usage", (command, "--help", "\udc80"))
        for name, _, is_argument in _parameters(command):
            if not is_argument and name != "--json":
                yield Call("usage", (command, name))


def _bare() -> Iterator[Call]:
    for arguments in ([], [""], ["\0"], ["-"], ["--"], ["[/red]"], ["scoer"], ["\udc80"], ["--version=1"]):
        yield Call("usage", tuple(arguments))


def _met() -> Iterator[Call]:
    """Calls that once ended in an error of ours, or never."""
    for arguments in (
        ["undo", "/dev/zero"],
        ["undo", "{pipe}"],
        ["undo", "\ud800"],
        ["undo", "{images}"],
        ["serve", "--host", "\udcff"],
        ["serve", "--host", "a" * 300],
        ["evaluate", "--id", "{pairs}.jpg", "--classes", "cat,dog", "--model", "{model}"],
        ["evaluate", "--id", "{empty}", "--classes", "cat,dog", "--model", "{model}"],
        ["score", "{images}", "--detector", "{detector}", "--keep", "0.5"],
        ["score", "{images}", "--detector", "{detector}", "--on", ",,"],
        ["calibrate", "{images}", "--detector", "{tampered}", "--out", "{out}"],
        ["score", "{images}", "--detector", "{tampered}"],
        ["serve", "--limits", "files"],
        ["serve", "--limits", "seconds=nan"],
    ):
        yield Call("met", tuple(arguments))


def _parameters(command: str) -> Iterator[tuple[str, type, bool]]:
    """(name, type, whether it is an argument) of every parameter."""
    typed_as = options_of(COMMANDS[command])
    for name, hint, told in parameters(COMMANDS[command]):
        yield typed_as[name], _plain(hint), isinstance(told, ArgumentInfo)


def _plain(hint: Any) -> type:
    """`int` of `int | None`, `str` of `list[str] | None`."""
    if isinstance(hint, types.UnionType):
        hint = next(one for one in typing.get_args(hint) if one is not type(None))
    origin = typing.get_origin(hint)
    if origin is Literal:
        return str
    return _plain(typing.get_args(hint)[0]) if origin is list else str if hint is Path else hint


def counts() -> Counter[str]:
    """How many calls there are, by kind."""
    return Counter(call.kind for call in calls())


if __name__ == "__main__":
    for kind, count in sorted(counts().items()):
        print(f"{kind:<10}{count:>6}")
    print(f"{'all':<10}{counts().total():>6}")
