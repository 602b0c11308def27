"""Towers on OpenVINO and ONNX Runtime against torch, and against transformers in double precision."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import deltaenergy as de
from deltaenergy.errors import ArtifactError, InputError
from deltaenergy.models.base import TowerModel
from tests.families import WRITERS
from tests.models.backends.conftest import Load
from tests.models.test_encoding_side_by_side import cores

BACKENDS = ("openvino", "onnx")


def pixels_for(model: TowerModel, count: int, seed: int = 0) -> torch.Tensor:
    side = model.preprocessing.crop
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("backend", BACKENDS)
def test_clip_features_are_those_of_transformers(load: Load, tiny_clip_folder: Path, backend: str) -> None:
    from transformers import CLIPModel

    model = load(tiny_clip_folder, backend)
    module = CLIPModel.from_pretrained(tiny_clip_folder).double().eval()
    for count in (1, 2, 5):
        pixels = pixels_for(model, count, seed=count)
        with torch.no_grad():
            states = module.vision_model(pixel_values=pixels.double()).pooler_output
            expected = torch.nn.functional.normalize(module.visual_projection(states), dim=-1)
        found = model.image_features(pixels)
        assert found.dtype == torch.float32 and found.shape == expected.shape
        torch.testing.assert_close(found.double(), expected, atol=2e-6, rtol=0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["clip", "siglip", "align", "lite"])
def test_image_and_patch_features_are_those_of_torch(
    load: Load, tiny_clip_folder: Path, tmp_path: Path, name: str, backend: str
) -> None:
    source: str | Path = "lite" if name == "lite" else tiny_clip_folder
    if name in WRITERS:
        source = WRITERS[name](tmp_path / name)
    model, plain = load(source, backend), de.load_model(source)
    pixels = pixels_for(model, 9)  # more than `lite` takes at once on torch
    with torch.inference_mode():
        features, patches = plain.image_and_patch_features(pixels)
        found, found_patches = model.image_and_patch_features(pixels)
    assert found_patches.shape == patches.shape and patches.shape[:2] == (9, found_patches.shape[1])
    torch.testing.assert_close(found, features, atol=5e-6, rtol=0)
    torch.testing.assert_close(found_patches, patches, atol=2e-5, rtol=0)
    torch.testing.assert_close(model.image_features(pixels), features, atol=5e-6, rtol=0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_the_model_is_stays_but_for_its_backend(load: Load, tiny_clip_folder: Path, backend: str) -> None:
    model, plain = load(tiny_clip_folder, backend), de.load_model(tiny_clip_folder)
    assert model.fingerprint == f"{plain.fingerprint}+{backend}-fp32"
    assert {**model.describe(), "fingerprint": "", "backend": ""} == {
        **plain.describe(), "fingerprint": "", "backend": "",
    }  # fmt: skip
    assert (model.backend, model.precision, plain.backend, plain.precision) == (backend, "fp32", "torch", "fp32")
    assert (model.encode_texts(["a dog"]) == plain.encode_texts(["a dog"])).all()
    with pytest.raises(InputError, match=r"shape \(images, 3, 32, 32\)"):
        model.image_features(torch.zeros(1, 3, 40, 40))
    with pytest.raises(InputError, match="one image or more"):
        model.image_features(pixels_for(model, 0))


@pytest.mark.parametrize("backend", BACKENDS)
def test_threads_share_an_engine(load: Load, tiny_clip_folder: Path, backend: str) -> None:
    model = load(tiny_clip_folder, backend)
    batches = [pixels_for(model, 1 + i % 4, seed=i) for i in range(16)]
    expected = [model.image_features(batch) for batch in batches]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(model.image_features, batches))
    for one, other in zip(found, expected):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_detectors_and_stores_of_one_backend_are_refused_on_another(
    load: Load, tiny_clip_folder: Path, photos: Path, tmp_path: Path, backend: str
) -> None:
    model, plain = load(tiny_clip_folder, backend), de.load_model(tiny_clip_folder)
    for one, other, name in ((model, plain, "fast"), (plain, model, "slow")):
        folder = tmp_path / name
        de.Detector(de.ZeroShotClassifier(one, ["dog", "cat"]), "mcm").calibrate(photos).save(folder)
        with pytest.raises(ArtifactError, match=f"backend: saved '{one.backend}', found '{other.backend}'"):
            de.Detector.load(folder, model=other)
        again = de.Detector.load(folder)
        assert again.classifier.base_model.fingerprint == one.fingerprint
        store = de.build_store(one, photos, tmp_path / f"{name}-store")
        with pytest.raises(ArtifactError, match=f"backend: store '{one.backend}', given '{other.backend}'"):
            other.encode(store.path)


def test_gradients_and_learned_tokens_are_refused_by_name(
    load: Load, tiny_clip_folder: Path, photos: Path, tmp_path: Path
) -> None:
    model = load(tiny_clip_folder, "openvino")
    classifier = de.ZeroShotClassifier(model, ["dog", "cat"])
    with pytest.raises(InputError, match="backend='torch'"):
        model.image_features(pixels_for(model, 1).requires_grad_())
    with pytest.raises(InputError, match=r"odin.*backend='torch'"):
        de.Detector(classifier, "odin").calibrate(photos)
    with pytest.raises(InputError, match="backend='torch'"):
        model.with_vision_prompts(torch.zeros(1, 2, 32))
    with pytest.raises(InputError, match=r"maple.*backend='torch'"):
        de.tune(model, ["dog", "cat"], photos, method="maple", shots=1)
    for method in ("rollout", "grad-cam"):
        with pytest.raises(InputError, match=f"{method}.*backend='torch'"):
            list(de.explain(classifier, photos, method=method))


def test_what_needs_no_gradient_through_the_tower_runs(load: Load, tiny_clip_folder: Path, photos: Path) -> None:
    model, plain = load(tiny_clip_folder, "openvino"), de.load_model(tiny_clip_folder)
    tuned = de.tune(model, ["dog", "cat"], photos, method="coop", shots=2, seed=1)
    assert tuned.base_model.fingerprint == model.fingerprint
    found = []
    for one in (model, plain):
        detector = de.Detector(de.ZeroShotClassifier(one, ["dog", "cat"]), "gl-mcm").calibrate(photos)
        found.append([verdict.score for verdict in detector.predict(photos)])
    assert found[0] == pytest.approx(found[1], abs=1e-4)


def test_openvino_gives_the_same_bytes_on_any_number_of_cores(
    load: Load, tiny_clip_folder: Path, pictures: Path
) -> None:
    model = load(tiny_clip_folder, "openvino")
    found = []
    for count in (1, 2, 3):
        with cores(count):
            found.append(model.encode(pictures, batch_size=4).features.tobytes())
    assert found[0] == found[1] == found[2]
    assert model.runs_side_by_side
