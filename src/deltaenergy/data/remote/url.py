"""Addresses such as `s3://bucket/photos/` or `https://host/a.jpg`: which are known, and what they may hold.

An address is where something lies, never who may read it: one that carries a password, a key or a signature is
refused without being repeated, for addresses are printed and written to tables.
"""

from __future__ import annotations

import glob
import os
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from deltaenergy.data.decode import EXTENSIONS
from deltaenergy.errors import InputError, did_you_mean


@dataclass(frozen=True)
class Kind:
    """Where addresses of a kind lead, the package that reads them, and how it is told who is asking."""

    name: str
    package: str
    credentials: str


KINDS = {
    "s3": Kind(
        "S3",
        "s3fs",
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or AWS_PROFILE), AWS_ENDPOINT_URL for a store elsewhere, "
        "FSSPEC_S3_ANON=true for a public bucket",
    ),
    "gs": Kind(
        "Google Cloud Storage", "gcsfs", "GOOGLE_APPLICATION_CREDENTIALS, FSSPEC_GS_TOKEN=anon for a public one"
    ),
    "az": Kind(
        "Azure Blob Storage",
        "adlfs",
        "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY (or AZURE_STORAGE_CONNECTION_STRING)",
    ),
    "https": Kind("the web", "aiohttp", ""),
    "http": Kind("the web", "aiohttp", ""),
}
_FILE_ENDINGS = EXTENSIONS | {".csv", ".tsv", ".jsonl", ".ndjson", ".parquet", ".txt", ".tar"}
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_SIGNED = re.compile(r"[?&](x-amz-(signature|credential|security-token)|x-goog-(signature|credential)|awsaccesskeyid|"
                     r"sig|signature|access_token)=", re.IGNORECASE)  # fmt: skip


def is_address(given: object) -> bool:
    """Whether this is text that begins as an address does, of whatever kind."""
    return isinstance(given, str) and _ADDRESS.match(given) is not None


def checked(address: str, what: str = "images") -> str:
    """The address itself, with a scheme in lower case, if it is of a known kind and carries no secret.

    Raises `InputError` that names `what` held it.
    """
    found = _ADDRESS.match(address)
    if found is None:
        raise InputError(f"{what} holds {address[:200]!r}, which is no address such as https://host/a.jpg.")
    scheme = found[1].lower()
    rest = address[found.end() :]
    # Before anything is repeated.
    if "@" in re.split(r"[/?#]", rest, maxsplit=1)[0] or (scheme in {"http", "https"} and _SIGNED.search(rest)):
        raise InputError(
            f"{what} holds an address with a password, a key or a signature in it. Who is asking is told in the "
            f"environment alone{_how(scheme)}; leave it out of the address."
        )
    if scheme not in KINDS:
        raise InputError(f"{what} holds an address of kind '{scheme}://'.{did_you_mean(scheme, KINDS)}")
    if not rest.strip("/") or rest.startswith("/"):
        wanted = "host" if scheme in {"http", "https"} else "bucket"
        raise InputError(f"{what} holds {address!r}, which names no {wanted}.")
    if any(ord(character) < 32 for character in address):
        raise InputError(f"{what} holds {address!r}, an address with control characters.")
    return f"{scheme}://{rest}"


def kind_of(address: str) -> Kind:
    """What kind of address this is, once `checked`."""
    return KINDS[scheme_of(address)]


def scheme_of(address: str) -> str:
    """The part before `://`."""
    return address.partition("://")[0]


def is_web(address: str) -> bool:
    """Whether it leads to a web server, which cannot be listed."""
    return scheme_of(address) in {"http", "https"}


def place_of(address: str) -> str:
    """What an address shares with others that are lost when it is: the web server, or the bucket."""
    return "/".join(address.split("/", 3)[:3])


def ending_of(address: str) -> str:
    """The ending of the name, in lower case, without what a web address adds behind it."""
    path = urlsplit(address).path if is_web(address) else address
    return os.path.splitext(path.rpartition("/")[2])[1].lower()  # noqa: PTH122 (an address is no path)


def folder_of(address: str) -> str:
    """The address of the folder that something lies in, without a slash at its end."""
    return address.partition("?")[0].rpartition("/")[0]


def may_be_folder(address: str) -> bool:
    """Whether an address may lead to a folder, as far as its letters tell: not on the web, no pattern, no list."""
    return not is_web(address.lower()) and not glob.has_magic(address) and ending_of(address) not in _FILE_ENDINGS


def is_remote_folder(given: str) -> bool:
    """Whether this is an address that is written as a folder is: with a slash at its end."""
    return is_address(given) and given.endswith("/")


def _how(scheme: str) -> str:
    return f" ({KINDS[scheme].credentials})" if scheme in KINDS and KINDS[scheme].credentials else ""
