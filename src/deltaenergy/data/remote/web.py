"""Files on web servers, over HTTP: whole, or in parts of one version.

Time-outs, lost connections, answers that break off and the statuses 408, 425, 429, 500, 502, 503 and 504 are tried
again, a few times, after waits that double and are drawn at random, so workers do not come back all at once.
Everything else is reported at once.

A server is asked with GET only, and the answer is left early where its head is enough: servers of photos refuse HEAD.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from deltaenergy.data.remote.errors import Changed, Denied, Missing, Refused, RequestLimits, first_line, out_of_reach
from deltaenergy.data.remote.url import root_of

if TYPE_CHECKING:
    import httpx2

_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_TRANSIENT = {408, 425, 429, 500, 502, 503, 504}
_CONNECTIONS = 64

_Result = TypeVar("_Result")


class Web:
    """Web servers, and when each last gave what was requested. Connections do not survive a fork."""

    def __init__(self, limits: RequestLimits, sleep: Callable[[float], object] = time.sleep) -> None:
        self._limits, self._sleep = limits, sleep
        self._answered: dict[str, float] = {}
        self._clients: dict[int, httpx2.Client] = {}

    def head(self, url: str) -> tuple[int | None, str]:
        """A file's size, if its server sends it, and its version: its tag, or else its date."""

        def read(answer: httpx2.Response) -> tuple[int | None, str]:
            size = answer.headers.get("Content-Length", "")
            return int(size) if size.isdecimal() else None, _version(answer)

        return self._ask(url, {}, read)

    def get(self, url: str, limit: int) -> bytes:
        """The file, or as much of it as the limit allows."""
        return self._ask(url, {}, lambda answer: _body(answer, limit))

    def get_range(self, url: str, size: int, version: str, start: int, end: int) -> bytes:
        """The bytes from `start` to `end`, of a file with this size and version."""

        def read(answer: httpx2.Response) -> bytes:
            part = answer.headers.get("Content-Range", "") if answer.status_code == 206 else ""
            if not part and (start, end) == (0, size):  # a part that is the whole: any server gives that
                length = int(answer.headers.get("Content-Length", size))
                part = f"bytes 0-{length - 1}/{length}"
            match = _RANGE.fullmatch(part)
            if match is None:
                raise Refused(url, "its server does not give parts of a file")
            first, last, length = map(int, match.groups())
            if (length, _version(answer)) != (size, version):
                raise Changed(url)
            if (first, last) != (start, end - 1):
                raise Refused(url, "its server gives other parts of a file than those requested")
            return _body(answer, end - start)

        return self._ask(url, {"Range": f"bytes={start}-{end - 1}"}, read)

    def _client(self) -> httpx2.Client:
        import httpx2

        pid, limits = os.getpid(), self._limits
        if pid not in self._clients:
            self._clients[pid] = httpx2.Client(
                timeout=httpx2.Timeout(limits.silent_seconds, connect=limits.connect_seconds, pool=None),
                limits=httpx2.Limits(max_connections=_CONNECTIONS, max_keepalive_connections=_CONNECTIONS),
                # The bytes as they are: parts of a compressed answer are of no use.
                headers={"Accept-Encoding": "identity"},
                follow_redirects=True,
            )
        return self._clients[pid]

    def _ask(self, url: str, headers: dict[str, str], read: Callable[[httpx2.Response], _Result]) -> _Result:
        """What `read` makes of the answer. Raises `Refused`, or `UnreachableError` if the server is at fault."""
        import httpx2

        began = waited = time.monotonic()
        cause: Exception | None
        for attempt in range(self._limits.attempts):
            answered, cause = False, None
            try:
                with self._client().stream("GET", url, headers=headers) as answer:
                    answer.raise_for_status()
                    answered = True
                    result = read(answer)
                self._answered[root_of(url)] = time.monotonic()
                return result
            except httpx2.HTTPStatusError as error:
                failure = error.response.status_code
                if failure not in _TRANSIENT:
                    raise _refusal(url, failure) from error
                why, cause = f"the server answers with status {failure}", error
            except httpx2.TransportError as error:
                why, cause, failure = "its bytes break off" if answered else first_line(error), error, 0
                if isinstance(error, httpx2.TimeoutException):
                    why = "it does not answer in time"
            except (httpx2.HTTPError, httpx2.InvalidURL) as error:  # too many redirects, a URL that cannot be asked
                raise Refused(url, f"cannot be read: {first_line(error)}") from error
            if attempt + 1 == self._limits.attempts or time.monotonic() - began > self._limits.most_seconds:
                raise self._given_up(url, why, waited, alone=answered or failure == 500) from cause
            waited = time.monotonic()
            self._sleep(self._limits.first_wait * 2**attempt * random.uniform(0.5, 1))
        raise AssertionError("the last attempt returns or raises")

    def _given_up(self, url: str, why: str, waited: float, *, alone: bool) -> Exception:
        """Whether a request that failed so often says something about this URL `alone`, or about its server.

        A server that does not answer is no reason to end the run if it gave something else since the last wait, or if
        it never gave anything while another one did: lists of URLs outlive some of their servers.
        """
        if alone:
            return Refused(url, f"cannot be read: {why}")
        itself = self._answered.get(root_of(url))
        lately = any(at >= waited for at in self._answered.copy().values())
        if (itself is not None and itself >= waited) or (itself is None and lately):
            return Refused(url, f"its server cannot be reached: {why}")
        return out_of_reach(url, why, self._limits.attempts)


def _refusal(url: str, status: int) -> Refused:
    if status in {404, 410}:
        return Missing(url)
    if status == 403:
        return Denied(url)
    if status == 401:
        return Denied(url, "no permission to read it: the server asks for a password")
    if status == 416:  # it became shorter
        return Changed(url)
    return Refused(url, f"cannot be read: the server answers with status {status}")


def _version(answer: httpx2.Response) -> str:
    return (answer.headers.get("ETag") or answer.headers.get("Last-Modified") or "").strip('"')


def _body(answer: httpx2.Response, limit: int) -> bytes:
    """The first bytes of an answer. The rest is never read: leaving the answer ends the connection."""
    parts, missing = [], limit
    for part in answer.iter_bytes():
        parts.append(part[:missing])
        missing -= len(parts[-1])
        if not missing:
            break
    return b"".join(parts)
