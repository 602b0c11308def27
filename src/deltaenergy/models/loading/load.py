"""`load_model`: a model by name, from a folder, or from the Hugging Face Hub. Never another model instead.

Names are those of `MODELS`: the bundled `lite`, and entry points of other packages in the group `deltaenergy.models`,
each a callable (device, dtype) -> TowerModel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from deltaenergy.core.registry import Registry
from deltaenergy.errors import ArtifactError, InputError, did_you_mean, first_line
from deltaenergy.models.backends import HALF, ON_CPU, check_backend, on_backend
from deltaenergy.models.base import TowerModel
from deltaenergy.models.on import PRECISIONS

ModelLoader = Callable[[torch.device, torch.dtype], TowerModel]
MODELS: Registry[ModelLoader] = Registry("model", group="deltaenergy.models")
_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def load_model(
    name_or_path: str | Path,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    *,
    backend: str = "torch",
    precision: str = "auto",
    calibration_images: Any = None,
    download: bool = True,
) -> TowerModel:
    """Load a model by name or folder.

    Args:
        name_or_path: `"lite"` (bundled, offline; a demo model, do not benchmark with it), a folder with a checkpoint in
            transformers format (CLIP, MetaCLIP 2, SigLIP, SigLIP 2, Chinese-CLIP, ALIGN) or in open_clip's, or a
            Hugging Face Hub id such as `"openai/clip-vit-base-patch16"` (from the local cache, else downloaded).
        device: `"auto"` is the GPU if there is one.
        dtype: `"auto"` is float16 on a GPU, else float32.
        backend: where the image tower runs: `"torch"`; on a CPU also `"openvino"` and `"onnx"` (extras of these
            names), on a GPU `"compile"` (torch.compile). Only torch has gradients and accepts learned tokens.
        precision: `"auto"`, `"fp32"`; `"int8"` on a CPU, with torch (transformers) or OpenVINO; `"fp16"` and
            `"bf16"` on a GPU. Except for fp32 on torch, backend and precision are part of the fingerprint: detectors
            and feature stores of one are refused on the other.
        calibration_images: for int8 on OpenVINO, a few hundred images that look like yours.
        download: whether a model that is not in the local cache may be downloaded.
    """
    if precision != "auto" and dtype != "auto":
        raise InputError("precision and dtype set the same thing: pass only one.")
    if backend in ON_CPU and dtype not in ("auto", "float32", torch.float32):
        raise InputError(f"backend {backend!r} takes a precision, not a dtype: {', '.join(PRECISIONS[backend])}.")
    if precision != "auto":
        dtype = HALF.get(precision, torch.float32)
    if backend in ON_CPU or precision == "int8":
        device, dtype = "cpu" if device == "auto" else device, torch.float32
    target = _device(device)
    check_backend(backend, precision, calibration_images, target)
    model = _on_torch(name_or_path, target, _dtype(dtype, target), download)
    if backend == "torch" and precision not in ("int8", *HALF):
        return model
    return on_backend(model, backend, model.precision if precision == "auto" else precision, calibration_images)


def load_recorded(recorded: Mapping[str, Any], device: str | torch.device) -> TowerModel:
    """The model of a saved artefact, on its backend and in its precision.

    A name in a file never causes a download.
    """
    backend, precision = recorded.get("backend", "torch"), recorded.get("precision", "fp32")
    if recorded.get("calibration") is not None:
        base = load_model(recorded["name"], device="cpu", download=False)
        return on_backend(base, backend, precision, calibration=str(recorded["calibration"]))
    if backend == "torch" and f"+torch-{precision}" not in recorded["fingerprint"]:
        return load_model(recorded["name"], device=device, download=False)
    return load_model(recorded["name"], device=device, backend=backend, precision=precision, download=False)


def _on_torch(name_or_path: str | Path, target: torch.device, dtype: torch.dtype, download: bool) -> TowerModel:
    name = str(name_or_path)
    if not isinstance(name_or_path, Path) and name in MODELS:
        model = MODELS.get(name)(target, dtype)
        if not isinstance(model, TowerModel):
            raise InputError(f"The loader of the model {name!r} returned {type(model).__name__}, not a TowerModel.")
        return model
    folder = Path(name_or_path).expanduser()
    from deltaenergy.models.loading.checkpoint import load_checkpoint
    from deltaenergy.models.loading.hub import WELL_KNOWN, find_snapshot, is_repository
    from deltaenergy.models.loading.open_clip import load_open_clip
    from deltaenergy.models.loading.weights import is_open_clip

    if folder.is_file():
        raise InputError(
            f"model {name!r} is a file; pass a folder with safetensors and config.json. Archives (.pt, .pth, .bin) can "
            "run code when opened and are never read; docs/models.md says how to convert one."
        )
    if not folder.is_dir():
        if not is_repository(name):
            known = [*MODELS, *WELL_KNOWN]
            raise InputError(
                f"model {name!r} is neither a folder nor a Hugging Face Hub id (owner/name).{did_you_mean(name, known)}"
            )
        folder = find_snapshot(name, download=download)
    try:
        load = load_open_clip if is_open_clip(folder) else load_checkpoint
        return load(name, folder).to(target, dtype)
    except OSError as error:
        raise ArtifactError(f"{folder} cannot be read: {error}") from error


def _lite(device: torch.device, dtype: torch.dtype) -> TowerModel:
    from deltaenergy.models.lite.model import load_lite

    return load_lite(device, dtype)


MODELS.add("lite", _lite)


def _device(device: str | torch.device) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        if chosen.type == "meta":
            raise RuntimeError("it has no numbers")
        torch.empty(1, device=chosen).cpu()
    except Exception as error:  # torch reports a missing device in many ways
        raise InputError(
            f"`device` {str(device)[:60]!r} cannot be used: {first_line(error)}. Use cpu, cuda, cuda:0, …, or auto."
        ) from error
    return chosen


def _dtype(dtype: str | torch.dtype, device: torch.device) -> torch.dtype:
    if dtype == "auto":
        return torch.float16 if device.type == "cuda" else torch.float32
    found = dtype if isinstance(dtype, torch.dtype) else _DTYPES.get(dtype)
    if found is None or not found.is_floating_point:
        raise InputError(f"Unknown dtype {str(dtype)!r}.{did_you_mean(str(dtype), [*_DTYPES, 'auto'])}")
    return found
