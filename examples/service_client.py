"""Ask a running `deltaenergy serve` about pictures, a few at a time, with nothing but the standard library.

    deltaenergy serve --detector pets=detector/ &
    python examples/service_client.py http://127.0.0.1:8000 pets photo.jpg other.jpg

A busy service answers 429 and says when to ask again; the client waits, and asks again.
"""

from __future__ import annotations

import base64
import json
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

AT_A_TIME = 16


def ask(url: str, detector: str, paths: list[str]) -> list[dict[str, Any]]:
    """The service's answers, in the order of the pictures."""
    images = [{"id": path, "data": base64.b64encode(Path(path).read_bytes()).decode()} for path in paths]
    body = json.dumps({"detector": detector, "images": images}).encode()
    request = urllib.request.Request(f"{url}/v1/verdicts", body, {"Content-Type": "application/json"})
    while True:
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                found: list[dict[str, Any]] = json.load(answer)["images"]
                return found
        except urllib.error.HTTPError as error:
            if error.code == 422:  # no picture of these could be read: each says why
                failed: list[dict[str, Any]] = json.load(error)["detail"]
                return failed
            if error.code != 429:
                raise
            time.sleep(float(error.headers.get("Retry-After", 1)))


def main(url: str, detector: str, *paths: str) -> None:
    """Print a line for each picture."""
    for start in range(0, len(paths), AT_A_TIME):
        for image in ask(url, detector, list(paths[start : start + AT_A_TIME])):
            told = (
                image["error"]
                if image.get("error")
                else f"{image['verdict']}\t{image['label']}\t{image['p_value']:.3f}"
            )
            print(f"{image['id']}\t{told}")


if __name__ == "__main__":
    main(*sys.argv[1:])
