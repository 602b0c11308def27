"""Eight bits on torch: products as worked out in whole numbers, features near float32's, image by image."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import deltaenergy as de
from deltaenergy.errors import ArtifactError, InputError
from deltaenergy.models.backends import check_backend
from deltaenergy.models.backends.int8 import Int8Linear, QuickGeluMlp
from deltaenergy.models.base import TowerModel
from deltaenergy.models.towers import clip
from deltaenergy.models.towers.vision import VisionTower
from tests.checkpoints import write_clip
from tests.families import WRITERS
from tests.models.test_encoding_side_by_side import cores

pytestmark = pytest.mark.skipif(
    not hasattr(torch.ops.onednn, "qlinear_pointwise"), reason="this torch is without oneDNN"
)


@pytest.fixture(scope="module")
def clip_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_clip(tmp_path_factory.mktemp("clip") / "model", width=64, layers=3, projection=32)


@pytest.fixture(scope="module")
def int8(clip_folder: Path) -> TowerModel:
    return de.load_model(clip_folder, precision="int8")


@pytest.fixture(scope="module")
def plain(clip_folder: Path) -> TowerModel:
    return de.load_model(clip_folder)


def random_pixels(count: int, side: int = 32) -> torch.Tensor:
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(count))


def in_whole_numbers(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """The formula of the module in NumPy: steps in float32, products of whole numbers, sums in float64."""
    token_steps = np.abs(x).max(1, keepdims=True) / np.float32(127)
    weight_steps = np.abs(weight).max(1) / np.float32(63)
    tokens = np.floor(x / token_steps + np.float32(0.5)).astype(np.int64)
    rows = np.rint(weight / weight_steps[:, None]).astype(np.int64)
    assert np.abs(tokens).max() == 127 and np.abs(rows).max() == 63
    return (tokens @ rows.T) * token_steps.astype(float) * weight_steps.astype(float) + bias


@settings(deadline=None, max_examples=40)
@given(
    tokens=st.integers(1, 9), inner=st.integers(1, 70), outer=st.integers(1, 40),
    seed=st.integers(0, 10**6), power=st.integers(-6, 6),
)  # fmt: skip
def test_products_are_those_of_whole_numbers(tokens: int, inner: int, outer: int, seed: int, power: int) -> None:
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal((tokens, inner)) * 10.0**power).astype(np.float32)
    weight, bias = (rng.standard_normal(shape).astype(np.float32) for shape in ((outer, inner), (outer,)))
    found = Int8Linear(torch.from_numpy(weight), torch.from_numpy(bias))(torch.from_numpy(x)).numpy()
    expected = in_whole_numbers(x, weight, bias)
    # A value halfway between two whole numbers may be rounded to either, in float32.
    step = np.abs(x).max(1, keepdims=True) / 127 * np.abs(weight).max(1)
    halves = np.abs(np.abs(x / (np.abs(x).max(1, keepdims=True) / 127)) % 1 - 0.5) < 1e-4
    allowed = step * halves.sum(1, keepdims=True) + 1e-5 * (np.abs(expected) + np.abs(x).max(1, keepdims=True)) + 1e-6
    assert (np.abs(found - expected) <= allowed).all()


def test_the_error_is_that_of_rounding() -> None:
    """Each factor is off by half a step at most, whatever else stands in the batch: a far larger token, say."""
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(6, 512, generator=generator), torch.randn(9, 512, generator=generator)
    layer = Int8Linear(weight, torch.zeros(9))
    token_steps, weight_steps = x.abs().amax(1) / 127, weight.abs().amax(1) / 63
    bound = 0.5 * (token_steps[:, None] * weight.abs().sum(1) + weight_steps * x.abs().sum(1)[:, None])
    bound += 0.25 * 512 * token_steps[:, None] * weight_steps
    assert ((layer(x) - x @ weight.T).abs() < bound).all()
    assert torch.equal(layer(torch.cat([x, 1e6 * x]))[:6], layer(x))


def test_the_largest_products_do_not_overflow() -> None:
    """Two products of 255 · 127 do not fit into 16 bits, in which processors without VNNI add them."""
    weight = torch.ones(5, 64) * torch.tensor([1.0, -1.0, 1.0, -1.0, 0.5])[:, None]
    found = Int8Linear(weight, torch.arange(5.0))(torch.tensor([[3.0] * 64, [-3.0] * 64]))
    expected = torch.tensor([[192.0, -191.0, 194.0, -189.0, 100.0], [-192.0, 193.0, -190.0, 195.0, -92.0]])
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)


def test_zeros_give_the_bias_and_nan_gives_nan() -> None:
    layer = Int8Linear(torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.tensor([5.0, 7.0]))
    found = layer(torch.tensor([[0.0, 0.0], [1e-44, 0.0], [torch.nan, 1.0], [2.0, 1.0]]))
    assert found[0].tolist() == [5, 7] and found[1].tolist() == [5, 7]
    assert found[2].isnan().all()
    torch.testing.assert_close(found[3], torch.tensor([9.0, 7.0]), rtol=0.02, atol=0)
    assert layer(torch.zeros(3, 4, 2)).shape == (3, 4, 2)


def test_an_mlp_with_quick_gelu_in_one_step_less() -> None:
    """α on the one side and 1/α on the other change no whole number: it must be what three steps give."""
    torch.manual_seed(0)
    first, second = nn.Linear(32, 128), nn.Linear(128, 32)
    x = torch.randn(50, 32)
    with torch.no_grad():
        hidden = Int8Linear(first.weight, first.bias)(x)
        expected = Int8Linear(second.weight, second.bias)(hidden * torch.sigmoid(1.702 * hidden))
        exact = first.double()(x.double())
        exact = second.double()(exact * torch.sigmoid(1.702 * exact))
        found = QuickGeluMlp(first.float(), second.float())(x)
    assert (found - expected).abs().mean() < 1e-4 * expected.abs().mean(), "but for a rare rounding"
    assert (found - exact).abs().mean() < 0.03 * exact.abs().mean()


def test_features_are_unit_and_near_those_of_float32(int8: TowerModel, plain: TowerModel) -> None:
    pixels = random_pixels(60)
    found, expected = int8.image_features(pixels), plain.image_features(pixels)
    assert found.shape == (60, 32) and (found.norm(dim=1) - 1).abs().max() < 1e-5
    assert (found * expected).sum(1).min() > 0.99
    assert torch.equal((found @ expected.T).argmax(1), torch.arange(60)), "nearer to its own than to any other"
    assert (found - expected).abs().max() > 1e-5, "and yet in eight bits"
    again, patches = int8.image_and_patch_features(pixels)
    assert torch.equal(again, found) and patches.shape == (60, 16, 32)
    assert (patches * plain.image_and_patch_features(pixels)[1]).sum(2).min() > 0.97


def test_an_image_s_features_do_not_depend_on_its_batch(int8: TowerModel) -> None:
    pixels = random_pixels(60)  # more than are computed at a time
    whole = int8.image_features(pixels)
    for first, last in ((0, 1), (7, 30), (45, 60)):
        torch.testing.assert_close(int8.image_features(pixels[first:last]), whole[first:last], atol=1e-6, rtol=0)


def test_the_same_bytes_on_any_number_of_cores(int8: TowerModel, pictures: Path) -> None:
    found = []
    for count in (1, 2, 3):
        with cores(count):
            found.append(int8.encode(pictures, batch_size=4).features.tobytes())
    assert found[0] == found[1] == found[2]
    assert int8.runs_side_by_side


@pytest.mark.parametrize("name", sorted(set(WRITERS) - {"align"}))
def test_every_family_of_transformers(name: str, tmp_path: Path) -> None:
    folder = WRITERS[name](tmp_path / name)
    int8, plain = de.load_model(folder, precision="int8"), de.load_model(folder)
    pixels = random_pixels(5, plain.preprocessing.crop)
    with torch.inference_mode():
        found, found_patches = int8.image_and_patch_features(pixels)
        features, patches = plain.image_and_patch_features(pixels)
    assert (found * features).sum(1).min() > 0.99 and (found_patches * patches).sum(2).min() > 0.95
    assert (found - features).abs().max() > 1e-6
    assert torch.equal(plain.image_features(pixels), features), "the model itself stays as it was"


def test_it_is_a_model_of_its_own(int8: TowerModel, plain: TowerModel, pictures: Path, tmp_path: Path) -> None:
    assert int8.fingerprint == f"{plain.fingerprint}+torch-int8"
    assert (int8.backend, int8.precision, int8.describe()["precision"]) == ("torch", "int8", "int8")
    assert (int8.encode_texts(["a dog"]) == plain.encode_texts(["a dog"])).all()
    detector = de.Detector(de.ZeroShotClassifier(int8, ["dog", "cat"]), "mcm").calibrate(pictures)
    detector.save(tmp_path / "detector")
    loaded = de.Detector.load(tmp_path / "detector")
    assert [one.score for one in loaded.predict(pictures)] == [one.score for one in detector.predict(pictures)]
    with pytest.raises(ArtifactError, match="'int8', found 'fp32'"):
        de.Detector.load(tmp_path / "detector", model=plain)
    de.build_store(int8, pictures, tmp_path / "store")
    with pytest.raises(ArtifactError, match="'int8', given 'fp32'"):
        plain.encode(tmp_path / "store")


def test_what_needs_an_open_tower_is_refused_by_name(int8: TowerModel, photos: Path) -> None:
    classifier = de.ZeroShotClassifier(int8, ["dog", "cat"])
    with pytest.raises(InputError, match="precision='fp32'"):
        int8.image_features(random_pixels(1).requires_grad_())
    with pytest.raises(InputError, match=r"odin.*precision='fp32'"):
        de.Detector(classifier, "odin").calibrate(photos)
    with pytest.raises(InputError, match="precision='fp32'"):
        int8.with_vision_prompts(torch.zeros(1, 2, 64))
    for method in ("rollout", "grad-cam"):
        with pytest.raises(InputError, match=f"{method}.*precision='fp32'"):
            list(de.explain(classifier, photos, method=method))
    tuned = de.tune(int8, ["dog", "cat"], photos, method="coop", shots=2, seed=1)
    assert tuned.base_model.fingerprint == int8.fingerprint


def test_what_it_is_not_for_is_told(clip_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("lite", WRITERS["align"](tmp_path / "align")):
        with pytest.raises(InputError, match="backend='openvino'"):
            de.load_model(name, precision="int8")
    with pytest.raises(InputError, match="runs on the CPU, not on cuda"):
        check_backend("torch", "int8", device=torch.device("cuda"))
    with pytest.raises(InputError, match="calibration_images"):
        de.load_model(clip_folder, precision="int8", calibration_images="some")
    monkeypatch.setattr(torch.ops, "onednn", SimpleNamespace())
    with pytest.raises(InputError, match="needs a torch with oneDNN"):
        de.load_model(clip_folder, precision="int8")


def test_with_a_gpu_beside_it_runs_on_the_cpu(clip_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert de.load_model(clip_folder, precision="int8").device == torch.device("cpu")


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_few_pictures_at_a_time_give_what_all_give(
    clip_folder: Path, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    run = VisionTower.run

    def counted(self: VisionTower, pixels: torch.Tensor, *given: Any, **options: Any) -> Any:
        seen.append(len(pixels))
        return run(self, pixels, *given, **options)

    monkeypatch.setattr(VisionTower, "run", counted)
    monkeypatch.setattr(clip, "TOKENS_OF_A_CORE", 3 * 17)  # a class token and 16 patches each
    model, pixels = de.load_model(clip_folder, precision=precision), random_pixels(7)
    with cores(1), torch.inference_mode():
        features, patches = model.image_and_patch_features(pixels)
        alone = model.image_features(pixels)
    assert seen == [3, 3, 1] * 2
    monkeypatch.setattr(clip, "TOKENS_OF_A_CORE", 10**6)
    with torch.inference_mode():
        whole, whole_patches = model.image_and_patch_features(pixels)
    assert seen[6:] == [7]
    for found, expected in ((features, whole), (alone, whole), (patches, whole_patches)):
        torch.testing.assert_close(found, expected, atol=2e-6, rtol=0)
