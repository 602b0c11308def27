"""Google Cloud Storage and Azure Blob Storage when they fail: whose fault it is, and how often they are asked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deltaenergy.data.decode import UnreadableImage, open_image
from deltaenergy.data.remote.client import (
    UNLISTED,
    Connections,
    RemoteFile,
    fetch,
    forget_connections,
    stamp_of_info,
)
from deltaenergy.data.remote.errors import in_words
from deltaenergy.data.remote.stores import RequestLimits, open_store
from deltaenergy.errors import DeltaEnergyError, InputError, UnreachableError
from deltaenergy.source import load_images
from deltaenergy.store.folder import place_at
from tests.clouds import ACCOUNT_KEY, AzureBucket, GoogleBucket, Message, azure_error, connection_string, google_error
from tests.data.archives import picture_bytes
from tests.data.conftest import IMPATIENT

PICTURE = picture_bytes("PNG")
VARIABLES = {"gs": "GOOGLE_APPLICATION_CREDENTIALS", "az": "AZURE_STORAGE_ACCOUNT_KEY"}


def error(bucket: Any, status: int, code: str = "") -> Message:
    return google_error(status, code) if bucket.kind == "gs" else azure_error(status, code)


def file(bucket: Any, name: str = "a.png") -> RemoteFile:
    return RemoteFile(f"{bucket.url}/{name}", None, UNLISTED)


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_passing_failures_are_tried_again(fronted: Any, status: int) -> None:
    fronted.put({"a.png": PICTURE})
    fronted.front.failing = [error(fronted, status), error(fronted, status)]
    np.testing.assert_array_equal(np.asarray(open_image(file(fronted))), np.asarray(open_image(PICTURE)))
    assert len(fronted.front.asked) == 3


def test_a_cut_answer_is_tried_again(fronted: Any) -> None:
    fronted.put({"a.png": PICTURE})
    fronted.front.cut = 100
    assert fetch(f"{fronted.url}/a.png", 0, 1 << 20) == PICTURE
    assert len(fronted.front.asked) == 2


def test_a_listing_and_a_put_are_tried_again(fronted: Any) -> None:
    fronted.put({"photos/a.png": PICTURE})
    place = place_at(f"{fronted.url}/store")
    fronted.front.failing = [error(fronted, 503)]
    assert place.publish("a", b"first") == b"first"
    fronted.front.failing = [error(fronted, 503)] * 3
    assert [item.id for item in load_images(f"{fronted.url}/photos/")] == [f"{fronted.url}/photos/a.png"]


@pytest.mark.parametrize("status", [500, 502, 503])
def test_a_store_that_fails_is_asked_a_few_times_and_ends_the_run(fronted: Any, status: int) -> None:
    """Not as often as the library would, for each of our attempts."""
    fronted.front.always = error(fronted, status)
    with pytest.raises(UnreachableError, match=f"{fronted.url} cannot be reached: .*status {status}"):
        open_image(file(fronted))
    assert len(fronted.front.asked) == RequestLimits().attempts


def test_a_store_that_is_gone_ends_the_run(fronted: Any) -> None:
    fronted.front.stop()
    with pytest.raises(UnreachableError, match=f"{fronted.url} cannot be reached"):
        open_image(file(fronted))
    with pytest.raises(UnreachableError, match="run again"):
        load_images(f"{fronted.url}/")


@pytest.mark.parametrize(
    ("kind", "status", "code", "ends"),
    [
        ("gs", 401, "Invalid Credentials", True),
        ("gs", 401, "Anonymous caller does not have storage.objects.get access", True),
        ("gs", 403, "somebody does not have storage.objects.get access", False),
        ("gs", 400, "Bucket names must be valid", False),
        ("az", 403, "AuthenticationFailed", True),
        ("az", 401, "NoAuthenticationInformation", True),
        ("az", 403, "AuthorizationFailure", True),
        ("az", 409, "PublicAccessNotPermitted", True),
        ("az", 403, "AuthorizationPermissionMismatch", False),
        ("az", 404, "ContainerNotFound", True),
        ("az", 400, "InvalidHeaderValue", False),
    ],
)
def test_whose_fault_an_answer_is(
    request: pytest.FixtureRequest, kind: str, status: int, code: str, ends: bool
) -> None:
    """Credentials that ran out are no fault of a million pictures. Neither is asked for twice."""
    bucket = request.getfixturevalue(f"{kind}_bucket")
    bucket.front.always = error(bucket, status, code)
    with pytest.raises(UnreachableError if ends else UnreadableImage) as caught:
        open_image(file(bucket))
    assert len(bucket.front.asked) == 1
    if ends and status != 404:
        assert VARIABLES[kind] in str(caught.value)


def test_a_forbidden_listing_names_the_credentials(fronted: Any) -> None:
    fronted.front.always = error(fronted, 403, "AuthorizationPermissionMismatch")
    with pytest.raises(InputError, match="no permission to read it") as caught:
        load_images(f"{fronted.url}/photos/")
    assert VARIABLES[fronted.kind] in str(caught.value)


def test_a_bucket_that_is_gone_is_told_from_a_missing_picture(fronted: Any) -> None:
    with pytest.raises(UnreachableError, match="no such bucket"):
        open_image(RemoteFile(f"{fronted.kind}://nobody-has-this/a.png", None, UNLISTED))
    with pytest.raises(UnreadableImage, match="nothing is at this address"):
        open_image(file(fronted))
    # Whether the bucket is there may be forbidden to ask; then the picture is what is missing.
    fronted.front.failing = [error(fronted, 404, "BlobNotFound")]
    fronted.front.always = error(fronted, 403, "AuthorizationPermissionMismatch")
    with pytest.raises(UnreadableImage, match="nothing is at this address"):
        open_image(file(fronted))
    # A store that fails just then is asked again.
    fronted.front.failing = [error(fronted, 404, "BlobNotFound"), error(fronted, 503)]
    fronted.front.always = None
    fronted.put({"a.png": PICTURE})
    open_image(file(fronted))


def test_parts_of_an_object(bucket: Any) -> None:
    bucket.put({"a": b"0123456789", "empty": b""})
    assert fetch(f"{bucket.url}/a", 3, 6) == b"345"
    assert fetch(f"{bucket.url}/a", 8, 20) == b"89"
    assert fetch(f"{bucket.url}/a", 10, 20) == b""
    assert fetch(f"{bucket.url}/empty", 0, 20) == b""


def test_a_folder_and_an_object_of_one_name(bucket: Any) -> None:
    """What adlfs says of it is not what lies in the folder."""
    bucket.put({"a/b": b"x", "a/b/2.png": PICTURE, "a/b/1.png": PICTURE, "a/bc/3.png": PICTURE, "alone": b"x"})
    below = [f"{bucket.url}/a/b/{name}" for name in ("1.png", "2.png")]
    assert [item.id for item in load_images(f"{bucket.url}/a/b")] == below
    assert [item.id for item in load_images(f"{bucket.url}/a/b/2*")] == below[1:]
    with pytest.raises(InputError, match="Nothing is there"):
        load_images(f"{bucket.url}/alone")


def test_large_objects_are_put_in_parts_and_only_where_nothing_is(bucket: Any) -> None:
    """Larger than what gcsfs (50 MiB) and the Azure client (64 MiB) put in one request; s3fs puts 100 MB in one."""
    place = place_at(f"{bucket.url}/store")
    data = bytes(range(256)) * (1 << (15 if bucket.url.startswith("s3") else 18)) + b"end"
    assert place.publish("large", data) is data
    assert bucket.get("store/large") == data
    assert place.publish("large", data[:-1]) == data


def test_what_is_noted_about_an_object_changes_no_stamp_on_google() -> None:
    """Its etag counts notes as well; objects put together from parts have no hash."""
    told = {"size": 3, "md5Hash": "kAFQmDzST7DWlj99KOF/cg==", "etag": "CAE="}
    assert stamp_of_info(told) == stamp_of_info(told | {"etag": "CAI=", "updated": "later"})
    assert stamp_of_info({"size": 3, "etag": "CAE="}) != stamp_of_info({"size": 3, "etag": "CAI="})


class TestGoogle:
    @pytest.mark.parametrize("content", [None, "{", "{}"])
    def test_a_credentials_file_that_cannot_be_used_is_named(
        self, gs_bucket: GoogleBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
    ) -> None:
        """gcsfs would pass it over and ask as nobody."""
        import fsspec.config

        path = tmp_path / "key.json"
        if content is not None:
            path.write_text(content, encoding="utf-8")
        monkeypatch.delitem(fsspec.config.conf, "gs")
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
        with pytest.raises(InputError, match=r"key\.json") as caught:
            load_images(f"{gs_bucket.url}/")
        assert VARIABLES["gs"] in str(caught.value)

    def test_google_is_asked_over_http_alone(self, gs_bucket: GoogleBucket) -> None:
        """Its other file system asks over gRPC first, and waits a minute where nobody answers that."""
        gs_bucket.put({"a.png": PICTURE})
        assert fetch(f"{gs_bucket.url}/a.png", 0, 5) == PICTURE[:5]
        assert [method for method, _ in gs_bucket.front.asked] == ["GET"]
        assert type(open_store("gs")).__module__ == "gcsfs.core"


class TestAzure:
    def test_a_wrong_key(self, az_bucket: AzureBucket, monkeypatch: pytest.MonkeyPatch) -> None:
        """The store itself says so here; neither key is printed."""
        wrong = "c2VjcmV0" * 8
        for key in (wrong, "no base64"):
            forget_connections(Connections(IMPATIENT))
            monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", connection_string(az_bucket.front.url, key))
            for ask in (lambda: open_image(file(az_bucket)), lambda: load_images(f"{az_bucket.url}/")):
                with pytest.raises(UnreachableError, match="STORAGE_CONNECTION_STRING") as caught:
                    ask()
                assert key not in str(caught.value) and ACCOUNT_KEY not in str(caught.value)

    @pytest.mark.parametrize("given", [None, "", "AccountName=a;AccountKey=hunter2", "hunter2"])
    def test_settings_that_are_missing_or_malformed(
        self, az_bucket: AzureBucket, monkeypatch: pytest.MonkeyPatch, given: str | None
    ) -> None:
        if given is None:
            monkeypatch.delenv("AZURE_STORAGE_CONNECTION_STRING")
        else:
            monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", given)
        with pytest.raises(DeltaEnergyError, match="STORAGE_CONNECTION_STRING") as caught:
            load_images(f"{az_bucket.url}/")
        assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "Max retries exceeded with url: /tokeninfo?access_token=hunter2 (Caused by nothing)",
        "Invalid URL: https://a.blob.core/?sv=1&sig=hunter2&se=2",
        "AccountName=a;AccountKey=hunter2;BlobEndpoint=b",
        "SharedAccessSignature=hunter2",
    ],
)
def test_secrets_in_what_a_library_says_are_not_repeated(text: str) -> None:
    said = in_words(ValueError(text))
    assert "hunter2" not in said and "=…" in said


def test_a_command_ends_clearly_and_quietly(fronted: Any, tiny_clip_folder: Path, tmp_path: Path) -> None:
    """As a process of its own, so that what libraries say as it ends is heard: with success, and without a store."""
    fronted.put({"photos/a.png": PICTURE, "photos/b.png": picture_bytes("PNG", 2)})
    arguments = ["score", f"{fronted.url}/photos/", "--classes", "cat,dog", "--model", str(tiny_clip_folder)]
    program = (
        "from deltaenergy.cli.main import run\n"
        "from deltaenergy.data.remote.client import Connections, forget_connections\n"
        "from deltaenergy.data.remote.stores import RequestLimits\n"
        "forget_connections(Connections(RequestLimits(first_wait=0.001, most_seconds=-1.0)))\n"
        "run()"
    )

    def command() -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-c", program, *arguments, "--out", str(tmp_path / "v.csv")]
        return subprocess.run(line, capture_output=True, text=True, env=dict(os.environ), timeout=300)

    done = command()
    assert done.returncode == 0, done.stderr
    for noise in ("Traceback", "Unclosed", "Exception ignored", "Warning", "azure", "gcsfs", ACCOUNT_KEY):
        assert noise not in done.stderr
    fronted.front.always = error(fronted, 401, "NoAuthenticationInformation")
    done = command()
    assert done.returncode == 2 and VARIABLES[fronted.kind] in done.stderr
    for noise in ("Traceback", "Unclosed", "Exception ignored", ACCOUNT_KEY):
        assert noise not in done.stderr
