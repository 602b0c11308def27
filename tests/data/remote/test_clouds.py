"""Object stores: six requests, whose fault a failure is, how often they are asked, and where credentials come from."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deltaenergy.data.decode import UnreadableImage, open_image
from deltaenergy.data.file import RemoteFile
from deltaenergy.data.remote.client import (
    Connections,
    RemoteObject,
    delete,
    get,
    get_range,
    head,
    list_objects,
    put,
    use_connections,
)
from deltaenergy.data.remote.errors import Changed, Denied, Missing, Refused, RequestLimits, first_line
from deltaenergy.errors import DeltaEnergyError, InputError, UnreachableError
from deltaenergy.source import load_images
from tests.clouds import ACCOUNT_KEY, AzureBucket, GoogleBucket, S3Bucket, connection_string, store_error
from tests.data.archives import picture_bytes
from tests.data.conftest import IMPATIENT

PICTURE = picture_bytes("PNG")
LIMIT = 1 << 20
VARIABLES = {"s3": "AWS_ACCESS_KEY_ID", "gs": "GOOGLE_APPLICATION_CREDENTIALS", "az": "AZURE_STORAGE_ACCOUNT_KEY"}


def file(bucket: Any, name: str = "a.png") -> RemoteFile:
    return RemoteFile(f"{bucket.url}/{name}")


# The requests.


def test_an_object_and_its_parts(bucket: Any) -> None:
    bucket.put({"a/ü 1%.png": b"0123456789", "empty": b""})
    url = f"{bucket.url}/a/ü 1%.png"
    there = head(url)
    assert (there.url, there.size) == (url, 10) and there.version
    assert get(url, 10) == b"0123456789" and get(f"{bucket.url}/empty", 0) == b""
    assert get_range(there, 3, 6) == b"345" and get_range(there, 0, 10) == b"0123456789"
    with pytest.raises(Refused, match="too large"):
        get(url, 9)


def test_what_is_not_there(bucket: Any) -> None:
    bucket.put({"a/b.png": b"1"})
    with pytest.raises(Missing) as missing:
        head(f"{bucket.url}/b.png")
    assert not missing.value.is_folder
    with pytest.raises(Missing) as missing:
        head(f"{bucket.url}/a")
    assert missing.value.is_folder
    with pytest.raises(Missing):
        get(f"{bucket.url}/b.png", LIMIT)
    assert not list(list_objects(f"{bucket.url}/b"))
    for request in (head, lambda url: get(url, LIMIT), lambda url: list(list_objects(url))):
        with pytest.raises(UnreachableError, match="no such bucket"):
            request(f"{bucket.kind}://nobody-has-this/a.png")


def test_a_listing(bucket: Any) -> None:
    bucket.put({f"a/{number}": b"x" * number for number in range(5)} | {"a/b/c": b"1", "ab": b"1", "a": b"1"})
    found = {one.url: one for one in list_objects(f"{bucket.url}/a/")}
    assert sorted(found) == [f"{bucket.url}/a/{name}" for name in ("0", "1", "2", "3", "4", "b/c")]
    assert found[f"{bucket.url}/a/3"] == head(f"{bucket.url}/a/3")
    assert len(list(list_objects(bucket.url))) == 8


def test_a_name_that_cannot_be_read_is_named(s3_bucket: S3Bucket) -> None:
    """obstore gives up a whole listing for it."""
    s3_bucket.put({"a//b.png": PICTURE})
    with pytest.raises(InputError, match=r"a//b\.png.*Rename"):
        load_images(f"{s3_bucket.url}/")


def test_another_version_is_never_read(bucket: Any) -> None:
    bucket.put({"a": b"0123456789"})
    there = head(f"{bucket.url}/a")
    bucket.put({"a": b"9876543210"})
    with pytest.raises(Changed):
        get_range(there, 0, 3)
    bucket.put({"a": b"0"})
    with pytest.raises(Changed):
        get_range(RemoteObject(there.url, 10, head(there.url).version), 5, 10)
    bucket.clear()
    with pytest.raises((Missing, Changed)):  # Azure checks the condition first
        get_range(there, 0, 3)


def test_objects_are_put_on_conditions(bucket: Any) -> None:
    url = f"{bucket.url}/store/a"
    first = put(url, b"first", if_absent=True)
    assert first and first == head(url).version
    assert put(url, b"second", if_absent=True) is None and get(url, LIMIT) == b"first"
    second = put(url, b"second", if_match=first)
    assert second and second != first and second == head(url).version
    assert put(url, b"third", if_match=first) is None and get(url, LIMIT) == b"second"
    assert put(url, b"") == head(url).version and get(url, LIMIT) == b""
    delete(url)
    delete(url)
    assert put(url, b"fourth", if_match=second) is None and not bucket.list()


def test_a_large_object_is_put_whole(bucket: Any) -> None:
    data = bytes(range(256)) * (1 << 16) + b"end"
    assert put(f"{bucket.url}/large", data, if_absent=True)
    assert bucket.get("large") == data
    assert put(f"{bucket.url}/large", data[:-1], if_absent=True) is None
    assert put(f"{bucket.url}/large", data[:-1]) and bucket.get("large") == data[:-1]


# Failures.


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_passing_failures_are_tried_again(bucket: Any, status: int) -> None:
    bucket.put({"a.png": PICTURE})
    bucket.front.failing = [store_error(status, "m"), store_error(status, "m")]
    np.testing.assert_array_equal(np.asarray(open_image(file(bucket))), np.asarray(open_image(PICTURE)))
    assert len(bucket.front.asked) == 3


def test_a_cut_answer_is_tried_again(bucket: Any) -> None:
    bucket.put({"a.png": PICTURE})
    bucket.front.cut = 100
    assert get(f"{bucket.url}/a.png", LIMIT) == PICTURE
    assert len(bucket.front.asked) == 2


def test_a_listing_and_a_put_are_tried_again(bucket: Any) -> None:
    bucket.put({"photos/a.png": PICTURE})
    bucket.front.failing = [store_error(503, "SlowDown")]
    assert put(f"{bucket.url}/store/a", b"first", if_absent=True)
    bucket.front.failing = [store_error(503, "SlowDown")] * 3
    assert [one.url for one in list_objects(f"{bucket.url}/photos")] == [f"{bucket.url}/photos/a.png"]


def test_an_answer_that_is_lost_leaves_what_was_put(bucket: Any) -> None:
    """Whether the second attempt finds it or the error is told: the bytes are there, whole."""
    bucket.front.loses = lambda method, path: method == "PUT" and len(bucket.front.asked) % 2 == 1
    with contextlib.suppress(UnreachableError):
        put(f"{bucket.url}/a", b"first", if_absent=True)
    assert bucket.get("a") == b"first"


@pytest.mark.parametrize("status", [500, 502, 503])
def test_a_store_that_fails_is_asked_a_few_times_and_ends_the_run(bucket: Any, status: int) -> None:
    bucket.front.always = store_error(status, "InternalError")
    with pytest.raises(UnreachableError, match=f"{bucket.url} cannot be reached: .*status {status}"):
        open_image(file(bucket))
    assert len(bucket.front.asked) == RequestLimits().attempts


def test_a_store_that_is_gone_ends_the_run(bucket: Any) -> None:
    bucket.front.stop()
    with pytest.raises(UnreachableError, match=f"{bucket.url} cannot be reached"):
        open_image(file(bucket))
    with pytest.raises(UnreachableError, match="run again"):
        load_images(f"{bucket.url}/")


def test_a_store_that_is_lost_in_the_middle_of_an_answer_ends_the_run(bucket: Any) -> None:
    bucket.put({"a.png": PICTURE})
    bucket.front.cut = 100
    bucket.front.loses = lambda method, path: bool(bucket.front.stop())
    with pytest.raises(UnreachableError, match=f"{bucket.url} cannot be reached"):
        open_image(file(bucket))


def test_an_answer_that_always_breaks_off_is_that_images_fault(bucket: Any) -> None:
    bucket.put({"a.png": PICTURE, "b.png": PICTURE})
    bucket.front.always_cut = "a.png"
    with pytest.raises(UnreadableImage, match="break off"):
        open_image(file(bucket))
    open_image(file(bucket, "b.png"))


@pytest.mark.parametrize(
    ("kind", "status", "code", "ends"),
    [
        ("s3", 403, "AccessDenied", False),
        ("s3", 403, "InvalidAccessKeyId", True),
        ("s3", 403, "SignatureDoesNotMatch", True),
        ("s3", 400, "ExpiredToken", True),
        ("s3", 404, "NoSuchKey", False),
        ("s3", 404, "NoSuchBucket", True),
        ("gs", 401, "AuthenticationRequired", True),
        ("gs", 403, "AccessDenied", False),
        ("gs", 400, "InvalidBucketName", False),
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
    """Credentials that ran out are no fault of a million images. Neither is asked for twice."""
    bucket = request.getfixturevalue(f"{kind}_bucket")
    bucket.front.always = store_error(status, code)
    with pytest.raises(UnreachableError if ends else UnreadableImage) as caught:
        open_image(file(bucket))
    assert len(bucket.front.asked) == 1
    if ends and status != 404:
        assert VARIABLES[kind] in str(caught.value)


def test_what_may_not_be_read_is_never_missing(bucket: Any) -> None:
    bucket.front.always = store_error(403, "AuthorizationPermissionMismatch")
    url = f"{bucket.url}/photos/a.png"
    requests = [head, lambda url: get(url, LIMIT), lambda url: list(list_objects(url)), delete]
    for request in [*requests, lambda url: put(url, b"1", if_absent=True), lambda url: put(url, b"1", if_match="1")]:
        with pytest.raises(Denied, match=url):
            request(url)
    with pytest.raises(DeltaEnergyError, match="no permission") as caught:
        load_images(f"{bucket.url}/photos/")
    assert VARIABLES[bucket.kind] in str(caught.value)


def test_ctrl_c_is_heard_while_a_store_is_silent(s3_bucket: S3Bucket) -> None:
    asked, over = threading.Event(), threading.Event()

    def waits(method: str, path: str) -> bool:
        asked.set()
        return over.wait(60)

    s3_bucket.front.loses = waits
    # What a shell starts in the background ignores Ctrl-C, and so does all that it starts.
    program = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    program += f"from deltaenergy.data.remote.client import head; head('{s3_bucket.url}/a')"
    process = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True)
    assert asked.wait(60)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=30)[1]
    over.set()
    assert process.returncode == -signal.SIGINT and "KeyboardInterrupt" in said


def test_a_forked_process_is_told_and_does_not_hang(s3_bucket: S3Bucket) -> None:
    s3_bucket.put({"a": b"1"})
    get(f"{s3_bucket.url}/a", LIMIT)
    child = os.fork()
    if not child:
        signal.alarm(60)
        try:
            get(f"{s3_bucket.url}/a", LIMIT)
        except UnreachableError as error:
            os._exit(7 if "spawn" in str(error) else 1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


# Credentials and settings.


class TestS3:
    def test_credentials_come_from_the_environment(self, s3_bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        with pytest.raises(UnreachableError, match="AWS_ACCESS_KEY_ID"):
            load_images(f"{s3_bucket.url}/")
        s3_bucket.client.put_object(Bucket=s3_bucket.name, Key="a.png", Body=PICTURE, ACL="public-read")
        use_connections(Connections(IMPATIENT))
        monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
        assert get(f"{s3_bucket.url}/a.png", LIMIT) == PICTURE

    def test_profiles_through_boto3(self, s3_bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        s3_bucket.put({"a": b"1"})
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        monkeypatch.delenv("AWS_DEFAULT_REGION")
        text = "[profile mine]\nregion = eu-west-3\naws_access_key_id = k2\naws_secret_access_key = s\n"
        expired = "[profile old]\nsso_start_url = https://host/start\nsso_region = eu-west-1\nsso_account_id = 1\n"
        (tmp_path / "config").write_text(f"{text}{expired}sso_role_name = r\n", encoding="utf-8")
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
        for profile in ("mine", "old", "none"):
            monkeypatch.setenv("AWS_PROFILE", profile)
            use_connections(Connections(IMPATIENT))
            if profile == "mine":
                assert get(f"{s3_bucket.url}/a", LIMIT) == b"1"
                continue
            with pytest.raises(UnreachableError, match="SSO" if profile == "old" else "none") as caught:
                get(f"{s3_bucket.url}/a", LIMIT)
            assert "AWS_PROFILE" in str(caught.value)
        assert "k2/" in s3_bucket.front.headers[-1]["authorization"]
        assert "eu-west-3" in s3_bucket.front.headers[-1]["authorization"]

    def test_profiles_without_boto3_name_it(
        self, s3_bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        (tmp_path / "credentials").touch()
        find_spec = __import__("importlib.util").util.find_spec
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "boto3" else find_spec(name))
        for variable, value in (("AWS_PROFILE", "mine"), ("AWS_SHARED_CREDENTIALS_FILE", tmp_path / "credentials")):
            with monkeypatch.context() as patch:
                patch.setenv(variable, str(value))
                with pytest.raises(UnreachableError, match=r"deltaenergy\[aws\]"):
                    head(f"{s3_bucket.url}/a")


class TestGoogle:
    @pytest.mark.parametrize("content", [None, "{", "{}"])
    def test_a_credentials_file_that_cannot_be_used_is_named(
        self, gs_bucket: GoogleBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
    ) -> None:
        path = tmp_path / "key.json"
        if content is not None:
            path.write_text(content, encoding="utf-8")
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
        monkeypatch.delenv("STORAGE_EMULATOR_HOST")
        with pytest.raises(UnreachableError, match="GOOGLE_APPLICATION_CREDENTIALS"):
            load_images(f"{gs_bucket.url}/")

    def test_an_emulator_without_a_scheme(self, gs_bucket: GoogleBucket, monkeypatch: pytest.MonkeyPatch) -> None:
        gs_bucket.put({"a": b"1"})
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", gs_bucket.front.url.removeprefix("http://"))
        assert get(f"{gs_bucket.url}/a", LIMIT) == b"1"


class TestAzure:
    def test_a_wrong_key(self, az_bucket: AzureBucket, monkeypatch: pytest.MonkeyPatch) -> None:
        """The store itself says so here; neither key is printed."""
        wrong = "c2VjcmV0" * 8
        for key in (wrong, "no base64"):
            use_connections(Connections(IMPATIENT))
            monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", connection_string(az_bucket.front.url, key))
            for ask in (lambda: open_image(file(az_bucket)), lambda: load_images(f"{az_bucket.url}/")):
                with pytest.raises(UnreachableError, match="STORAGE_CONNECTION_STRING") as caught:
                    ask()
                assert key not in str(caught.value) and ACCOUNT_KEY not in str(caught.value)


@pytest.mark.parametrize("given", [None, "", "AccountName=a", "AccountName=a;AccountKey=hunter2", "hunter2"])
def test_azure_settings_that_are_missing_or_malformed(
    no_patience: None, monkeypatch: pytest.MonkeyPatch, given: str | None
) -> None:
    pytest.importorskip("obstore", reason="Azure Blob Storage needs the extra cloud")
    for name in [name for name in os.environ if name.startswith("AZURE_")]:
        monkeypatch.delenv(name)
    if given is not None:
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", given)
    with pytest.raises(UnreachableError, match="STORAGE_CONNECTION_STRING") as caught:
        load_images("az://container/")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("UseDevelopmentStorage=true", {"use_emulator": True}),
        ("AccountName=a;AccountKey=a2V5==;", {"account_name": "a", "account_key": "a2V5=="}),
        (
            "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=k;EndpointSuffix=core.windows.net",
            {"account_name": "a", "account_key": "k", "endpoint": "https://a.blob.core.windows.net"},
        ),
        (
            "BlobEndpoint=https://b.example/;SharedAccessSignature=sv=1&sig=s",
            {"sas_key": "sv=1&sig=s", "endpoint": "https://b.example/"},
        ),
    ],
)
def test_connection_strings(monkeypatch: pytest.MonkeyPatch, given: str, expected: dict[str, Any]) -> None:
    from deltaenergy.data.remote.buckets import _azure_connection

    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", given)
    assert _azure_connection() == expected


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_the_missing_extra_is_named(scheme: str, no_patience: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UnreachableError, match=r"deltaenergy\[cloud\]"):
        load_images(f"{scheme}://somewhere/a.png")


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
    said = first_line(ValueError(text))
    assert "hunter2" not in said and "=…" in said


def test_a_command_ends_clearly_and_quietly(bucket: Any, tiny_clip_folder: Path, tmp_path: Path) -> None:
    """As a process of its own, so that what libraries say as it ends is heard: with success, and without a store."""
    bucket.put({"photos/a.png": PICTURE, "photos/b.png": picture_bytes("PNG", 2)})
    arguments = ["score", f"{bucket.url}/photos/", "--classes", "cat,dog", "--model", str(tiny_clip_folder)]
    program = (
        "from deltaenergy.cli.main import run\n"
        "from deltaenergy.data.remote.client import Connections, use_connections\n"
        "from deltaenergy.data.remote.errors import RequestLimits\n"
        "use_connections(Connections(RequestLimits(first_wait=0.001)))\n"
        "run()"
    )

    def command() -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-c", program, *arguments, "--out", str(tmp_path / "v.csv")]
        return subprocess.run(line, capture_output=True, text=True, env=dict(os.environ), timeout=300)

    done = command()
    assert done.returncode == 0, done.stderr
    for noise in ("Traceback", "Exception ignored", "Warning", "obstore", ACCOUNT_KEY):
        assert noise not in done.stderr
    bucket.front.always = store_error(401, "NoAuthenticationInformation")
    done = command()
    assert done.returncode == 2 and VARIABLES[bucket.kind] in done.stderr
    for noise in ("Traceback", "Exception ignored", ACCOUNT_KEY):
        assert noise not in done.stderr
