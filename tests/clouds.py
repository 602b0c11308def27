"""Object stores for tests: emulators on this machine alone, each behind a front that fails as it is told.

S3 is moto's server. Google Cloud Storage is the same: its XML interface is that of S3 but for its conditions, which
`GoogleFront` translates. Azure is Azurite, an npm package, which `make test-cloud` puts beside the virtual environment.
"""

from __future__ import annotations

import contextlib
import http.client
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

# Azurite's one account, whose key is in its handbook.
ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@dataclass
class Message:
    """A request or an answer."""

    method: str = ""
    path: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = field(default=b"", repr=False)
    status: int = 200


def send(port: int, request: Message) -> Message:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.putrequest(request.method, request.path, skip_host=True, skip_accept_encoding=True)
        for name, value in (request.headers | {"Content-Length": str(len(request.body))}).items():
            connection.putheader(name, value)
        connection.endheaders(request.body)
        answer = connection.getresponse()
        return Message(headers=dict(answer.getheaders()), body=answer.read(), status=answer.status)
    finally:
        connection.close()


class Front:
    """What stands before an emulator: it passes requests on, unless it was told to answer otherwise.

    `failing` holds answers for the next requests, None for one that is passed on; `always` is for all after these.
    The next answer is passed on less `cut` bytes, those for a path with `always_cut` in it without any. What `refuses`
    says of a request decides whether it is forbidden; what `loses` says of it, once it was passed on, whether its
    answer is lost: the connection breaks. `asked` is what was asked for, `headers` with which headers.
    """

    def __init__(self, port: int) -> None:
        self.behind = port
        self.failing: list[Message | None] = []
        self.always: Message | None = None
        self.cut = 0
        self.always_cut = ""
        self.loses: Callable[[str, str], bool] = lambda method, path: False
        self.refuses: Callable[[str, str], bool] = lambda method, path: False
        self.asked: list[tuple[str, str]] = []
        self.headers: list[dict[str, str]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._lock = threading.Lock()
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def stop(self) -> None:
        """Refuse connections from now on."""
        self._server.shutdown()
        self._server.server_close()

    def answer(self, request: Message) -> Message:
        return send(self.behind, request)

    def _answer(self, request: Message) -> tuple[Message, int]:
        with self._lock:
            self.asked.append((request.method, request.path))
            self.headers.append({name.lower(): value for name, value in request.headers.items()})
            told = self.failing.pop(0) if self.failing else self.always
            if told is None and self.refuses(request.method, unquote(request.path)):
                told = store_error(403, "AuthorizationPermissionMismatch")
            if told is not None:
                return told, 0
            cut, self.cut = (self.cut, 0) if request.method == "GET" else (0, self.cut)
        answer = self.answer(request)
        if self.always_cut and self.always_cut in unquote(request.path):
            cut = len(answer.body)
        return answer, cut

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        front = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                headers = {k: v for k, v in self.headers.items() if k.lower() not in {"content-length", "connection"}}
                request = Message(self.command, self.path, headers, self.rfile.read(size))
                answer, cut = front._answer(request)
                if front.loses(request.method, unquote(request.path)):
                    self.connection.close()
                    return
                with contextlib.suppress(OSError):
                    self.send_response(answer.status)
                    passed_over = {"content-length", "transfer-encoding", "connection", "keep-alive", "date", "server"}
                    if self.command == "HEAD":
                        passed_over.remove("content-length")
                    elif answer.status not in {204, 304}:
                        self.send_header("Content-Length", str(len(answer.body)))
                    for name, value in answer.headers.items():
                        if name.lower() not in passed_over:
                            self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(answer.body[: len(answer.body) - cut])

            do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

            def log_message(self, *_: Any) -> None:
                pass

        return Handler


class GoogleFront(Front):
    """What Google does otherwise than S3: conditions are on generations, which count up with each write."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self._one_put = threading.Lock()
        self._generations: dict[str, int] = {}

    def answer(self, request: Message) -> Message:
        path, mark, query = request.path.partition("?")
        path = quote(unquote(path))  # obstore writes "-" as "%2D"
        headers = {name.lower(): value for name, value in request.headers.items()}
        # The store in memory lets in anyone with a name.
        headers["authorization"] = "AWS4-HMAC-SHA256 Credential=k/20250101/us-east-1/s3/aws4_request, Signature=s"
        condition = headers.pop("x-goog-if-generation-match", None)
        with self._one_put if request.method == "PUT" else contextlib.nullcontext():  # to look and to put is one act
            if condition == "0":
                headers["if-none-match"] = "*"
            elif condition is not None and condition != str(self._generations.get(path)):
                return store_error(412, "PreconditionFailed")
            answer = super().answer(Message(request.method, path + mark + query, headers, request.body))
            if request.method == "PUT" and answer.status == 200:
                self._generations[path] = self._generations.get(path, 1) + 1
        answer.headers["x-goog-generation"] = str(self._generations.setdefault(path, 1))
        return answer


def store_error(status: int, code: str) -> Message:
    """An error as all three stores word it."""
    body = f"<?xml version='1.0' encoding='utf-8'?><Error><Code>{code}</Code><Message>m</Message></Error>".encode()
    return Message(status=status, headers={"Content-Type": "application/xml", "x-ms-error-code": code}, body=body)


class S3Bucket:
    """A bucket of the store in memory, asked without obstore."""

    kind = "s3"

    def __init__(self, front: Front, client: Any, name: str) -> None:
        self.front, self.client, self.name, self.url = front, client, name, f"{self.kind}://{name}"
        client.create_bucket(Bucket=name)

    def put(self, files: dict[str, bytes]) -> None:
        for key, data in files.items():
            self.client.put_object(Bucket=self.name, Key=key, Body=data)

    def get(self, key: str) -> bytes:
        data: bytes = self.client.get_object(Bucket=self.name, Key=key)["Body"].read()
        return data

    def list(self) -> Sequence[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.name)
        return [one["Key"] for page in pages for one in page.get("Contents", [])]

    def clear(self) -> None:
        for key in self.list():
            self.client.delete_object(Bucket=self.name, Key=key)


class GoogleBucket(S3Bucket):
    """A bucket that is read as Google's."""

    kind = "gs"


class AzureBucket:
    """A container of the emulator, asked without obstore."""

    kind = "az"

    def __init__(self, front: Front, name: str) -> None:
        from azure.storage.blob import BlobServiceClient

        self.front, self.name, self.url = front, name, f"az://{name}"
        service = BlobServiceClient.from_connection_string(connection_string(f"http://127.0.0.1:{front.behind}"))
        self.client = service.create_container(name)

    def put(self, files: dict[str, bytes]) -> None:
        for key, data in files.items():
            self.client.upload_blob(key, data, overwrite=True)

    def get(self, key: str) -> bytes:
        return bytes(self.client.download_blob(key).readall())

    def list(self) -> Sequence[str]:
        return sorted(self.client.list_blob_names())

    def clear(self) -> None:
        for key in self.list():
            self.client.delete_blob(key)


def connection_string(endpoint: str, key: str = ACCOUNT_KEY) -> str:
    """What AZURE_STORAGE_CONNECTION_STRING holds for the emulator."""
    account = f"AccountName={ACCOUNT};AccountKey={key};BlobEndpoint={endpoint}/{ACCOUNT};"
    return f"DefaultEndpointsProtocol=http;{account}"


def azurite() -> str | None:
    """The program, where `make test-cloud` put it or on the path."""
    here = Path(sys.prefix) / "azurite" / "node_modules" / ".bin" / "azurite-blob"
    return str(here) if here.exists() else shutil.which("azurite-blob")


@contextlib.contextmanager
def azure_emulator(program: str) -> Iterator[int]:
    """Azurite for a block; its port."""
    options = ["--blobHost", "127.0.0.1", "--blobPort", "0", "--inMemoryPersistence", "--skipApiVersionCheck"]
    process = subprocess.Popen(
        [program, *options, "--silent", "--disableTelemetry"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout
        said = ""
        for line in process.stdout:
            said += line
            if found := re.search(r"listens on http://127\.0\.0\.1:(\d+)", line):
                yield int(found[1])
                return
        raise RuntimeError(f"Azurite did not start: {said}")
    finally:
        process.terminate()
        process.communicate()
