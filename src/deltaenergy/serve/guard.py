"""The checks on every request: keys, body size and time, counters, browser headers, disconnected clients."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fastapi import Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deltaenergy.errors import InputError
from deltaenergy.serve.metrics import Metrics

if TYPE_CHECKING:
    from deltaenergy.serve.server import Limits

Value = TypeVar("Value")
# Health needs no key, and the pages have nothing secret.
OPEN_PATHS = frozenset({"/", "/docs", "/openapi.json", "/v2/health/live", "/v2/health/ready"})
HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cache-control", b"no-store"),
)
STRICT = b"default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
# The status of a request whose client has left: not sent, but counted.
CLIENT_LEFT = 499
SHORTEST_KEY = 16
LARGEST_KEY_FILE = 1 << 20


class Keys:
    """API keys. Only hashes are kept; comparing takes constant time."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._hashes = [_hash(key) for key in keys]

    @classmethod
    def read(cls, path: Path) -> Keys:
        """The keys in a file, one per line; empty lines and comments (#) are ignored."""
        try:
            if path.stat().st_size > LARGEST_KEY_FILE:
                raise InputError(f"`api_key_file` {path} has more than a megabyte: write one key per line.")
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            raise InputError(f"`api_key_file` {path} is not a text file: write one key per line.") from None
        except OSError as error:
            raise InputError(f"`api_key_file` {path} cannot be read: {error.strerror or error}.") from None
        keys = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
        if not keys:
            raise InputError(f"`api_key_file` {path} contains no key: write one per line.")
        for number, key in enumerate(keys, start=1):
            if len(key) < SHORTEST_KEY or not key.isascii() or not key.isprintable() or " " in key:
                raise InputError(
                    f"`api_key_file` {path}: key {number} must have {SHORTEST_KEY} or more printable ASCII characters "
                    "without spaces. `python -c 'import secrets; print(secrets.token_urlsafe(32))'` makes one."
                )
        return cls(keys)

    def accepts(self, key: str) -> bool:
        """Whether `key` is valid. All keys are compared, for constant time."""
        given, right = _hash(key), False
        for one in self._hashes:
            right |= hmac.compare_digest(given, one)
        return right


def _hash(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


class Guard:
    """Wraps the application: keys and the announced size are checked before a body is read.

    Args:
        app: the application to guard.
        limits: of bodies.
        metrics: counts requests.
        keys: clients must send one; None if no key is needed.
        policies: Content-Security-Policy by path; the strictest by default.
    """

    def __init__(
        self, app: ASGIApp, limits: Limits, metrics: Metrics, keys: Keys | None, policies: Mapping[str, str]
    ) -> None:
        self.app, self.limits, self.metrics, self.keys = app, limits, metrics, keys
        self.policies = {path: text.encode() for path, text in policies.items()}
        self._too_large = f"The body is larger than {limits.body_mb:g} MB. Send fewer or smaller images."

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the request, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), CLIENT_LEFT

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                policy = self.policies.get(scope["path"], STRICT)
                message["headers"] = [*message["headers"], *HEADERS, (b"content-security-policy", policy)]
            await send(message)

        headers = {name.lower(): value for name, value in scope["headers"]}
        length = headers.get(b"content-length", b"0")
        app: ASGIApp
        if not self._may(scope["path"], headers):
            needed = {"error": "An API key is needed: Authorization: Bearer KEY."}
            app = JSONResponse(needed, 401, {"WWW-Authenticate": "Bearer"})
        elif length.isdigit() and (len(length) > 18 or int(length) > self.limits.body_bytes):
            app = JSONResponse({"error": self._too_large}, 413)
        else:
            app, receive = self.app, self._bounded(receive)
        try:
            await app(scope, receive, answer)
        finally:
            # The path of the route, or one word for unknown paths.
            route = str(getattr(scope.get("route"), "path", "other"))
            self.metrics.requests.labels(route, str(status)).inc()
            self.metrics.seconds.labels(route).observe(time.perf_counter() - began)

    def _bounded(self, receive: Receive) -> Receive:
        """Count the body's bytes as they arrive, with a timeout."""
        seen, whole = 0, False
        until = asyncio.get_running_loop().time() + self.limits.seconds

        async def counted() -> Message:
            nonlocal seen, whole
            if whole:
                return await receive()
            left = until - asyncio.get_running_loop().time()
            close = {"Connection": "close"}
            try:
                message = await asyncio.wait_for(receive(), max(0.001, left))
            except TimeoutError:
                late = f"The body did not come within {self.limits.seconds:g} seconds."
                raise HTTPException(408, late, headers=close) from None
            if message["type"] == "http.disconnect":
                raise HTTPException(CLIENT_LEFT, "The client has left.")
            seen += len(message.get("body", b""))
            if seen > self.limits.body_bytes:
                raise HTTPException(413, self._too_large, headers=close)
            whole = not message.get("more_body", False)
            return message

        return counted

    def _may(self, path: str, headers: Mapping[bytes, bytes]) -> bool:
        if self.keys is None or path in OPEN_PATHS:
            return True
        kind, _, key = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        if kind.lower() != "bearer":
            key = headers.get(b"x-api-key", b"").decode("latin-1")
        return self.keys.accepts(key.strip())


async def while_connected(request: Request, work: Awaitable[Value], seconds: float) -> Value:
    """The result of `work`, which is cancelled when the client leaves or the time is up."""
    task = asyncio.ensure_future(work)
    left = asyncio.ensure_future(_until_left(request.receive))
    try:
        await asyncio.wait({task, left}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if left.done():
            raise HTTPException(CLIENT_LEFT, "The client has left.")
        raise HTTPException(504, f"No answer within {seconds:g} seconds. Send fewer images, or try again later.")
    finally:
        for one in (task, left):
            one.cancel()
        await asyncio.gather(task, left, return_exceptions=True)


async def _until_left(receive: Callable[[], Awaitable[Any]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
