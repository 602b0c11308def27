"""Build the documentation site into `site/`, offline: written and generated pages, links checked.

    python tools/site/make.py            or: make docs

Zensical builds the pages of docs/ together with pages generated from the registry, the results, the commands' help
and the docstrings. A broken link, or anything that a page would load from another host, ends the build.
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
from pages import command_pages, file_name, list_page, method_page, reference_pages

from deltaenergy.scores.listing import describe_methods

ROOT = Path(__file__).resolve().parents[2]
WORK, SITE = ROOT / "build" / "site", ROOT / "site"
SECTIONS = {
    "all-scores": (
        "Every score",
        "A score turns an image's similarities into one number. [Choose a score](../scores.md) says when to use which.",
    ),
    "all-methods": (
        "Every tuning method",
        "A tuning method learns from a few images per class. [Tuning](../tuning.md) says when to use which.",
    ),
}
# Links from a page of docs/ to files of the repository, which the site does not have.
_OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./[^)]*\)")
# Scripts, styles, images and fonts that a page would load from another host. Links to follow are allowed.
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
    print(f"{SITE}: {pages} pages. To see them: python -m http.server --directory {SITE}")


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
    pages |= {f"commands/{name}": text for name, text in command_pages().items()}
    return pages | {f"reference/{name}": text for name, text in reference_pages().items()}


def _nav(nav: list[Any], made: dict[str, str]) -> list[Any]:
    """The navigation; an entry that ends in / becomes the generated pages of that folder."""
    found: list[Any] = []
    for entry in nav:
        title, section = next(iter(entry.items())) if isinstance(entry, dict) else (None, entry)
        if isinstance(section, list):
            found.append({title: _nav(section, made)})
        elif section.endswith("/"):
            names = [name for name in made if name.startswith(section)]
            found.append({title: sorted(names, key=lambda name: (not name.endswith("/index.md"), name))})
        else:
            found.append(entry)
    return found


def _check_offline(site: Path) -> None:
    wrong = [path for path in site.rglob("*.html") if _ELSEWHERE.search(path.read_text(encoding="utf-8"))]
    if wrong:
        raise SystemExit(f"{len(wrong)} pages would load something from another host, the first is {wrong[0]}.")


if __name__ == "__main__":
    main()
