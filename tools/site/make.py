"""Build the documentation site into `site/`, offline: written pages, made pages, links checked.

    python tools/site/make.py            or: make docs

The pages of docs/ are copied beside those that are made from the registry, the results and the docstrings, and Zensical
builds them. A link that leads nowhere, or anything that a page would load from another host, ends the build.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent))

from figures import Results
from formulas import with_formulas
from pages import file_name, list_page, method_page, reference_pages

from deltaenergy.scores.listing import describe_methods

ROOT = Path(__file__).resolve().parents[2]
WORK, SITE = ROOT / "build" / "site", ROOT / "site"
SECTIONS = {
    "all-scores": (
        "Every score",
        "What turns similarities into one number. [Which to use](../scores.md) says when to take which.",
    ),
    "all-methods": (
        "Every tuning method",
        "What learns from a few images per class. [Tuning](../tuning.md) says when to take which.",
    ),
}
# Links from a page of docs/ to files of the repository, which the site does not have.
_OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./[^)]*\)")
# Scripts, styles, images and fonts that a page would load from another host. Links to follow are no such thing.
_ELSEWHERE = re.compile(
    r"""<(?:script|img|source|iframe)[^>]+src=["']?https?:|<link[^>]+href=["']?https?:[^>]+stylesheet"""
)


def main() -> None:
    """Make the pages, build the site, check it."""
    shutil.rmtree(WORK, ignore_errors=True)
    shutil.copytree(ROOT / "docs", WORK / "docs", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    made = _made_pages()
    for name, text in made.items():
        path = WORK / "docs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for path in (WORK / "docs").rglob("*.md"):
        text = path.read_text(encoding="utf-8")
        if path.parent == WORK / "docs":
            text = _OUTSIDE.sub(r"\1", text)
        path.write_text(with_formulas(text), encoding="utf-8")
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    config |= {"docs_dir": "docs", "site_dir": "site", "nav": _nav(config["nav"], made)}
    config["plugins"][1]["mkdocstrings"]["handlers"]["python"]["paths"] = [str(ROOT / "src")]
    (WORK / "mkdocs.yml").write_text(yaml.safe_dump(config, allow_unicode=True, sort_keys=False), encoding="utf-8")
    build(WORK)
    shutil.rmtree(SITE, ignore_errors=True)
    shutil.copytree(WORK / "site", SITE)
    pages = sum(1 for _ in SITE.rglob("*.html"))
    print(f"{SITE}: {pages} pages. Look at them with: python -m http.server --directory {SITE}")


def build(work: Path) -> None:
    """Build the site of a folder with pages and settings, and check it."""
    built = subprocess.run([sys.executable, "-m", "zensical", "build", "--strict", "--clean"], cwd=work, check=False)
    if built.returncode:
        raise SystemExit("The site was not built: see above.")
    _check_offline(work / "site")


def _made_pages() -> dict[str, str]:
    results = Results.read(ROOT / "docs" / "results")
    rows: dict[str, list[dict[str, Any]]] = {folder: [] for folder in SECTIONS}
    for row in describe_methods():
        rows["all-methods" if row["kind"].startswith("tuning") else "all-scores"].append(row)
    pages = {}
    for folder, (title, intro) in SECTIONS.items():
        pages[f"{folder}/index.md"] = list_page(title, intro, rows[folder])
        pages |= {f"{folder}/{file_name(row['name'])}": method_page(row, results) for row in rows[folder]}
    return pages | {f"reference/{name}": text for name, text in reference_pages().items()}


def _nav(nav: list[Any], made: dict[str, str]) -> list[Any]:
    """The navigation, with the made pages where a section's name stands alone."""
    found: list[Any] = []
    for entry in nav:
        if isinstance(entry, dict) and isinstance(section := next(iter(entry.values())), str) and section.endswith("/"):
            names = sorted(name for name in made if name.startswith(section) and not name.endswith("index.md"))
            index = [f"{section}index.md"] if f"{section}index.md" in made else []
            found.append({next(iter(entry)): [*index, *names]})
        else:
            found.append(entry)
    return found


def _check_offline(site: Path) -> None:
    wrong = [path for path in site.rglob("*.html") if _ELSEWHERE.search(path.read_text(encoding="utf-8"))]
    if wrong:
        raise SystemExit(f"{len(wrong)} pages would load something from another host, the first is {wrong[0]}.")


if __name__ == "__main__":
    main()
