"""SigLIP, SigLIP 2, MetaCLIP 2, Chinese-CLIP and ALIGN give what transformers' own classes give."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import deltaenergy as de
from deltaenergy.errors import ArtifactError, InputError
from deltaenergy.models.base import TowerModel, require_vision
from deltaenergy.models.towers.prompts import LearnedPrompts
from tests.families import SIDE, WRITERS

TEXTS = ["a dog", "the red car", "zebra", "blue 7"]
NAMES = ["dog", "red car", "a zebra", "cat"]
# As transformers names what it loads.
CLASSES = {
    "siglip": ("SiglipModel", "SiglipImageProcessorPil"),
    "siglip2": ("SiglipModel", "SiglipImageProcessorPil"),
    "metaclip_2": ("MetaClip2Model", "CLIPImageProcessorPil"),
    "chinese_clip": ("ChineseCLIPModel", "ChineseCLIPImageProcessorPil"),
    "align": ("AlignModel", "EfficientNetImageProcessorPil"),
}
FAMILIES = sorted(WRITERS)


_resize = Image.Image.resize


def width_first(image: Image.Image, size: tuple[int, int], resample: Any = None, **_: Any) -> Image.Image:
    """What `Image.resize` does before Pillow 13, which may begin with the height."""
    return _resize(_resize(image, (size[0], image.height), resample), size, resample)


class Checkpoint:
    """A folder, our model of it, and transformers' own."""

    def __init__(self, kind: str, folder: Path) -> None:
        import transformers
        from transformers import AutoTokenizer, PreTrainedTokenizerFast

        self.kind, self.folder = kind, WRITERS[kind](folder)
        self.model: TowerModel = de.load_model(folder)
        module, processor = CLASSES[kind]
        self.module: Any = getattr(transformers, module).from_pretrained(folder).eval()
        self.processor: Any = getattr(transformers, processor).from_pretrained(folder)
        loader: Any = PreTrainedTokenizerFast if kind.startswith("siglip") else AutoTokenizer
        self.tokenizer: Any = loader.from_pretrained(folder)

    def text_features(self, texts: list[str]) -> torch.Tensor:
        padding: Any = True
        if self.kind.startswith("siglip"):  # as the model's documentation says
            padding, length = "max_length", self.module.config.text_config.max_position_embeddings
            inputs = self.tokenizer(texts, padding=padding, max_length=length, return_tensors="pt")
            inputs = {"input_ids": inputs["input_ids"]}
        else:
            inputs = self.tokenizer(texts, padding=padding, return_tensors="pt")
        with torch.no_grad():
            return unit(self.module.get_text_features(**inputs))

    def image_features(self, pictures: list[Image.Image]) -> torch.Tensor:
        with torch.no_grad():
            return unit(self.module.get_image_features(pixel_values=self.pixels(pictures)))

    def pixels(self, pictures: list[Image.Image]) -> torch.Tensor:
        with mock.patch.object(Image.Image, "resize", width_first):
            pixels: torch.Tensor = self.processor(pictures, return_tensors="pt")["pixel_values"]
        return pixels


def unit(output: Any) -> torch.Tensor:
    vectors = output if isinstance(output, torch.Tensor) else output.pooler_output
    return vectors / vectors.norm(dim=-1, keepdim=True)


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Checkpoint]:
    home = tmp_path_factory.mktemp("families")
    return {kind: Checkpoint(kind, home / kind) for kind in FAMILIES}


@pytest.fixture
def pictures() -> list[Image.Image]:
    rng = np.random.default_rng(0)
    sizes = [(40, 56), (33, 32), (90, 41)]
    return [Image.fromarray(rng.integers(0, 256, (*size, 3), dtype=np.uint8)) for size in sizes]


@pytest.mark.parametrize("kind", FAMILIES)
def test_features_are_those_of_transformers(
    checkpoints: dict[str, Checkpoint], kind: str, pictures: list[Image.Image]
) -> None:
    checkpoint = checkpoints[kind]
    model = checkpoint.model
    expected = checkpoint.text_features(TEXTS).numpy()
    assert np.abs(expected - expected[0]).max() > 1e-2  # different texts can be told apart at all
    np.testing.assert_allclose(model.encode_texts(TEXTS), expected, atol=1e-5)
    np.testing.assert_allclose(model.encode_texts(TEXTS[2]), expected[2:3], atol=1e-5)
    expected = checkpoint.image_features(pictures).numpy()
    assert np.abs(expected - expected[0]).max() > 1e-3
    np.testing.assert_allclose(model.encode_images(pictures), expected, atol=1e-5)
    assert model.feature_dim == expected.shape[1]


def test_scales_and_biases_are_the_models_own(checkpoints: dict[str, Checkpoint]) -> None:
    found = {kind: (c.model.logit_scale, c.model.logit_bias) for kind, c in checkpoints.items()}
    assert found["siglip"] == pytest.approx((np.exp(4.7), -12.5), rel=1e-5)
    assert found["metaclip_2"] == pytest.approx((np.exp(4.6), 0), rel=1e-5)
    assert found["chinese_clip"] == pytest.approx((np.exp(3.9), 0), rel=1e-5)
    assert found["align"] == pytest.approx((50, 0), rel=1e-5)


@pytest.mark.parametrize("kind", FAMILIES)
def test_confidence_is_the_softmax_of_the_models_logits(
    checkpoints: dict[str, Checkpoint], kind: str, pictures: list[Image.Image]
) -> None:
    """Of SigLIP, too: its bias adds the same to every class."""
    checkpoint = checkpoints[kind]
    detector = de.Detector(de.ZeroShotClassifier(checkpoint.model, NAMES, template="{}"), "mcm")
    detector.calibrate(pictures * 4, keep=0.9)
    inputs = checkpoint.text_features(NAMES), checkpoint.image_features(pictures)
    module = checkpoint.module
    scale = 1 / module.temperature if kind == "align" else module.logit_scale.exp()
    logits = inputs[1] @ inputs[0].T * scale + getattr(module, "logit_bias", 0)
    expected = torch.softmax(logits.detach().double(), dim=1).max(dim=1)
    found = list(detector.predict(pictures))
    assert [v.label for v in found] == [NAMES[i] for i in expected.indices]
    np.testing.assert_allclose([v.confidence for v in found], expected.values.numpy(), atol=1e-3)


@pytest.mark.parametrize("kind", ["siglip", "siglip2"])
def test_siglip_reads_as_it_was_trained(checkpoints: dict[str, Checkpoint], kind: str) -> None:
    """SigLIP 2 in lower case; SigLIP without punctuation, too. Both see all of their padding."""
    model = checkpoints[kind].model
    plain, shouted, dotted = model.encode_texts(["a car", "A CAR", "a  car."])
    np.testing.assert_allclose(plain, shouted, atol=1e-6)
    assert np.allclose(plain, dotted, atol=1e-6) == (kind == "siglip")
    tower = model.text
    ids = tower.tokenize(["a car"])[0]
    filler = 1 if kind == "siglip" else 0
    padded = torch.tensor([[*ids, *[filler] * (12 - len(ids))]])
    with torch.no_grad():
        expected = checkpoints[kind].module.get_text_features(input_ids=padded)
    np.testing.assert_allclose(plain, unit(expected)[0], atol=1e-5)


def test_long_texts_are_cut_and_still_end(checkpoints: dict[str, Checkpoint]) -> None:
    lengths = {"siglip": 12, "siglip2": 12, "metaclip_2": 77, "chinese_clip": 52, "align": 64}
    for kind, length in lengths.items():
        tower = checkpoints[kind].model.text
        with pytest.warns(UserWarning, match=f"{length} tokens"):
            (row,) = tower.tokenize(["dog " * 100])
        assert len(row) == length == tower.max_length
        before, behind = tower.frame
        assert row[: len(before)] == before and row[-1] == behind[0]


def learned_features(checkpoint: Checkpoint, context: torch.Tensor, deep: torch.Tensor | None) -> torch.Tensor:
    """[start] v_1 … v_M name [end] through transformers' model, each class alone.

    The context is put in by a hook on the embedding of tokens, deeper ones by hooks on the blocks.
    """
    module, tokenizer = checkpoint.module.double(), checkpoint.tokenizer
    first = context.shape[0]
    text = module.text_model
    embedding = text.get_input_embeddings()
    layers = text.encoder.layer if hasattr(text.encoder, "layer") else text.encoder.layers
    features = []
    for name in NAMES:
        words = tokenizer(name, add_special_tokens=False)["input_ids"]
        whole = tokenizer(name)["input_ids"]
        starts = whole.index(words[0])
        ids = [*whole[:starts], *[words[0]] * first, *whole[starts:]]
        if checkpoint.kind.startswith("siglip"):
            ids += [tokenizer.pad_token_id] * (12 - len(ids))
        places = slice(starts, starts + first)

        def put(_: Any, __: Any, output: torch.Tensor, places: slice = places) -> torch.Tensor:
            return torch.cat([output[:, : places.start], context[None], output[:, places.stop :]], dim=1)

        hooks = [embedding.register_forward_hook(put)]
        for number in range(0 if deep is None else len(deep)):

            def replace(_: Any, args: Any, number: int = number, places: slice = places) -> Any:
                x = args[0]
                return (torch.cat([x[:, : places.start], deep[number][None], x[:, places.stop :]], dim=1), *args[1:])

            hooks.append(layers[number + 1].register_forward_pre_hook(replace))
        try:
            features.append(unit(module.get_text_features(input_ids=torch.tensor([ids])))[0])
        finally:
            for hook in hooks:
                hook.remove()
    return torch.stack(features)


@pytest.mark.parametrize("deeper", [False, True])
@pytest.mark.parametrize("kind", FAMILIES)
def test_learned_prompts_equal_the_whole_pass(
    checkpoints: dict[str, Checkpoint], tmp_path: Path, kind: str, deeper: bool
) -> None:
    """Features and gradients, in float64; towers without causal mask run whole prompts."""
    checkpoint = checkpoints[kind]
    model = de.load_model(checkpoint.folder, dtype=torch.float64)
    tower = model.text.derived(finish=lambda vectors: vectors / vectors.norm(dim=-1, keepdim=True))
    prompts = LearnedPrompts(tower, NAMES, 3, full_stop=False)
    assert prompts.shares_prefix == (kind == "metaclip_2")
    generator = torch.Generator().manual_seed(0)
    context, deep = (
        torch.randn(*shape, tower.width, generator=generator, dtype=torch.float64) for shape in ((3,), (1, 3))
    )
    mine, theirs = (part.clone().requires_grad_() for part in (context, context))
    got = prompts(mine, deep=deep if deeper else None)
    want = learned_features(checkpoint, theirs, deep if deeper else None)
    torch.testing.assert_close(got, want, atol=1e-8, rtol=0)
    weights = torch.randn(want.shape, generator=generator, dtype=torch.float64)
    for features in (got, want):
        (features * weights).sum().backward()
    assert mine.grad is not None and mine.grad.abs().max() > 1e-3
    torch.testing.assert_close(mine.grad, theirs.grad, atol=1e-7, rtol=0)
    checkpoint.module.float()


def test_a_patch_of_siglip_is_what_the_probe_sees_alone(
    checkpoints: dict[str, Checkpoint], pictures: list[Image.Image]
) -> None:
    checkpoint = checkpoints["siglip"]
    pixels = checkpoint.pixels(pictures)
    with torch.no_grad():
        image, patches = checkpoint.model.image_and_patch_features(pixels)
        states = checkpoint.module.vision_model(pixels).last_hidden_state
        alone = unit(checkpoint.module.vision_model.head(states.reshape(-1, 1, states.shape[-1])))
    assert patches.shape == (3, 16, 32)
    torch.testing.assert_close(patches.reshape(-1, 32), alone, atol=1e-5, rtol=0)
    torch.testing.assert_close(image, checkpoint.image_features(pictures), atol=1e-5, rtol=0)


def test_a_patch_of_align_is_a_place_of_its_map(
    checkpoints: dict[str, Checkpoint], pictures: list[Image.Image]
) -> None:
    checkpoint = checkpoints["align"]
    pixels = checkpoint.pixels(pictures)
    with torch.no_grad():
        image, patches = checkpoint.model.image_and_patch_features(pixels)
        places = checkpoint.module.vision_model(pixels).last_hidden_state
    torch.testing.assert_close(patches[1, 3], unit(places[1, :, 0, 3]), atol=1e-5, rtol=0)
    torch.testing.assert_close(image, unit(places.mean((2, 3))), atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", FAMILIES)
def test_methods_and_scores_work_or_say_what_is_missing(
    checkpoints: dict[str, Checkpoint], photos: Path, kind: str
) -> None:
    model = checkpoints[kind].model
    tuned = de.tune(model, ["dog", "cat"], photos, method="coop(context_length=2)", shots=2, recipe={"epochs": 1})
    detector = de.Detector(tuned, "gl-mcm").calibrate(photos)
    assert len(list(detector.predict(photos))) == 8
    if kind in ("siglip", "siglip2", "align"):
        what = "has a convolutional one" if kind == "align" else "without a class token.* such as coop"
        with pytest.raises(InputError, match=f"maple puts learned tokens .*{what}"):
            de.tune(model, ["dog", "cat"], photos, method="maple", shots=2, seed=1)
        with pytest.raises(InputError, match=what):
            require_vision(model, "maple")
    else:
        de.tune(model, ["dog", "cat"], photos, method="maple(depth=2)", shots=2, recipe={"epochs": 1})


@pytest.mark.parametrize("kind", FAMILIES)
def test_what_is_missing_or_left_over_is_an_error(
    checkpoints: dict[str, Checkpoint], kind: str, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(checkpoints[kind].folder, tmp_path / "copy"))
    tensors = load_file(folder / "model.safetensors")
    name = sorted(key for key in tensors if "text_model" in key and "weight" in key)[0]
    save_file({key: tensor for key, tensor in tensors.items() if key != name}, folder / "model.safetensors")
    with pytest.raises(ArtifactError, match=rf"(?i)missing.*{name}"):
        de.load_model(folder)
    save_file({**tensors, "more": torch.ones(2)}, folder / "model.safetensors")
    with pytest.raises(ArtifactError, match=r"(?i)unexpected.*more"):
        de.load_model(folder)
    save_file(tensors, folder / "model.safetensors")
    de.load_model(folder)
    (folder / "preprocessor_config.json").rename(tmp_path / "aside")
    with pytest.raises(ArtifactError, match=r"no preprocessor_config\.json"):
        de.load_model(folder)
    (tmp_path / "aside").rename(folder / "preprocessor_config.json")
    for file in folder.glob("*token*"):
        file.unlink()
    for file in folder.glob("vocab*"):
        file.unlink()
    with pytest.raises(ArtifactError, match="has no tokenizer"):
        de.load_model(folder)


def test_a_tokenizer_of_another_model_is_refused(checkpoints: dict[str, Checkpoint], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(checkpoints["chinese_clip"].folder, tmp_path / "copy"))
    for file in checkpoints["metaclip_2"].folder.glob("*token*"):
        shutil.copy(file, folder)
    with pytest.raises(ArtifactError, match="tokenizer"):
        de.load_model(folder)


def test_configs_that_do_not_fit(checkpoints: dict[str, Checkpoint], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(checkpoints["siglip"].folder, tmp_path / "copy"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "siglip2"}))
    with pytest.raises(ArtifactError, match=r"NaFlex.*siglip2-base"):
        de.load_model(folder)
    (folder / "config.json").write_text(json.dumps(config))
    processor = json.loads((folder / "preprocessor_config.json").read_text())
    (folder / "preprocessor_config.json").write_text(json.dumps({**processor, "size": {"height": 40, "width": 40}}))
    with pytest.raises(ArtifactError, match=f"40 × 40 pixels.*takes {SIDE} × {SIDE}"):
        de.load_model(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(ArtifactError, match=r"no tokenizer_config\.json"):
        de.load_model(folder)


def test_a_scale_that_no_cosine_can_have(checkpoints: dict[str, Checkpoint], tmp_path: Path) -> None:
    for kind, name, value in (("align", "temperature", 0.0), ("siglip", "logit_scale", 1e4)):
        folder = Path(shutil.copytree(checkpoints[kind].folder, tmp_path / kind))
        tensors = load_file(folder / "model.safetensors")
        save_file({**tensors, name: torch.full_like(tensors[name], value)}, folder / "model.safetensors")
        with pytest.raises(ArtifactError, match=f"'{name}' is"):
            de.load_model(folder)


def test_fingerprints_tell_tokenizers_and_towers_apart(checkpoints: dict[str, Checkpoint], tmp_path: Path) -> None:
    """Pieces that are more or less likely cut words in another way."""
    prints = {checkpoint.model.fingerprint for checkpoint in checkpoints.values()}
    assert len(prints) == len(FAMILIES)
    folder = Path(shutil.copytree(checkpoints["siglip"].folder, tmp_path / "copy"))
    assert de.load_model(folder).fingerprint == checkpoints["siglip"].model.fingerprint
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    next(piece for piece in tokenizer["model"]["vocab"] if piece[0] == "▁zebra")[1] = -90.0
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert de.load_model(folder).fingerprint not in prints
