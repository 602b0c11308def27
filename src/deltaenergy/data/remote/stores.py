"""The file systems of fsspec that read object stores and the web: one for each kind of address.

All are set alike: nothing is kept of listings, silence ends, and their own attempts are few, because `remote.ask` tries
again as well. Left alone, gcsfs asks six times and the Azure client four, with up to half a minute between, for each of
the attempts that are made here.
"""

from __future__ import annotations

import importlib.util
import logging
import os
from types import MethodType
from typing import Any

from deltaenergy.data.decode import FAR_THREADS
from deltaenergy.data.remote.addresses import kind_of, place_of, scheme_of
from deltaenergy.data.remote.faults import in_words, meaning_of
from deltaenergy.errors import InputError

CONNECT_SECONDS = 10
SILENT_SECONDS = 20
# The clients' own, for each page of a listing; a lost page would else cost the whole listing.
INNER_ATTEMPTS = 3


def open_store(scheme: str) -> Any:
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
        return make(scheme, settings)
    except Exception as error:  # of the environment: a credentials file that is not there, an account without a name
        raise InputError(
            f"Addresses that begin with {scheme}:// cannot be read: {in_words(error)}. "
            f"Credentials are taken from the environment: {kind.credentials}."
        ) from error


def _s3(scheme: str, settings: dict[str, Any]) -> Any:
    import fsspec

    settings["config_kwargs"] = {
        "connect_timeout": CONNECT_SECONDS,
        "read_timeout": SILENT_SECONDS,
        "max_pool_connections": 2 * FAR_THREADS,
        "retries": {"mode": "standard", "total_max_attempts": INNER_ATTEMPTS},
    }
    store = fsspec.filesystem(scheme, **settings)
    store.retries = 1  # the client and `ask` try again
    return store


def _google(scheme: str, settings: dict[str, Any]) -> Any:
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
    store = GCSFileSystem(session_kwargs=_session(), **settings)
    once = getattr(GCSFileSystem._request, "__wrapped__", None)
    if once is not None:
        store._request = MethodType(retry_request(retries=INNER_ATTEMPTS)(once), store)
    return store


def _azure(scheme: str, settings: dict[str, Any]) -> Any:
    import fsspec

    _silence("adlfs", "azure")
    store = fsspec.filesystem(scheme, connection_timeout=CONNECT_SECONDS, read_timeout=SILENT_SECONDS, **settings)
    # The client's settings cannot be given through adlfs; all that it makes share this one policy.
    policy = store.service_client._config.retry_policy
    policy.total_retries = INNER_ATTEMPTS - 1
    policy.initial_backoff = policy.increment_base = policy.random_jitter_range = 1  # one to three seconds
    return store


def _web(scheme: str, settings: dict[str, Any]) -> Any:
    import fsspec

    return fsspec.filesystem(scheme, client_kwargs=_session(), **settings)


def _session() -> dict[str, Any]:
    """The settings of a session of aiohttp: limits for silence, and proxies from the environment."""
    import aiohttp

    limits = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=SILENT_SECONDS)
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
