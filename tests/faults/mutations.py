"""Damage a saved detector in every way we can think of, one at a time, and see what loading makes of it.

Each mutation is a change of a folder. What follows must be one of
    refused     an `ArtifactError` or `InputError`
    same        it loads, and its verdicts are the same to the last bit
    other       it loads as a detector that could have been saved so: only where the checksums were made to fit
anything else (a traceback, a NaN, other verdicts without a word) is an `AssertionError`.
"""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch

from deltaenergy import Detector
from deltaenergy.errors import ArtifactError, InputError
from deltaenergy.files import read_bound, write_bound
from deltaenergy.files.artifact import sealed

RECORD = "detector.json"
PATIENCE = 60
Mutation = Callable[[Path], None]

# Wrong for most entries, in type or in range.
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1.5, -0.0, 1e308, 10**30, "", " ", "x", "../x", "a\x00b", "\ud800", "é" * 300, [], {},
    [None], {"x": 1}, [[[[]]]],
)  # fmt: skip


# Kinds of damage whose checksums are made to fit: what they change may be another detector in its own right.
FITTING = {
    "record entry, resealed", "tensor added", "tensor dropped", "tensor renamed", "tensor reshaped", "tensor type",
    "tensor value",
}  # fmt: skip


def entries(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all entries of a JSON value; of long lists the first and the last."""
    if path:
        yield path
    if isinstance(value, dict):
        for key in value:
            yield from entries(value[key], (*path, key))
    elif isinstance(value, list):
        for position in sorted({0, len(value) - 1} if value else set()):
            yield from entries(value[position], (*path, position))


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """A copy with one entry replaced; removed if `new` is ..."""
    changed = deepcopy(value)
    parent = changed
    for key in path[:-1]:
        parent = parent[key]
    if new is ...:
        del parent[path[-1]]
    else:
        parent[path[-1]] = new
    return changed


def record_mutations(
    record: dict[str, Any], choose: random.Random, *, resealed: bool, values: int
) -> Iterator[tuple[str, Mutation]]:
    """Every entry replaced by some wrong values, or removed; with the checksum made to fit, or not."""
    kind = "record entry, resealed" if resealed else "record entry"
    for path in entries(record):
        for new in (*choose.sample(VALUES, min(values, len(VALUES))), ...):
            changed = replaced(record, path, new)
            if resealed and path[0] != "checksum":
                changed = sealed(changed)
            yield kind, _writing(RECORD, json.dumps(changed).encode("utf-8", "surrogatepass"))
    for key, value in (("unknown", 1), ("", None)):
        changed = {**record, key: value}
        yield kind, _writing(RECORD, json.dumps(sealed(changed) if resealed else changed).encode())


def text_mutations(text: str) -> Iterator[tuple[str, Mutation]]:
    """JSON that Python reads too willingly, or not at all."""
    first = text.index("{") + 1
    odd = (
        "", "null", "[]", "0", '"x"', "{", "{}", text + text, text + "x", "\ufeff" + text, "[" * 200_000,
        '{"a":' * 100_000, text[:first] + '"threshold": 0, ' + text[first:], text[:first] + '"n": NaN, ' + text[first:],
        text[:first] + '"n": -Infinity, ' + text[first:], text[:first] + '"n": 1e999, ' + text[first:],
        text[:first] + f'"n": {"9" * 100_000}, ' + text[first:], text[:first] + '"n": "\\u0000", ' + text[first:],
        text[:first] + '"n": "\\udead", ' + text[first:], text.replace('"', "'"), text.replace(",", ",,", 1),
    )  # fmt: skip
    for one in odd:
        yield "record text", _writing(RECORD, one.encode())
    for encoding in ("utf-16", "utf-32"):
        yield "record text", _writing(RECORD, text.encode(encoding))
    yield "record text", _writing(RECORD, text.encode() + b"\xff\xfe")
    yield "record text", _writing(RECORD, text.encode().replace(b'"classes"', b'"cl\xe4sses"'))


def byte_mutations(
    names: list[str], folder: Path, choose: random.Random, *, count: int
) -> Iterator[tuple[str, Mutation]]:
    """Single bits flipped, files cut short or grown."""
    for name in names:
        data = (folder / name).read_bytes()
        for _ in range(count):
            changed = bytearray(data)
            changed[choose.randrange(len(data))] ^= 1 << choose.randrange(8)
            yield "bit flipped", _writing(name, bytes(changed))
        for length in {0, 1, 7, 8, 9, len(data) // 2, len(data) - 1, *(choose.randrange(len(data)) for _ in range(8))}:
            yield "file cut short", _writing(name, data[:length])
        for more in (b"\0", b" ", b"\n", data):
            yield "file grown", _writing(name, data + more)


def file_mutations(names: list[str], other: Path) -> Iterator[tuple[str, Mutation]]:
    """Other things where files should be, and files of another detector."""
    for name in names:
        yield "file missing", _emptying(name, lambda path: None)
        yield "no ordinary file", _emptying(name, Path.mkdir)
        yield "no ordinary file", _emptying(name, lambda path: os.mkfifo(path))
        for target in ("/dev/zero", "/dev/null", "/nowhere", name):
            yield "no ordinary file", _emptying(name, lambda path, target=target: path.symlink_to(target))
        yield "gigabytes", _emptying(name, _gigabytes)
    theirs = tensors_name(other)
    mine = next(name for name in names if name != RECORD)
    yield "file of another", _writing(RECORD, (other / RECORD).read_bytes())
    yield "file of another", _writing(mine, (other / theirs).read_bytes())

    def swapped(folder: Path) -> None:
        shutil.copy(other / RECORD, folder / RECORD)
        (folder / mine).rename(folder / theirs)

    yield "file of another", swapped


def tensor_mutations(folder: Path) -> Iterator[tuple[str, Mutation]]:
    """Each tensor dropped, renamed, reshaped, of another type, or with wrong values; checksums are made to fit."""
    record, tensors = read_bound(folder, RECORD)
    for name, tensor in tensors.items():
        rest = {key: value for key, value in tensors.items() if key != name}
        yield "tensor dropped", _bound(record, rest)
        yield "tensor added", _bound(record, {**tensors, f"{name}.more": tensor})
        yield "tensor added", _bound(record, {**tensors, "x": tensor})
        yield "tensor renamed", _bound(record, {**rest, f"{name}2": tensor})
        for changed in _reshaped(tensor):
            yield "tensor reshaped", _bound(record, {**rest, name: changed})
        for dtype in (torch.float16, torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool):
            if dtype != tensor.dtype:
                yield "tensor type", _bound(record, {**rest, name: tensor.to(dtype)})
        for value in (math.nan, math.inf, -math.inf, 0.0, -1.0, 1e30):
            for position in (0, -1):
                changed = tensor.clone()
                if changed.numel() and (changed.is_floating_point() or math.isfinite(value)):
                    changed.view(-1)[position] = value if changed.is_floating_point() else int(max(value, -1) % 2**62)
                    yield "tensor value", _bound(record, {**rest, name: changed})
        if tensor.ndim and len(tensor) > 1:
            yield "tensor value", _bound(record, {**rest, name: tensor.flip(0)})


def campaign(
    detector: Detector,
    other: Detector,
    features: Any,
    workspace: Path,
    *,
    seed: int = 1,
    values: int = 6,
    flips: int = 40,
) -> Counter[str]:
    """Try all kinds of mutations on a detector; count them by kind and what followed.

    Args:
        detector: what is damaged.
        other: another, whose files are put in place of its own.
        features: what verdicts are compared on.
        workspace: an empty folder.
        seed: of the choice of values and bits.
        values: wrong values tried for each entry of the record.
        flips: bits flipped in each file.
    """
    found: Counter[str] = Counter()
    choose = random.Random(seed)
    folder, another, trial = workspace / "whole", workspace / "another", workspace / "trial"
    detector.save(folder)
    other.save(another)
    text = (folder / RECORD).read_text(encoding="utf-8")
    files = [RECORD, tensors_name(folder)]
    judge = Judge(detector, features)
    for kind, mutate in (
        *record_mutations(json.loads(text), choose, resealed=False, values=values),
        *record_mutations(json.loads(text), choose, resealed=True, values=values),
        *text_mutations(text),
        *byte_mutations(files, folder, choose, count=flips),
        *file_mutations(files, another),
        *tensor_mutations(folder),
    ):
        shutil.copytree(folder, trial)
        mutate(trial)
        found[f"{kind}: {judge(trial, kind)}"] += 1
        shutil.rmtree(trial)
    return found


class Judge:
    """What loading a damaged folder comes to, compared with the detector that was saved."""

    def __init__(self, detector: Detector, features: Any) -> None:
        self.model = detector.classifier.base_model
        self.features = features
        self.verdicts = repr(list(detector.predict(features)))

    def __call__(self, folder: Path, kind: str) -> str:
        with _not_for_ever():
            try:
                loaded = Detector.load(folder, self.model)
            except (ArtifactError, InputError) as error:
                assert str(folder) in str(error), f"{kind}: the message names no file: {error}"
                return "refused"
            fitting = kind in FITTING
            try:
                verdicts = list(loaded.predict(self.features))
            except InputError:
                assert fitting, f"{kind}: loaded, and of no use"
                return "refused"
        if repr(verdicts) == self.verdicts:
            return "same"
        assert fitting, f"{kind}: other verdicts, and no error"
        assert all(math.isfinite(v.score) and math.isfinite(v.confidence) for v in verdicts)
        # Without a valid p-value (a classifier trained on these images) there is none.
        assert all(v.p_value is None or 0 <= v.p_value <= 1 for v in verdicts)
        return "other"


def tensors_name(folder: Path) -> str:
    (path,) = folder.glob("*.safetensors")
    return path.name


@contextmanager
def _not_for_ever() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TimeoutError(f"still not loaded after {PATIENCE} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(PATIENCE)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _writing(name: str, data: bytes) -> Mutation:
    def mutate(folder: Path) -> None:
        (folder / name).write_bytes(data)

    return mutate


def _emptying(name: str, fill: Callable[[Path], object]) -> Mutation:
    def mutate(folder: Path) -> None:
        (folder / name).unlink()
        fill(folder / name)

    return mutate


def _bound(record: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Mutation:
    return lambda folder: write_bound(folder, RECORD, record, tensors)


def _gigabytes(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)  # holds nothing, and takes no space


def _reshaped(tensor: torch.Tensor) -> list[torch.Tensor]:
    changed = [tensor[None], tensor.flatten()[:0]]
    if tensor.ndim:
        changed += [tensor[:-1], torch.cat([tensor, tensor[-1:]])]
    if tensor.ndim > 1:
        changed += [
            tensor.flatten(),
            tensor[..., :-1],
            tensor.transpose(0, 1),
            tensor.transpose(0, 1).reshape(tensor.shape),
        ]
    return [other for other in changed if other.shape != tensor.shape or not torch.equal(other, tensor)]
