"""The bundled model: files, features, prompts, and a guard on its quality."""

from __future__ import annotations

import csv
import hashlib
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import deltaenergy as de
from deltaenergy.errors import ArtifactError
from deltaenergy.models.lite.model import FOLDER, LiteModel, _say_what_it_is, load_lite
from deltaenergy.models.lite.network import EfficientNetLite0, SameConv2d, fold_norms, load_network

TEMPLATE = "a photo of a {}."


@pytest.fixture(scope="module")
def lite() -> LiteModel:
    model = de.load_model("lite")
    assert isinstance(model, LiteModel)
    return model


@pytest.fixture(scope="module")
def photographs() -> dict[str, Image.Image]:
    """The photographs that scikit-image and scikit-learn carry."""
    data = pytest.importorskip("skimage.data")
    datasets = pytest.importorskip("sklearn.datasets")
    return {
        "cat": Image.fromarray(data.chelsea()),
        "cup of coffee": Image.fromarray(data.coffee()),
        "rocket": Image.fromarray(data.rocket()),
        "flower": Image.fromarray(datasets.load_sample_image("flower.jpg")),
        "temple": Image.fromarray(datasets.load_sample_image("china.jpg")),
        "motorcycle": Image.fromarray(data.stereo_motorcycle()[0]),
    }


def classify(model: LiteModel, images: list[Image.Image], names: list[str]) -> list[str]:
    texts = model.encode_texts([TEMPLATE.format(name) for name in names])
    return [names[k] for k in (model.encode_images(images) @ texts.T).argmax(1)]


def test_same_padding_matches_a_direct_computation() -> None:
    conv = SameConv2d(1, 1, 3, 2, bias=False)
    with torch.no_grad():
        conv.weight.fill_(1.0)
    # 4 × 4 ones, stride 2: one row and column of zeros are needed, and stand at the end.
    assert conv(torch.ones(1, 1, 4, 4)).flatten().tolist() == [9.0, 6.0, 6.0, 4.0]


def test_image_tower_has_the_published_shape() -> None:
    network = load_network()
    assert isinstance(network, EfficientNetLite0)
    assert sum(p.numel() for p in network.parameters()) == pytest.approx(4.65e6, rel=0.01)
    assert network.feature_map(torch.zeros(1, 3, 224, 224)).shape == (1, 1280, 7, 7)


def test_folding_the_norms_changes_nothing_but_rounding() -> None:
    plain, folded = load_network(), load_network()
    fold_norms(folded)
    pixels = torch.randn(3, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected, actual = plain.feature_map(pixels), folded.feature_map(pixels)
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)
    assert not any(isinstance(module, torch.nn.BatchNorm2d) for module in folded.modules())


def test_image_tower_recognises_photographs_by_its_own_head(
    lite: LiteModel, photographs: dict[str, Image.Image]
) -> None:
    pixels = torch.from_numpy(np.stack([lite.preprocessing(photographs[k]) for k in ("cat", "cup of coffee")]))
    top = lite.towers.network(pixels).topk(5).indices.tolist()
    assert {281, 282, 285} & set(top[0])  # tabby, tiger cat, Egyptian cat
    assert {967, 504} & set(top[1])  # espresso, coffee mug


def test_files_are_small() -> None:
    assert (FOLDER / "weights.safetensors").stat().st_size <= 20e6
    assert (FOLDER / "image_tower.safetensors").stat().st_size <= 19e6
    assert sum(file.stat().st_size for file in FOLDER.iterdir() if file.is_file()) <= 40e6


def test_features_are_unit_and_of_the_stated_length(lite: LiteModel, photographs: dict[str, Image.Image]) -> None:
    images = lite.encode_images(list(photographs.values()))
    texts = lite.encode_texts(["a dog", "", "日本の犬 🐕", "x" * 40])
    for features in (images, texts):
        assert features.shape[1] == lite.feature_dim == 512
        np.testing.assert_allclose(np.linalg.norm(features, axis=1), 1, atol=1e-5)


def test_patch_features_share_the_space(lite: LiteModel, photographs: dict[str, Image.Image]) -> None:
    pixels = torch.from_numpy(lite.preprocessing(photographs["cat"]))[None]
    image, patches = lite.image_and_patch_features(pixels)
    assert patches.shape == (1, 49, 512)
    torch.testing.assert_close(patches.norm(dim=-1), torch.ones(1, 49))
    torch.testing.assert_close(image, lite.image_features(pixels))
    texts = torch.from_numpy(lite.encode_texts(["a photo of a cat.", "a photo of a truck."]))
    share = ((patches[0] @ texts.T).argmax(1) == 0).float().mean()
    assert share > 0.7


def test_image_features_have_gradients(lite: LiteModel) -> None:
    pixels = torch.rand(1, 3, 224, 224, requires_grad=True)
    lite.image_features(pixels)[0, :8].sum().backward()
    assert pixels.grad is not None
    assert pixels.grad.abs().max() > 0


def test_results_do_not_depend_on_the_batch(lite: LiteModel, photographs: dict[str, Image.Image]) -> None:
    images = list(photographs.values())
    together = lite.encode_images(images)
    alone = np.concatenate([lite.encode_images([image]) for image in images])
    np.testing.assert_allclose(together, alone, atol=1e-4)
    texts = ["dog", "a photo of a very small and rather unusual dog on a red sofa.", "cat"]
    fresh = load_lite(torch.device("cpu"), torch.float32)
    np.testing.assert_allclose(
        lite.encode_texts(texts), np.concatenate([fresh.encode_texts(text) for text in texts]), atol=1e-5
    )


def as_in_transformers(lite: LiteModel) -> Any:
    """The same weights in transformers' own module."""
    from transformers import CLIPTextConfig, CLIPTextModelWithProjection

    module = CLIPTextModelWithProjection(CLIPTextConfig(**lite.towers.text.config)).eval()
    module.load_state_dict(lite.towers.text.state_dict())
    return module


def test_texts_and_tokens_are_those_of_transformers(lite: LiteModel) -> None:
    from transformers import PreTrainedTokenizerFast

    theirs = PreTrainedTokenizerFast.from_pretrained(str(FOLDER))
    texts = ["dog", "a photo of a zebra.", "naïve  café", "日本 🐕", "x" * 80, "", "<|endoftext|> dog"]
    ours = lite.text.tokenizer
    for special in (True, False):
        assert (
            ours(texts, add_special_tokens=special)["input_ids"]
            == theirs(texts, add_special_tokens=special)["input_ids"]
        )
    assert (ours.bos_token_id, ours.eos_token_id, ours.pad_token_id) == (
        theirs.bos_token_id,
        theirs.eos_token_id,
        theirs.pad_token_id,
    )
    assert ours.get_vocab() == theirs.get_vocab() and ours.get_added_vocab() == theirs.get_added_vocab()
    module = as_in_transformers(lite)
    with torch.inference_mode():
        for text in texts[:4]:
            row = torch.tensor([lite.text.tokenize([text])[0]])
            expected = lite.text.finish(module(input_ids=row).text_embeds)
            torch.testing.assert_close(torch.from_numpy(lite.encode_texts([text])), expected, atol=2e-6, rtol=1e-5)


def test_loading_it_takes_no_transformers() -> None:
    """Nor torch's compiler: either import takes seconds."""
    code = "import sys, deltaenergy as de; de.load_model('lite').encode_texts(['dog']); print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"transformers", "torch._dynamo"} & set(found.stdout.split())


def test_text_tower_is_causal_and_pools_at_the_first_end_token(lite: LiteModel) -> None:
    tower = as_in_transformers(lite)
    row = lite.text.tokenize(["a photo of a dog."])[0]
    end = lite.text.tokenizer.eos_token_id
    assert row[-1] == end == tower.config.eos_token_id != 2
    padded = torch.tensor([[*row, end, end], [*row, 5, 17]])
    with torch.inference_mode():
        hidden = tower.text_model(input_ids=padded).last_hidden_state
        torch.testing.assert_close(hidden[0, : len(row)], hidden[1, : len(row)])
        projected = tower(input_ids=padded).text_embeds
        ours = torch.from_numpy(lite.encode_texts("a photo of a dog."))
    torch.testing.assert_close(projected[0], projected[1])
    torch.testing.assert_close(lite.text.finish(projected[:1]), ours)


def test_no_text_is_unknown_to_the_tokenizer(lite: LiteModel) -> None:
    end = lite.text.tokenizer.eos_token_id
    for text in ("naïve café", "Ωμέγα", "犬", "🐕", "a\tb\n c", "\x00\x7f", "½ × 3"):
        assert end not in lite.text.tokenize([text])[0][:-1]
    assert lite.text.tokenize(["A  Photo of\na DOG"]) == lite.text.tokenize(["a photo of a dog"])


def test_image_weights_are_the_published_ones() -> None:
    """Names, shapes, bits and the order in memory, which decides the last bits of features."""
    network, digest = load_network(), hashlib.sha256()
    for name, tensor in sorted(network.state_dict().items()):
        digest.update(f"{name}{tensor.dtype}{tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    assert digest.hexdigest() == "14b47de7fc5c4d88911d147e9e47744da3eda2ba46686147f06af0b84945f33f"
    assert network._fc.weight.stride() == (1, 1000)


@pytest.mark.parametrize("length", [4, 16])
def test_random_context_vectors_leave_names_recognisable(lite: LiteModel, length: int) -> None:
    """Prompt learning starts from N(0, 0.02²) vectors in place of "a photo of a"."""
    names = ["dog", "cat", "truck", "airplane", "pizza", "chair", "guitar", "snake", "boat", "bird"]
    transformer = as_in_transformers(lite).text_model
    context = 0.02 * torch.randn(length, lite.text.width, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        found = []
        for name in names:
            embedded = transformer.embeddings.token_embedding(torch.tensor(lite.text.tokenize([f"{name}."])[0]))
            embedded = torch.cat([embedded[:1], context, embedded[1:]])[None]
            hidden = transformer.embeddings(inputs_embeds=embedded)
            mask = torch.full((hidden.shape[1],) * 2, float("-inf")).triu(1)[None, None]
            for layer in transformer.encoder.layers:
                output = layer(hidden, attention_mask=mask)
                hidden = output[0] if isinstance(output, tuple) else output
            pooled = transformer.final_layer_norm(hidden[:, -1])
            found.append(lite.text.finish(lite.text.projection(pooled)))
    plain = torch.from_numpy(lite.encode_texts([TEMPLATE.format(name) for name in names]))
    similarity = torch.cat(found) @ plain.T
    assert similarity.argmax(1).tolist() == list(range(len(names)))


def test_photographs_get_sensible_names(lite: LiteModel, photographs: dict[str, Image.Image]) -> None:
    names = [*photographs, "dog", "horse", "airplane", "pizza", "chair", "forest", "bicycle", "fish"]
    found = classify(lite, list(photographs.values()), names)
    right = sum(a == b for a, b in zip(found, photographs))
    assert right >= 5, found


def test_cosines_are_in_the_range_of_clip(lite: LiteModel, photographs: dict[str, Image.Image]) -> None:
    texts = lite.encode_texts([TEMPLATE.format(name) for name in photographs])
    similarity = lite.encode_images(list(photographs.values())) @ texts.T
    diagonal = np.eye(len(similarity), dtype=bool)
    assert 0.2 < similarity[diagonal].mean() < 0.4
    assert 0.14 < similarity[~diagonal].mean() < 0.21


def test_results_are_the_same_on_every_machine(lite: LiteModel, photographs: dict[str, Image.Image]) -> None:
    """Stored when the weights were made."""
    images = [photographs["cat"], photographs["cup of coffee"]]
    similarity = lite.encode_images(images) @ lite.encode_texts(["a photo of a cat.", "a cup of coffee", "rocket"]).T
    expected = [[0.3147, 0.1692, 0.1661], [0.1582, 0.3074, 0.1912]]
    np.testing.assert_allclose(similarity, expected, atol=1e-3)


def test_fingerprint_names_the_weights(lite: LiteModel) -> None:
    """Recorded when the image tower was still read from the pickle that its authors published."""
    assert lite.fingerprint == "0dbaae3392525690c5bcde561084b2bf"
    assert lite.describe()["name"] == "lite"


def test_loading_needs_no_network_and_says_what_the_model_is_not(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("network is unreachable")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    _say_what_it_is.cache_clear()
    for _ in range(2):
        assert de.load_model("lite").feature_dim == 512
    said = [record for record in caplog.records if "demo model" in record.message]
    assert len(said) == 1


def names_of_imagenet() -> list[str]:
    with (FOLDER.parents[1] / "data" / "catalogue" / "names" / "imagenet.csv").open(encoding="utf-8") as file:
        return [row["name"] for row in csv.DictReader(file)]


def test_quality_on_imagenet_pictures(lite: LiteModel, shared_data: Path) -> None:
    names = names_of_imagenet()
    folders = sorted((shared_data / "images" / "imagenet_one_per_class").iterdir())
    chosen = list(range(1, 1000, 10))  # classes of odd index, which no part of the training has seen
    images = [str(next(iter(sorted(folders[i].iterdir())))) for i in chosen]
    texts = lite.encode_texts([TEMPLATE.format(name) for name in names])
    similarity = lite.encode_images(images) @ texts.T
    assert (similarity.argmax(1) == chosen).mean() >= 0.68
    assert 0.25 <= similarity.max(1).mean() <= 0.40
    assert 0.15 <= similarity.mean() <= 0.20


def test_quality_on_pets(lite: LiteModel, shared_data: Path) -> None:
    folders = sorted((shared_data / "images" / "oxford_pets").iterdir())
    images = [(k, str(file)) for k, folder in enumerate(folders) for file in sorted(folder.iterdir())[:3]]
    texts = lite.encode_texts([TEMPLATE.format(folder.name.replace("_", " ")) for folder in folders])
    found = (lite.encode_images([file for _, file in images]) @ texts.T).argmax(1)
    assert (found == [k for k, _ in images]).mean() >= 0.5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop("head.look"), r"head\.look"),
        (lambda tensors: tensors.update({"head.more": torch.ones(2)}), r"head\.more"),
        (lambda tensors: tensors["head.look"].fill_(float("nan")), r"head\.look"),
    ],
    ids=["missing", "more", "nan"],
)
def test_weights_that_are_not_its_own(
    change: Callable[[dict[str, torch.Tensor]], object],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = Path(shutil.copytree(FOLDER, tmp_path / "lite"))
    tensors = load_file(folder / "weights.safetensors")
    change(tensors)
    save_file(tensors, folder / "weights.safetensors")
    monkeypatch.setattr("deltaenergy.models.lite.model.FOLDER", folder)
    with pytest.raises(ArtifactError, match=message):
        load_lite(torch.device("cpu"), torch.float32)


def test_loading_uses_up_no_random_numbers() -> None:
    torch.manual_seed(3)
    load_lite(torch.device("cpu"), torch.float32)
    after = torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(after, torch.rand(1))
