"""`load_model`: the bundled model, a CLIP folder, or a CLIP from the hub. Never a model not asked for."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from deltaenergy.errors import ArtifactError, InputError, ModelUnavailableError, did_you_mean
from deltaenergy.models.base import TowerModel
from deltaenergy.models.clip import ClipModel
from deltaenergy.models.preprocessing import Preprocessing

logger = logging.getLogger(__name__)

# Offered when a name is misspelt; any other CLIP in transformers format loads just as well.
WELL_KNOWN = (
    "lite",
    "openai/clip-vit-base-patch32",
    "openai/clip-vit-base-patch16",
    "openai/clip-vit-large-patch14",
    "openai/clip-vit-large-patch14-336",
    "laion/CLIP-ViT-B-32-laion2B-s34B-b79K",
    "laion/CLIP-ViT-B-16-laion2B-s34B-b88K",
    "laion/CLIP-ViT-L-14-laion2B-s32B-b82K",
    "facebook/metaclip-b16-fullcc2.5b",
    "facebook/metaclip-l14-fullcc2.5b",
)
_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def load_model(
    name_or_path: str | Path, device: str | torch.device = "auto", dtype: str | torch.dtype = "auto"
) -> TowerModel:
    """Load a model by name or folder.

    Args:
        name_or_path: `"lite"` (bundled, offline; a demonstration model, no substitute for CLIP and no basis for
            benchmark claims), a folder with a CLIP checkpoint in transformers format, or a hub id such as
            `"openai/clip-vit-base-patch16"` (taken from the local cache if it is there, else downloaded).
        device: `"auto"` is the GPU if there is one.
        dtype: `"auto"` is float16 on a GPU, else float32.
    """
    target = _device(device)
    precision = _dtype(dtype, target)
    name = str(name_or_path)
    if name == "lite":
        from deltaenergy.models.lite.model import load_lite

        return load_lite(target, precision)
    folder = Path(name_or_path).expanduser()
    if folder.is_dir():
        return _load_folder(name, folder).to(target, precision)
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise InputError(
            f"model {name!r} is neither a folder nor a hub id (owner/name).{did_you_mean(name, WELL_KNOWN)}"
        )
    return _load_hub(name).to(target, precision)


def _device(device: str | torch.device) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device {device!r} cannot be used: {str(error).splitlines()[0]}") from error
    return chosen


def _dtype(dtype: str | torch.dtype, device: torch.device) -> torch.dtype:
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype == "auto":
        return torch.float16 if device.type == "cuda" else torch.float32
    if dtype not in _DTYPES:
        raise InputError(f"Unknown dtype {dtype!r}.{did_you_mean(dtype, [*_DTYPES, 'auto'])}")
    return _DTYPES[dtype]


def _load_folder(name: str, folder: Path) -> ClipModel:
    config = folder / "config.json"
    if not config.is_file():
        raise ArtifactError(f"{folder} holds no config.json: it is not a model in transformers format.")
    try:
        kind = json.loads(config.read_text(encoding="utf-8")).get("model_type")
    except (OSError, ValueError, AttributeError) as error:
        raise ArtifactError(f"{config} cannot be read as JSON: {error}") from error
    if kind != "clip":
        raise ArtifactError(f"{config} describes a model of type {kind!r}; only 'clip' is supported.")
    from safetensors import SafetensorError

    try:
        return _load_pretrained(name, folder, local_files_only=True)
    except (OSError, ValueError, SafetensorError) as error:
        raise ArtifactError(f"{folder} cannot be loaded as a CLIP checkpoint: {error}") from error


def _load_hub(name: str) -> ClipModel:
    try:
        return _load_pretrained(name, name, local_files_only=True)
    except (OSError, ValueError) as error:
        not_cached = error
    logger.warning("%s is not in the local cache; downloading it from the Hugging Face hub.", name)
    try:
        return _load_pretrained(name, name, local_files_only=False)
    except (OSError, ValueError) as error:
        from huggingface_hub.constants import HF_HUB_CACHE

        raise ModelUnavailableError(
            f"The weights of {name!r} could not be had.\n"
            f"  tried: a folder of that name: there is none\n"
            f"  tried: the local cache {HF_HUB_CACHE}: {_first_line(not_cached)}\n"
            f"  tried: the Hugging Face hub: {_first_line(error)}\n"
            "Two ways to get them:\n"
            f"  1. on a machine with network, run `hf download {name}`, which fills the cache named above;\n"
            f"  2. copy the model's folder (config.json, model.safetensors, tokenizer and preprocessor files) here "
            "and give its path instead of the name.\n"
            "For a first look without any download, use the bundled model: `lite`."
            f"{_near_name(name)}"
        ) from error


def _near_name(name: str) -> str:
    return "" if name in WELL_KNOWN else f"\nIf the name is misspelt:{did_you_mean(name, WELL_KNOWN)}"


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


@contextlib.contextmanager
def _without_weight_bar() -> Iterator[None]:
    """Hide transformers' bar over the tensors of a file, which is done in a moment."""
    from transformers.utils import logging as transformers_logging

    was_on = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_on:
            transformers_logging.enable_progress_bar()


def _load_pretrained(name: str, source: str | Path, *, local_files_only: bool) -> ClipModel:
    from transformers import AutoTokenizer, CLIPModel
    from transformers.utils import cached_file

    # Safetensors only: the older .bin checkpoints are pickles, which can run code when they are opened.
    with _without_weight_bar() if local_files_only else contextlib.nullcontext():
        module = CLIPModel.from_pretrained(
            str(source), local_files_only=local_files_only, use_safetensors=True, dtype=torch.float32
        )
    tokenizer = AutoTokenizer.from_pretrained(str(source), local_files_only=local_files_only)
    config_file: Any = cached_file(str(source), "preprocessor_config.json", local_files_only=local_files_only)
    config = json.loads(Path(config_file).read_text(encoding="utf-8"))
    preprocessing = Preprocessing.from_processor_config(config, where=str(config_file))
    return ClipModel(name, module, tokenizer, preprocessing)
