"""An image source as a line of text, so that another process, or another machine, can open it.

A file is its absolute path; a member of an archive and its like are their kind and fields. Pictures in memory have
no such line.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from pathlib import Path
from typing import Any

from deltaenergy.data.decode import ImageSource, Refusal
from deltaenergy.data.file import RemoteFile
from deltaenergy.data.formats.parquet import ParquetImage
from deltaenergy.data.formats.tar import TarMember
from deltaenergy.data.remote.parquet import RemoteParquetImage
from deltaenergy.data.remote.tar import RemoteMember
from deltaenergy.errors import ArtifactError

# Frozen dataclasses whose fields are texts, paths, numbers, truth values or None.
KINDS: dict[str, type[Any]] = {
    "refusal": Refusal,
    "tar": TarMember,
    "parquet": ParquetImage,
    "remote": RemoteFile,
    "remote tar": RemoteMember,
    "remote parquet": RemoteParquetImage,
}


def refer(source: ImageSource) -> str | None:
    """The source as text, or None if it exists only in this process."""
    if isinstance(source, Path):
        return json.dumps(["file", os.path.abspath(source)])  # noqa: PTH100 (links stay links)
    for kind, of_kind in KINDS.items():
        if isinstance(source, of_kind):
            return json.dumps([kind, *(_plain(getattr(source, name)) for name in _names(kind))])
    return None


def in_memory(source: ImageSource) -> bool:
    """Whether the source exists only in this process."""
    return not isinstance(source, (Path, *KINDS.values()))


def resolve(reference: str) -> ImageSource:
    """The source that `refer` wrote."""
    try:
        kind, *values = json.loads(reference)
        if kind == "file":
            (path,) = values
            return Path(path)
        of_kind = KINDS[kind]
        types = [str(field.type) for field in dataclasses.fields(of_kind)]
        if len(types) != len(values):
            raise ValueError(f"{len(values)} values where {len(types)} belong")
        given = [Path(value) if "Path" in of and value is not None else value for value, of in zip(values, types)]
        source: ImageSource = of_kind(*given)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ArtifactError(f"{reference!r} says of no image where it is: {error!r}.") from error
    return source


@functools.cache
def _names(kind: str) -> list[str]:
    return [field.name for field in dataclasses.fields(KINDS[kind])]


def _plain(value: Any) -> Any:
    return os.path.abspath(value) if isinstance(value, Path) else value  # noqa: PTH100
