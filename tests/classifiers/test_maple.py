"""MaPLe: its towers and gradients against transformers in double precision, its settings, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import deltaenergy as de
from deltaenergy import Model
from deltaenergy.classifiers.base import Inputs
from deltaenergy.classifiers.coop import CoOp
from deltaenergy.classifiers.maple import Maple, MapleClassifier
from deltaenergy.errors import InputError
from deltaenergy.models.base import TowerModel
from deltaenergy.models.towers.causal_text import CausalTextTower
from deltaenergy.models.towers.clip import ClipModel
from deltaenergy.models.towers.prompts import LearnedPrompts
from deltaenergy.models.towers.vision import VisionTower
from deltaenergy.source import load_images
from deltaenergy.training.recipe import Recipe
from deltaenergy.tuning.prepare import TrainSet, prepare_training, prepare_validation
from deltaenergy.tuning.tune import fit
from tests.checkpoints import write_clip
from tests.classifiers.prompted_reference import Reference, double
from tests.labelled_pictures import CLASSES, write_pictures

BLOCKS = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_clip(tmp_path_factory.mktemp("maple") / "clip", layers=BLOCKS)


@pytest.fixture(scope="module")
def clip(folder: Path) -> TowerModel:
    """Four blocks: enough for a depth in between."""
    return de.load_model(folder)


@pytest.fixture(scope="module")
def reference(folder: Path) -> Reference:
    return Reference(folder)


@pytest.fixture(scope="module")
def vit_b16(tiny_clip: Any) -> ClipModel:
    """Towers of ViT-B/16 that have shapes alone."""
    from transformers import CLIPConfig, CLIPModel

    with torch.device("meta"):
        module: Any = CLIPModel(CLIPConfig(text_config={}, vision_config={"patch_size": 16}))
    model = object.__new__(ClipModel)
    model.name, model.feature_dim, model.device = "ViT-B/16", 512, torch.device("cpu")
    model.text = CausalTextTower(module.text_model, module.text_projection, tiny_clip.text.tokenizer)
    model.vision = VisionTower(module.vision_model, module.visual_projection)
    return model


def built(model: Any, method: Maple = Maple(), seed: int = 0) -> Any:  # noqa: B008 (settings are frozen)
    return method.build(model, CLASSES, SimpleNamespace(), torch.Generator().manual_seed(seed))  # type: ignore[arg-type]


def draw_pixels(count: int = 5) -> torch.Tensor:
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("depth", [1, 3, 4])
@pytest.mark.parametrize("tokens", [2, 4])
def test_similarities_and_gradients(clip: TowerModel, reference: Reference, depth: int, tokens: int) -> None:
    """CE and its gradient by every parameter, from transformers' own towers with the vectors put in by hand."""
    classifier = built(clip, Maple(depth=depth, tokens=tokens)).train().requires_grad_(True)
    pixels, labels = draw_pixels(), torch.tensor([0, 1, 2, 0, 1])
    outputs = classifier(Inputs(torch.zeros(5, 16), pixels=pixels))  # the frozen features must not be looked at
    loss = classifier.losses(outputs, SimpleNamespace(labels=labels))["ce"]
    found = torch.autograd.grad(loss, list(classifier.parameters()), allow_unused=depth == 1)

    p = double(classifier)
    contexts = [p["context"], *p["deep"]]
    image_tokens = torch.stack([v @ a.T + b for v, a, b in zip(contexts, p["maps"], p["biases"], strict=True)])
    between = " ".join(["a", "photo", "of", "a"][tokens:])
    texts = reference.texts(CLASSES, p["context"], p["deep"], between)
    features = reference.features(pixels, image_tokens)
    expected = nn.functional.cross_entropy(reference.scale * features @ texts.T, labels)
    gradients = torch.autograd.grad(expected, list(p.values()), allow_unused=depth == 1)

    torch.testing.assert_close(outputs.texts.double(), texts, atol=2e-6, rtol=0)
    torch.testing.assert_close(outputs.features.double(), features, atol=2e-6, rtol=0)
    torch.testing.assert_close(outputs.similarities.double(), features @ texts.T, atol=2e-6, rtol=0)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4)
    for name, mine, theirs in zip(p, found, gradients, strict=True):
        if p[name].numel():
            error = (mine.double() - theirs).abs().max() / theirs.abs().max()
            assert error < 1e-3, (name, error)


def test_gradients_reach_every_map(clip: TowerModel) -> None:
    classifier = built(clip).train().requires_grad_(True)
    assert classifier.depth == BLOCKS  # 9, but no more than there are
    similarities = classifier(Inputs(pixels=draw_pixels())).similarities
    nn.functional.cross_entropy(100 * similarities, torch.tensor([0, 1, 2, 0, 1])).backward()
    for parameter in (classifier.maps, classifier.biases, classifier.deep):
        assert parameter.grad.flatten(1).abs().amax(dim=1).min() > 0
    assert classifier.context.grad.abs().max() > 0


def test_it_begins_as_the_default_template_in_the_text_tower(clip: TowerModel) -> None:
    """`a photo` learned, `of a` fixed."""
    classifier = built(clip, Maple(depth=1))
    expected = de.ZeroShotClassifier(clip, CLASSES).text_features
    torch.testing.assert_close(classifier.text_features, expected, atol=1e-5, rtol=0)


def test_initial_maps(clip: TowerModel) -> None:
    classifier = built(clip)
    maps, biases = classifier.maps, classifier.biases
    assert not torch.equal(maps[0], maps[1])
    for block in range(2, BLOCKS):
        assert torch.equal(maps[block], maps[1]) and torch.equal(biases[block], biases[1])
    bound = 24**-0.5  # torch's Linear: uniform within 1/√columns, biases too
    for drawn in (maps[0], maps[1], biases[0], biases[1]):
        assert 0.8 * bound < drawn.abs().max() <= bound
        assert abs(drawn.mean()) < bound / 3
    assert 0.015 < classifier.deep.std() < 0.025


def test_the_parameters_of_vit_b16(vit_b16: ClipModel) -> None:
    """9 · (2 · 512) + 9 · (512 · 768 + 768)."""
    classifier = Maple().build_empty(vit_b16, CLASSES)
    assert sum(p.numel() for p in classifier.parameters()) == 3_555_072


def test_without_image_tokens_it_is_coop_with_fixed_words(
    tiny_clip: Any, train_set: TrainSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken out of the image tower, a depth of one is CoOp before "of a": the same context after the same steps."""
    monkeypatch.setattr(MapleClassifier, "image_tokens", lambda self: None)
    maple = built(tiny_clip, Maple(depth=1))
    coop: Any = CoOp(context_init="a photo").build(tiny_clip, CLASSES, train_set.images, torch.Generator())
    coop.prompts = LearnedPrompts(tiny_clip.text, CLASSES, 2, between="of a")
    for classifier in (maple, coop):
        recipe = {"epochs": 4, "lr": 0.002, "batch_size": 4}
        fit(classifier, train_set.images, generator=torch.Generator().manual_seed(7), recipe=recipe)
    torch.testing.assert_close(maple.context, coop.context, atol=1e-6, rtol=0)
    torch.testing.assert_close(maple.text_features, coop.text_features, atol=1e-6, rtol=0)
    assert (maple.context - built(tiny_clip, Maple(depth=1)).context).abs().max() > 1e-3


def test_tokens_of_value_zero_are_not_no_tokens(clip: TowerModel, reference: Reference) -> None:
    """They take attention."""
    classifier = built(clip)
    for parameter in classifier.parameters():
        parameter.data.zero_()
    classifier.eval()
    pixels = draw_pixels()
    found = classifier(Inputs(pixels=pixels)).features
    frozen = clip.image_features(pixels)
    assert (found - frozen).abs().max() > 1e-3
    expected = reference.features(pixels, torch.zeros(BLOCKS, 2, 32, dtype=torch.float64))
    torch.testing.assert_close(found.double(), expected, atol=2e-6, rtol=0)


def test_in_use_given_features_are_those_of_its_own_model(clip: TowerModel, coloured: Path) -> None:
    classifier = built(clip)
    assert classifier.model is not clip and classifier.base_model is clip and classifier.prompts_images
    assert classifier.model.fingerprint.startswith(f"{clip.fingerprint}+vision-prompts-")
    pixels = draw_pixels()
    features = classifier.model.image_features(pixels)
    by_pixels, by_features = classifier(Inputs(pixels=pixels)), classifier(Inputs(features))
    torch.testing.assert_close(by_features.similarities, by_pixels.similarities)
    images = load_images(coloured)
    expected = classifier.model.encode_images(images) @ classifier.text_features.numpy().T
    np.testing.assert_allclose(classifier.similarities(images), expected, atol=1e-6)
    # Other values, another model.
    before = classifier.model.fingerprint
    classifier.biases.data[0, 0] += 1
    assert classifier.eval().model.fingerprint != before


def test_depth_must_fit_the_towers(tiny_clip: Model, clip: TowerModel) -> None:
    assert built(tiny_clip).depth == 2 and built(clip, Maple(depth=3)).depth == 3
    with pytest.raises(InputError, match=r"maple: depth 3.* 2 blocks"):
        built(tiny_clip, Maple(depth=3))
    with pytest.raises(InputError, match=r"promptsrc: depth 3.* 2 blocks"):
        de.tune(tiny_clip, CLASSES, "not there", "promptsrc(depth=3,vision_tokens=0)")  # before any image is read
    with pytest.raises(InputError, match="maple: depth"):
        Maple(depth=-1)
    with pytest.raises(InputError, match="maple: tokens"):
        Maple(tokens=5)


def test_a_convolutional_model_is_refused_before_any_image_is_read(tmp_path: Path) -> None:
    message = (
        "maple puts learned tokens into the image encoder, which must be a vision transformer; 'lite' has a "
        "convolutional one."
    )
    with pytest.raises(InputError) as error:
        de.tune(de.load_model("lite"), CLASSES, tmp_path / "not there", "maple")
    assert str(error.value) == message


def test_a_step_that_cannot_fit_is_refused_before_any_image_is_read(clip: TowerModel, tmp_path: Path) -> None:
    message = r"maple would take about [\d,.]+ GB of memory \(.* GB for activations\).*smaller batches"
    with pytest.raises(InputError, match=message):
        de.tune(clip, CLASSES, tmp_path / "not there", "maple", shots=10**8, recipe={"batch_size": 10**8})


def test_the_estimate_of_vit_b16(vit_b16: ClipModel) -> None:
    """Batches of 4 of 1,000 images: 199 tokens each, 18 numbers of 4 bytes per unit of width and block."""
    found = Maple().estimate(vit_b16, CLASSES, 1000, [Recipe(batch_size=4, epochs=5)])
    assert found is not None
    assert found.memory == {"activations": 4 * 199 * 12 * 18 * 768 * 4}
    # Forth, and back to the activations alone: 24 W² per token and block.
    assert found.operations == pytest.approx(2 * 24 * 768**2 * 12 * 199 * 1000 * 5)
    # 32 images would leave 4 GB behind: what enters each block is kept, one block at a time is computed again.
    large = Maple().estimate(vit_b16, CLASSES, 1000, [Recipe(batch_size=32, epochs=5)])
    assert large is not None
    assert large.memory == {"activations": 32 * 199 * (12 * 768 * 4 + 18 * 768 * 4)}
    assert large.operations == pytest.approx(3 / 2 * found.operations)


def test_validation_sees_the_prompted_tower(clip: TowerModel, coloured: Path, tmp_path: Path) -> None:
    """The accuracy that is recorded is that of the classifier as it is served, on images of the test view."""
    held_out = write_pictures(tmp_path / "val", seed=5)
    classifier = de.tune(clip, CLASSES, coloured, "maple", shots=4, views=2, val=held_out, recipe={"epochs": 4})
    items = load_images(held_out)
    truth = [CLASSES.index(item.label.replace("_", " ")) for item in items if item.label]
    predicted = classifier.similarities(items).argmax(axis=1)
    assert classifier.record["validation"]["accuracy"] == pytest.approx(np.mean(predicted == truth))
    logs = classifier.record["epochs"]
    best = max(logs, key=lambda log: (log["val_accuracy"], -log["val_loss"]))
    assert classifier.record["kept_epoch"] == best["epoch"]
    assert classifier.record["validation"]["loss"] == pytest.approx(best["val_loss"], rel=1e-4)


def test_validation_features_of_the_bare_tower_are_refused(
    tiny_clip: Model, train_set: TrainSet, coloured: Path
) -> None:
    features_alone = prepare_validation(tiny_clip, CLASSES, coloured)
    with pytest.raises(InputError, match=r"maple.*validation images"):
        de.tune(tiny_clip, CLASSES, train_set, "maple", val=features_alone)


def test_training_features_alone_are_refused(tiny_clip: Model, coloured: Path) -> None:
    features_alone = prepare_training(tiny_clip, CLASSES, coloured, shots=2, views=1)
    with pytest.raises(InputError, match=r"maple.*training images"):
        de.tune(tiny_clip, CLASSES, features_alone, "maple")


def test_stored_features_to_train_on_are_refused(tiny_clip: TowerModel, coloured: Path, tmp_path: Path) -> None:
    store = de.build_store(tiny_clip, coloured, tmp_path / "store")
    rows = de.LabelledFeatures(tiny_clip.encode_images(coloured), [item.label or "" for item in load_images(coloured)])
    for stored, name in ((store, "store"), (rows, "LabelledFeatures")):
        with pytest.raises(InputError, match=f"maple.*pixels.*{name}"):
            de.tune(tiny_clip, CLASSES, stored, "maple", shots=4)


def test_live_views(tiny_clip: Model, coloured: Path) -> None:
    classifier = de.tune(tiny_clip, CLASSES, coloured, "maple", shots=2, views="live", recipe={"epochs": 2})
    assert classifier.prompts_images and len(classifier.record["epochs"]) == 2


def test_a_threshold_is_set_on_prompted_features(tiny_clip: Model, coloured: Path, tmp_path: Path) -> None:
    """By `tune_detector`, whose validation images were also encoded by the bare tower, and by fitted scores."""
    held_out = write_pictures(tmp_path / "val", seed=5)
    for score in ("mcm", "react"):
        options: dict[str, Any] = {"val": held_out, "views": 1, "recipe": {"epochs": 2}, "score": score, "shots": 2}
        tuned = de.tune_detector(tiny_clip, coloured, tmp_path / score, "maple", **options)
        again = de.Detector(tuned.detector.classifier, score).calibrate(held_out)
        np.testing.assert_allclose(tuned.detector.calibration_scores, again.calibration_scores, atol=1e-6)
        bare = de.Detector(de.ZeroShotClassifier(tiny_clip, CLASSES), score).calibrate(held_out)
        assert np.abs(again.calibration_scores - bare.calibration_scores).max() > 1e-4


def test_maps_begin_as_torch_s_linear_does(clip: TowerModel) -> None:
    """Uniform within ±1/√W, W the width of the text tower; those of deeper blocks are copies of one."""
    p = double(built(clip, Maple(depth=3)))
    bound = p["maps"].shape[2] ** -0.5
    for values in (p["maps"], p["biases"]):
        assert 0.8 * bound < values.abs().max() <= bound
    assert p["maps"].std().item() == pytest.approx(bound / 3**0.5, rel=0.1)
    assert torch.equal(p["maps"][1], p["maps"][2]) and not torch.equal(p["maps"][0], p["maps"][1])


def test_other_class_names_need_no_training(clip: TowerModel, reference: Reference) -> None:
    classifier = built(clip, Maple(depth=2))
    other = classifier.with_classes(["sketch", "blue dog"])
    p = double(classifier)
    expected = reference.texts(["sketch", "blue dog"], p["context"], p["deep"], "of a")
    torch.testing.assert_close(other.text_features.double(), expected.detach(), atol=2e-6, rtol=0)
    assert other.model.fingerprint == classifier.model.fingerprint
