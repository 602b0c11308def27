"""The file systems of fsspec that read object stores and the web: one for each kind of address.

All are set alike: nothing is kept of listings, silence ends, and their own attempts are few, because `remote.ask` tries
again as well. Left alone, gcsfs asks six times and the Azure client four, with up to half a minute between, for each of
the attempts that are made here.
"""

from __future__ import annotations

import importlib.util
import logging
import os
from dataclasses import dataclass
from types import MethodType
from typing import Any

from deltaenergy.data.decode import FAR_THREADS
from deltaenergy.data.remote.errors import in_words, meaning_of
from deltaenergy.data.remote.url import kind_of, place_of, scheme_of
from deltaenergy.errors import InputError


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """How often and how long a store or server is asked, and for how much at most.

    Attributes:
        attempts: requests of `client.ask` for one thing.
        first_wait: seconds before the second attempt; each later wait is twice as long.
        most_seconds: after this time no new attempt is made.
        inner_attempts: the clients' own, for each page of a listing; a lost page would else cost the whole listing.
        connect_seconds: until a connection must stand.
        silent_seconds: without a byte, until an answer is given up.
        image_bytes: an image is held whole while it is decoded, and many are fetched at a time.
    """

    attempts: int = 5
    first_wait: float = 0.5
    most_seconds: float = 120.0
    inner_attempts: int = 3
    connect_seconds: float = 10
    silent_seconds: float = 20
    image_bytes: int = 1 << 28


LIMITS = RequestLimits()


def open_store(scheme: str, limits: RequestLimits = LIMITS) -> Any:
    """The file system for a kind of address, with credentials from the environment.

    Raises `InputError` if a package is missing, or if the environment names credentials that are not there.
    """
    kind = kind_of(f"{scheme}://")
    for package in ("fsspec", kind.package):
        if importlib.util.find_spec(package) is None:
            raise InputError(
                f"Addresses that begin with {scheme}:// need the package {package}: pip install 'deltaenergy[cloud]'."
            )
    settings = {"skip_instance_cache": True, "use_listings_cache": False}
    make = {"s3": _s3, "gs": _google, "az": _azure}.get(scheme, _web)
    try:
        return make(scheme, settings, limits)
    except Exception as error:  # of the environment: a credentials file that is not there, an account without a name
        raise InputError(
            f"Addresses that begin with {scheme}:// cannot be read: {in_words(error)}. "
            f"Credentials are taken from the environment: {kind.credentials}."
        ) from error


def _s3(scheme: str, settings: dict[str, Any], limits: RequestLimits) -> Any:
    import fsspec

    settings["config_kwargs"] = {
        "connect_timeout": limits.connect_seconds,
        "read_timeout": limits.silent_seconds,
        "max_pool_connections": 2 * FAR_THREADS,
        "retries": {"mode": "standard", "total_max_attempts": limits.inner_attempts},
    }
    store = fsspec.filesystem(scheme, **settings)
    store.retries = 1  # the client and `ask` try again
    return store


def _google(scheme: str, settings: dict[str, Any], limits: RequestLimits) -> Any:
    """Google's store over HTTP alone.

    What `gcsfs` gives by default asks over gRPC what kind of bucket it has before each read, also where nobody answers
    that, such as an emulator, and then waits a minute.
    """
    import fsspec.config
    from gcsfs.core import GCSFileSystem
    from gcsfs.retry import retry_request

    _silence("gcsfs")
    set_by_user = {name for protocol in GCSFileSystem.protocol for name in fsspec.config.conf.get(protocol, {})}
    if "token" not in set_by_user and os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
        # Else a file that is missing or broken is passed over, and nobody in particular asks.
        settings["token"] = "google_default"
    store = GCSFileSystem(session_kwargs=_session(limits), **settings)
    once = getattr(GCSFileSystem._request, "__wrapped__", None)
    if once is not None:
        store._request = MethodType(retry_request(retries=limits.inner_attempts)(once), store)
    return store


def _azure(scheme: str, settings: dict[str, Any], limits: RequestLimits) -> Any:
    import fsspec

    _silence("adlfs", "azure")
    store = fsspec.filesystem(
        scheme, connection_timeout=limits.connect_seconds, read_timeout=limits.silent_seconds, **settings
    )
    # The client's settings cannot be given through adlfs; all that it makes share this one policy.
    policy = store.service_client._config.retry_policy
    policy.total_retries = limits.inner_attempts - 1
    policy.initial_backoff = policy.increment_base = policy.random_jitter_range = 1  # one to three seconds
    return store


def _web(scheme: str, settings: dict[str, Any], limits: RequestLimits) -> Any:
    import fsspec

    return fsspec.filesystem(scheme, client_kwargs=_session(limits), **settings)


def _session(limits: RequestLimits) -> dict[str, Any]:
    """The settings of a session of aiohttp: limits for silence, and proxies from the environment."""
    import aiohttp

    limits = aiohttp.ClientTimeout(total=None, sock_connect=limits.connect_seconds, sock_read=limits.silent_seconds)
    return {"timeout": limits, "trust_env": True}


def _silence(*packages: str) -> None:
    """What a package says of each attempt is said here once, by the error."""
    for package in packages:
        logging.getLogger(package).addHandler(logging.NullHandler())


def lacks_bucket(store: Any, address: str) -> bool:
    """Whether nothing is at an address because there is no such bucket.

    S3 tells the two apart. gcsfs and adlfs do not, so the bucket is asked for. One that may not be asked for is there;
    an error that passes is raised.
    """
    place, scheme = place_of(address), scheme_of(address)
    try:
        if scheme == "gs":
            store.ls(place, max_results=1)
        elif scheme == "az":
            store.info(place)
    except FileNotFoundError:
        return True
    except Exception as error:
        if meaning_of(error).passing:
            raise
    return False


def find_below(store: Any, root: str, prefix: str) -> dict[str, dict[str, Any]]:
    """What lies below a folder, any depth, with names that begin so there: by name, with sizes and tags.

    Raises `FileNotFoundError` if there is no such bucket.
    """
    only = {"prefix": prefix} if prefix else {}
    found = store.find(root, detail=True, withdirs=False, **only)
    if isinstance(found, list):
        # adlfs gives a list, of an object that is named as the folder is, and not what lies in the folder.
        bucket, _, key = root.partition("://")[2].partition("/")
        found = store.find(bucket, detail=True, withdirs=False, prefix=f"{key}/{prefix}")
    if not found and lacks_bucket(store, root):
        raise FileNotFoundError(root)
    inside = root.partition("://")[2] + "/"
    return {name: info for name, info in found.items() if str(name).startswith(inside)}
