"""Ways to break a checkpoint folder: each gives a name and a function that does it to a copy."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

Break = tuple[str, Callable[[Path], None]]
# Wrong kinds, impossible and enormous numbers, and nesting that no parser likes.
VALUES: tuple[Any, ...] = (None, "x", "", -1, 0, 1, 2, 1.5, 1e308, 10**12, 2**70, True, [], {}, [1, 2], {"a": 1})
JSON_FILES = ("config.json", "preprocessor_config.json", "tokenizer_config.json", "tokenizer.json")


def all_breaks(folder: Path) -> list[Break]:
    """Every way, for a copy of `folder`."""
    return [*_files(folder), *_weights(folder), *_entries(folder), *_nested()]


def _files(folder: Path) -> Iterator[Break]:
    """Delete a file, empty it, cut it, flip its bytes, put a folder or other content in its place."""
    for name in sorted(path.name for path in folder.iterdir()):
        size = (folder / name).stat().st_size
        yield f"{name} deleted", lambda home, name=name: (home / name).unlink()
        for cut in {0, 1, 7, 8, 9, size // 3, size // 2, size - 1}:
            yield f"{name} cut at {cut}", lambda home, name=name, cut=cut: _rewrite(home / name, lambda b: b[:cut])
        for place in range(0, size, max(1, size // 12)):
            yield (
                f"{name} flipped at {place}",
                lambda home, name=name, place=place: _rewrite(home / name, lambda b: _flip(b, place)),
            )
        yield f"{name} longer", lambda home, name=name: _rewrite(home / name, lambda b: b + b"\0" * 100)
        yield f"{name} a folder", lambda home, name=name: ((home / name).unlink(), (home / name).mkdir())
        for content in (b"[]", b"null", b'"x"', b"\xff\xfe\x00", b"{}"):
            yield (
                f"{name} is {content!r}",
                lambda home, name=name, content=content: _rewrite(home / name, lambda _: content),
            )


def _weights(folder: Path) -> Iterator[Break]:
    """Drop, rename, reshape, retype tensors, and put NaN into them."""
    names = sorted(load_file(folder / "model.safetensors"))

    def change(what: Callable[[dict[str, torch.Tensor]], None]) -> Callable[[Path], None]:
        def do(home: Path) -> None:
            tensors = load_file(home / "model.safetensors")
            what(tensors)
            save_file({key: t.clone().contiguous() for key, t in tensors.items()}, home / "model.safetensors")

        return do

    for name in names:
        yield f"{name} dropped", change(lambda t, name=name: t.pop(name))
        yield f"{name} renamed", change(lambda t, name=name: t.update({f"{name}s": t.pop(name)}))
        yield (
            f"{name} longer",
            change(lambda t, name=name: t.update({name: torch.cat([t[name].flatten(), torch.ones(1)])})),
        )
        yield f"{name} flat", change(lambda t, name=name: t.update({name: t[name][None]}))
        yield f"{name} int", change(lambda t, name=name: t.update({name: t[name].long()}))
        yield f"{name} NaN", change(lambda t, name=name: t.update({name: t[name] / 0 * 0}))
        yield f"{name} infinite", change(lambda t, name=name: t.update({name: torch.full_like(t[name], float("inf"))}))
    yield "all dropped", change(lambda t: t.clear())
    yield "one more", change(lambda t: t.update(more=torch.ones(2)))


def _entries(folder: Path) -> Iterator[Break]:
    """Replace or remove each entry of each JSON file; of long lists and tables the first three."""
    for name in JSON_FILES:
        content = json.loads((folder / name).read_text())
        for path in _paths(content):
            shown = f"{name} {'.'.join(map(str, path))}"
            yield f"{shown} removed", lambda home, name=name, path=path: _edit(home / name, path, None, remove=True)
            for value in VALUES:
                yield (
                    f"{shown} = {value!r}",
                    lambda home, name=name, path=path, value=value: _edit(home / name, path, value),
                )


def _nested() -> Iterator[Break]:
    for name in JSON_FILES:
        for depth in (100, 100_000):
            text = b'{"text_config":' * depth + b"1" + b"}" * depth
            yield f"{name} nested {depth}", lambda home, name=name, text=text: _rewrite(home / name, lambda _: text)


def _paths(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    entries = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    for key, inner in entries[:3] if len(entries) > 40 else entries:
        yield (*before, key)
        yield from _paths(inner, (*before, key))


def _edit(file: Path, path: tuple[Any, ...], value: Any, remove: bool = False) -> None:
    content = json.loads(file.read_text())
    at = content
    for key in path[:-1]:
        at = at[key]
    if remove:
        del at[path[-1]]
    else:
        at[path[-1]] = copy.deepcopy(value)
    file.write_text(json.dumps(content))


def _rewrite(file: Path, change: Callable[[bytes], bytes]) -> None:
    file.write_bytes(change(file.read_bytes()))


def _flip(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 0x15]) + data[place + 1 :]
