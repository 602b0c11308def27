"""A JSON record and its tensors as one artefact: a folder always has the old one or the new one, never a mixture.

    detector.json                           what it is; names the tensors' file with its size and SHA-256
    detector-1b2c….safetensors              the tensors, under the first digits of their SHA-256

The tensors are written first, under a name that only they can have. Then the record is replaced at once, and with it
the artefact. Tensors that no record names any more are removed last. The record also has its own checksum: a changed
digit is found, wherever it is.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltaenergy.errors import ArtifactError
from deltaenergy.files import schema
from deltaenergy.files.atomic import (
    json_bytes,
    publish,
    remove_litter,
    save_tensors,
    sync_folder,
    temporary_folder,
    write_json,
)
from deltaenergy.files.hashing import hash_file
from deltaenergy.files.lock import lock_folder
from deltaenergy.files.reading import check_ordinary, read_json, read_tensors

if TYPE_CHECKING:
    import torch

TENSORS, CHECKSUM = "tensors", "checksum"
_DIGITS = 16
_TAIL = b'"\n}\n'
# A reader starts again if a writer replaced the artefact between its two files; so often in a row it does not happen.
_ATTEMPTS = 100
_TENSORS_ENTRY = schema.record(
    {"file": schema.text(), "bytes": schema.whole(0), "sha256": schema.text(matching="[0-9a-f]{64}")}
)


def write_bound(folder: str | Path, name: str, record: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
    """Write an artefact; it replaces an earlier one of the same name.

    Args:
        folder: made if it does not exist; held by a `lock_folder` meanwhile.
        name: of the JSON file, such as `detector.json`.
        record: JSON values. The entry `format`, a text that begins with `deltaenergy`, marks the file as ours; the
            entries `tensors` and `checksum` are added.
        tensors: by name.

    A file called `name` that is not ours is an `ArtifactError`, and stays as it is.
    """
    folder = Path(folder)
    if not str(record.get("format", "")).startswith("deltaenergy "):
        raise ValueError("record needs an entry 'format' that begins with 'deltaenergy '")
    with lock_folder(folder):
        previous = _named_before(folder / name)
        with temporary_folder(folder) as temporary:
            save_tensors(temporary / "tensors", tensors)
            digest = hash_file(temporary / "tensors")
            target = folder / _tensors_name(name, digest)
            size = (temporary / "tensors").stat().st_size
            if target.exists() and not target.is_file():
                raise ArtifactError(f"{target} is in the way and is not a file of deltaenergy. Move or remove it.")
            publish(temporary / "tensors", target)
        named = {"file": target.name, "bytes": size, "sha256": digest}
        try:
            write_json(folder / name, sealed({**record, TENSORS: named}))
        except BaseException:
            # Usually the old record still counts, and the new tensors are in the way; but the last step of writing,
            # which brings the new name to disk, may have been the one that failed.
            with contextlib.suppress(ArtifactError, OSError):
                if _named_before(folder / name) != target.name:
                    target.unlink()
            raise
        _remove_unnamed(folder, name, named=target.name, previous=previous)


def read_bound(folder: str | Path, name: str) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The record, without the entries that `write_bound` added, and the tensors; both as they were written.

    Whatever is damaged, missing or does not belong together is an `ArtifactError`.
    """
    path = Path(folder) / name
    record = read_json(path)
    for _ in range(_ATTEMPTS):
        try:
            return _read(path, record)
        except ArtifactError:
            again = read_json(path)
            if again == record:
                raise
            record = again
    raise ArtifactError(f"{path} is being replaced again and again. Try when no other run writes to {folder}.")


def remove_bound(folder: str | Path, name: str) -> None:
    """Remove an artefact, the record first; what is not ours stays, and so does the folder unless it is empty then."""
    folder = Path(folder)
    if not folder.is_dir():
        return
    with lock_folder(folder):
        previous = _named_before(folder / name)
        (folder / name).unlink(missing_ok=True)
        sync_folder(folder)
        _remove_unnamed(folder, name, named=None, previous=previous)
        remove_litter(folder)
    with contextlib.suppress(OSError):
        folder.rmdir()


def sealed(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record with a checksum of all its other entries."""
    rest = {key: value for key, value in record.items() if key != CHECKSUM}
    # As it will be read: tuples become lists, and keys texts.
    text = json.dumps(json.loads(json.dumps(rest)), sort_keys=True)
    return {**rest, CHECKSUM: hashlib.sha256(text.encode()).hexdigest()}


def check_seal(record: Mapping[str, Any], file: str | Path) -> None:
    """Raise `ArtifactError` unless the record is as it was written."""
    if sealed(record)[CHECKSUM] != record.get(CHECKSUM):
        raise ArtifactError(f"{file} was changed after it was written: its checksum does not fit its content.")


def json_with_checksum(values: Mapping[str, Any]) -> bytes:
    """A JSON object whose last entry is a checksum of all bytes before it: no changed bit goes unseen."""
    head = json_bytes(values)[: -len(b"\n}\n")] + f',\n  "{CHECKSUM}": "'.encode()
    return head + hashlib.sha256(head).hexdigest().encode() + _TAIL


def check_bytes(data: bytes, file: str | Path) -> None:
    """Raise `ArtifactError` unless these are bytes that `json_with_checksum` made."""
    head = data[: -64 - len(_TAIL)]
    if data != head + hashlib.sha256(head).hexdigest().encode() + _TAIL:
        raise ArtifactError(f"{file} is damaged: its checksum differs.")


def _read(path: Path, record: Any) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    schema.record({TENSORS: _TENSORS_ENTRY, CHECKSUM: schema.text()}, others=True)(record, schema.Where(str(path)))
    check_seal(record, path)
    digest, size = record[TENSORS]["sha256"], record[TENSORS]["bytes"]
    # Not the name that the record says: it must not lead out of the folder.
    file = path.parent / _tensors_name(path.name, digest)
    check_ordinary(file)
    try:
        # The size first: a file that has grown to any size need not be read.
        if file.stat().st_size != size or hash_file(file) != digest:
            raise ArtifactError(f"{file} is damaged: its bytes are not those that were written with {path.name}.")
        # A copy of each tensor is aligned in memory as a computed one is, which can decide the last bit of later sums;
        # one that is mapped from the file need not be.
        tensors = {key: tensor.clone() for key, tensor in read_tensors(file).items()}
    except (OSError, MemoryError) as error:
        raise ArtifactError(f"{file} cannot be read: {error}.") from error
    return {key: value for key, value in record.items() if key not in (TENSORS, CHECKSUM)}, tensors


def _tensors_name(name: str, digest: str) -> str:
    return f"{Path(name).stem}-{digest[:_DIGITS]}.safetensors"


def _named_before(path: Path) -> str | None:
    """The tensors' file of the artefact that is there now, if there is one; a record that is not ours is an error."""
    if not path.exists() and not path.is_symlink():
        return None
    try:
        record = read_json(path)
    except ArtifactError as error:
        raise ArtifactError(f"{error} So it is not overwritten. Move it, or choose another folder.") from error
    ours = isinstance(record, dict) and (
        str(record.get("format", "")).startswith("deltaenergy ") or isinstance(record.get("deltaenergy"), str)
    )
    if not ours:
        raise ArtifactError(
            f"{path} was not written by deltaenergy, so it is not overwritten. Move it, or choose another folder."
        )
    entry = record.get(TENSORS)
    return str(entry.get("file")) if isinstance(entry, dict) else None


def _remove_unnamed(folder: Path, name: str, named: str | None, previous: str | None) -> None:
    """Remove the tensors that the record before named, and those that a killed run left without a record.

    Of the latter only such as are provably ours: the name must be that of the content.
    """
    pattern = re.compile(re.escape(Path(name).stem) + rf"-([0-9a-f]{{{_DIGITS}}})\.safetensors")
    for path in folder.iterdir():
        match = pattern.fullmatch(path.name)
        if match is None or path.name == named or path.is_symlink() or not path.is_file():
            continue
        with contextlib.suppress(OSError):  # it does no harm, and the next save tries again
            if path.name == previous or hash_file(path).startswith(match[1]):
                path.unlink()
