"""Write files whole or not at all: in our own temporary folder next to the target, synced to disk, then renamed.

A process that is killed leaves its temporary folder behind. Its name says who made it (`.deltaenergy-<machine>-<process
id>-<random>.part`), and the next write next to it removes it once that process is gone. Nothing else is ever removed.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import json
import os
import platform
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltaenergy.errors import InputError

if TYPE_CHECKING:
    import torch

_PART = re.compile(r"\.deltaenergy-(?P<machine>[0-9a-f]{8})-(?P<process>[0-9]+)-[0-9a-f]{8}\.part")
# A temporary folder of another machine, whose processes we cannot see, is given up after this long without a change.
_FORGOTTEN_SECONDS = 24 * 3600
# The temporary folders that this process is writing now: one of its own number that is not among them is an older
# process's, which had the same number.
_in_use: set[str] = set()


@contextlib.contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Give a temporary path; if the block succeeds, the file written there is synced to disk and replaces `path`.

    Missing parent folders are made. A link is followed, so it stays a link. Anything at `path` that is not an ordinary
    file is refused.
    """
    path = file_to_write(path, str(path))
    with temporary_folder(path.parent) as folder:
        temporary = folder / path.name
        yield temporary
        publish(temporary, path)


def file_to_write(path: str | Path, name: str) -> Path:
    """The file that writing to `path` changes: the end of a link. What is there may only be an ordinary file."""
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise InputError(f"{name} is a folder. Give the name of a file.")
    if target.exists() and not target.is_file():
        raise InputError(f"{name} is not an ordinary file, so nothing is written there. Give another name.")
    return target


@contextlib.contextmanager
def temporary_folder(folder: Path, *, tidy: bool = True) -> Iterator[Path]:
    """A new folder inside `folder`, for files that are about to be moved up; gone after the block.

    A folder rather than a file, because some writers (safetensors) put their own temporary files next to theirs.
    Without `tidy`, what killed processes left is not looked for: in a folder of many files that takes long.
    """
    make_folder(folder)
    if tidy:
        remove_litter(folder)
    name = f".deltaenergy-{_machine()}-{os.getpid()}-{secrets.token_hex(4)}.part"
    temporary = folder / name
    _in_use.add(name)
    try:
        temporary.mkdir()
        try:
            yield temporary
        finally:
            shutil.rmtree(temporary, ignore_errors=True)  # what cannot be removed waits for the next write
    finally:
        _in_use.discard(name)


def publish(temporary: Path, path: Path, *, if_absent: bool = False) -> bool:
    """Sync a finished temporary file to disk and give it its name. A file of that name is replaced at once, or with
    `if_absent` stays, and False is returned.
    """
    # Some writers make their file private; the result gets the permissions that any other new file would get.
    temporary.chmod(stat.S_IMODE(temporary.parent.stat().st_mode) & 0o666)
    sync_file(temporary)
    if not if_absent:
        temporary.replace(path)
    elif not _link(temporary, path):
        return False
    sync_folder(path.parent)
    return True


def sync_file(path: Path) -> None:
    handle = os.open(path, os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_folder(folder: Path) -> None:
    """Bring a folder's list of names to disk, so a rename survives a power cut, where the platform can do that."""
    if os.name == "nt":
        return
    try:
        handle = os.open(folder, os.O_RDONLY)
    except PermissionError:  # one may write in a folder that one may not list
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that have no such thing
            raise
    finally:
        os.close(handle)


def make_folder(folder: Path) -> None:
    """Make a folder and its missing parents, and bring their names to disk."""
    missing = []
    place = folder
    while not place.exists() and place != place.parent:
        missing.append(place)
        place = place.parent
    if missing:
        folder.mkdir(parents=True, exist_ok=True)
    for made in missing:
        sync_folder(made.parent)


def remove_litter(folder: Path) -> None:
    """Remove the temporary folders in `folder` whose writer is gone; those of others, and all else, stay."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            match = _PART.fullmatch(entry.name)
            if match and entry.is_dir(follow_symlinks=False) and _is_stale(entry, match):
                shutil.rmtree(entry.path, ignore_errors=True)


def is_temporary(name: str) -> bool:
    return _PART.fullmatch(name) is not None


def write_text(path: str | Path, text: str) -> None:
    # Bytes of file names that are not Unicode are written as \udcxx, which JSON reads as what it was.
    _replace(path, text.encode("utf-8", "backslashreplace"))


def _replace(path: str | Path, data: bytes) -> None:
    with replacing(path) as temporary:
        write_bytes(temporary, data)


def write_bytes(path: Path, data: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(handle, view) :]
    finally:
        os.close(handle)


def write_json(path: str | Path, value: Any) -> None:
    """Write `value` as readable JSON, all or nothing. NaN and infinity are not JSON: a `ValueError`."""
    _replace(path, json_bytes(value))


def json_bytes(value: Any) -> bytes:
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    return text.encode("utf-8", "backslashreplace")


def write_tensors(path: str | Path, tensors: Mapping[str, torch.Tensor]) -> None:
    with replacing(path) as temporary:
        save_tensors(temporary, tensors)


def save_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write a safetensors file; a failure to write is an `OSError`."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file(_apart(tensors), str(path))
    except SafetensorError as error:
        # safetensors reports a full disk as its own error, with the system's number in its text.
        number = re.search(r"os error (\d+)", str(error))
        code = int(number[1]) if number else errno.EIO
        raise OSError(code, os.strerror(code) if number else str(error), str(path)) from error


def _apart(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors on the host, none sharing memory with another, which safetensors refuses."""
    apart: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        whole = tensor.detach().cpu().contiguous()
        place = whole.untyped_storage().data_ptr()
        apart[name] = whole.clone() if place in seen else whole
        seen.add(place)
    return apart


def _link(file: Path, name: Path) -> bool:
    """Give a file a second name; False if something has that name."""
    try:
        os.link(file, name)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        # A file system without links: only another writer at this very moment would not be noticed.
        if name.exists():
            return False
        file.replace(name)
    return True


def _is_stale(entry: os.DirEntry[str], match: re.Match[str]) -> bool:
    process = int(match["process"])
    if match["machine"] != _machine() or os.name == "nt":
        return time.time() - entry.stat(follow_symlinks=False).st_mtime > _FORGOTTEN_SECONDS
    if process == os.getpid():
        return entry.name not in _in_use
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):  # it is another user's, or no process number at all
        return False
    return False


@functools.cache
def _machine() -> str:
    """Eight digits for this boot of this machine, or of this container: where a process number means something."""
    parts = [platform.node()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii"))
        parts.append(str(Path("/proc/self/ns/pid").stat().st_ino))
    return hashlib.sha256("|".join(parts).encode("utf-8", "replace")).hexdigest()[:8]
