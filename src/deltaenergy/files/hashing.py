"""Hashes: the identity of class lists, records and files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def hash_strings(strings: Iterable[str]) -> str:
    """A short hash of an ordered list of strings: the identity of a class list in reports and artefacts."""
    digest = hashlib.sha256()
    for string in strings:
        # Names of files need not be Unicode; such bytes come as lone surrogates.
        encoded = string.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "little"))
        digest.update(encoded)
    return digest.hexdigest()[:16]


def hash_value(value: Any) -> str:
    """A short hash of a JSON value; the order of keys does not count."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def hash_file(path: str | Path) -> str:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
