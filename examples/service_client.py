"""Ask a running `deltaenergy serve` for verdicts, with the standard library alone; wait when it is busy.

deltaenergy serve --detector pets=detector/
python examples/service_client.py http://127.0.0.1:8000 pets photo.jpg other.jpg

Every file has an answer of its own.
"""

from __future__ import annotations

import json
import secrets
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any


def verdicts(url: str, detector: str, files: list[str], tries: int = 5) -> list[dict[str, Any]]:
    """One answer per file, in their order: a verdict, or an error of its own."""
    mark = secrets.token_hex(16)
    parts = [f'--{mark}\r\nContent-Disposition: form-data; name="detector"\r\n\r\n{detector}\r\n'.encode()]
    for file in files:
        name = file.replace('"', "%22")
        head = f'--{mark}\r\nContent-Disposition: form-data; name="files"; filename="{name}"\r\n\r\n'
        parts += [head.encode(), Path(file).read_bytes(), b"\r\n"]
    body = b"".join([*parts, f"--{mark}--\r\n".encode()])
    kind = {"Content-Type": f"multipart/form-data; boundary={mark}"}
    request = urllib.request.Request(f"{url}/v1/verdicts", body, kind)
    for _ in range(tries):
        try:
            with urllib.request.urlopen(request) as answer:
                found: list[dict[str, Any]] = json.load(answer)["images"]
                return found
        except urllib.error.HTTPError as error:
            if error.code != 429:
                raise SystemExit(f"{error.code}: {json.load(error)['error']}") from None
            time.sleep(float(error.headers.get("Retry-After", 1)))
    raise SystemExit("The service is too busy. Try later.")


def main(url: str, detector: str, *files: str) -> None:
    for answer in verdicts(url, detector, list(files)):
        print(answer["path"], answer.get("error") or f"{answer['verdict']}, closest class {answer['label']}", sep="\t")


if __name__ == "__main__":
    main(*sys.argv[1:])
