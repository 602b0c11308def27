"""`make check` runs the tests of what changed, and no others."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "check.py"
FILES = {
    "src/deltaenergy/detector.py": "",
    "src/deltaenergy/data/store.py": "",
    "src/deltaenergy/data/hashing.py": "",
    "src/deltaenergy/data/lonely.py": "",
    "src/deltaenergy/scores/negatives/pools.py": "",
    "src/deltaenergy/cli/commands/score.py": "",
    "tests/cli/test_score.py": "",
    "tests/test_architecture.py": "",
    "tests/test_detector.py": "",
    "tests/test_detector_files.py": "",
    "tests/data/conftest.py": "",
    "tests/data/test_store.py": "",
    "tests/data/test_store_rows.py": "",
    "tests/files/test_ids.py": "from deltaenergy.data.hashing import file_hash",
    "tests/scores/negatives/test_pools.py": "",
    "tests/tools/test_site.py": "",
    "tools/site/pages.py": "",
    "README.md": "",
}


@pytest.fixture(scope="module")
def check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        ([], []),
        (["src/deltaenergy/detector.py"], ["tests/test_detector.py", "tests/test_detector_files.py"]),
        (["src/deltaenergy/data/store.py"], ["tests/data/test_store.py", "tests/data/test_store_rows.py"]),
        (["src/deltaenergy/data/hashing.py"], ["tests/files/test_ids.py"]),
        (["src/deltaenergy/data/lonely.py"], ["tests/data"]),
        (["src/deltaenergy/scores/negatives/pools.py"], ["tests/scores/negatives/test_pools.py"]),
        (["tests/data/test_store.py"], ["tests/data/test_store.py"]),
        (["tests/data/conftest.py", "tests/data/test_store.py"], ["tests/data"]),
        (["tools/site/pages.py"], ["tests/tools/test_site.py"]),
        (["src/deltaenergy/cli/commands/score.py"], ["tests/cli/test_score.py"]),
        (["README.md"], ["tests/docs/test_code_blocks.py::test_commands_have_these_options"]),
        (["src/deltaenergy/data/words.txt", "Makefile"], []),
    ],
)
def test_tests_of_what_changed(check: ModuleType, root: Path, changed: list[str], tests: list[str]) -> None:
    assert check.tests_of(changed, root) == sorted([*tests, "tests/test_architecture.py"])


def test_what_changed_since_a_branch_was_left(check: ModuleType, tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    def write(name: str, text: str) -> None:
        (tmp_path / name).write_text(text, encoding="utf-8")

    git("init", "--initial-branch=main")
    for name in ("same", "gone", "committed", "edited"):
        write(name, "1")
    write(".gitignore", "ignored")
    git("add", ".")
    git("commit", "-m", "first")
    git("checkout", "-b", "mine")
    write("committed", "2")
    git("commit", "-a", "-m", "second")
    git("checkout", "main")
    write("others", "3")
    git("add", "others")
    git("commit", "-m", "of others")
    git("checkout", "mine")
    write("edited", "4")
    write("new", "5")
    write("ignored", "6")
    (tmp_path / "gone").unlink()
    assert check.changed_files(tmp_path, "main") == ["committed", "edited", "new"]
    assert check.changed_files(tmp_path, "HEAD") == ["edited", "new"]


def test_no_test_begins_when_time_is_up(check: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "test_two.py").write_text("def test_a(): pass\ndef test_b(): assert False\n", encoding="utf-8")
    arguments = ["-q", "-p", "no:cacheprovider", f"--rootdir={tmp_path}", str(tmp_path)]
    assert pytest.main(arguments, plugins=[check.Limit(-1)]) == 0
    assert "2 tests were not started" in capsys.readouterr().out
    assert pytest.main(arguments, plugins=[check.Limit(600)]) == 1
