"""`make test` runs every file of tests in some job, and says which job failed."""

from __future__ import annotations

import importlib.util
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "suite.py"


@pytest.fixture(scope="module")
def suite() -> ModuleType:
    spec = importlib.util.spec_from_file_location("suite", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["suite"] = module  # where dataclasses look
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "tests" / "inner").mkdir(parents=True)
    for i in range(5):
        (tmp_path / "tests" / f"test_{i}.py").write_text("def test_it(): pass\n", encoding="utf-8")
    (tmp_path / "tests" / "helper.py").write_text("", encoding="utf-8")
    (tmp_path / "tests" / "inner" / "test_large.py").write_text(
        "def test_good(): pass\ndef test_bad(): assert 1 == 2, 'two is not one'\n" + "#" * 1000, encoding="utf-8"
    )
    return tmp_path


def test_every_file_is_in_one_job(suite: ModuleType, root: Path) -> None:
    jobs = suite.groups(["tests"], root, 2)
    assert [len(job.words) for job in jobs] in ([1, 1, 2, 2], [1, 2, 1, 2], [1, 2, 2, 1])
    assert jobs[0].words == ("tests/inner/test_large.py",)  # the largest first
    assert sorted(word for job in jobs[1:] for word in job.words) == [f"tests/test_{i}.py" for i in range(5)]
    assert len({job.name for job in jobs}) == 4
    assert suite.groups(["tests/test_3.py"], root, 2)[0].words == ("tests/test_3.py",)


def test_a_job_that_fails_is_told_with_its_output(
    suite: ModuleType, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lint = suite.Job("no module", ("no_such_module",), is_lint=True)
    left_out = suite.Job("left out", ("tests/test_0.py", "-k", "nothing"))
    ended = {one.job.name: one for one in suite.run([lint, left_out, *suite.groups(["tests"], root, 5)], 2, root)}
    assert {name: one.failed for name, one in ended.items()} == {
        "no module": True,
        "left out": False,
        "tests 1/1": False,
        "tests/inner 1/1": True,
    }
    assert ended["tests 1/1"].summary == "5 passed"
    assert ended["tests/inner 1/1"].summary == "1 failed, 1 passed"
    suite.tell(ended["tests/inner 1/1"])
    suite.tell(ended["tests 1/1"])
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("FAILED") and printed[-1].startswith("ok")
    assert any("two is not one" in line for line in printed)
    assert all(0 < one.megabytes < 100_000 and one.seconds > 0 for one in ended.values())


def test_what_still_runs_is_ended_with_the_others(suite: ModuleType, root: Path) -> None:
    sleeping = root / "tests" / "test_sleep.py"
    sleeping.write_text(
        "import os, pathlib, time\ndef test_it():\n"
        "    pathlib.Path('running').write_text(str(os.getpid()))\n    time.sleep(600)\n",
        encoding="utf-8",
    )
    jobs = [suite.Job("sleep", ("tests/test_sleep.py",)), suite.Job("short", ("tests/test_0.py",))]
    running = suite.run(jobs, 2, root)
    assert next(running).job.name == "short"
    until = time.monotonic() + 60
    while not (root / "running").exists() or not (root / "running").read_text():
        assert time.monotonic() < until
        time.sleep(0.01)
    running.close()
    assert not Path("/proc", (root / "running").read_text()).exists()
