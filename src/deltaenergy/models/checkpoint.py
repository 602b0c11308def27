"""A folder with a CLIP checkpoint in transformers format -> a `ClipModel`, or an error that says what is wrong with it.

Nothing is taken on trust: config.json is read by our own rules, weights are compared with it by their headers before
anything is allocated, and tokenizer and preprocessing must fit the towers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from deltaenergy.errors import ArtifactError
from deltaenergy.files import read_json
from deltaenergy.files.schema import Where, number, optional, record, text, whole
from deltaenergy.models.clip import ClipModel
from deltaenergy.models.preprocessing import Preprocessing
from deltaenergy.models.tokenizing import load_tokenizer
from deltaenergy.models.weights import check_headers, fill, read_headers, read_weights, weight_files

# Buffers of older checkpoints, which are nothing but 0, 1, 2, …
_COUNTED = ("text_model.embeddings.position_ids", "vision_model.embeddings.position_ids")
# Bounds beyond which no tower is real. Blocks are few, since each is built before it is compared with the weights.
_SIZE, _BLOCKS, _TOKEN = whole(1, 10**6), whole(1, 500), whole(0, 10**7)
_COMMON = {
    "hidden_size": _SIZE,
    "intermediate_size": _SIZE,
    "num_hidden_layers": _BLOCKS,
    "num_attention_heads": _SIZE,
    "hidden_act": text(),
    "layer_norm_eps": number(above=0, high=1),
}
# Of a text tower; `lite` has one, too.
TEXT_ENTRIES = {
    **_COMMON,
    "vocab_size": whole(1, 10**7),
    "max_position_embeddings": whole(4, 10**5),
    "bos_token_id": optional(_TOKEN),
    "eos_token_id": _TOKEN,
    "pad_token_id": optional(_TOKEN),
}
_VISION = {**_COMMON, "num_channels": whole(3, 3), "image_size": whole(1, 10**4), "patch_size": whole(1, 10**4)}
_TOP = {"projection_dim": _SIZE, "logit_scale_init_value": number(-100, 100)}


def load_clip(name: str, folder: Path) -> ClipModel:
    """The model in `folder`, on the host in float32."""
    config = _read_config(folder / "config.json")
    headers = read_headers(weight_files(folder))
    module = _empty(config, folder)
    shapes = {key: tuple(tensor.shape) for key, tensor in module.state_dict().items()}
    check_headers(headers, shapes, folder, _COUNTED)
    tokenizer = load_tokenizer(folder, module.config.text_config)
    preprocessing = _preprocessing(folder, int(module.config.vision_config.image_size))
    tensors = read_weights(headers, shapes)
    scale = tensors["logit_scale"]
    if not torch.isfinite(scale.exp()):
        raise ArtifactError(f"{folder}: the tensor 'logit_scale' is {float(scale):g}, and its exp infinite.")
    fill(module, tensors)
    return ClipModel(name, module, tokenizer, preprocessing)


def _read_config(file: Path) -> dict[str, Any]:
    """The entries of config.json that shape the towers, each of a sensible kind and size; all others are left out."""
    if not file.is_file():
        raise ArtifactError(f"{file.parent} holds no config.json: it is not a model in transformers format.")
    found, where = read_json(file), Where(str(file))
    if not isinstance(found, dict):
        raise where.wrong(found, "an object with named entries")
    if found.get("model_type") != "clip":
        raise ArtifactError(
            f"{file} describes a model of type {str(found.get('model_type'))[:60]!r}; only 'clip' is supported."
        )
    config: dict[str, Any] = {}
    # The `_dict` forms are those of older checkpoints.
    for part, entries in (("text_config", TEXT_ENTRIES), ("vision_config", _VISION)):
        for key in (part, f"{part}_dict"):
            if found.get(key) is not None:
                config[key] = _known(found[key], entries, where.at(key))
    return config | _known(found, _TOP, where)


def _known(found: Any, entries: dict[str, Any], where: Where) -> dict[str, Any]:
    record(entries, others=True, may_lack=entries)(found, where)
    return {key: found[key] for key in entries if key in found}


def _empty(config: dict[str, Any], folder: Path) -> Any:
    """The module that the config describes, without memory for its weights."""
    from transformers import CLIPConfig, CLIPModel
    from transformers.activations import ACT2FN

    file = folder / "config.json"
    try:
        described = CLIPConfig(**config)
        for part in (described.text_config, described.vision_config):
            if part.hidden_act not in ACT2FN:
                raise ArtifactError(f"{file}: the activation {part.hidden_act[:60]!r} is not known.")
        if described.vision_config.patch_size > described.vision_config.image_size:
            raise ArtifactError(f"{file}: patches are larger than the image.")
        with torch.device("meta"):
            return CLIPModel(described)
    except ArtifactError:
        raise
    except Exception as error:  # of many kinds, as transformers and torch find it
        raise ArtifactError(f"{file} describes no model that can be built: {error}") from error


def _preprocessing(folder: Path, side: int) -> Preprocessing:
    """From `preprocessor_config.json`, or from the one file that newer processors write."""
    file, newer = folder / "preprocessor_config.json", folder / "processor_config.json"
    if file.is_file():
        found = read_json(file)
    elif newer.is_file():
        file, content = newer, read_json(newer)
        found = content.get("image_processor") if isinstance(content, dict) else None
    else:
        raise ArtifactError(
            f"{folder} holds no preprocessor_config.json, which says how images are resized and normalised. "
            "Copy it from where the model came from."
        )
    preprocessing = Preprocessing.from_processor_config(found, where=str(file))
    if preprocessing.crop != side:
        raise ArtifactError(
            f"{file} makes images of {preprocessing.crop} × {preprocessing.crop} pixels, but the image tower in "
            f"{folder / 'config.json'} takes {side} × {side}. They do not belong together: get both again."
        )
    return preprocessing
