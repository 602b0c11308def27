"""Google Cloud Storage and Azure Blob Storage for tests: emulators on this machine alone, and a front that fails.

Azure's is Azurite, an npm package, which `make test-cloud` puts beside the virtual environment. Google's is
gcp-storage-emulator. It knows neither conditions nor pages nor credentials, answers a part beyond the end with nothing,
and cannot take an object's bytes without loss inside a multipart request; `GoogleFront` does these as Google does.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit

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

    @property
    def query(self) -> dict[str, str]:
        return {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}


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
    `cut` answers are passed on less some bytes. `asked` is what was asked for.
    """

    def __init__(self, port: int) -> None:
        self.behind = port
        self.failing: list[Message | None] = []
        self.always: Message | None = None
        self.cut = 0
        self.asked: list[tuple[str, str]] = []
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
            told = self.failing.pop(0) if self.failing else self.always
            if told is not None:
                return told, 0
            cut, self.cut = (self.cut, 0) if request.method == "GET" else (0, self.cut)
        return self.answer(request), cut

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        front = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                headers = {k: v for k, v in self.headers.items() if k.lower() not in {"content-length", "connection"}}
                request = Message(self.command, self.path, headers, self.rfile.read(size))
                answer, cut = front._answer(request)
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
    """What Google does and its emulator does not."""

    page = 1000

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self._one_put = threading.Lock()

    def answer(self, request: Message) -> Message:
        query = request.query
        if request.method == "POST" and "uploadType" in query:
            with self._one_put:  # to look and to put is one act
                return self._put(request, query)
        if "upload_id" in query:
            request.method = "PUT"
        answer = super().answer(request)
        if answer.status == 206 and not answer.body:
            return google_error(416, "The requested range cannot be satisfied.")
        if request.method == "GET" and re.fullmatch(r"/storage/v1/b/[^/]+/o", urlsplit(request.path).path):
            return self._paged(answer, query)
        return answer

    def _put(self, request: Message, query: dict[str, str]) -> Message:
        bucket = urlsplit(request.path).path.split("/")[-2]
        body = request.body
        if query["uploadType"] == "multipart":
            boundary = re.search(r'boundary="?([^";]+)', request.headers["Content-Type"])
            assert boundary
            _, about, rest = body.split(b"--" + boundary[1].encode(), 2)
            name = json.loads(re.split(rb"\r?\n\r?\n", about, maxsplit=1)[1])["name"]
            body = re.split(rb"\r?\n\r?\n", rest, maxsplit=1)[1].removesuffix(f"\n--{boundary[1]}--".encode())
        else:
            name = query["name"]
        if query.get("ifGenerationMatch") == "0":
            there = Message("GET", f"/storage/v1/b/{bucket}/o/{quote(name, safe='')}", {"Host": "front"})
            if super().answer(there).status == 200:
                return google_error(412, "At least one of the pre-conditions you specified did not hold.")
        if query["uploadType"] == "multipart" and body:  # the emulator takes no empty body alone
            path = f"/upload/storage/v1/b/{bucket}/o?{urlencode({'uploadType': 'media', 'name': name})}"
            headers = {"Host": request.headers["Host"], "Content-Type": "application/octet-stream"}
            request = Message("POST", path, headers, body)
        return super().answer(request)

    def _paged(self, answer: Message, query: dict[str, str]) -> Message:
        if answer.status != 200:
            return answer
        found = json.loads(answer.body)
        rows = sorted([(item["name"], item) for item in found.get("items", [])], key=lambda row: row[0])
        start, size = int(query.get("pageToken", 0)), min(self.page, int(query.get("maxResults", self.page)))
        # Folders come with the first page; that is one of the orders in which they may come.
        page = {**found, "items": [item for _, item in rows[start : start + size]]}
        page["prefixes"] = found.get("prefixes", []) if start == 0 else []
        if start + size < len(rows):
            page["nextPageToken"] = str(start + size)
        return Message(headers={"Content-Type": "application/json"}, body=json.dumps(page).encode())


def google_error(status: int, text: str) -> Message:
    """An error in the words of Google's store."""
    body = json.dumps({"error": {"code": status, "message": text, "errors": [{"message": text}]}}).encode()
    return Message(status=status, headers={"Content-Type": "application/json"}, body=body)


def azure_error(status: int, code: str) -> Message:
    """An error in the words of Azure's."""
    body = f"<?xml version='1.0' encoding='utf-8'?><Error><Code>{code}</Code><Message>m</Message></Error>".encode()
    return Message(status=status, headers={"Content-Type": "application/xml", "x-ms-error-code": code}, body=body)


class GoogleBucket:
    """A bucket of the emulator, asked without gcsfs."""

    kind = "gs"

    def __init__(self, front: GoogleFront, name: str) -> None:
        self.front, self.name, self.url = front, name, f"gs://{name}"
        self._send("POST", "/storage/v1/b", json.dumps({"name": name}).encode(), "application/json")

    def put(self, files: dict[str, bytes]) -> None:
        for key, data in files.items():
            about = json.dumps({"name": key}).encode()
            body = b"--x\n\n" + about + b"\n--x\nContent-Type: application/octet-stream\n\n" + data + b"\n--x--"
            path = f"/upload/storage/v1/b/{self.name}/o?uploadType=multipart"
            self._send("POST", path, body, "multipart/related; boundary=x")

    def get(self, key: str) -> bytes:
        return self._send("GET", f"/storage/v1/b/{self.name}/o/{quote(key, safe='')}?alt=media").body

    def list(self) -> Sequence[str]:
        found = send(self.front.behind, Message("GET", f"/storage/v1/b/{self.name}/o", {"Host": "tests"}))
        return sorted(item["name"] for item in json.loads(found.body)["items"])

    def clear(self) -> None:
        for key in self.list():
            self._send("DELETE", f"/storage/v1/b/{self.name}/o/{quote(key, safe='')}")

    def _send(self, method: str, path: str, body: bytes = b"", kind: str = "") -> Message:
        answer = self.front.answer(Message(method, path, {"Host": "tests", "Content-Type": kind}, body))
        assert answer.status < 300, (method, unquote(path), answer.status)
        return answer


class AzureBucket:
    """A container of the emulator, asked without adlfs."""

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


@contextlib.contextmanager
def google_emulator(module: Any) -> Iterator[int]:
    """gcp-storage-emulator for a block; its port."""
    with module.create_server("127.0.0.1", 0, in_memory=True) as server:
        yield server._api._httpd.server_address[1]
