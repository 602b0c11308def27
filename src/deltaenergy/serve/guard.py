"""What every request passes: size and time of its body, keys, counters, and headers that browsers heed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deltaenergy.serve.keys import Keys
from deltaenergy.serve.limits import Limits
from deltaenergy.serve.metrics import Metrics

# Whether the service is alive may be asked without a key, and the page itself holds nothing secret.
OPEN_PATHS = frozenset({"/", "/docs", "/openapi.json", "/v2/health/live", "/v2/health/ready"})
HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cache-control", b"no-store"),
)
STRICT = b"default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"


class TooLarge(Exception):
    """More bytes came than a body may have."""


class TooSlow(Exception):
    """The body did not come in time."""


class Guard:
    """Wraps the application.

    Args:
        app: what is guarded.
        limits: of bodies.
        metrics: where requests are counted.
        keys: who may ask; None: whoever reaches the service.
        policies: Content-Security-Policy by path, where it is not the strictest.
        route_of: the route that a request belongs to, for counters: few values, whatever is asked for.
    """

    def __init__(
        self,
        app: ASGIApp,
        limits: Limits,
        metrics: Metrics,
        keys: Keys | None,
        policies: Mapping[str, str],
        route_of: Callable[[Scope], str],
    ) -> None:
        self.app, self.limits, self.metrics, self.keys = app, limits, metrics, keys
        self.policies, self.route_of = {path: text.encode() for path, text in policies.items()}, route_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer it here."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), 0

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                policy = self.policies.get(scope["path"], STRICT)
                message["headers"] = [*message["headers"], *HEADERS, (b"content-security-policy", policy)]
            await send(message)

        headers = {name.lower(): value for name, value in scope["headers"]}
        try:
            if not self._may(scope["path"], headers):
                await refuse(answer, 401, "An API key is needed: Authorization: Bearer KEY.", bearer=True)
            elif _length(headers) > self.limits.body_bytes:
                await refuse(answer, 413, too_large(self.limits))
            else:
                await self._bounded(scope, receive, answer)
        finally:
            # A client that went away got no status.
            route = self.route_of(scope)
            self.metrics.requests.labels(route, str(status or 499)).inc()
            self.metrics.seconds.labels(route).observe(time.perf_counter() - began)

    async def _bounded(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count the body's bytes as they come, and give them a time; the application answers for what is over."""
        seen, whole = 0, False
        until = asyncio.get_running_loop().time() + self.limits.seconds

        async def counted() -> Message:
            nonlocal seen, whole
            if whole:
                return await receive()
            left = until - asyncio.get_running_loop().time()
            try:
                message = await asyncio.wait_for(receive(), max(0.001, left))
            except TimeoutError:
                raise TooSlow from None
            seen += len(message.get("body", b""))
            if seen > self.limits.body_bytes:
                raise TooLarge
            whole = message["type"] == "http.disconnect" or not message.get("more_body", False)
            return message

        await self.app(scope, counted, send)

    def _may(self, path: str, headers: Mapping[bytes, bytes]) -> bool:
        if self.keys is None or path in OPEN_PATHS:
            return True
        given = headers.get(b"authorization", b"").decode("latin-1")
        kind, _, key = given.partition(" ")
        if kind.lower() != "bearer":
            key = headers.get(b"x-api-key", b"").decode("latin-1")
        return self.keys.accepts(key.strip())


def too_large(limits: Limits) -> str:
    """What is told of a body with too many bytes."""
    return f"The body is larger than {limits.body_mb:g} MB. Send fewer or smaller images."


def _length(headers: Mapping[bytes, bytes]) -> int:
    text = headers.get(b"content-length", b"0")
    return int(text) if text.isdigit() else 0


async def refuse(send: Send, status: int, message: str, *, bearer: bool = False) -> None:
    """A JSON error."""
    from deltaenergy.serve.schemas import Problem

    body = Problem(error=message).model_dump_json(exclude_none=True).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if bearer:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
