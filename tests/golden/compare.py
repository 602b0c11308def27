"""Golden outputs on disk, and what differs from them.

Texts, labels and verdicts must be equal. Floats must have the same bits where the machine is the one that recorded
them. Elsewhere they must be close, in relation to the larger of 1 and the recorded one: `COSINES` for cosines without
training, `CLOSE` for the rest. A ViT's float32 cosines differ by about 1e-7 between two sets of instructions; softmax
at temperature 0.01 makes 1e-5 of that, and training more. What stands under the key `BITS` is compared on that machine
alone. Numbers within pages are part of a text there, and left out elsewhere.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import platform
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

DATA = Path(__file__).parent / "data"
COSINES, CLOSE = 1e-6, 1e-4
_NUMBER = re.compile(r"-?\d+(\.\d+)?(e-?\d+)?")
# Longer texts are stored compressed.
_LONG_TEXT = 2000


def machine() -> dict[str, str]:
    """What the last bits of a float depend on."""
    info = Path("/proc/cpuinfo")
    names = re.findall(r"^(?:model name|flags)\s*:.*$", info.read_text(), re.M)[:2] if info.exists() else []
    processor = hashlib.sha256("\n".join([platform.machine(), *names]).encode()).hexdigest()[:16]
    return {
        "processor": processor,
        "torch": f"{torch.__version__} {torch.backends.cpu.get_cpu_capability()}",
        "numpy": np.__version__,
        "threads": str(torch.get_num_threads()),
    }


def save(name: str, value: Any) -> None:
    """Record a section."""
    DATA.mkdir(exist_ok=True)
    record = {"machine": machine(), "value": _packed(value)}
    (DATA / f"{name}.json").write_text(json.dumps(record, separators=(",", ":"), ensure_ascii=False) + "\n", "utf-8")


def load(name: str) -> tuple[Any, bool]:
    """A recorded section, and whether this machine recorded it."""
    record = json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))
    return _unpacked(record["value"]), record["machine"] == machine()


def _packed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _packed(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_packed(part) for part in value]
    if isinstance(value, str) and len(value) > _LONG_TEXT:
        return {"COMPRESSED": base64.b85encode(zlib.compress(value.encode(), 9)).decode()}
    return value


def _unpacked(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {"COMPRESSED"}:
            return zlib.decompress(base64.b85decode(value["COMPRESSED"])).decode()
        return {key: _unpacked(part) for key, part in value.items()}
    return [_unpacked(part) for part in value] if isinstance(value, list) else value


def differences(expected: Any, found: Any, exact: bool, where: str = "", close: float = CLOSE) -> list[str]:
    """Where two values differ, each with both."""
    if isinstance(expected, dict) and isinstance(found, dict):
        keys = [key for key in {**expected, **found} if exact or key != "BITS"]
        return [
            line
            for key in keys
            for line in differences(
                expected.get(key, "absent"), found.get(key, "absent"), exact, f"{where}/{key}", close
            )
        ]
    if isinstance(expected, list) and isinstance(found, list):
        if len(expected) != len(found):
            return [f"{where}: {len(expected)} entries became {len(found)}"]
        pairs = enumerate(zip(expected, found))
        return [line for i, (a, b) in pairs for line in differences(a, b, exact, f"{where}/{i}", close)]
    if isinstance(expected, float) and isinstance(found, float):
        return [] if _same(expected, found, exact, close) else [f"{where}: {expected!r} became {found!r}"]
    if isinstance(expected, str) and isinstance(found, str):
        return _text_differences(expected, found, exact, where)
    # A whole number and a float, a truth and a number are different things.
    return [] if type(expected) is type(found) and expected == found else [f"{where}: {expected!r} became {found!r}"]


def _same(expected: float, found: float, exact: bool, close: float) -> bool:
    if exact or not (math.isfinite(expected) and math.isfinite(found)):
        return expected == found or (math.isnan(expected) and math.isnan(found))
    return abs(expected - found) <= close * max(1.0, abs(expected))


def _text_differences(expected: str, found: str, exact: bool, where: str) -> list[str]:
    if len(expected) <= _LONG_TEXT or exact:
        if expected == found:
            return []
    elif _NUMBER.sub("#", expected) == _NUMBER.sub("#", found):
        return []
    old, new = re.split(r"(?<=[>\n])", expected), re.split(r"(?<=[>\n])", found)
    at = next((i for i, (a, b) in enumerate(zip(old, new)) if a != b), min(len(old), len(new)))
    return [f"{where}, part {at}: {''.join(old[at : at + 3])!r} became {''.join(new[at : at + 3])!r}"]
