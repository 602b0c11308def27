"""Files on disk: written under a temporary name and renamed, so that an interrupted run leaves no half file."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltaenergy.errors import ArtifactError

if TYPE_CHECKING:
    import torch


@contextlib.contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Give a temporary path beside `path`; on success it is synced to disk and replaces `path`, else it is removed."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        # mkstemp files are private; give the result the permissions any other new file would get.
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Write `text` as UTF-8, all or nothing."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: str | Path, value: Any) -> None:
    """Write `value` as readable JSON, all or nothing."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: str | Path) -> Any:
    """Read a JSON file; a missing or damaged one is an `ArtifactError` that names it."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ArtifactError(f"{path} does not exist.") from None
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{path} cannot be read as JSON: {error}") from error


def write_tensors(path: str | Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write tensors as safetensors, all or nothing."""
    from safetensors.torch import save_file

    with replacing(path) as temporary:
        save_file({name: t.detach().cpu().contiguous() for name, t in tensors.items()}, str(temporary))


def read_tensors(path: str | Path) -> dict[str, torch.Tensor]:
    """Read a safetensors file; a missing or damaged one is an `ArtifactError` that names it."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors: dict[str, torch.Tensor] = load_file(str(path))
    except FileNotFoundError:
        raise ArtifactError(f"{path} does not exist.") from None
    except (OSError, SafetensorError) as error:
        raise ArtifactError(f"{path} cannot be read as safetensors: {error}") from error
    return tensors


def hash_strings(strings: Iterable[str]) -> str:
    """A short hash of an ordered list of strings: the identity of a class list in reports and artefacts."""
    digest = hashlib.sha256()
    for string in strings:
        encoded = string.encode()
        digest.update(len(encoded).to_bytes(8, "little"))
        digest.update(encoded)
    return digest.hexdigest()[:16]
