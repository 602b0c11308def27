"""CLIPN's released checkpoints (xmed-lab/CLIPN), turned into a "no" tower: only names and orientations change.

The release is a whole CLIP in open_clip's layout, with a second text encoder next to the first: `transformer_no.*`,
`token_embedding_no.weight`, `positional_embedding_no`, `ln_final_no.*`, `text_projection_no`, and `prompt_no` (16, 77,
W), a vector for each of 16 prompts and each token. It comes as a pickle, which is never read here; in a separate
environment

    import torch, safetensors.torch
    weights = torch.load("epoch_10.pt", map_location="cpu", weights_only=True)["state_dict"]
    safetensors.torch.save_file({name: tensor.contiguous() for name, tensor in weights.items()}, "clipn.safetensors")

writes it as a safetensors file. `convert_released` takes that file and the CLIP that it was trained from.
"""

from __future__ import annotations

from pathlib import Path

import torch

from deltaenergy.errors import ArtifactError, InputError
from deltaenergy.files import read_tensors
from deltaenergy.models.base import Model
from deltaenergy.models.loading.open_clip import source_of
from deltaenergy.scores.clipn.tower import NoTower
from deltaenergy.scores.clipn.training import check_unfinished

PROMPTS = "prompt_no"
# Weights in half precision may have been rounded on the way.
ROUNDING = 1e-2


def convert_released(file: str | Path, model: Model, folder: str | Path) -> None:
    """Write the "no" tower of a released checkpoint to `folder`, for `clipn(no_tower=folder)`.

    Args:
        file: the checkpoint as a safetensors file.
        model: the CLIP that it was trained from, whose text encoder is also in the file: another model is refused.
        folder: where the tower is written; a finished tower is not overwritten.
    """
    file, folder = Path(file), Path(folder)
    if file.suffix != ".safetensors":
        raise InputError(
            f"{file} is not a .safetensors file. Pickles (.pt) can run code when opened and are never read: convert it "
            "first, as the documentation of deltaenergy.scores.clipn.released shows."
        )
    check_unfinished(folder)
    stored = {name.removeprefix("module."): tensor for name, tensor in read_tensors(file).items()}
    if PROMPTS not in stored or stored[PROMPTS].ndim != 3:
        raise ArtifactError(f"{file} has no tensor {PROMPTS!r} of three dimensions: it is not a checkpoint of CLIPN.")
    tower = NoTower(model, stored[PROMPTS])
    shapes = {name: tensor.shape for name, tensor in tower.state_dict().items() if name != "prompts"}
    own = NoTower(model, stored[PROMPTS][:1]).state_dict()
    tensors: dict[str, torch.Tensor] = {"prompts": stored[PROMPTS].float()}
    for name, shape in shapes.items():
        source = source_of(_in_transformers(name))
        first, dot, rest = source.name.partition(".")
        for stored_name, is_no in ((source.name, False), (f"{first}_no{dot}{rest}", True)):
            if stored_name not in stored:
                raise ArtifactError(
                    f"{file} has no tensor {stored_name!r}: it is not a checkpoint of CLIPN for this model."
                )
            tensor = source.take(stored[stored_name]).float()
            if tensor.shape != shape:
                raise ArtifactError(
                    f"{file}: {stored_name} is of shape {tuple(stored[stored_name].shape)}, which gives "
                    f"{tuple(tensor.shape)} where {model.name!r} has {tuple(shape)}: it was trained from another model."
                )
            if is_no:
                tensors[name] = tensor
            elif not torch.allclose(tensor, own[name].cpu(), atol=ROUNDING):
                raise ArtifactError(
                    f"{file}: its text encoder is not that of {model.name!r} ({stored_name} differs): it was trained "
                    "from another model."
                )
    tower.load_state_dict(tensors)
    tower.save(folder, model, {"converted_from": file.name})


def _in_transformers(name: str) -> str:
    """The name in transformers' CLIPModel of a weight of a `NoTower`."""
    if name.startswith("projection."):
        return f"text_{name}"
    return f"text_model.{name.removeprefix('transformer.')}"
