"""Backends and precisions that there are not, that do not go together, or whose libraries are missing."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import deltaenergy as de
from deltaenergy.errors import InputError
from deltaenergy.models.backends import check_backend, on_backend
from deltaenergy.models.base import TowerModel
from deltaenergy.models.on import PRECISIONS


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "openvin"}, "Did you mean 'openvino'"),
        ({"precision": "fp23"}, "Did you mean 'fp32'"),
        ({"backend": "onnx", "precision": "int8"}, r"fp32\. int8 .*'openvino'"),
        ({"backend": "openvino", "precision": "fp16"}, r"int8\. fp16 .*'compile'"),
        ({"backend": "openvino", "calibration_images": "some"}, "only for the backend openvino"),
        ({"precision": "fp16"}, r"CPU .* times as long"),
        ({"precision": "bf16"}, "for GPUs"),
        ({"backend": "compile"}, "for GPUs"),
        ({"precision": "fp32", "dtype": "float32"}, "precision and dtype"),
        ({"backend": "openvino", "dtype": "float16"}, r"precision.*fp32, int8"),
        ({"backend": "openvino", "precision": "int8"}, "`calibration_images`"),
    ],
)
def test_what_does_not_go_together_is_told(
    tiny_clip_folder: Path, options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match=message):
        de.load_model(tiny_clip_folder, **options)


def test_backends_of_a_cpu_refuse_a_gpu() -> None:
    for backend in ("openvino", "onnx"):
        with pytest.raises(InputError, match="runs on the CPU, not on cuda"):
            check_backend(backend, "fp32", device=torch.device("cuda"))
    for precision in PRECISIONS["compile"]:
        check_backend("compile", precision, device=torch.device("cuda"))
        check_backend("torch", precision, device=torch.device("cuda"))


@pytest.mark.parametrize(("backend", "missing"), [("openvino", "openvino"), ("onnx", "onnx"), ("onnx", "onnxruntime")])
def test_a_missing_library_is_named_with_its_extra(
    tiny_clip_folder: Path, monkeypatch: pytest.MonkeyPatch, backend: str, missing: str
) -> None:
    real = importlib.import_module

    def without(name: str, *rest: Any) -> ModuleType:
        if name == missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return ModuleType(name) if name in ("onnx", "onnxscript", "onnxruntime") else real(name, *rest)

    monkeypatch.setattr(importlib, "import_module", without)
    monkeypatch.setattr(torch.onnx, "export", lambda *_, **__: None)
    with pytest.raises(InputError, match=rf"needs {missing}.*pip install 'deltaenergy\[{backend}\]'"):
        de.load_model(tiny_clip_folder, backend=backend)


def test_a_tower_that_cannot_be_exported_is_told_with_the_way_out(
    tiny_clip: TowerModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openvino")

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("data-dependent control flow\nand much more")

    monkeypatch.setattr(torch.export, "export", fail)
    with pytest.raises(InputError, match="backend='torch'"):
        on_backend(tiny_clip, "openvino", "fp32")


def test_half_precision_on_torch_is_a_model_of_its_own(tiny_clip: TowerModel) -> None:
    half = on_backend(tiny_clip, "torch", "bf16")
    assert half.fingerprint == f"{tiny_clip.fingerprint}+torch-bf16"


def test_a_compiled_tower_gives_what_the_tower_gives(tiny_clip: TowerModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU, only what stands around the compiler can be tried."""
    seen: list[dict[str, Any]] = []

    def uncompiled(module: Any, **options: Any) -> Any:
        seen.append(options)
        return module

    monkeypatch.setattr(torch, "compile", uncompiled)
    model = on_backend(tiny_clip, "compile", "fp32")
    pixels = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    features, patches = model.image_and_patch_features(pixels)
    expected, expected_patches = tiny_clip.image_and_patch_features(pixels)
    assert torch.equal(features, expected) and torch.equal(patches, expected_patches)
    assert torch.equal(model.image_features(pixels), expected)
    assert model.fingerprint == f"{tiny_clip.fingerprint}+compile-fp32" and seen == [{"dynamic": True}] * 2
