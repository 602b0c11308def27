"""Measure how large and how tangled the package is: counts of the sources, and what each everyday job walks through.

    python tools/measure.py              # print the counts beside the recorded ones; some seconds
    python tools/measure.py --walks      # also run small jobs and count the functions and files they enter; minutes
    python tools/measure.py --write      # record the counts in tools/measures.json (with --walks: the walks, too)

A test (tests/test_measures.py) lets the counts of the sources only fall. Needs only the standard library and, for
options and walks, the package itself.
"""

from __future__ import annotations

import argparse
import ast
import collections
import inspect
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "src" / "deltaenergy"
RECORD = ROOT / "tools" / "measures.json"
CHECKS = re.compile(r"_?(check|require|validate)")
MOST_PARAMETERS = 8
# "What kind of images is this?", asked again and again instead of once: these files may, the others need not.
KINDS = frozenset({"ImageStream", "Features", "Store", "Rows"})
KNOW_KINDS = ("source.py", "models/encoding.py")
# What a detector learned from calibration images; `calibration` holds all of it once there is such a type.
DETECTOR_STATE = frozenset(
    {
        "threshold",
        "keep",
        "guarantee",
        "slack",
        "calibration_scores",
        "by_class",
        "kept_images",
        "calibration",
        "_scorer",
    }
)
UNTYPED_IMAGES = frozenset({"Any", "object"})
# Lines on which nothing but these stands are not lines of code.
_LAYOUT = frozenset(
    {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
)

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Measures(dict[str, int]):
    """Counts by name, in the order in which they are printed."""


def measure_sources(folder: Path = SOURCES) -> Measures:
    """Counts that need no more than reading the sources."""
    counts, classes, writers = Measures(), collections.Counter[str](), 0
    for key in (
        "code lines",
        "lines",
        "files",
        "check, require and validate functions",
        "public class names that exist twice",
        "functions with more than 8 parameters",
        "signatures with images: Any or object",
        "questions about the kind of images",
        "files that write detector state",
    ):
        counts[key] = 0
    for file in sorted(folder.rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        tree = ast.parse(text, str(file))
        counts["files"] += 1
        counts["lines"] += text.count("\n")
        counts["code lines"] += len(_code_lines(text, tree))
        for function in _functions(tree):
            counts["check, require and validate functions"] += bool(CHECKS.match(function.name))
            counts["functions with more than 8 parameters"] += len(_parameters(function)) > MOST_PARAMETERS
            counts["signatures with images: Any or object"] += _takes_untyped_images(function)
        if file.relative_to(folder).as_posix() not in KNOW_KINDS:
            counts["questions about the kind of images"] += sum(map(_asks_for_kind, ast.walk(tree)))
        writers += _writes_detector_state(tree)
        if file.relative_to(folder).parts[:2] != ("cli", "commands"):
            classes.update(
                node.name for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
            )
    counts["public class names that exist twice"] = sum(count > 1 for count in classes.values())
    counts["files that write detector state"] = writers
    return counts


def count_options() -> int:
    """Options of all commands together, as a user sees them: an option of two commands counts twice."""
    sys.path.insert(0, str(SOURCES.parent))
    import typer

    from deltaenergy.cli.main import app

    _, *commands = _commands(typer.main.get_command(app))  # the first is `deltaenergy` itself
    return sum(map(_options_of, commands))


def measure() -> Measures:
    """All counts but the walks."""
    counts = measure_sources()
    counts["options"] = count_options()
    return counts


def _commands(command: Any) -> Iterator[Any]:
    yield command
    for part in getattr(command, "commands", {}).values():
        yield from _commands(part)


def _options_of(command: Any) -> int:
    of_the_shell = {"--help", "--install-completion", "--show-completion"}
    return sum(
        parameter.param_type_name == "option" and not of_the_shell & set(parameter.opts) for parameter in command.params
    )


def _functions(tree: ast.AST) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def _parameters(function: Function) -> list[ast.arg]:
    given = function.args
    return [one for one in (*given.posonlyargs, *given.args, *given.kwonlyargs) if one.arg not in ("self", "cls")]


def _takes_untyped_images(function: Function) -> bool:
    for parameter in _parameters(function):
        if parameter.arg == "images" and parameter.annotation is not None:
            parts = {part.strip() for part in ast.unparse(parameter.annotation).split("|")}
            return bool(parts & UNTYPED_IMAGES)
    return False


def _asks_for_kind(node: ast.AST) -> bool:
    """Whether it is `is_store(…)`, `isinstance(…, KIND)` or `case KIND():`."""
    if isinstance(node, ast.MatchClass):
        return ast.unparse(node.cls) in KINDS
    if not isinstance(node, ast.Call):
        return False
    called = getattr(node.func, "id", getattr(node.func, "attr", ""))
    named = {part.id for part in ast.walk(node.args[-1]) if isinstance(part, ast.Name)} if node.args else set()
    return called == "is_store" or (called == "isinstance" and bool(named & KINDS))


def _writes_detector_state(tree: ast.Module) -> bool:
    """Whether a file assigns `detector.threshold` or the like, or `self.threshold` in the class `Detector`."""
    own = {
        id(node)
        for one in ast.walk(tree)
        if isinstance(one, ast.ClassDef) and one.name == "Detector"
        for node in ast.walk(one)
    }
    return any(
        isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and node.attr in DETECTOR_STATE
        and isinstance(node.value, ast.Name)
        and ("detector" in node.value.id or (node.value.id == "self" and id(node) in own))
        for node in ast.walk(tree)
    )


def _code_lines(text: str, tree: ast.Module) -> set[int]:
    """Numbers of the lines that hold code: neither blank, nor comment, nor docstring."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | Function) and ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            lines -= set(range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1))
    return lines


# The everyday jobs. Each runs in a process of its own on eight small images of two classes and four others.
_MODEL = ["--model", "lite"]
WALKS: dict[str, list[str]] = {
    "score": ["score", "others", "--detector", "detector", "--json"],
    "tune": ["tune", "--train", "images", "--out", "tuned", "--recipe", "epochs=2", "--json", *_MODEL],
    "evaluate": ["evaluate", "--id", "images", "--open", "others", "--report", "report.html", *_MODEL],
    "bench": ["bench", "mini", "--model", "tiny", "--methods", "mcm,ebm/delta-energy", "--limit", "20", "--seeds", "1"],
    "features": ["features", "images", "--out", "store", *_MODEL],
    "explain": ["explain", "others", "--detector", "detector", "--out", "explained.html"],
    "monitor": ["monitor", "others", "--detector", "plain", "--state", "state.json"],
    "POST /v1/verdicts": [],
}


def measure_walks() -> dict[str, dict[str, int]]:
    """For each job the functions and the files of the package that are entered."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        for kind, names in (("images/cat", 4), ("images/dog", 4), ("others", 4)):
            _draw(work / kind, names)
        for folder, score in (("detector", []), ("plain", ["--score", "max-logit"])):
            _job(work, ["calibrate", "images", "--classes", "cat,dog", "--out", folder, "--json", *score, *_MODEL])
        for name, arguments in WALKS.items():
            found[name] = _job(work, arguments)
    return found


def _draw(folder: Path, images: int) -> None:
    """Plain images of 48 × 48 pixels, written by hand: a colour for each."""
    import struct
    import zlib

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    folder.mkdir(parents=True)
    for number in range(images):
        shade = sum(folder.name.encode()) % 97 + 37 * number
        rows = b"".join(b"\0" + bytes([shade % 256, (7 * row) % 256, 200 - shade]) * 48 for row in range(48))
        header = struct.pack(">IIBBBBB", 48, 48, 8, 2, 0, 0, 0)
        parts = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
        (folder / f"{number}.png").write_bytes(b"\x89PNG\r\n\x1a\n" + parts)


def _job(work: Path, arguments: list[str]) -> dict[str, int]:
    settings = {"PYTHONPATH": str(SOURCES.parent), "DELTAENERGY_CACHE": str(work / "cache"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__).resolve()), "--one-walk", *arguments]
    done = subprocess.run(command, cwd=work, env={**os.environ, **settings}, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments) or 'POST /v1/verdicts'} failed:\n{done.stderr[-2000:]}")
    counts: dict[str, int] = json.loads(done.stderr.strip().splitlines()[-1])
    return counts


def _walk(arguments: list[str]) -> None:
    """Run one job here, with every function of the package that is entered noted; print the counts as the last line."""
    import threading

    entered: set[Any] = set()

    def note(frame: Any, event: str, _: object) -> None:
        if event == "call":
            entered.add(frame.f_code)

    job = _command(arguments) if arguments else _request()
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        job()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    # Functions with a name: not the bodies of modules and classes, which run on import, nor lambdas or comprehensions.
    named = [code for code in entered if code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<")]
    ours = [code for code in named if code.co_filename.startswith(str(SOURCES))]
    counts = {"functions": len(ours), "files": len({code.co_filename for code in ours})}
    print(json.dumps(counts), file=sys.stderr, flush=True)


def _command(arguments: list[str]) -> Any:
    from deltaenergy.cli.main import run

    def job() -> None:
        try:
            run(arguments)
        except SystemExit as ended:
            if ended.code:
                raise

    return job


def _request() -> Any:
    from starlette.testclient import TestClient

    import deltaenergy as de
    from deltaenergy.serve.app import create_app
    from deltaenergy.serve.server import make_engine

    detector = de.Detector.load("detector")
    client = TestClient(create_app(make_engine([("d", detector)], detector.classifier.model, None)))

    def job() -> None:
        files = [("files", (file.name, file.read_bytes(), "image/png")) for file in sorted(Path("others").iterdir())]
        with client:
            client.post("/v1/verdicts", files=files).raise_for_status()

    return job


def read_record() -> dict[str, Any]:
    """What was recorded last."""
    record: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))
    return record


def main() -> None:
    """Print the counts beside the recorded ones; record them if asked to."""
    parser = argparse.ArgumentParser(
        description="Measure the package's sources and what its everyday jobs walk through."
    )
    parser.add_argument("--walks", action="store_true", help="also run the jobs; takes minutes")
    parser.add_argument("--write", action="store_true", help=f"record the counts in {RECORD.relative_to(ROOT)}")
    options = parser.parse_args()
    before = read_record() if RECORD.exists() else {"counts": {}, "walks": {}}
    now: dict[str, Any] = {"counts": measure(), "walks": measure_walks() if options.walks else before["walks"]}
    for name, count in now["counts"].items():
        print(f"{count:>7,}  {name}  (recorded: {before['counts'].get(name, 'nothing')})")
    for name, walk in now["walks"].items() if options.walks else ():
        told = before["walks"].get(name, {})
        print(f"{walk['functions']:>4} functions in {walk['files']} files  {name}  (recorded: {told or 'nothing'})")
    if options.write:
        RECORD.write_text(json.dumps(now, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one-walk"]:
        _walk(sys.argv[2:])
    else:
        main()
