"""Read JSON and safetensors that may be damaged: whatever is wrong is an `ArtifactError` naming the file."""

from __future__ import annotations

import json
import math
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltaenergy.errors import ArtifactError

if TYPE_CHECKING:
    import torch

# Records hold names and numbers: the largest, a training log of a thousand epochs, takes less than a megabyte.
JSON_LIMIT = 16 << 20


def read_json(path: str | Path, *, limit: int = JSON_LIMIT) -> Any:
    """Read a JSON file of at most `limit` bytes.

    Stricter than Python: no NaN or infinity, no key twice, no NUL, and no half of a surrogate pair but those that
    stand for bytes of a file name that is not UTF-8.
    """
    return parse_json(read_bytes(path, limit=limit), path)


def parse_json(data: bytes, path: str | Path) -> Any:
    """What `read_json` makes of the bytes of the file at `path`."""
    try:
        value = json.loads(
            data.decode("utf-8"),
            parse_constant=_refuse_constant,
            parse_float=_finite,
            object_pairs_hook=_without_repetition,
        )
        _check_strings(value)
    except RecursionError:
        raise ArtifactError(f"{path} cannot be read as JSON: it is nested too deeply.") from None
    except ValueError as error:
        raise ArtifactError(f"{path} cannot be read as JSON: {error}") from error
    return value


def read_bytes(path: str | Path, *, limit: int) -> bytes:
    """The bytes of an ordinary file of at most `limit`."""
    check_ordinary(path)
    try:
        with Path(path).open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror or error}.") from error
    if len(data) > limit:
        raise ArtifactError(f"{path} is too large: more than {limit:,} bytes.")
    return data


def check_ordinary(path: str | Path) -> None:
    """Raise `ArtifactError` unless it is an ordinary file: to open a FIFO or a device could wait forever."""
    try:
        found = Path(path).stat()
    except (FileNotFoundError, NotADirectoryError):
        raise ArtifactError(f"{path} does not exist.") from None
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:  # a NUL in the name
        raise ArtifactError(f"{path!r} is not a file name: {error}.") from error
    if stat.S_ISDIR(found.st_mode):
        raise ArtifactError(f"{path} is a folder, not a file.")
    if not stat.S_ISREG(found.st_mode):
        raise ArtifactError(f"{path} is not an ordinary file (but a pipe or a device).")


def read_tensors(path: str | Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    # safetensors compares its header with the size of the file before it allocates anything.
    check_ordinary(path)
    try:
        tensors: dict[str, torch.Tensor] = load_file(str(path))
    except Exception as error:
        # safetensors also lets errors of torch and Python through: a shape that overflows, an unknown type.
        raise ArtifactError(f"{path} cannot be read as safetensors: {error}") from error
    return tensors


def _refuse_constant(name: str) -> float:
    raise ValueError(f"it contains {name}, which is not a number.")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:40]} is too large.")
    return value


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the entry {repeated!r} occurs twice.")
    return found


def _check_strings(value: Any) -> None:
    """Refuse NUL, and lone surrogates but those of Python's surrogateescape, in keys and values."""
    pending = [value]
    while pending:
        found = pending.pop()
        if isinstance(found, str):
            if "\0" in found:
                raise ValueError(f"a text contains a NUL: {found[:40]!r}.")
            try:
                found.encode("utf-8", "surrogateescape")
            except UnicodeEncodeError:
                raise ValueError(f"a text contains half of a surrogate pair: {found[:40]!r}.") from None
        elif isinstance(found, list):
            pending += found
        elif isinstance(found, dict):
            pending += [*found, *found.values()]
