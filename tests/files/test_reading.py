"""Whatever is wrong with a file, it is an `ArtifactError` that names it, and soon."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import pytest
import torch

from deltaenergy.errors import ArtifactError
from deltaenergy.files import read_json, read_tensors, write_json, write_tensors


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "Expecting value"),
        (b"{", "Expecting property"),
        (b"[1,]", "Expecting value"),
        (b"[NaN]", "NaN"),
        (b"[-Infinity]", "contains -Infinity"),
        (b"[1e999]", "1e999 is too large"),
        (b"[" + b"9" * 1_000_000 + b"]", "1000000 digits"),
        (b'{"a": 1, "b": {"c": 1, "c": 2}}', "'c' occurs twice"),
        (b'["a\\u0000b"]', "NUL"),
        (b'{"\\u0000": 1}', "NUL"),
        (b'["\\ud800"]', "surrogate"),
        (b'{"x": {"\\udfff": 1}}', "surrogate"),
        (b'["a\tb"]', "control character"),
        (b'["\xff"]', "utf-8"),
        (b"\xef\xbb\xbf{}", "BOM"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
        ("{}".encode("utf-16"), "utf-8"),
    ],
)
def test_json_that_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "a.json").write_bytes(data)
    with pytest.raises(ArtifactError, match=rf"(?s)a\.json.*JSON: .*{message}"):
        read_json(tmp_path / "a.json")


def test_json_that_is_read(tmp_path: Path) -> None:
    value = {"text": "Ähre 🐕", "list": [1, -2.5e-300, True, None, {}], "large": 2**63, "": []}
    write_json(tmp_path / "a.json", value)
    assert read_json(tmp_path / "a.json") == value
    (tmp_path / "b.json").write_text('["\\ud83d\\udc15"]')  # a whole pair
    assert read_json(tmp_path / "b.json") == ["🐕"]


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ArtifactError, match=r"large.*16,777,216"):
        read_json(tmp_path / "large")
    (tmp_path / "small").write_text(json.dumps("x" * 98))
    assert len(read_json(tmp_path / "small", limit=100)) == 98
    with pytest.raises(ArtifactError, match="too large"):
        read_json(tmp_path / "small", limit=99)


@pytest.mark.parametrize("read", [read_json, read_tensors])
def test_other_things_than_files(tmp_path: Path, read: object) -> None:
    assert callable(read)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").write_text("")
    for name, message in [
        ("pipe", "ordinary file"),
        ("folder", "is a folder"),
        ("zero", "ordinary file"),
        ("loop", "cannot be read"),
        ("missing", "does not exist"),
        ("file/below", "does not exist"),
        ("n" * 300, "cannot be read"),
        ("a\0b", "file name"),
    ]:
        with pytest.raises(ArtifactError, match=message):
            read(f"{tmp_path}/{name}")


def header(entries: dict[str, object], data: bytes = b"") -> bytes:
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text + data


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 7,
        struct.pack("<Q", 2**63) + b"{}",
        struct.pack("<Q", 1 << 40) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 2) + b"{x",
        header({"x": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}}),
        header({"x": {"dtype": "F32", "shape": [2**62, 2**62], "data_offsets": [0, 0]}}),
        header({"x": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, b"\0" * 4),
        header({"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, b"\0" * 4),
        header({"x": {"dtype": "F31", "shape": [1], "data_offsets": [0, 4]}}, b"\0" * 4),
        header({"x": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}, b"\0" * 4),
        header({"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, b"\0" * 8),
        header({"x": 1}),
        b"PK\3\4 a zip, as torch.save writes",
    ],
)
def test_tensors_that_are_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "t").write_bytes(data)
    with pytest.raises(ArtifactError, match=r"t cannot be.*safetensors"):
        read_tensors(tmp_path / "t")


def test_tensors_that_are_read(tmp_path: Path) -> None:
    tensors = {"a": torch.rand(3, 4, dtype=torch.float64), "b": torch.tensor(7), "c": torch.zeros(0, 5).half()}
    write_tensors(tmp_path / "t", tensors)
    found = read_tensors(tmp_path / "t")
    assert all(
        torch.equal(found[name], tensor) and found[name].dtype == tensor.dtype for name, tensor in tensors.items()
    )
