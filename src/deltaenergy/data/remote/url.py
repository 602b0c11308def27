"""URLs such as `s3://bucket/photos/` or `https://host/a.jpg`: which kinds are known, and what they may contain.

A URL says where something is, never who may read it. A URL with a password, a key or a signature is refused and not
repeated, because URLs are printed and written to tables.
"""

from __future__ import annotations

import glob
import os
import re
from typing import NamedTuple, TypeGuard
from urllib.parse import urlsplit

from deltaenergy.data.decode import EXTENSIONS
from deltaenergy.errors import InputError, did_you_mean


class Scheme(NamedTuple):
    """What URLs of a scheme lead to, and the environment variables with the credentials for it."""

    name: str
    credentials: str = ""


SCHEMES = {
    "s3": Scheme(
        "S3",
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE with the extra aws; AWS_REGION; "
        "AWS_ENDPOINT_URL for S3 of another provider; AWS_SKIP_SIGNATURE=true for public buckets",
    ),
    "gs": Scheme(
        "Google Cloud Storage", "GOOGLE_APPLICATION_CREDENTIALS, or GOOGLE_SKIP_SIGNATURE=true for public buckets"
    ),
    "az": Scheme(
        "Azure Blob Storage",
        "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or AZURE_STORAGE_CONNECTION_STRING",
    ),
    "https": Scheme("the web"),
    "http": Scheme("the web"),
}
_FILE_SUFFIXES = EXTENSIONS | {".csv", ".tsv", ".jsonl", ".ndjson", ".parquet", ".txt", ".tar"}
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_SIGNED = re.compile(r"[?&](x-amz-(signature|credential|security-token)|x-goog-(signature|credential)|awsaccesskeyid|"
                     r"sig|signature|access_token)=", re.IGNORECASE)  # fmt: skip


def is_url(given: object) -> TypeGuard[str]:
    """Whether this is text that begins as a URL does, whatever its scheme."""
    return isinstance(given, str) and _URL.match(given) is not None


def checked_url(url: str, what: str = "images") -> str:
    """The URL with its scheme in lower case, if the scheme is known and there is no secret in it.

    Raises `InputError`, which says that `what` contains it.
    """
    match = _URL.match(url)
    if match is None:
        raise InputError(f"{what} contains {url[:200]!r}, which is not a URL such as https://host/a.jpg.")
    scheme, rest = match[1].lower(), url[match.end() :]
    # Before anything is repeated.
    if "@" in re.split(r"[/?#]", rest, maxsplit=1)[0] or (scheme in {"http", "https"} and _SIGNED.search(rest)):
        known = SCHEMES[scheme].credentials if scheme in SCHEMES else ""
        raise InputError(
            f"{what} contains a URL with a password, a key or a signature. Remove it from the URL; credentials are "
            f"read only from the environment{f' ({known})' if known else ''}."
        )
    if scheme not in SCHEMES:
        raise InputError(f"{what} contains a URL with the unknown scheme '{scheme}://'.{did_you_mean(scheme, SCHEMES)}")
    if not rest.strip("/") or rest.startswith("/"):
        missing = "host" if scheme in {"http", "https"} else "bucket"
        raise InputError(f"{what} contains {url!r}, which names no {missing}.")
    if any(ord(character) < 32 for character in url):
        raise InputError(f"{what} contains {url!r}, a URL with control characters.")
    return f"{scheme}://{rest}"


def scheme_of(url: str) -> str:
    """The part before `://`."""
    return url.partition("://")[0]


def is_web(url: str) -> bool:
    """Whether it leads to a web server, which cannot be listed."""
    return scheme_of(url) in {"http", "https"}


def root_of(url: str) -> str:
    """What a URL shares with all that are lost together: its web server, or its bucket."""
    return "/".join(url.split("/", 3)[:3])


def suffix_of(url: str) -> str:
    """The suffix of the file's name, in lower case; on the web without the query."""
    path = urlsplit(url).path if is_web(url) else url
    return os.path.splitext(path.rpartition("/")[2])[1].lower()  # noqa: PTH122 (a URL is not a path)


def folder_of(url: str) -> str:
    """The URL of the folder that a file is in, without a slash at its end."""
    return url.partition("?")[0].rpartition("/")[0]


def may_be_folder(url: str) -> bool:
    """Whether a URL may lead to a folder, judged by its text: not on the web, no pattern, no file's suffix."""
    return not is_web(url.lower()) and not glob.has_magic(url) and suffix_of(url) not in _FILE_SUFFIXES


def is_folder_url(given: str) -> bool:
    """Whether this is a URL that is written as a folder: with a slash at its end."""
    return is_url(given) and given.endswith("/")
