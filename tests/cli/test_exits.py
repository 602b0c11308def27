"""The last guard: every way to end is one message and one exit code."""

from __future__ import annotations

import errno
import os
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from deltaenergy.cli import main
from deltaenergy.cli.main import run
from deltaenergy.errors import OS_REMEDIES, ArtifactError, InputError
from tests.cli.hostile import VALID
from tests.cli.runner import Runner
from tests.cli.test_hostile import fill
from tests.cli.world import World


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Make the command `methods` fail in this way."""

    def fail(error: BaseException) -> None:
        def raise_it() -> None:
            raise error

        monkeypatch.setattr("deltaenergy.scores.listing._scores", raise_it)

    return fail


def end(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Exit code and standard error, without the runner's look at exit code 70."""
    with pytest.raises(SystemExit) as stop:
        run(arguments)
    return int(stop.value.code or 0), capsys.readouterr().err


def test_an_unforeseen_error_is_one_sentence_and_a_saved_traceback(
    failing: Callable[[BaseException], None], capsys: pytest.CaptureFixture[str], own_cache: Path
) -> None:
    failing(KeyError("a\x1b[31mb\nsecond line"))
    code, said = end(capsys, "methods", "--json")
    assert code == 70
    assert said.count("\n") == 1 and "Traceback (" not in said and "\x1b" not in said
    place = Path(re.search(r"Traceback saved to (.+)\.$", said.strip())[1])
    assert place.parent == own_cache / "errors"
    text = place.read_text(encoding="utf-8")
    assert "Traceback (most recent call last)" in text and "KeyError" in text and "deltaenergy methods --json" in text


def test_without_a_cache_the_traceback_goes_to_the_temporary_folder(
    failing: Callable[[BaseException], None],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("DELTAENERGY_CACHE", str(tmp_path / "file" / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    failing(ZeroDivisionError())
    code, said = end(capsys, "methods")
    assert code == 70 and f"Traceback saved to {tmp_path}" in said
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file"))
    code, said = end(capsys, "methods")
    assert code == 70 and "could not be saved" in said


@pytest.mark.parametrize("number", sorted(OS_REMEDIES), ids=errno.errorcode.get)
def test_what_the_system_refuses_names_the_file_and_a_remedy(
    number: int, failing: Callable[[BaseException], None], command: Runner
) -> None:
    failing(OSError(number, os.strerror(number), "some/file"))
    result = command("methods")
    reason, remedy = OS_REMEDIES[number]
    assert result.code == 2
    assert result.err.strip() == f"Error: some/file: {reason}. {remedy}"


def test_other_refusals_are_told_in_the_system_s_words(
    failing: Callable[[BaseException], None], command: Runner, capsys: pytest.CaptureFixture[str]
) -> None:
    failing(OSError(errno.EXDEV, "Invalid cross-device link", "a", None, "b"))
    assert command("methods").err.strip() == "Error: a and b: Invalid cross-device link."
    failing(OSError("without a number"))  # such as a library's own: unforeseen
    assert end(capsys, "methods")[0] == 70


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate"),
        ImportError("libtorch_cpu.so: failed to map segment from shared object"),
    ],
)
def test_memory(error: Exception, failing: Callable[[BaseException], None], command: Runner) -> None:
    failing(error)
    result = command("methods")
    assert result.code == 2 and "Out of memory" in result.err


def test_no_more_threads(failing: Callable[[BaseException], None], command: Runner) -> None:
    failing(RuntimeError("can't start new thread"))
    result = command("methods")
    assert result.code == 2 and "ulimit -u" in result.err


def test_where_threads_are_few_libraries_get_one_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some end the process, without a word of ours, when they get fewer than they ask for."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")
    for name in (*names, "TOKENIZERS_PARALLELISM"):
        monkeypatch.setenv(name, "7")
    main._share_few_threads()
    assert {os.environ[name] for name in names} == {"7"}

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    main._share_few_threads()
    assert {os.environ[name] for name in names} == {"1"} and os.environ["TOKENIZERS_PARALLELISM"] == "false"


def test_a_cache_folder_of_nobody_is_told(command: Runner, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELTAENERGY_CACHE", "~nobody-of-this-name/cache")
    known = ["--id", world["images"], "--classes", "cat,dog", "--model", world["model"]]
    result = command("score", world["images"], *known)
    assert result.code == 2 and "DELTAENERGY_CACHE" in result.err and "nobody-of-this-name" in result.err


@pytest.mark.parametrize("error", [InputError("wrong [/red] \x1b[0m"), ArtifactError("damaged")])
def test_our_own_errors(error: Exception, failing: Callable[[BaseException], None], command: Runner) -> None:
    failing(error)
    result = command("methods")
    assert result.code == 2 and result.err == f"Error: {str(error)!s}\n".replace("\x1b", "\\x1b")


def test_an_interrupt(failing: Callable[[BaseException], None], command: Runner) -> None:
    failing(KeyboardInterrupt())
    assert command("methods") == (result := command("methods"))
    assert (result.code, result.err.strip(), result.out) == (130, "Interrupted.", "")


def test_where_it_is_known_what_is_kept_that_is_said(
    failing: Callable[[BaseException], None], capsys: pytest.CaptureFixture[str]
) -> None:
    stop, damaged = KeyboardInterrupt(), ArtifactError("It is damaged.")
    for error in (stop, damaged):
        error.add_note("Half of it is in out/.")
    failing(stop)
    assert end(capsys, "methods") == (130, "Interrupted. Half of it is in out/.\n")
    failing(damaged)
    assert end(capsys, "methods") == (2, "Error: It is damaged. Half of it is in out/.\n")


@pytest.mark.parametrize("name", ["bench", "calibrate", "choose", "evaluate", "features", "score"])
def test_an_interrupt_while_images_are_encoded_leaves_no_half_result(
    name: str, command: Runner, world: World, inside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("deltaenergy.models.encoding.encode_batch", interrupt)
    result = command(name, *fill(VALID[name], world, inside / "out"))
    assert result.code == 130 and result.err.startswith("Interrupted.")
    assert len(result.out.splitlines()) <= 1, "at most the head of a table"
    if name == "bench":
        assert "the same command resumes from there" in result.err
    assert not [path for path in inside.rglob("*") if path.name in {"detector.json", "results.json", "no_tower.json"}]


def test_wrong_use_of_an_option_shows_the_usage(command: Runner) -> None:
    result = command("score", "--no-such-option", "[/red]")
    assert result.code == 2
    assert result.err.startswith("Usage: deltaenergy score") and "No such option: --no-such-option" in result.err
    assert "Try 'deltaenergy score --help'" in result.err
    assert command("score").code == 2


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not limit addresses")
@pytest.mark.parametrize(("allowed", "code"), [(1.05, 2), (1.2, 70), (None, 70)])
@pytest.mark.parametrize("error", [SystemError("error return without exception set"), ImportError("halfway")])
def test_whatever_fails_at_the_limit_of_memory_is_want_of_memory(
    failing: Callable[[BaseException], None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    allowed: float | None,
    code: int,
    error: BaseException,
) -> None:
    most = int(re.search(r"VmPeak:\s*(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))[1]) * 1024
    limit = -1 if allowed is None else int(allowed * most)
    monkeypatch.setattr("resource.getrlimit", lambda _: (limit, limit))
    monkeypatch.setattr("os._exit", sys.exit)
    failing(error)
    ended, said = end(capsys, "methods")
    assert ended == code and ("memory" in said) is (code == 2)
