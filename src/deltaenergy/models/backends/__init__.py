"""Where an image tower runs: `backend` and `precision` of `load_model`.

    torch      fp32; on a GPU fp16 and bf16          eager torch, with gradients and learned tokens
               int8                                  CPU; transformers, each token with its own range
    openvino   fp32, int8                            CPU; extra `openvino`
    onnx       fp32                                  CPU; extra `onnx`
    compile    fp32, fp16, bf16                      GPU; torch.compile

All but plain torch give a model with its own fingerprint: `<fingerprint>+<backend>-<precision>`, for int8 on OpenVINO
with a hash of the calibration images.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from deltaenergy.errors import ArtifactError, DeltaEnergyError, InputError, did_you_mean, first_line
from deltaenergy.models.backends.base import BackendModel, CompiledEngine, opened_export
from deltaenergy.models.base import TowerModel
from deltaenergy.models.on import PRECISIONS
from deltaenergy.source import Source, as_source

if TYPE_CHECKING:
    from deltaenergy.models.backends.openvino import CalibrationPixels

HALF = {"fp16": torch.float16, "bf16": torch.bfloat16}
ON_CPU = ("openvino", "onnx")


def check_backend(
    backend: str, precision: str, calibration_images: Any = None, device: torch.device | None = None
) -> None:
    """Raise `InputError` for an unknown backend or precision, or an invalid combination with the device."""
    if backend not in PRECISIONS:
        raise InputError(f"Unknown `backend` {str(backend)[:60]!r}.{did_you_mean(str(backend), PRECISIONS)}")
    every = sorted({one for known in PRECISIONS.values() for one in known} | {"auto"})
    if precision not in every:
        raise InputError(f"Unknown `precision` {str(precision)[:60]!r}.{did_you_mean(str(precision), every)}")
    if precision != "auto" and precision not in PRECISIONS[backend]:
        others = [repr(name) for name, known in PRECISIONS.items() if precision in known]
        raise InputError(
            f"`backend` {backend!r} has no precision {precision!r}: it has {', '.join(PRECISIONS[backend])}. "
            f"{precision} runs on {' or '.join(others)}."
        )
    if calibration_images is not None and (backend, precision) != ("openvino", "int8"):
        raise InputError("`calibration_images` are only for the backend openvino in int8.")
    if device is None:
        return
    if backend in ON_CPU and device.type != "cpu":
        raise InputError(
            f"`backend` {backend!r} runs on the CPU, not on {device}: use the device cpu, or the backend torch."
        )
    if device.type != "cpu":
        if precision == "int8":
            raise InputError(f"`precision` 'int8' runs on the CPU, not on {device}: use the device cpu, or fp16.")
        return
    if backend == "compile":
        raise InputError("`backend` 'compile' is for GPUs. On a CPU use openvino or torch.")
    if precision in HALF:
        raise InputError(
            f"`precision` {precision!r} is for GPUs: on a CPU a ViT-B/16's blocks took 6 to 9 times as long in it "
            "as in fp32. Use fp32, or the backend openvino."
        )


def on_backend(
    model: TowerModel, backend: str, precision: str, calibration_images: Any = None, calibration: str | None = None
) -> TowerModel:
    """The model with its image tower on `backend`.

    Args:
        model: on torch, on the device and in the precision wanted, except int8.
        backend: see above.
        precision: see above; not "auto".
        calibration_images: images to set 8-bit ranges with.
        calibration: the hash of an earlier calibration, whose export is in the cache.
    """
    tag = f"{backend}-{precision}"
    if backend == "torch" and precision == "int8":
        from deltaenergy.models.backends.int8 import Int8Engine

        return BackendModel(model, Int8Engine(model), backend, precision, tag)
    if backend == "torch":
        return model.derived(tag)
    if backend == "compile":
        return BackendModel(model, CompiledEngine(model), backend, precision, tag)
    try:
        if backend == "onnx":
            return BackendModel(model, _onnx(model, tag), backend, precision, tag)
        pixels = None
        if precision == "int8":
            source = None if calibration_images is None else as_source(calibration_images)
            pixels, calibration = _calibration(model, source, calibration)
            tag = f"{tag}-{calibration}"
        made = BackendModel(model, _openvino(model, tag, precision, pixels), backend, precision, tag)
        made.calibration = calibration
        return made
    except (DeltaEnergyError, OSError, MemoryError):
        raise
    except Exception as error:  # exporters fail in many ways
        raise InputError(
            f"The image encoder of {model.name!r} cannot run on the backend {backend!r} ({first_line(error)[:300]}). "
            "Use `backend='torch'`."
        ) from error


def _onnx(model: TowerModel, tag: str) -> Any:
    from deltaenergy.models.backends.onnx import OnnxEngine, open_session, write_onnx

    def session(patches: bool) -> Any:
        def make(folder: Path) -> None:
            write_onnx(model, folder, patches=patches)

        return opened_export(f"{model.fingerprint}+{tag}{'+patches' if patches else ''}", make, open_session)

    return OnnxEngine(session)


def _openvino(model: TowerModel, tag: str, precision: str, pixels: CalibrationPixels | None) -> Any:
    from deltaenergy.models.backends.openvino import OpenVinoEngine, write_openvino

    def make(folder: Path) -> None:
        write_openvino(model, folder, pixels)

    makeable = precision != "int8" or pixels is not None
    engine = opened_export(f"{model.fingerprint}+{tag}", make if makeable else None, OpenVinoEngine)
    if engine is None:
        raise ArtifactError(
            f"The 8-bit encoder of {model.name!r} is no longer in the cache. Make it again from the same images "
            "(`calibration_images`), or recalibrate the detector."
        )
    return engine


def _calibration(model: TowerModel, source: Source | None, known: str | None) -> tuple[CalibrationPixels | None, str]:
    """Pixels to set ranges with, and their id: a hash of them and of the quantiser's version."""
    from deltaenergy.models.backends.openvino import calibration_pixels, quantiser_version

    if known is not None:
        return None, known
    if source is None:
        raise InputError(
            "`precision='int8'` on OpenVINO needs images to set its ranges with: pass a few hundred that look like "
            "yours as `calibration_images`."
        )
    pixels = calibration_pixels(model, source)
    named = f"{pixels.digest} nncf {quantiser_version()}"
    return pixels, hashlib.blake2b(named.encode(), digest_size=8).hexdigest()
