"""CLIP models against transformers' own CLIPModel."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoTokenizer, CLIPImageProcessorPil, CLIPModel

import deltaenergy as de
from deltaenergy.models.preprocessing import Preprocessing
from tests.checkpoints import write_clip

PROMPTS = [
    "a photo of a dog.",
    "cat",
    "",
    "a sketch of the red car on a winding road, x" * 4,
    "CAT",
    "Ünïcode ☃",
]


def pictures() -> list[Image.Image]:
    rng = np.random.default_rng(1)
    sizes = [(32, 32), (40, 33), (33, 40), (300, 100), (17, 90), (1, 1), (224, 223)]
    return [Image.fromarray(rng.integers(0, 256, (h, w, 3), dtype=np.uint8)) for w, h in sizes]


def reference_images(folder: Path, images: list[Image.Image]) -> np.ndarray:
    processor, module = CLIPImageProcessorPil.from_pretrained(folder), CLIPModel.from_pretrained(folder).eval()
    with torch.inference_mode():
        features = module.get_image_features(processor(images, return_tensors="pt")["pixel_values"]).pooler_output
    return torch.nn.functional.normalize(features, dim=-1).numpy()


def reference_texts(folder: Path, texts: list[str]) -> np.ndarray:
    tokenizer, module = AutoTokenizer.from_pretrained(folder), CLIPModel.from_pretrained(folder).eval()
    tokens = tokenizer(texts, padding="max_length", max_length=77, truncation=True, return_tensors="pt")
    with torch.inference_mode():
        features = module.get_text_features(**tokens).pooler_output
    return torch.nn.functional.normalize(features, dim=-1).numpy()


@pytest.fixture(scope="module", params=["quick_gelu", "gelu", "legacy end token"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clip") / "model"
    if request.param == "legacy end token":
        return write_clip(folder, legacy_eos=True, seed=2)
    return write_clip(folder, hidden_act=request.param, seed=1)


def test_image_features_equal_transformers(checkpoint: Path) -> None:
    features = de.load_model(checkpoint).encode_images(pictures(), batch_size=3)
    np.testing.assert_allclose(features, reference_images(checkpoint, pictures()), atol=1e-5)


def test_text_features_equal_transformers(checkpoint: Path) -> None:
    texts = PROMPTS[:3] + PROMPTS[4:]
    np.testing.assert_allclose(
        de.load_model(checkpoint).encode_texts(texts), reference_texts(checkpoint, texts), atol=1e-5
    )


def test_a_text_that_is_too_long_is_cut_with_a_warning(checkpoint: Path) -> None:
    with pytest.warns(UserWarning, match="77 tokens"):
        ours = de.load_model(checkpoint).encode_texts(PROMPTS)
    np.testing.assert_allclose(ours, reference_texts(checkpoint, PROMPTS), atol=1e-5)


def test_true_vit_b16_shapes_equal_transformers(tmp_path: Path) -> None:
    """Every width as in ViT-B/16; two of its twelve layers."""
    folder = write_clip(
        tmp_path / "b16", image_size=224, patch_size=16, width=768, layers=2, heads=8, text_width=512, projection=512
    )
    model = de.load_model(folder)
    images = pictures()[:2]
    np.testing.assert_allclose(model.encode_images(images), reference_images(folder, images), atol=1e-5)
    np.testing.assert_allclose(model.encode_texts(PROMPTS[:3]), reference_texts(folder, PROMPTS[:3]), atol=1e-5)
    _, patches = model.image_and_patch_features(torch.zeros(1, 3, 224, 224))
    assert patches.shape == (1, 196, 512)
    assert model.feature_dim == 512


@pytest.mark.parametrize("size", [24, 32])
def test_preprocessing_equals_the_processor(size: int, tmp_path: Path) -> None:
    processor = CLIPImageProcessorPil(size={"shortest_edge": size}, crop_size={"height": 24, "width": 24})
    processor.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "preprocessor_config.json").read_text())
    ours = Preprocessing.from_processor_config(config, where="test")
    for image in [*pictures(), pictures()[0].convert("L"), pictures()[1].convert("P")]:
        theirs = processor(image, return_tensors="np")["pixel_values"][0]
        np.testing.assert_allclose(ours(image), theirs, atol=2e-6)


def test_patches_follow_the_value_path(tiny_clip_folder: Path, tiny_clip: de.Model) -> None:
    """Written out by hand on transformers' modules: no attention weights, values only."""
    module = CLIPModel.from_pretrained(tiny_clip_folder).eval()
    vision, pixels = module.vision_model, torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        x = vision.pre_layrnorm(vision.embeddings(pixels))
        for layer in vision.encoder.layers[:-1]:
            x = layer(x, None)
        last = vision.encoder.layers[-1]
        h = last.layer_norm1(x)
        v = h @ last.self_attn.v_proj.weight.T + last.self_attn.v_proj.bias
        y = x + v @ last.self_attn.out_proj.weight.T + last.self_attn.out_proj.bias
        y = y + last.mlp(last.layer_norm2(y))
        expected = (vision.post_layernorm(y) @ module.visual_projection.weight.T)[:, 1:]
        features, patches = tiny_clip.image_and_patch_features(pixels)
        torch.testing.assert_close(patches, expected / expected.norm(dim=-1, keepdim=True), atol=1e-5, rtol=0)
        torch.testing.assert_close(features, tiny_clip.image_features(pixels))
    assert patches.shape == (2, 16, 16)


def test_texts_are_cached_by_prompt(tiny_clip: de.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    first = tiny_clip.encode_texts(["a blue dog", "a red cat"])

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("the text tower ran again")

    monkeypatch.setattr(tiny_clip.text.transformer, "forward", fail)
    again = tiny_clip.encode_texts(["a red cat", "a blue dog", "a red cat"])
    np.testing.assert_array_equal(again, first[[1, 0, 1]])


def test_texts_do_not_depend_on_their_batch(tiny_clip: de.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["dog", "a photo of the red car", "x", "a " * 30]
    together = tiny_clip.encode_texts(texts)
    monkeypatch.setattr("deltaenergy.models.towers.text.TOKENS_PER_BATCH", 1)
    for text, row in zip(texts, together):
        tiny_clip.text._cache.clear()
        np.testing.assert_allclose(tiny_clip.encode_texts(text)[0], row, atol=1e-6)


def test_no_texts_and_no_images_give_empty_arrays(tiny_clip: de.Model) -> None:
    assert tiny_clip.encode_texts([]).shape == (0, 16)
    assert tiny_clip.encode_images([]).shape == (0, 16)


def test_fingerprint_tells_weights_preprocessing_and_activation_apart(tmp_path: Path) -> None:
    folders = [
        write_clip(tmp_path / "a"),
        write_clip(tmp_path / "same"),
        write_clip(tmp_path / "weights", seed=5),
        write_clip(tmp_path / "activation", hidden_act="gelu"),
        write_clip(tmp_path / "preprocessing"),
    ]
    config = json.loads((folders[-1] / "preprocessor_config.json").read_text())
    config["image_mean"] = [0.5, 0.5, 0.5]
    (folders[-1] / "preprocessor_config.json").write_text(json.dumps(config))
    a, same, *others = (de.load_model(folder).fingerprint for folder in folders)
    assert a == same
    assert len({a, *others}) == 4


def test_half_precision_keeps_the_fingerprint_and_stays_close(tiny_clip_folder: Path, tiny_clip: de.Model) -> None:
    half = de.load_model(tiny_clip_folder, dtype="bfloat16")
    assert half.fingerprint == tiny_clip.fingerprint
    similar = (half.encode_texts(["a dog"]) * tiny_clip.encode_texts(["a dog"])).sum()
    assert similar == pytest.approx(1, abs=5e-3)
