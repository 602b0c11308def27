"""A folder with a checkpoint in transformers format -> a model, or an error.

Nothing is trusted: config.json is checked by our own rules, the module built from it accepts exactly its own tensors,
and tokenizer and preprocessing must fit the towers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from deltaenergy.errors import ArtifactError
from deltaenergy.files import read_json
from deltaenergy.files.schema import Check, Where, record
from deltaenergy.models.loading.families import FAMILIES, NOT_SUPPORTED, Family
from deltaenergy.models.loading.weights import fill, read_weights, weight_files
from deltaenergy.models.preprocessing import Preprocessing
from deltaenergy.models.towers.clip import TransformersModel

# Buffers of older checkpoints, which are just 0, 1, 2, … …
_COUNTED = ("text_model.embeddings.position_ids", "vision_model.embeddings.position_ids")


def load_checkpoint(name: str, folder: Path) -> TransformersModel:
    """The model in `folder`, on the CPU in float32."""
    family, config = _read_config(folder / "config.json")
    files = weight_files(folder)
    module = build_empty(family, config, folder / "config.json")
    tokenizer = family.tokenizer(folder, module.config.text_config)
    preprocessing = _preprocessing(folder, family, int(module.config.vision_config.image_size))
    weights = read_weights(files)
    fill(module, {name: tensor for name, tensor in weights.items() if name not in _COUNTED}, folder)
    check_scale(module, family, folder)
    return family.model(name, module, tokenizer, preprocessing)


def _read_config(file: Path) -> tuple[Family, dict[str, Any]]:
    """The entries of config.json that shape the towers, checked for type and range; all others are ignored."""
    if not file.is_file():
        raise ArtifactError(f"{file.parent} has no config.json: it is not a model in transformers format.")
    content, where = read_json(file), Where(str(file))
    if not isinstance(content, dict):
        raise where.wrong(content, "an object with named entries")
    kind = str(content.get("model_type"))[:60]
    if kind not in FAMILIES:
        instead = f", {NOT_SUPPORTED[kind]}" if kind in NOT_SUPPORTED else ""
        known = ", ".join(sorted(FAMILIES))
        raise ArtifactError(f"{file} describes a model of type {kind!r}{instead}. Supported types are {known}.")
    family = FAMILIES[kind]
    config: dict[str, Any] = {}
    # The `_dict` forms are those of older checkpoints.
    for part, entries in (("text_config", family.text), ("vision_config", family.vision)):
        for key in (part, f"{part}_dict"):
            if content.get(key) is not None:
                config[key] = _known(content[key], entries, where.at(key))
    return family, config | _known(content, family.top, where)


def _known(content: Any, entries: Mapping[str, Check], where: Where) -> dict[str, Any]:
    record(entries, others=True, may_lack=entries)(content, where)
    return {key: content[key] for key in entries if key in content}


def build_empty(family: Family, config: dict[str, Any], file: Path) -> Any:
    """The module that the config in `file` describes, without memory for its weights."""
    import transformers

    if not hasattr(transformers, family.module):
        raise ArtifactError(
            f"{file}: models of type {family.model.family!r} need a newer transformers than "
            f"{transformers.__version__}, which is installed."
        )
    try:
        described = getattr(transformers, family.config)(**config)
        with torch.device("meta"):
            return getattr(transformers, family.module)(described)
    except Exception as error:  # many types, from transformers and torch
        raise ArtifactError(f"{file} describes a model that cannot be built: {error}") from error


def check_scale(module: Any, family: Family, folder: Path) -> None:
    """Raise `ArtifactError` unless cosines can be multiplied with exp(scale), or divided by it."""
    scale = getattr(module, family.scale).detach()
    if not torch.isfinite(1 / scale if family.divides else scale.exp()) or (family.divides and scale < 0):
        raise ArtifactError(f"{folder}: the tensor {family.scale!r} is {float(scale):g}, which cannot scale cosines.")


def _preprocessing(folder: Path, family: Family, side: int) -> Preprocessing:
    """From `preprocessor_config.json`, or from the combined file of newer processors."""
    file, newer = folder / "preprocessor_config.json", folder / "processor_config.json"
    if file.is_file():
        settings = read_json(file)
    elif newer.is_file():
        file, content = newer, read_json(newer)
        settings = content.get("image_processor") if isinstance(content, dict) else None
    else:
        raise ArtifactError(
            f"{folder} has no preprocessor_config.json, which says how images are resized and normalised. Copy it from "
            "the original model folder."
        )
    preprocessing = Preprocessing.from_processor_config(
        settings, where=str(file), crops=family.crops, offset=family.offset
    )
    if preprocessing.crop != side and not family.any_size:
        raise ArtifactError(
            f"{file} makes images of {preprocessing.crop} × {preprocessing.crop} pixels, but the image encoder in "
            f"{folder / 'config.json'} takes {side} × {side}. They do not match: download both again."
        )
    return preprocessing
