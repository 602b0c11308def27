"""Buckets, opened with credentials from the environment: what obstore reads there, and what it leaves out.

obstore reads keys and tokens from the environment, and the roles of cloud machines. It does not read AWS profiles, for
which there is boto3, nor Azure's connection strings, nor Google's variable for emulators.
"""

from __future__ import annotations

import importlib.util
import os
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltaenergy.data.remote.errors import RequestLimits, first_line
from deltaenergy.data.remote.url import SCHEMES
from deltaenergy.errors import UnreachableError

if TYPE_CHECKING:
    from obstore.store import ObjectStore


def open_bucket(scheme: str, name: str, limits: RequestLimits) -> ObjectStore:
    """A bucket, with credentials from the environment.

    Raises `UnreachableError` if obstore is missing, or if the environment names credentials that cannot be used: no
    fault of any one image, as whatever goes wrong here.
    """
    if importlib.util.find_spec("obstore") is None:
        raise UnreachableError(f"URLs that begin with {scheme}:// need an extra: pip install 'deltaenergy[cloud]'.")
    from obstore.store import AzureStore, GCSStore, S3Store

    seconds = {"connect": limits.connect_seconds, "read": limits.silent_seconds, "": limits.request_seconds}
    wait = {"init_backoff": timedelta(seconds=limits.first_wait), "max_backoff": timedelta(seconds=15), "base": 2}
    settings: dict[str, Any] = {
        # An endpoint without TLS is used only if the environment names one.
        "client_options": {"allow_http": True}
        | {f"{what}_timeout".lstrip("_"): timedelta(seconds=value) for what, value in seconds.items()},
        "retry_config": {
            "max_retries": limits.attempts - 1,
            "retry_timeout": timedelta(seconds=limits.most_seconds),
            "backoff": wait,
        },
    }
    try:
        if scheme == "s3":
            return S3Store(name, credential_provider=_aws_credentials(), disable_bulk_delete=True, **settings)
        if scheme == "gs":
            if host := os.environ.get("STORAGE_EMULATOR_HOST"):
                settings |= {"base_url": host if "://" in host else f"http://{host}", "bearer_token": "emulator"}
            return GCSStore(name, **settings)
        return AzureStore(name, **settings, **_azure_connection())
    except UnreachableError:
        raise
    except Exception as error:  # a credentials file that is not there, an account without a name, botocore's errors
        raise UnreachableError(
            f"URLs that begin with {scheme}:// cannot be read: {first_line(error)}. "
            f"Credentials are read from the environment: {SCHEMES[scheme].credentials}."
        ) from error


def _aws_credentials() -> Any:
    """What boto3 finds, such as profiles and SSO; None to let obstore use the keys and roles of the environment."""
    if os.environ.get("AWS_ACCESS_KEY_ID") or os.environ.get("AWS_SKIP_SIGNATURE", "").lower() in {"1", "true"}:
        return None
    if importlib.util.find_spec("boto3") is not None:
        from obstore.auth.boto3 import Boto3CredentialProvider

        return Boto3CredentialProvider()
    files = (("AWS_CONFIG_FILE", "config"), ("AWS_SHARED_CREDENTIALS_FILE", "credentials"))
    shared = any(Path(os.environ.get(name) or f"~/.aws/{file}").expanduser().is_file() for name, file in files)
    if os.environ.get("AWS_PROFILE") or shared:
        raise UnreachableError("AWS profiles and shared credentials need an extra: pip install 'deltaenergy[aws]'.")
    return None


def _azure_connection() -> dict[str, Any]:
    """The settings in AZURE_STORAGE_CONNECTION_STRING, which obstore does not read."""
    text = os.environ.get("AZURE_STORAGE_CONNECTION_STRING", "").strip()
    if not text:
        return {}
    values = {key.strip(): value for key, _, value in (part.partition("=") for part in text.split(";"))}
    if values.get("UseDevelopmentStorage") == "true":
        return {"use_emulator": True}
    endpoint = values.get("BlobEndpoint")
    if endpoint is None and {"AccountName", "EndpointSuffix"} <= values.keys():
        protocol = values.get("DefaultEndpointsProtocol", "https")
        endpoint = f"{protocol}://{values['AccountName']}.blob.{values['EndpointSuffix']}"
    names = {"AccountName": "account_name", "AccountKey": "account_key", "SharedAccessSignature": "sas_key"}
    settings = {names[key]: value for key, value in values.items() if key in names}
    if len(settings) < 2 and "sas_key" not in settings:
        raise UnreachableError("AZURE_STORAGE_CONNECTION_STRING names no account with its key or signature.")
    return settings | ({"endpoint": endpoint} if endpoint else {})
