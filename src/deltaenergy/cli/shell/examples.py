"""What people type: the examples under every command's --help. Tests check that their options exist."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import typer

Command = TypeVar("Command", bound=Callable[..., None])

EXAMPLES: dict[str, tuple[str, ...]] = {
    "demo": ("deltaenergy demo", "deltaenergy demo --out my-demo --json"),
    "score": (
        'deltaenergy score photos/ --classes "dog,cat,horse"',
        'deltaenergy score photos/ --classes "dog,cat,horse" --id good/ --out verdicts.csv',
        "deltaenergy score photos/ --detector detector/ --report page.html --copy-to sorted/",
        "find . -name '*.jpg' | deltaenergy score - --detector detector/ --top-k 3 --json",
        "deltaenergy score photos.store --detector detector/ --out verdicts.parquet --ray head:6379",
    ),
    "undo": ("deltaenergy undo sorted/undo-1.jsonl --dry-run", "deltaenergy undo sorted/undo-1.jsonl"),
    "calibrate": (
        'deltaenergy calibrate good/ --classes "dog,cat,horse" --out detector/',
        "deltaenergy calibrate more/ --detector detector/ --keep 0.99 --out lenient/",
    ),
    "choose": ("deltaenergy choose --id good/",),
    "evaluate": (
        "deltaenergy evaluate --id good/ --open other/ --report report.html --explain 6",
        "deltaenergy evaluate --id good/ --shifted sketches/ --open other/ --score all",
        "deltaenergy evaluate --id good/ --open other/ --detector tuned/ --detector second/ --zero-shot",
    ),
    "explain": (
        "deltaenergy explain photos/ --detector detector/ --out page.html",
        "deltaenergy explain photos/ --detector detector/ --target score --png maps/",
        'deltaenergy explain dog.jpg --classes "dog,cat,horse" --target cat --method occlusion --out page.html',
    ),
    "data check": ("deltaenergy data check DATA", "deltaenergy data check DATA pacs dtd"),
    "data list": ("deltaenergy data list",),
    "model check": (
        "deltaenergy model check lite --backend openvino --precision int8 --calibrate-on some/ --images good/",
        "deltaenergy model check CLIP_FOLDER --backend onnx --images good/ --open other/ --json",
    ),
    "tune": ("deltaenergy tune --train few/ --shots 16 --out tuned/",),
    "theory": ("deltaenergy theory detector/ --id good/ --open other/ --report theory.html",),
    "bench": ("deltaenergy bench mini --out results/", "deltaenergy bench setup2 --data DATA --out results/"),
    "report": ("deltaenergy report results/", "deltaenergy report results/ --markdown tables.md --latex tables.tex"),
    "serve": ("deltaenergy serve --detector detector/",),
    "monitor": (
        "deltaenergy monitor today/ --detector detector/ --state state.json --report monitor.html",
        "deltaenergy monitor verdicts.parquet --detector detector/ --state state.json --json",
    ),
    "features": (
        "deltaenergy features photos/ --out store/",
        "deltaenergy features photos/ --out fast-store/ --backend openvino",
    ),
    "verify": ("deltaenergy verify store/", "deltaenergy verify store/ --repair photos/"),
    "methods": ("deltaenergy methods", "deltaenergy methods mcm"),
}


def epilog(name: str) -> str | None:
    """The examples as paragraphs, which is how typer keeps lines apart."""
    lines = EXAMPLES.get(name)
    return "\n\n".join(["[bold]Examples[/bold]", *lines]) if lines else None


def paragraphs(docstring: str | None) -> str:
    """A docstring whose lines are as long as its paragraphs: the terminal folds them where it ends."""
    blocks = (docstring or "").strip().split("\n\n")
    return "\n\n".join(" ".join(block.split()) for block in blocks)


def named(app: typer.Typer, name: str, examples: str) -> Callable[[Command], Command]:
    """A decorator that adds a command to `app`, with its docstring in paragraphs and the `examples` of that name."""

    def add(command: Command) -> Command:
        return app.command(name, help=paragraphs(command.__doc__), epilog=epilog(examples))(command)

    return add
