"""Fixtures for pictures at addresses: a web server that fails as it is told, and object stores in memory."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Iterator
from typing import Any

import pytest

from deltaenergy.data.formats.parquet import close_readers
from deltaenergy.data.formats.tar import LISTS
from deltaenergy.data.remote.blocks import use_cache
from deltaenergy.data.remote.client import Connections, use_connections
from deltaenergy.data.remote.errors import RequestLimits
from tests.clouds import (
    AzureBucket,
    Front,
    GoogleBucket,
    GoogleFront,
    S3Bucket,
    azure_emulator,
    azurite,
    connection_string,
)
from tests.servers import FaultyServer, faulty_server

_NUMBERS = itertools.count()


IMPATIENT = RequestLimits(first_wait=0.001)


def forget_all() -> None:
    """Nothing is known, or kept, of servers, archives and tables."""
    use_connections()
    LISTS.clear()
    use_cache()
    close_readers()


@pytest.fixture
def no_patience(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Attempts follow each other at once, and nothing is known, or kept, of servers of other tests."""
    forget_all()
    use_connections(Connections(IMPATIENT))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield
    forget_all()


@pytest.fixture
def web(no_patience: None) -> Iterator[FaultyServer]:
    """A web server on this machine."""
    with faulty_server() as server:
        yield server


@pytest.fixture(scope="session")
def s3_store() -> Iterator[Any]:
    """An S3 store on this machine: a client of it, and its port."""
    pytest.importorskip("obstore", reason="S3 needs the extra cloud")
    threaded = pytest.importorskip("moto.server", reason="the S3 store of the tests needs moto[server]")
    import boto3
    from botocore.loaders import JSONFileLoader

    # Every client reads the same large descriptions of its service.
    read = staticmethod(functools.cache(JSONFileLoader().load_file))
    server = threaded.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    options = {"aws_access_key_id": "k", "aws_secret_access_key": "s", "region_name": "us-east-1"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JSONFileLoader, "load_file", read)
        yield boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}", **options), port
    server.stop()


@pytest.fixture
def s3_environment(no_patience: None, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Credentials in the environment, and none of the user's own."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3", "AWS_SKIP_SIGNATURE", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere/config")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere/credentials")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    return monkeypatch


@pytest.fixture
def s3_bucket(s3_store: Any, s3_environment: pytest.MonkeyPatch) -> Iterator[S3Bucket]:
    """A new bucket."""
    client, port = s3_store
    front = Front(port)
    s3_environment.setenv("AWS_ENDPOINT_URL", front.url)
    yield S3Bucket(front, client, f"photos-{next(_NUMBERS)}")
    front.stop()


@pytest.fixture
def gs_bucket(s3_store: Any, no_patience: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[GoogleBucket]:
    """A new bucket, and none of the user's own credentials."""
    client, port = s3_store
    front = GoogleFront(port)
    for name in list(os.environ):
        if name.startswith("GOOGLE_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", front.url)
    yield GoogleBucket(front, client, f"photos-{next(_NUMBERS)}")
    front.stop()


@pytest.fixture(scope="session")
def az_emulator() -> Iterator[int]:
    """Azure's store on this machine: its port."""
    pytest.importorskip("obstore", reason="Azure Blob Storage needs the extra cloud")
    pytest.importorskip("azure.storage.blob", reason="the Azure store of the tests needs a client: make test-cloud")
    program = azurite()
    if program is None:
        pytest.skip("the Azure store of the tests needs the npm package azurite: make test-cloud")
    with azure_emulator(program) as port:
        yield port


@pytest.fixture
def az_bucket(az_emulator: int, no_patience: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[AzureBucket]:
    """A new container, and none of the user's own credentials."""
    front = Front(az_emulator)
    for name in list(os.environ):
        if name.startswith("AZURE_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", connection_string(front.url))
    yield AzureBucket(front, f"photos-{next(_NUMBERS)}")
    front.stop()


@pytest.fixture(params=["s3", *(pytest.param(kind, marks=pytest.mark.campaign) for kind in ("gs", "az"))])
def bucket(request: pytest.FixtureRequest) -> Any:
    """A new bucket of each kind of object store that can be had here."""
    return request.getfixturevalue(f"{request.param}_bucket")
