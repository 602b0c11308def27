"""Files are there whole or not at all; what a killed writer left is removed, and nothing else."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from deltaenergy.errors import InputError
from deltaenergy.files import read_json, read_tensors, replacing, write_json, write_tensors, write_text
from deltaenergy.files.atomic import is_temporary, remove_litter, temporary_folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_replaced_at_the_end_and_only_then(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    with replacing(tmp_path / "a") as temporary:
        temporary.write_text("new")
        assert (tmp_path / "a").read_text() == "old"
        assert temporary.parent.parent == tmp_path and is_temporary(temporary.parent.name)
    assert (tmp_path / "a").read_text() == "new" and names(tmp_path) == ["a"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    with pytest.raises(KeyboardInterrupt), replacing(tmp_path / "a") as temporary:
        temporary.write_text("half")
        (temporary.parent / "of the writer").write_text("")
        raise KeyboardInterrupt
    assert (tmp_path / "a").read_text() == "old" and names(tmp_path) == ["a"]


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_the_result_has_the_permissions_of_any_new_file(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        write_text(tmp_path / "ours", "")
        write_tensors(tmp_path / "tensors", {"x": torch.zeros(1)})
    finally:
        os.umask(before)
    for path in (tmp_path / "ours", tmp_path / "tensors"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask


def test_parents_are_made_and_long_names_fit(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / ("n" * 255)
    write_text(path, "x")
    assert path.read_text() == "x"


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "real")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "disk" / "real").read_text() == "new"
    assert names(tmp_path / "disk") == ["real"]


def test_nothing_but_an_ordinary_file_is_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "device").symlink_to("/dev/null")
    for name in ("pipe", "folder", "device"):
        with pytest.raises(InputError, match=name):
            write_text(tmp_path / name, "x")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def test_many_writers_of_one_file_do_not_disturb_each_other(tmp_path: Path) -> None:
    texts = [str(number) * 10_000 for number in range(8)]
    threads = [threading.Thread(target=write_text, args=(tmp_path / "a", text)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "a").read_text() in texts and names(tmp_path) == ["a"]


@contextlib.contextmanager
def writer(folder: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process that is in the middle of a write, and its temporary folder."""
    program = (
        "import sys, time; from pathlib import Path; from deltaenergy.files.atomic import temporary_folder\n"
        "with temporary_folder(Path(sys.argv[1])) as folder:\n"
        "    (folder / 'half').write_text('x'); print(folder, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(folder)], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, Path(process.stdout.readline().strip())
        finally:
            process.kill()


def test_what_a_killed_writer_left_is_removed_by_the_next_write(tmp_path: Path) -> None:
    with writer(tmp_path) as (process, left):
        write_text(tmp_path / "a", "x")
        assert (left / "half").exists(), "its writer is alive"
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert (left / "half").exists()
        write_text(tmp_path / "a", "y")
        assert names(tmp_path) == ["a"]


def test_only_what_is_surely_ours_and_left_is_removed(tmp_path: Path) -> None:
    with temporary_folder(tmp_path) as mine:
        machine = mine.name.split("-")[1]
        gone = subprocess.Popen([sys.executable, "-c", ""])
        gone.wait()
        stale = f".deltaenergy-{machine}-{gone.pid}-00000000.part"
        other = "0" * 8 if machine != "0" * 8 else "1" * 8
        kept = [
            f".deltaenergy-{machine}-{os.getppid()}-00000000.part",  # its process runs
            f".deltaenergy-{other}-{gone.pid}-00000000.part",  # another machine's, and fresh
            f".deltaenergy-{machine}-{gone.pid}-0000000.part",  # a digit is missing
            f".deltaenergy-{machine}-{gone.pid}-00000000.part.bak",
            f".deltaenergy-{machine}-999999999999999999999999-00000000.part",
            ".deltaenergy-mine.part",
            "folder.part",
        ]
        old = f".deltaenergy-{other}-{gone.pid}-11111111.part"
        reused = f".deltaenergy-{machine}-{os.getpid()}-22222222.part"
        for name in (stale, old, reused, *kept):
            (tmp_path / name).mkdir()
            (tmp_path / name / "half").write_text("x")
        long_ago = time.time() - 25 * 3600
        os.utime(tmp_path / old, (long_ago, long_ago))
        # Names like ours on things that we never make.
        as_file, as_link = (f".deltaenergy-{machine}-{gone.pid}-{digit * 8}.part" for digit in "34")
        (tmp_path / as_file).write_text("a user's")
        (tmp_path / "target").mkdir()
        (tmp_path / "target" / "mine").write_text("x")
        (tmp_path / as_link).symlink_to(tmp_path / "target")
        remove_litter(tmp_path)
        assert mine.exists()
        assert set(names(tmp_path)) == {*kept, mine.name, as_file, as_link, "target"}
        assert (tmp_path / "target" / "mine").exists()


def test_json_that_is_not_json_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    for value in (float("nan"), [float("inf")]):
        with pytest.raises(ValueError, match="JSON compliant"):
            write_json(tmp_path / "a", value)
    assert (tmp_path / "a").read_text() == "old"


def test_names_that_are_not_unicode_come_back_as_they_were(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9 \xc3\xa4 \\udc80.png")
    write_json(tmp_path / "a", {"id": name})
    assert read_json(tmp_path / "a") == {"id": name}
    json.loads((tmp_path / "a").read_text(encoding="utf-8"))


def test_tensors_that_share_memory_are_written(tmp_path: Path) -> None:
    whole = torch.arange(6.0).view(2, 3)
    tensors = {"a": whole, "b": whole, "c": whole.T, "d": whole[1], "e": whole[:, ::2], "f": torch.zeros(0)}
    write_tensors(tmp_path / "t", tensors)
    found = read_tensors(tmp_path / "t")
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())


def test_a_full_disk_is_an_error_of_the_system(tmp_path: Path) -> None:
    write_tensors(tmp_path / "t", {"x": torch.zeros(3)})
    before = (tmp_path / "t").read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
        with pytest.raises(OSError, match="too large") as caught:
            write_tensors(tmp_path / "t", {"x": torch.zeros(3000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.errno is not None
    assert (tmp_path / "t").read_bytes() == before and names(tmp_path) == ["t"]
