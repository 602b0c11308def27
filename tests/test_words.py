"""Plain English: phrases that no message, help, page or document may have, and what to write instead."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
PAGES = sorted(path for path in (ROOT / "src").rglob("*") if path.suffix in (".html", ".js"))
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
# "is no longer", "there is no need" and the like are English; "is no file" is not.
AFTER_NO = (
    "longer|more|less|better|worse|need|reason|way|other|such|difference|faster|higher|lower|smaller|larger|"
    "permission|nearer"
)
PHRASES = {
    r"(leave|left)\b( [^ .]+){1,5} away": "remove, omit",
    r"gone on with": "resumed",
    r"(go|goes|going|went) on": "continue, resume",
    rf"(?<!there )(is|are|was|were) no (?!{AFTER_NO})\w+": "is not a",
    r"so many": "this many, N, number of",
    r"anew": "again, re-",
    r"be had": "get, find, be available",
    r"for want of": "because … is missing",
    r"whoever": "anyone who, clients",
    r"(speaks?|spoke) ((most|more|loudest) )?(for|against)": "supports, counts against",
    r"(takes?|taken|taking|falls?) (\S+ )?apart": "break down",
    r"rightly": "correctly",
    r"mend(s|ed)?": "fix",
    r"and (its|the) like": "and similar",
    r"passed over": "skipped, ignored",
    r"called like": "named like, matches",
    r"called none of these": "rejected",
    r"taken for (known|none)": "kept, rejected",
    r"turned away": "rejected",
    r"pictures?": "image",
    r"data sets?": "dataset",
    r"if you like": "optionally",
    r"unless (told|asked|given)": "by default",
    r"under way": "in progress",
    r"for company": "to fill the batch",
    r"go home": "are moved back",
    r"for machines": "as JSON",
    r"(nobody|somebody)": "no one, unexpected",
    r"without a word": "silently",
    r"for ever": "forever",
    r"from where": "from the original model folder",
    r"at hand": "available",
    r"(deal|deals|dealt)": "split",
    r"turn comes": "on demand",
    r"what (comes in|is asked)": "incoming images, requests",
    r"(images? a second|(ms|milliseconds|bytes|[kM]B|µs) an? (image|row|member))": "per second, per image",
    r"put together": "combined, merged",
    r"the very": "the same",
    r"in (the )?place of": "instead of",
    r"(do|does) without": "does not need",
    r"says? so": "warns, reports it",
    r"most like": "closest class",
}
# Also a percent sign after a space, a plural in brackets, and brackets that the help's renderer drops.
BANNED = re.compile(
    "|".join((*(rf"\b{phrase}\b" for phrase in PHRASES), r"\d[ \u00a0]%", r"\w(?<!softmax)\(s\)", r"\[default:")), re.I
)
# A value, not a sentence: a prompt of PLOT++.
VALUES = {"one picture of a"}


def banned(text: str) -> list[str]:
    """The phrases of a text that must not be there."""
    return [match[0] for match in BANNED.finditer(" ".join(text.split()))]


def strings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every string that a user can read: all but docstrings, those of commands included; f-strings as one text."""
    hidden: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module) and ast.get_docstring(
            node
        ):
            if not (
                isinstance(node, ast.FunctionDef) and any("command" in ast.unparse(d) for d in node.decorator_list)
            ):
                hidden.add(id(node.body[0].value))  # type: ignore[attr-defined]
        elif isinstance(node, ast.JoinedStr):
            hidden.update(id(part) for part in node.values)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in hidden:
            yield node.lineno, node.value
        elif isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in node.values]
            yield node.lineno, "".join(map(str, parts))


def prose(text: str) -> str:
    """A Markdown text without its code."""
    return re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.S)


def test_messages_and_help() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {words}"
        for path in SOURCES
        for line, text in strings(ast.parse(path.read_text(encoding="utf-8")))
        if " " in text and text not in VALUES and (words := banned(text))
    ]
    assert not found, "PHRASES says what to write instead"


def test_pages() -> None:
    assert PAGES and not {path.name: words for path in PAGES if (words := banned(path.read_text(encoding="utf-8")))}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents(path: Path) -> None:
    assert not banned(prose(path.read_text(encoding="utf-8"))), "PHRASES says what to write instead"


@pytest.mark.parametrize(
    "text",
    ["{} is no table.", "the same command goes on", "5 % of the images", "2 image(s) skipped", "drop a\npicture here"],
)
def test_the_check_finds_them(text: str) -> None:
    assert banned(text)


@pytest.mark.parametrize("text", ["It is no longer a file.", "There is no image.", "95% of new images", "s_k(s_n)"])
def test_the_check_leaves_english_alone(text: str) -> None:
    assert not banned(text)
