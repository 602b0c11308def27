"""Kill a process, or let the disk fail it, at each of its file operations in turn.

    campaign(prepare, action, check, workspace) -> Counter of what was tried

Functions that change files are wrapped while `action(folder)` runs: each call on a path within the folder is an
operation, and the fault strikes at the k-th. What is killed is a forked child, which shares all that its parent has
loaded, so that a trial takes a few hundredths of a second.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import gc
import io
import os
import shutil
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet
import safetensors.torch
import torch

# A child that takes longer than this hangs.
PATIENCE = 120
_FUNCTIONS = (
    "chmod", "fsync", "ftruncate", "link", "mkdir", "open", "pwrite", "remove", "rename", "replace", "rmdir", "symlink",
    "truncate", "unlink", "write",
)  # fmt: skip
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# What a full disk does not hinder.
_FREEING = {"unlink", "remove", "rmdir", "ftruncate", "truncate", "flock", "chmod"}

_TEARABLE = {"write", "pwrite", "fsync", "save_file", "write_table"}
# What a file that was just opened gets is written without our seeing it.
_UNCOUNTED_AFTER = {"open"}

KILLS = ("killed before", "killed after", "torn")
FAILURES = ("ENOSPC", "EACCES")


@dataclass(frozen=True)
class Fault:
    """What happens at the operation number `at`, counted from 0.

    `killed before` and `killed after` it; `torn`: killed with half of the data on disk; `ENOSPC`: the disk is full from
    then on; `EACCES`: this one operation is refused.
    """

    at: int
    kind: str


@dataclass
class Outcome:
    """How a run ended: `done`, `killed` or `raised`; its operations; the error, and what it printed."""

    ended: str
    operations: list[str] = field(default_factory=list)
    error: str = ""
    message: str = ""
    printed: str = ""


def campaign(
    prepare: Callable[[Path], object],
    action: Callable[[Path], object],
    check: Callable[[Path, Fault, Outcome], object],
    workspace: Path,
    *,
    kinds: tuple[str, ...] = (*KILLS, *FAILURES),
    timed: frozenset[str] = frozenset(),
    thorough: bool = False,
    every: int = 1,
) -> Counter[str]:
    """Try every fault at every operation of `action` on a folder that `prepare` filled.

    After each, `check` looks at the folder; then the action runs again without a fault and must leave exactly what an
    undisturbed run leaves, but for the content of files that are called as in `timed`. Unless `thorough`, "killed
    after" is left out where it leaves the same as "killed before" the next operation. A long action may be disturbed
    at one of `every` few operations of a kind only, and at the first of each.
    """
    tried: Counter[str] = Counter()
    folder, prepared = workspace / "trial", workspace / "prepared"
    prepared.mkdir(parents=True)
    prepare(prepared)

    def fresh() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(prepared, folder)

    fresh()
    undisturbed = fail(lambda: action(folder), folder)
    assert undisturbed.ended == "done", undisturbed.message
    whole = contents(folder, timed)
    last = len(undisturbed.operations) - 1
    met: Counter[str] = Counter()
    for at, operation in enumerate(undisturbed.operations):
        name = operation.split()[0]
        met[name] += 1
        if (met[name] - 1) % every:
            continue
        for kind in kinds:
            if kind == "torn" and name not in _TEARABLE:
                continue
            if kind == "killed after" and not thorough and name not in _UNCOUNTED_AFTER and at < last:
                continue
            fresh()
            fault = Fault(at, kind)
            if kind in KILLS:
                kill(lambda: action(folder), folder, fault)
                outcome = Outcome("killed")
            else:
                outcome = fail(lambda: action(folder), folder, fault)
            check(folder, fault, outcome)
            again = fail(lambda: action(folder), folder)
            assert again.ended == "done", (fault, operation, again.message)
            found = contents(folder, timed)
            assert found == whole, (fault, operation, sorted(found.keys() ^ whole.keys()))
            tried[kind] += 1
    shutil.rmtree(folder)
    shutil.rmtree(prepared)
    return tried


def fail(action: Callable[[], object], within: Path, fault: Fault | None = None) -> Outcome:
    """Run `action` here, with a failure, or none, at one of its operations on paths within a folder."""
    watch = _Watch(within, fault)
    outcome = Outcome("done")
    with contextlib.redirect_stdout(io.StringIO()) as printed, warnings.catch_warnings(), watch.installed():
        warnings.simplefilter("ignore")
        try:
            action()
        except Exception as error:
            kinds = [kind.__name__ for kind in type(error).__mro__]
            outcome = Outcome("raised", error=" ".join(kinds), message=str(error))
    if outcome.ended == "raised":
        gc.collect()  # a lock whose release failed is held by what the error refers to; a new process has none of it
    outcome.operations, outcome.printed = watch.operations, printed.getvalue()
    return outcome


def kill(action: Callable[[], object], within: Path, fault: Fault) -> None:
    """Run `action` in a child process and kill it at one of its operations on paths within a folder."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        try:
            torch.set_num_threads(1)  # threads of the parent do not exist here
            signal.alarm(PATIENCE)
            with _Watch(within, fault).installed():
                action()
        finally:
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status != -signal.SIGALRM, f"{fault}: still running after {PATIENCE} s"
    assert status == -signal.SIGKILL, f"{fault}: ended with status {status} before the fault"


def contents(folder: Path, timed: frozenset[str] = frozenset()) -> dict[str, bytes | None]:
    """Every file's bytes by its path, and None for each folder; the bytes of `timed` files do not count."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() and path.name not in timed else None
        for path in folder.rglob("*")
    }


class _Watch:
    """Counts operations on paths within a folder, and lets the fault strike."""

    def __init__(self, within: Path, fault: Fault | None) -> None:
        self.within = os.path.realpath(within) + os.sep
        self.fault = fault
        self.operations: list[str] = []
        self.full = False

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Wrap the functions that change files: the system's, and those of libraries that call it from C."""
        import fcntl

        places: list[tuple[Any, str]] = [(os, name) for name in _FUNCTIONS]
        places += [(fcntl, "flock"), (builtins, "open"), (io, "open")]
        # They bring their own system calls; each counts as one operation.
        places += [(safetensors.torch, "save_file"), (pyarrow.parquet, "write_table")]
        originals = [(module, name, getattr(module, name)) for module, name in places]
        for module, name, original in originals:
            setattr(module, name, self._wrapped(name, original))
        try:
            yield
        finally:
            for module, name, original in originals:
                setattr(module, name, original)

    def _wrapped(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            path = _path(name, arguments, options)
            if path is None or not (path + os.sep).startswith(self.within):
                return original(*arguments, **options)
            number = len(self.operations)
            self.operations.append(f"{name} {path[len(self.within) :]}")
            struck = self.fault is not None and self.fault.at == number
            kind = self.fault.kind if self.fault is not None and struck else ""
            if kind == "killed before":
                _die()
            if kind == "torn":
                _tear(name, original, arguments, options, path)
                _die()
            if kind == "ENOSPC":
                self.full = True
            if kind == "EACCES":
                raise PermissionError(errno.EACCES, "Permission denied", path)
            if self.full and name not in _FREEING:
                _fail_for_want_of_space(name, path)
            try:
                # A kill does not lose what only the system's memory holds, so nothing need reach the disk for real.
                return None if name == "fsync" else original(*arguments, **options)
            finally:
                if kind == "killed after":
                    _die()

        return call


def _tear(name: str, original: Callable[..., Any], arguments: Any, options: Any, path: str) -> None:
    """Leave half of what the operation would have written, or would have made safe."""
    if name in ("write", "pwrite"):
        data = bytes(arguments[1])
        original(arguments[0], data[: len(data) // 2], *arguments[2:], **options)
    else:
        if name != "fsync":
            original(*arguments, **options)
        if os.path.isfile(path):  # noqa: PTH113 (the wrapped functions are those of os)
            with open(path, "rb+") as file:  # noqa: PTH123
                file.truncate(os.path.getsize(path) // 2)  # noqa: PTH202


def _fail_for_want_of_space(name: str, path: str) -> None:
    text = "No space left on device"
    if name == "save_file":
        from safetensors import SafetensorError

        raise SafetensorError(f"Error while serializing: I/O error: {text} (os error 28)")
    raise OSError(errno.ENOSPC, text, path)


def _path(name: str, arguments: Any, options: Any) -> str | None:
    """The path that an operation changes, or None if it changes nothing."""
    if name == "open" and isinstance(arguments[0], (str, bytes, os.PathLike)):
        flags = arguments[1] if len(arguments) > 1 else options.get("flags", options.get("mode", "r"))
        writes = flags & _WRITING if isinstance(flags, int) else set(str(flags)) & set("wax+")
        if not writes:
            return None
    target: Any = arguments[1] if name in ("save_file", "write_table", "link", "symlink") else arguments[0]
    if hasattr(target, "fileno"):
        target = target.fileno()
    if isinstance(target, int):
        return os.path.realpath(f"/proc/self/fd/{target}") if Path(f"/proc/self/fd/{target}").exists() else None
    folder = options.get("dir_fd")
    if folder is not None:
        return os.path.join(os.path.realpath(f"/proc/self/fd/{folder}"), os.fsdecode(target))  # noqa: PTH118
    return os.path.abspath(os.fsdecode(target))  # noqa: PTH100 (a link itself, not its end)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(PATIENCE)  # the signal comes before this ends
