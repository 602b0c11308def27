"""Weights from safetensors files: missing, extra or misshapen tensors are an error."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from deltaenergy.errors import ArtifactError
from deltaenergy.files.reading import read_json, read_tensors
from deltaenergy.files.schema import Where, check_finite, mapping_of, record, text

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
OPEN_CLIP_CONFIG, OPEN_CLIP_WEIGHTS = "open_clip_config.json", "open_clip_model.safetensors"
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# Buffers of batch norms, which count training steps; nothing is computed from them.
_COUNTER = ".num_batches_tracked"
# Number of tensors named in a message; the others are counted.
_SHOWN = 3
# Length of torch's list of missing or unexpected tensors that is shown.
_LONGEST_REASON = 240
_INDEX = record({"weight_map": mapping_of(text())}, others=True)


def is_open_clip(folder: Path) -> bool:
    """Whether a folder has a model in open_clip's format and none in transformers'."""
    return not (folder / "config.json").is_file() and (folder / OPEN_CLIP_CONFIG).is_file()


def weight_files(folder: Path) -> list[Path]:
    """The folder's safetensors files: one, or the shards that its index names."""
    single, index = folder / WEIGHTS, folder / INDEX
    if single.exists() or single.is_symlink():
        return [single]
    if index.exists() or index.is_symlink():
        content: Any = read_json(index)
        _INDEX(content, Where(str(index)))
        names = sorted(set(content["weight_map"].values()))
        for name in names:
            if Path(name).name != name or "\\" in name or not name.endswith(".safetensors"):
                raise ArtifactError(
                    f"{index} names {name!r}, which is not a safetensors file in its folder. Save the model again with "
                    "save_pretrained."
                )
        return [folder / name for name in names]
    pickles = sorted(path.name for path in folder.glob("*.bin"))
    found = f" It has {', '.join(pickles[:_SHOWN])}, but pickles can run code when opened." if pickles else ""
    raise ArtifactError(
        f"{folder} has no {WEIGHTS}.{found} Save the model again with save_pretrained, which writes one."
    )


def read_weights(files: Iterable[Path]) -> dict[str, torch.Tensor]:
    """The tensors of all files; real numbers as float32, finite, copied to memory."""
    tensors: dict[str, torch.Tensor] = {}
    for file in files:
        for name, tensor in read_tensors(file).items():
            if name in tensors:
                raise ArtifactError(f"{file}: the tensor {name!r} is also in another file.")
            if tensor.dtype in _FLOATS:
                # A copy: mapped memory changes or disappears with the file.
                tensor = tensor.to(torch.float32, copy=True)
                # One pass; NaN and infinity propagate.
                if not torch.isfinite(tensor.sum()):
                    check_finite(tensor, Where(str(file), name))
            tensors[name] = tensor
    return tensors


def misfit(error: RuntimeError) -> str:
    """What `load_state_dict` found: the first line of its list of missing, unexpected or misshapen tensors."""
    reason = next((line.strip() for line in str(error).splitlines()[1:]), str(error))
    return reason if len(reason) <= _LONGEST_REASON else f"{reason[:_LONGEST_REASON]}…"


def fill(module: Any, tensors: Mapping[str, torch.Tensor], folder: Path, config: str = "config.json") -> None:
    """Load weights into a module that was built without memory, and set the buffers that no checkpoint has.

    Raises `ArtifactError` unless these are exactly the module's tensors, in its shapes.
    """
    needed = module.state_dict()
    counters = {name: torch.tensor(0) for name in needed if name.endswith(_COUNTER)}
    given = {name: tensor for name, tensor in tensors.items() if not name.endswith(_COUNTER)}
    try:
        module.load_state_dict({**given, **counters}, strict=True, assign=True)
    except RuntimeError as error:
        raise ArtifactError(
            f"{folder}: the weights do not fit {config}: {misfit(error)} Download both again; quantised weights are "
            "not supported."
        ) from error
    for part in module.modules():
        if "position_ids" in part._buffers:
            part._buffers["position_ids"] = torch.arange(part.position_ids.shape[-1]).expand(1, -1)
        if "token_type_ids" in part._buffers:
            part._buffers["token_type_ids"] = torch.zeros(part.token_type_ids.shape, dtype=torch.long)
    empty = [name for name, buffer in module.named_buffers() if buffer.is_meta]
    if empty:
        raise RuntimeError(f"buffers without content: {empty}")
