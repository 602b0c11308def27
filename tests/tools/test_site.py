"""The documentation site: figures come from the results, formulas become MathML, and all of it can be built offline."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / "tools" / "site"
RESULTS = """# Results
## First things
| score | set | mean |
|---|---:|---:|
| `mcm` | 80.1 | 80.2 |
| **mcm(temperature=2)** | 81.1 | 81.2 |
| mcm-like | 1 | 2 |
### A "second" thing
| method | a \\| b |
|---|---|
| [mcm](x.md) | 3 |

| no | table
"""


@pytest.fixture(scope="module")
def figures() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(TOOLS))
        import figures

        yield figures


def test_figures_are_those_of_the_name_alone(figures: ModuleType) -> None:
    found = figures.figures_of("mcm", RESULTS)
    assert [table.headings for table in found] == [
        ("Results", "First things"),
        ("Results", "First things", 'A "second" thing'),
    ]
    assert found[0].rows == [["`mcm`", "80.1", "80.2"], ["**mcm(temperature=2)**", "81.1", "81.2"]]
    assert found[1].columns == ["method", "a \\| b"]
    assert figures.slug('A "second" thing: P(p ≤ 1)') == "a-second-thing-pp-1"
    assert figures.figures_of("energy", RESULTS) == []


def test_formulas_are_drawn_and_code_is_left_alone() -> None:
    pytest.importorskip("latex2mathml", reason="the extra `docs` is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(TOOLS))
        from formulas import with_formulas

    made = with_formulas("cost $x_1$ and `$y$`\n\n$$ \\frac{a}{b} $$\n\n    $HOME\n\n```sh\necho $A $B\n```\n")
    assert made.count("<math") == 2 and "<mfrac>" in made and "<msub>" in made
    assert "`$y$`" in made and "    $HOME" in made and "echo $A $B" in made


def test_every_written_page_is_in_the_navigation() -> None:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    named: set[str] = set()
    for entry in nav:
        for value in entry.values():
            named |= {value} if isinstance(value, str) else set(value)
    written = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert written == {name for name in named if name.endswith(".md")}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built from a copy of what it is made of."""
    pytest.importorskip("zensical", reason="the extra `docs` is not installed")
    root = tmp_path_factory.mktemp("project")
    for name in ("docs", "tools", "src"):
        (root / name).symlink_to(ROOT / name) if name == "src" else shutil.copytree(ROOT / name, root / name)
    shutil.copy(ROOT / "mkdocs.yml", root)
    done = subprocess.run([sys.executable, str(root / "tools/site/make.py")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return root / "site"


def test_each_score_and_method_has_a_page(site: Path) -> None:
    import deltaenergy as de

    assert "80" in (site / "all-scores" / "mcm" / "index.html").read_text(encoding="utf-8")
    for folder, names in (("all-scores", de.list_scores()), ("all-methods", de.list_methods())):
        made = {path.name for path in (site / folder).iterdir() if path.is_dir()}
        assert {name.replace("++", "-plus-plus").replace("+", "-plus-") for name in names} <= made
    assert "<mfrac>" in (site / "concepts" / "index.html").read_text(encoding="utf-8")
    assert "calibrate" in (site / "reference" / "detectors" / "index.html").read_text(encoding="utf-8")


def test_a_broken_link_fails_the_build(site: Path) -> None:
    root = site.parent
    (root / "docs" / "python.md").write_text("# Python\n\n[gone](nowhere.md)\n", encoding="utf-8")
    done = subprocess.run([sys.executable, str(root / "tools/site/make.py")], capture_output=True, text=True)
    assert done.returncode != 0
    assert "page does not exist" in done.stderr and "python.md" in done.stderr


def test_pages_in_a_browser(site: Path) -> None:
    """No error on the console, no request elsewhere, nothing wider than a phone, in both colour schemes."""
    pages = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed")
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(site))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/"
    wrong: list[str] = []
    try:
        with pages.sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=chromium, args=["--no-sandbox", "--disable-background-networking"]
            )
            for scheme, width in (("light", 1280), ("dark", 390)):
                page: Any = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 800})
                page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
                page.on("request", lambda asked: None if asked.url.startswith(address) else wrong.append(asked.url))
                for name in ("", "concepts/", "all-scores/mcm/", "reference/detectors/", "tutorials/few-shot/"):
                    page.goto(address + name)
                    assert page.evaluate("document.documentElement.scrollWidth") <= width, name
                page.close()
            browser.close()
    finally:
        server.shutdown()
        server.server_close()
    assert wrong == []
