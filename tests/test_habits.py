"""What stands beside the code: the citation, the hooks, links between documents, and completion in a shell."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import deltaenergy as de
from tests.mutants.listed import MUTANTS

ROOT = Path(__file__).resolve().parents[1]
# Names of files and arguments, and near names that an error must suggest, fit into this.
LONGEST_MATCH = 30
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def test_the_citation_names_this_version_and_the_paper() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["cff-version"] == "1.2.0" and cited["type"] == "software"
    assert cited["version"] == de.__version__
    (paper,) = cited["references"]
    assert paper["title"].startswith("ΔEnergy") and paper["year"] == 2025
    assert [author["family-names"] for author in paper["authors"]] == ["Zhu", "Yang", "Wang", "Gu", "Ye"]


def test_hooks_run_what_the_tests_run_and_fetch_nothing() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    assert [one["repo"] for one in hooks] == ["local"]
    entries = " ".join(hook["entry"] for hook in hooks[0]["hooks"])
    assert all(tool in entries for tool in ("ruff check", "ruff format", "mypy"))
    assert all(hook["language"] == "system" for hook in hooks[0]["hooks"])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_to_files_and_headings_that_exist(document: Path) -> None:
    text = re.sub(r"```.*?```", "", document.read_text(encoding="utf-8"), flags=re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, heading = target.partition("#")
        file = (document.parent / name).resolve() if name else document
        assert file.exists(), f"{document.name} leads to {target}"
        if heading and file.suffix == ".md":
            found = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), flags=re.M)
            assert heading in {slug(one) for one in found}, f"{document.name} leads to {target}"


def slug(heading: str) -> str:
    """The anchor of a heading, as the repository's pages make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("deltaenergy mon", {"monitor"}),
        ("deltaenergy score --det", {"--detector"}),
        ("deltaenergy score --score mahal", {"mahalanobis"}),
        ("deltaenergy bench min", {"mini"}),
        ("deltaenergy tune --method task", {"task-res"}),
        ("deltaenergy choose --score mahal", {"mahalanobis"}),
        ("deltaenergy bench mini --methods task", {"task-res"}),
        ("deltaenergy methods mahal", {"mahalanobis"}),
    ],
)
def test_the_shell_completes_commands_and_options(words: str, expected: set[str]) -> None:
    environment = {
        **os.environ,
        "_DELTAENERGY_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    code = "import sys; sys.argv = ['deltaenergy']; from deltaenergy.cli.main import run; run()"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert set(done.stdout.split()) == expected, done.stderr


def test_the_script_for_a_shell() -> None:
    environment = {**os.environ, "_DELTAENERGY_COMPLETE": "source_zsh"}
    code = "import sys; sys.argv = ['deltaenergy']; from deltaenergy.cli.main import run; run()"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert "#compdef deltaenergy" in done.stdout


def test_tests_match_what_an_error_names_and_no_sentence() -> None:
    """`match=` and the parameters it is given hold an argument, a file or a number: wording stays free to improve."""
    found = [
        f"{path.relative_to(ROOT)}:{literal.lineno}: {literal.value}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if "match=" in (source := path.read_text(encoding="utf-8"))
        for literal in matched_literals(ast.parse(source))
        if len(literal.value) > LONGEST_MATCH
    ]
    assert not found, "\n".join(found)


def matched_literals(tree: ast.Module) -> Iterator[ast.Constant]:
    """The texts in `raises(…, match=…)` and `warns(…, match=…)`, and those of `parametrize` that are matched."""
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        matches = [
            keyword.value
            for call in ast.walk(function)
            if isinstance(call, ast.Call) and getattr(call.func, "attr", "") in ("raises", "warns")
            for keyword in call.keywords
            if keyword.arg == "match"
        ]
        yield from (text for match in matches for text in texts_of(match))
        names = {node.id for match in matches for node in ast.walk(match) if isinstance(node, ast.Name)}
        for decorator in function.decorator_list:
            if isinstance(decorator, ast.Call) and getattr(decorator.func, "attr", "") == "parametrize":
                yield from matched_parameters(decorator, names)


def matched_parameters(parametrize: ast.Call, names: set[str]) -> Iterator[ast.Constant]:
    """The texts of the columns called `names`."""
    columns = [part.strip() for text in texts_of(parametrize.args[0]) for part in text.value.split(",")]
    for row in getattr(parametrize.args[1], "elts", []):
        cells = [row] if len(columns) == 1 else getattr(row, "elts", getattr(row, "args", []))
        for column, cell in zip(columns, cells):
            if column in names:
                yield from texts_of(cell)


def texts_of(node: ast.AST) -> Iterator[ast.Constant]:
    return (one for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str))


def test_every_mutant_applies_and_has_its_tests() -> None:
    """`make mutants` takes long, and is run seldom: a fault in code that has changed since must not wait for it."""
    for mutant in MUTANTS:
        mutant.place()
        for test in mutant.tests:
            file, *names = test.split("::")
            text = (ROOT / file).read_text(encoding="utf-8")
            assert all(f" {name.partition('[')[0]}(" in text for name in names), test
    reliability = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    assert f"all {len(MUTANTS)}: " in reliability.replace("\n", " ")


def test_messages_of_the_library_name_no_options() -> None:
    """They name arguments in backticks, and the command line prints its options in their place."""
    root = ROOT / "src" / "deltaenergy"
    named = []
    for file in sorted(root.rglob("*.py")):
        if file.relative_to(root).parts[0] == "cli":
            continue
        tree = ast.parse(file.read_text(encoding="utf-8"))
        described = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and isinstance(node.body[0], ast.Expr)
        }
        named += [
            f"{file.relative_to(root)}:{node.lineno}: {node.value}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in described
            and re.search(r"(?<![\w-])--[a-z]", node.value)
        ]
    assert not named
