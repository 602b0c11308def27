"""Fixtures for pictures at addresses: a web server that fails as it is told, and an S3 store in memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from deltaenergy.data import parquet_images, remote, remote_parts, remote_tar
from tests.servers import Bucket, FaultyServer, faulty_server

_NUMBERS = itertools.count()


@pytest.fixture
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts follow each other at once, and nothing is known, or kept, of servers of other tests."""
    monkeypatch.setattr(remote, "FIRST_WAIT", 0.001)
    monkeypatch.setattr(remote, "_INNER_ATTEMPTS", 1)
    monkeypatch.setattr(remote, "_STORES", {})
    monkeypatch.setattr(remote, "_ANSWERED", {})
    monkeypatch.setattr(remote_tar, "_kept", remote_tar._Kept())
    remote_parts.forget_parts()
    parquet_images._readers.clear()
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def web(no_patience: None) -> Iterator[FaultyServer]:
    """A web server on this machine."""
    pytest.importorskip("aiohttp", reason="addresses need the extra cloud")
    pytest.importorskip("fsspec", reason="addresses need the extra cloud")
    with faulty_server() as server:
        yield server


@pytest.fixture(scope="session")
def s3_store() -> Iterator[Any]:
    """An S3 store on this machine, and a client of it."""
    pytest.importorskip("s3fs", reason="S3 needs the extra cloud")
    threaded = pytest.importorskip("moto.server", reason="the S3 store of the tests needs moto[server]")
    import boto3

    server = threaded.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    endpoint = f"http://127.0.0.1:{port}"
    options = {"aws_access_key_id": "k", "aws_secret_access_key": "s", "region_name": "us-east-1"}
    yield boto3.client("s3", endpoint_url=endpoint, **options), endpoint
    server.stop()


@pytest.fixture
def s3_environment(no_patience: None, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Credentials in the environment, and none of the user's own."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3", "FSSPEC_S3_ANON"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere/config")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere/credentials")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    return monkeypatch


@pytest.fixture
def bucket(s3_store: Any, s3_environment: pytest.MonkeyPatch) -> Bucket:
    """A new bucket."""
    client, endpoint = s3_store
    s3_environment.setenv("AWS_ENDPOINT_URL", endpoint)
    return Bucket(client, f"photos-{next(_NUMBERS)}")
