"""The documentation site: figures come from the results, formulas become MathML, and all of it can be built offline."""

from __future__ import annotations

import contextlib
import functools
import html
import re
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


def test_figures_come_from_all_pages_and_csv_files(figures: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "tables").mkdir()
    (tmp_path / "one.md").write_text(RESULTS, encoding="utf-8")
    (tmp_path / "two.md").write_text("# Two\n| score | a |\n|---|---|\n| energy | 1 |\n", encoding="utf-8")
    (tmp_path / "tables" / "long.csv").write_text("score,a\nmcm:some,1\n", encoding="utf-8")
    (tmp_path / "tables" / "other.csv").write_text("score,a\nmcm-like,1\n", encoding="utf-8")
    results = figures.Results.read(tmp_path)
    assert [page for page, _ in results.tables_of("mcm")] == ["one.md", "one.md"]
    assert [(page, table.rows) for page, table in results.tables_of("energy")] == [("two.md", [["energy", "1"]])]
    assert (results.files_of("mcm"), results.files_of("energy")) == (["long.csv"], [])


def test_formulas_are_drawn_and_code_is_left_alone() -> None:
    pytest.importorskip("latex2mathml", reason="the extra `docs` is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(TOOLS))
        from formulas import with_formulas

    made = with_formulas("cost $x_1$ and `$y$`\n\n$$ \\frac{a}{b} $$\n\n    $HOME\n\n```sh\necho $A $B\n```\n")
    assert made.count("<math") == 2 and "<mfrac>" in made and "<msub>" in made
    assert "`$y$`" in made and "    $HOME" in made and "echo $A $B" in made


def pages_of(nav: Any) -> list[str]:
    """The pages of a navigation, at any depth."""
    if isinstance(nav, str):
        return [nav]
    return [page for entry in (nav.values() if isinstance(nav, dict) else nav) for page in pages_of(entry)]


def test_every_written_page_is_in_the_navigation_once() -> None:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    written = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    assert sorted(page for page in pages_of(nav) if page.endswith(".md")) == sorted(written)


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


def test_each_command_has_a_page_with_its_options_and_examples(site: Path) -> None:
    from deltaenergy.cli.shell.app import COMMANDS, options_of

    for name, function in COMMANDS.items():
        page = html.unescape((site / "commands" / name / "index.html").read_text(encoding="utf-8"))
        assert all(option in page for option in options_of(function).values() if option.startswith("--")), name
        assert f"deltaenergy {name}" in re.sub("<[^>]*>", "", page)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[gone](nowhere.md)", "page does not exist"),
        ('<img src="https://example.org/x.png">', "load something from another host"),
        ("[there](index.md)", None),
    ],
)
def test_a_broken_link_or_a_foreign_image_fails_the_build(
    text: str, said: str | None, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("zensical", reason="the extra `docs` is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(TOOLS))
        from make import build
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    config |= {"docs_dir": "docs", "site_dir": "site", "nav": [{"Home": "index.md"}, {"Python": "python.md"}]}
    (tmp_path / "docs").mkdir()
    (tmp_path / "mkdocs.yml").write_text(yaml.safe_dump(config, allow_unicode=True), encoding="utf-8")
    (tmp_path / "docs" / "index.md").write_text("# Home\n\nText.\n", encoding="utf-8")
    (tmp_path / "docs" / "python.md").write_text(f"# Python\n\n{text}\n", encoding="utf-8")
    if said is None:
        build(tmp_path)
        assert (tmp_path / "site" / "python" / "index.html").is_file()
        return
    with pytest.raises(SystemExit) as stopped:
        build(tmp_path)
    printed = capfd.readouterr().err + str(stopped.value)
    assert said in printed and "python" in printed


def every_page(site: Path) -> list[str]:
    """Addresses below the root, as the navigation has them."""
    names = [path.relative_to(site).as_posix() for path in sorted(site.rglob("*.html"))]
    return [name.removesuffix("index.html") for name in names]


# One page of each kind: written, with formulas, with wide tables, made of results or docstrings, lists, and no page.
KINDS = [
    "",
    "404.html",
    "concepts/",
    "results/",
    "results/scores-on-clip/",
    "all-scores/",
    "all-scores/mcm/",
    "all-methods/ebm/",
    "reference/detectors/",
    "commands/",
    "commands/score/",
]


@pytest.mark.parametrize("some", [KINDS, pytest.param(None, marks=pytest.mark.campaign)], ids=["some", "all"])
def test_pages_in_a_browser(some: list[str] | None, site: Path) -> None:
    """No error on the console, no request elsewhere or in vain, nothing wider than the window, the right colours.

    Every page is seen light and wide, and dark and narrow. Half of them are opened the one way and turned to the other.
    """
    browsers = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed")
    pages = every_page(site)
    assert len(pages) > 80 and set(KINDS) <= set(pages)
    wrong: list[tuple[str, str]] = []
    with served(site) as address, browsers.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-background-networking"]
        )
        page: Any = browser.new_page()
        watch = Watch(page, address)
        for number, name in enumerate(some or pages):
            for turn, (scheme, width) in enumerate(WAYS if number % 2 else WAYS[::-1]):
                page.emulate_media(color_scheme=scheme)
                page.set_viewport_size({"width": width, "height": 800})
                if turn == 0:
                    page.goto(address + name, timeout=SECONDS * 1000)
                found = page.evaluate(LOOK, scheme)
                if found["width"] > width:
                    watch.wrong.append(f"{scheme}: {found['width']} pixels wide")
                if not found["words"]:
                    watch.wrong.append(f"{scheme}: no text")
                if (found["light"] > 0.5) != (scheme == "light"):
                    watch.wrong.append(f"{scheme}: a background of lightness {found['light']:.2f}")
            wrong += [(name, one) for one in watch.wrong]
            watch.wrong.clear()
        browser.close()
    assert wrong == []


WAYS = (("light", 1280), ("dark", 390))
# Slow machines take their time.
SECONDS = 300
# The width of a page, how many letters it has, and how light its background is, once it has had time to turn.
LOOK = """async (scheme) => {
    const light = () => {
        const channels = getComputedStyle(document.body).backgroundColor.match(/[0-9.]+/g).slice(0, 3).map(Number);
        return channels.reduce((sum, one) => sum + one, 0) / 765;
    };
    for (let waits = 0; waits < 200 && (light() > 0.5) !== (scheme === "light"); waits++)
        await new Promise((done) => setTimeout(done, 50));
    return {
        width: document.documentElement.scrollWidth,
        words: document.querySelector("article, main").innerText.trim().length,
        light: light(),
    };
}"""


class Watch:
    """What goes wrong on a page: messages, requests elsewhere, and answers that are errors."""

    def __init__(self, page: Any, address: str) -> None:
        self.wrong: list[str] = []
        own = (address, "data:", "blob:")
        page.on("console", lambda said: self._note(said.type in ("error", "warning"), said.text))
        page.on("pageerror", lambda error: self._note(True, str(error)))
        page.on("request", lambda asked: self._note(not asked.url.startswith(own), asked.url))
        page.on("response", lambda answer: self._note(answer.status >= 400, f"{answer.url}: {answer.status}"))

    def _note(self, wrong: bool, text: str) -> None:
        if wrong:
            self.wrong.append(text)


class Quiet(SimpleHTTPRequestHandler):
    """Files of a folder, without a line for each."""

    def log_message(self, *_: object) -> None: ...


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a server of the folder's files on this machine."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()
