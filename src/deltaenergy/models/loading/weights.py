"""Weights from safetensors files, all of them and no others: what is missing, left over or misshapen is an error.

The headers, which say names, types and shapes, are compared with what the model needs before anything is allocated.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltaenergy.errors import ArtifactError
from deltaenergy.files.reading import check_ordinary, read_json
from deltaenergy.files.schema import Where, check_finite, mapping_of, record, text

if TYPE_CHECKING:
    import torch

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
OPEN_CLIP_CONFIG, OPEN_CLIP_WEIGHTS = "open_clip_config.json", "open_clip_model.safetensors"
_FLOATS = {"F16", "BF16", "F32", "F64"}
# Buffers of batch norms, which nothing is computed from.
_COUNTERS = (".num_batches_tracked",)
# So many tensors are named in a message; the others are counted.
_SHOWN = 3
_INDEX = record({"weight_map": mapping_of(text())}, others=True)


@dataclass(frozen=True)
class Header:
    """What a file says of one of its tensors."""

    file: Path
    shape: tuple[int, ...]
    dtype: str


def weight_files(folder: Path) -> list[Path]:
    """The folder's safetensors files: one, or the shards that its index names, all checked before one is opened."""
    single, index = folder / WEIGHTS, folder / INDEX
    if single.exists() or single.is_symlink():
        check_ordinary(single)
        return [single]
    if index.exists() or index.is_symlink():
        return _shards(folder, index)
    pickles = sorted(path.name for path in folder.glob("*.bin"))
    found = f" It has {', '.join(pickles[:_SHOWN])}, but pickles can run code when they are opened." if pickles else ""
    raise ArtifactError(
        f"{folder} holds no {WEIGHTS}.{found} Save the model again with save_pretrained, which writes one."
    )


def read_headers(files: Iterable[Path]) -> dict[str, Header]:
    """The headers of all tensors in the files."""
    found: dict[str, Header] = {}
    for file in files:
        with _opened(file) as tensors:
            for name in tensors.keys():  # noqa: SIM118
                part = tensors.get_slice(name)
                if name in found:
                    raise ArtifactError(f"{file}: the tensor {name!r} is in {found[name].file.name}, too.")
                found[name] = Header(file, tuple(part.get_shape()), str(part.get_dtype()))
    return found


def check_headers(
    found: Mapping[str, Header],
    expected: Mapping[str, tuple[int, ...]],
    where: str | Path,
    ignored: Collection[str],
    config: str = "config.json",
) -> None:
    """Raise `ArtifactError` unless the tensors are those expected, besides `ignored` ones that nobody needs."""
    missing = [name for name in expected if name not in found]
    if missing:
        raise ArtifactError(
            f"{where}: {_listed(missing)} missing. With random ones in their place every answer would be wrong: "
            "get the checkpoint again, or save the whole model."
        )
    left_over = [name for name in found if name not in expected and name not in ignored]
    if left_over:
        raise ArtifactError(
            f"{where}: {_listed(left_over)} of no use to the model that {config} describes. "
            f"Weights and {config} do not belong together: get both again."
        )
    wrong = [name for name, shape in expected.items() if found[name].shape != shape]
    if wrong:
        shown = ", ".join(f"{name!r} {found[name].shape} instead of {expected[name]}" for name in wrong[:_SHOWN])
        more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        raise ArtifactError(
            f"{where}: {len(wrong)} tensor(s) have other shapes than {config} says: {shown}{more}. "
            f"Weights and {config} do not belong together: get both again."
        )
    odd = [name for name in expected if found[name].dtype not in _FLOATS]
    if odd:
        raise ArtifactError(
            f"{where}: the tensor {odd[0]!r} is of type {found[odd[0]].dtype}; expected one of "
            f"{', '.join(sorted(_FLOATS))}. Quantised checkpoints are not supported."
        )


def read_weights(headers: Mapping[str, Header], names: Iterable[str]) -> dict[str, torch.Tensor]:
    """The tensors called `names` in float32, each finite, in memory of their own."""
    import torch

    wanted: dict[Path, list[str]] = {}
    for name in names:
        wanted.setdefault(headers[name].file, []).append(name)
    tensors: dict[str, torch.Tensor] = {}
    for file, of_file in wanted.items():
        with _opened(file) as stored:
            for name in of_file:
                # A copy: what is mapped from a file changes, or is gone, when the file is.
                tensors[name] = stored.get_tensor(name).to(torch.float32, copy=True)
        for name in of_file:
            # One pass, in which NaN and infinity stay what they are.
            if not torch.isfinite(tensors[name].sum()):
                check_finite(tensors[name], Where(str(file), name))
    return tensors


def weight_shapes(module: Any) -> dict[str, tuple[int, ...]]:
    """The tensors that a checkpoint of the module must hold; what merely counts training steps is not one."""
    return {name: tuple(tensor.shape) for name, tensor in module.state_dict().items() if not name.endswith(_COUNTERS)}


def counters(module: Any) -> list[str]:
    """The buffers of the module that a checkpoint may hold and nothing is computed from."""
    return [name for name in module.state_dict() if name.endswith(_COUNTERS)]


def fill(module: Any, tensors: Mapping[str, torch.Tensor]) -> None:
    """Put weights into a module that was built without memory, and set the buffers that no checkpoint holds."""
    import torch

    counted = {name: torch.tensor(0) for name in counters(module)}
    module.load_state_dict({**tensors, **counted}, strict=True, assign=True)
    for part in module.modules():
        if "position_ids" in part._buffers:
            part._buffers["position_ids"] = torch.arange(part.position_ids.shape[-1]).expand(1, -1)
        if "token_type_ids" in part._buffers:
            part._buffers["token_type_ids"] = torch.zeros(part.token_type_ids.shape, dtype=torch.long)
    empty = [name for name, buffer in module.named_buffers() if buffer.is_meta]
    if empty:
        raise RuntimeError(f"buffers without content: {empty}")


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[Any]:
    from safetensors import safe_open

    try:
        with safe_open(str(file), framework="pt") as tensors:
            yield tensors
    except ArtifactError:
        raise
    except Exception as error:  # safetensors' own, and what it lets through of torch's and Python's
        raise ArtifactError(f"{file} cannot be read as safetensors: {error}") from error


def _shards(folder: Path, index: Path) -> list[Path]:
    content: Any = read_json(index)
    _INDEX(content, Where(str(index)))
    names = sorted(set(content["weight_map"].values()))
    if not names:
        raise ArtifactError(f"{index} names no file.")
    for name in names:
        if not name.endswith(".safetensors"):
            raise ArtifactError(
                f"{index} names {name!r}, which is no safetensors file. Pickles can run code when they are opened and "
                "are never read; save the model again with save_pretrained."
            )
        if Path(name).name != name or "\\" in name:
            raise ArtifactError(f"{index} names {name!r}, which lies outside the folder.")
    absent = [name for name in names if not (folder / name).exists()]
    if absent:
        raise ArtifactError(f"{index}: {_listed(absent, 'file')} missing. Get the checkpoint again.")
    for name in names:
        check_ordinary(folder / name)
        if not _is_inside(folder / name, folder):
            raise ArtifactError(f"{index} names {name!r}, a link to a file outside the folder.")
    return [folder / name for name in names]


def _is_inside(file: Path, folder: Path) -> bool:
    """Whether a link ends in the folder, or in the store that the hub's cache links its snapshots to."""
    target, home = file.resolve(), folder.resolve()
    roots = [home, home.parent.parent / "blobs"] if home.parent.name == "snapshots" else [home]
    return any(target.is_relative_to(root) for root in roots)


def _listed(names: list[str], what: str = "tensor") -> str:
    """`2 tensors ('a', 'b') are`, or `1 file ('a') is`."""
    shown = ", ".join(map(repr, names[:_SHOWN])) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    return f"{len(names)} {what}{'s' if len(names) > 1 else ''} ({shown}) {'are' if len(names) > 1 else 'is'}"
