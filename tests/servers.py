"""A web server for tests, on this machine alone, that fails as it is told."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Answer:
    """One answer: `cut` bytes short of what its header promises, or after `delay` seconds."""

    status: int = 200
    body: bytes = field(default=b"", repr=False)
    cut: int = 0
    delay: float = 0.0
    headers: dict[str, str] = field(default_factory=dict)


class FaultyServer:
    """A web server with a script: each path gives its answers one after another, the last one again and again.

    Without a script, a path gives status 404. `asked` lists what was asked for; `most` is how many requests were
    answered at one time.
    """

    def __init__(self) -> None:
        self.script: dict[str, list[Answer]] = {}
        self.asked: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.most = self._now = 0
        self._lock = threading.Lock()
        self._connections: list[socket.socket] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    def says(self, path: str, *answers: Answer) -> str:
        """Set the answers of a path; its address."""
        self.script[path] = list(answers)
        return f"{self.url}{path}"

    def stop(self) -> None:
        """Refuse connections from now on."""
        self._server.shutdown()
        self._server.server_close()
        for connection in self._connections:  # those that clients keep open
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _next(self, path: str) -> Answer:
        with self._lock:
            self.asked.append(path)
            left = self.script.get(path, [Answer(404)])
            return left.pop(0) if len(left) > 1 else left[0]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                server._connections.append(self.connection)

            def do_GET(self) -> None:
                with server._lock:
                    server._now += 1
                    server.most = max(server.most, server._now)
                try:
                    self._answer()
                finally:
                    with server._lock:
                        server._now -= 1

            do_HEAD = do_GET

            def _answer(self) -> None:
                server.headers.append(dict(self.headers))
                answer = server._next(self.path.partition("?")[0])
                time.sleep(answer.delay)
                body, status = answer.body, answer.status
                wanted, part = self.headers.get("Range"), None
                if wanted and status == 200 and "No-Ranges" not in answer.headers:
                    first, _, last = wanted.removeprefix("bytes=").partition("-")
                    body, status = body[int(first) : int(last) + 1 if last else None], 206
                    status, body = (206, body) if int(first) < len(answer.body) else (416, b"")
                    part = f"bytes {first}-{int(first) + len(body) - 1}/{len(answer.body)}"
                with contextlib.suppress(OSError):
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(body)))
                    if part is not None:
                        self.send_header("Content-Range", part)
                    for name, value in answer.headers.items():
                        self.send_header(name, value)
                    self.end_headers()
                    if self.command == "GET":
                        self.wfile.write(body[: len(body) - answer.cut])
                    if answer.cut:
                        self.close_connection = True

            def log_message(self, *_: Any) -> None:
                pass

        return Handler


@contextlib.contextmanager
def faulty_server() -> Iterator[FaultyServer]:
    """A server for a block."""
    server = FaultyServer()
    try:
        yield server
    finally:
        server.stop()
