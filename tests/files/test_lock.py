"""One run at a time in a folder; a dead one blocks no one, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deltaenergy.errors import InputError
from deltaenergy.files import lock_folder
from deltaenergy.files.lock import NAME, try_lock


@contextmanager
def holder(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lock until it is ended."""
    program = (
        "import sys, time; from deltaenergy.files import lock_folder\n"
        "with lock_folder(sys.argv[1]):\n    print('held', flush=True); sys.stdin.readline()"
    )
    command = [sys.executable, "-c", program, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def test_a_second_run_is_told_of_the_first(tmp_path: Path) -> None:
    with holder(tmp_path / "out") as process:
        with pytest.raises(InputError, match=r"Another run.* .*out"), lock_folder(tmp_path / "out"):
            pass
        with lock_folder(tmp_path / "other"):
            pass
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        process.wait()
        with lock_folder(tmp_path / "out"):
            assert (tmp_path / "out" / NAME).exists()
    assert list(tmp_path.iterdir()) == [], "locks and the folders made for them are gone"


def test_a_killed_run_blocks_nobody(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert (tmp_path / NAME).exists()
        with lock_folder(tmp_path):
            assert (tmp_path / NAME).exists()
    assert not (tmp_path / NAME).exists(), "what it left is taken over"


def test_a_thread_may_take_its_lock_again_and_another_may_not(tmp_path: Path) -> None:
    refused: list[str] = []

    def other_thread() -> None:
        try:
            with lock_folder(tmp_path):
                pass
        except InputError as error:
            refused.append(str(error))

    def try_in_thread() -> int:
        thread = threading.Thread(target=other_thread)
        thread.start()
        thread.join()
        return len(refused)

    same = tmp_path / ".." / tmp_path.name
    with lock_folder(tmp_path), lock_folder(same):
        assert try_in_thread() == 1
    with lock_folder(tmp_path):
        with lock_folder(same):
            pass
        assert try_in_thread() == 2, "the inner one does not end the outer"
    assert try_in_thread() == 2


def test_a_forked_child_does_not_hold_its_parent_s_lock(tmp_path: Path) -> None:
    with lock_folder(tmp_path):
        child = os.fork()
        if child == 0:
            try:
                with lock_folder(tmp_path):
                    os._exit(1)
            except InputError:
                os._exit(7)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_an_error_inside_ends_the_lock(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), lock_folder(tmp_path):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_locks_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import errno
    import fcntl

    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with pytest.warns(UserWarning, match="No locks available"), lock_folder(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_many_processes_take_turns(tmp_path: Path) -> None:
    """Whoever holds the lock is alone: a counter that is read and written inside it loses nothing."""
    program = (
        "import sys; from pathlib import Path; from deltaenergy.files import lock_folder\n"
        "from deltaenergy.errors import InputError\n"
        "folder, done = Path(sys.argv[1]), 0\n"
        "while done < 40:\n"
        "    try:\n"
        "        with lock_folder(folder):\n"
        "            file = folder / 'count'\n"
        "            file.write_text(str(int(file.read_text()) + 1)); done += 1\n"
        "    except InputError:\n        pass\n"
    )
    (tmp_path / "count").write_text("0")
    runs = [subprocess.Popen([sys.executable, "-c", program, str(tmp_path)]) for _ in range(3)]
    assert [run.wait(600) for run in runs] == [0, 0, 0]
    assert (tmp_path / "count").read_text() == "120"
    assert [path.name for path in tmp_path.iterdir()] == ["count"]


def test_a_lock_is_waited_for_as_long_as_is_said(tmp_path: Path) -> None:
    path, ended = tmp_path / NAME, threading.Event()

    def hold() -> None:
        with try_lock(path) as held:
            assert held
            holding.set()
            ended.wait(60)

    holding = threading.Event()
    thread = threading.Thread(target=hold)
    thread.start()
    holding.wait(60)
    with try_lock(path) as held:
        assert not held
    threading.Timer(0.2, ended.set).start()
    with try_lock(path, wait=60) as held:
        assert held
    thread.join(60)
    assert list(tmp_path.iterdir()) == []
