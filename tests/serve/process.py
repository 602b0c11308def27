"""`deltaenergy serve` as a process of its own, for tests that must see it start, listen and end."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tests import fresh

BOUNDARY = "some-boundary"


def form(pictures: list[bytes], **fields: str) -> bytes:
    parts = [
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{k}"\r\n\r\n{v}\r\n'.encode() for k, v in fields.items()
    ]
    for i, data in enumerate(pictures):
        head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="files"; filename="{i}.png"\r\n\r\n'
        parts.append(head.encode() + data + b"\r\n")
    return b"".join([*parts, f"--{BOUNDARY}--\r\n".encode()])


class Service:
    """A running `deltaenergy serve`."""

    def __init__(self, folders: dict[str, Path], *options: str) -> None:
        arguments = [part for name, folder in folders.items() for part in ("--detector", f"{name}={folder}")]
        self._folder = tempfile.TemporaryDirectory()
        code = "from deltaenergy.cli.main import run; run()"
        self.process = fresh.start_code(
            code, "serve", "--port", 0, *arguments, *options, folder=Path(self._folder.name)
        )
        self.port = int(self.process.wait_for("Ready: http://127.0.0.1:").split(":")[3].split("/")[0])

    def verdicts(self, pictures: list[bytes], detector: str = "colours") -> tuple[int, Any]:
        headers = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/verdicts", form(pictures, detector=detector), headers
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def stop(self) -> int:
        os.kill(self.process.pid, signal.SIGTERM)
        return self.process.wait(60)
