"""API keys: a file with one key per line. Only hashes are kept; a comparison takes as long for any key."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from pathlib import Path

from deltaenergy.errors import InputError

SHORTEST = 16
LARGEST_FILE = 1 << 20


class Keys:
    """Which keys are right."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._hashes = [_hash(key) for key in keys]

    @classmethod
    def read(cls, path: Path) -> Keys:
        """The keys in a file; empty lines and those that begin with # do not count."""
        try:
            if path.stat().st_size > LARGEST_FILE:
                raise InputError(f"--api-key-file {path} has more than a megabyte: write one key per line.")
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            raise InputError(f"--api-key-file {path} is not a text file: write one key per line.") from None
        except OSError as error:
            raise InputError(f"--api-key-file {path} cannot be read: {error.strerror or error}.") from None
        keys = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
        if not keys:
            raise InputError(f"--api-key-file {path} holds no key: write one per line.")
        for number, key in enumerate(keys, start=1):
            if len(key) < SHORTEST or not key.isascii() or not key.isprintable() or " " in key:
                raise InputError(
                    f"--api-key-file {path}: key {number} must have {SHORTEST} or more printable ASCII characters "
                    "without spaces. `python -c 'import secrets; print(secrets.token_urlsafe(32))'` makes one."
                )
        return cls(keys)

    def accepts(self, key: str) -> bool:
        """Whether `key` is one of them. All are compared, whichever it is."""
        given, right = _hash(key), False
        for one in self._hashes:
            right |= hmac.compare_digest(given, one)
        return right


def _hash(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
