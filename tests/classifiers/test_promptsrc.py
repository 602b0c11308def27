"""PromptSRC: its terms and its average against NumPy in double precision, its towers against transformers."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import deltaenergy as de
from deltaenergy import Model
from deltaenergy.classifiers.base import Inputs, Outputs, TrainBatch
from deltaenergy.classifiers.coop import CoOp
from deltaenergy.classifiers.methods import make_method
from deltaenergy.classifiers.promptsrc import PromptSrc, PromptSrcClassifier, epoch_weights
from deltaenergy.core.needs import Need
from deltaenergy.data.catalogue.class_names import template_ensemble
from deltaenergy.errors import InputError
from deltaenergy.tuning.prepare import TrainSet, prepare_training
from deltaenergy.tuning.tune import fit
from deltaenergy.tuning.views import CachedViews
from tests.classifiers.prompted_reference import Reference, double
from tests.labelled_pictures import CLASSES


@pytest.fixture(scope="module")
def reference(tiny_clip_folder: Path) -> Reference:
    return Reference(tiny_clip_folder)


def built(model: Any, method: PromptSrc = PromptSrc(), seed: int = 0) -> Any:  # noqa: B008 (settings are frozen)
    return method.build(model, CLASSES, SimpleNamespace(), torch.Generator().manual_seed(seed))  # type: ignore[arg-type]


def draw_pixels(count: int = 5) -> torch.Tensor:
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(3))


def unit_rows(rng: np.random.Generator, *shape: int) -> Any:
    drawn = rng.standard_normal(shape)
    return drawn / np.linalg.norm(drawn, axis=-1, keepdims=True)


def softmax(logits: Any) -> Any:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def losses_of(classifier: Any, z: Any, t: Any, frozen: Any, labels: list[int]) -> dict[str, float]:
    """The classifier's terms for given features and texts."""
    z, t, frozen = (torch.from_numpy(part).float() for part in (z, t, frozen))
    batch = TrainBatch(z, labels=torch.tensor(labels), frozen=frozen)
    return {name: float(term) for name, term in classifier.losses(Outputs(z @ t.T, z, t), batch).items()}


@pytest.mark.parametrize("kl", ["classes", "batch"])
def test_every_term_by_hand(tiny_clip: Model, kl: Any) -> None:
    rng = np.random.default_rng(1)
    method = PromptSrc(text_weight=3.0, image_weight=0.7, kl_weight=1.3, kl=kl)
    classifier = built(tiny_clip, method)
    scale = classifier.model.logit_scale
    # Near one another: at L = 100 far ones have probabilities that float32 cannot hold.
    z, t, z0 = (unit_rows(rng, 1, 16) + 0.02 * rng.standard_normal((count, 16)) for count in (5, 3, 5))
    frozen_texts = t + 0.02 * rng.standard_normal((3, 16))
    classifier.frozen_texts = torch.from_numpy(frozen_texts).float()
    labels = [0, 2, 1, 1, 0]
    p, p0 = softmax(scale * z @ t.T), softmax(scale * z0 @ frozen_texts.T)
    kl_mean = np.mean(np.sum(p0 * np.log(p0 / p), axis=1))
    assert kl_mean > 1e-3
    expected = {
        "ce": -np.mean(np.log(p[range(5), labels])),
        "|t−t⁰|": 3.0 * np.abs(t - frozen_texts).mean(),
        "|z−z⁰|": 0.7 * np.abs(z - z0).mean(),
        "KL": 1.3 * kl_mean / (3 if kl == "classes" else 1),
    }
    found = losses_of(classifier, z, t, z0, labels)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=2e-4), name


def test_the_papers_weights() -> None:
    method = PromptSrc()
    assert (method.text_weight, method.image_weight, method.kl_weight, method.kl) == (25, 10, 1, "classes")
    assert method.recipe == {"lr": 0.0025, "batch_size": 4, "epochs": 50}


def test_the_terms_vanish_at_the_frozen_model(tiny_clip: Model) -> None:
    """KL is that of p⁰ from p, so that it is 0 where they are equal, and the two distances are 0."""
    classifier = built(tiny_clip)
    rng = np.random.default_rng(2)
    z, t = unit_rows(rng, 4, 16), classifier.frozen_texts.double().numpy()
    found = losses_of(classifier, z, t, z, [0, 1, 2, 0])
    assert found["|t−t⁰|"] == found["|z−z⁰|"] == 0
    assert found["KL"] == pytest.approx(0, abs=1e-6)


def test_similarities_and_gradients_of_the_whole_loss(tiny_clip: Any, reference: Reference) -> None:
    """The loss and its gradient by every parameter, from transformers' own towers in double precision."""
    classifier = built(tiny_clip).train().requires_grad_(True)
    assert classifier.depth == 2
    pixels, labels = draw_pixels(), torch.tensor([0, 1, 2, 0, 1])
    frozen = tiny_clip.image_features(pixels)
    batch = TrainBatch(frozen, pixels=pixels, labels=labels, frozen=frozen)
    outputs = classifier(batch)
    loss = torch.stack(list(classifier.losses(outputs, batch).values())).sum()
    found = torch.autograd.grad(loss, list(classifier.parameters()))

    p = double(classifier)
    texts = reference.texts(CLASSES, p["context"], p["deep"])
    features, z0 = reference.features(pixels, p["tokens"]), reference.features(pixels)
    t0 = classifier.frozen_texts.double()
    log_p = torch.log_softmax(reference.scale * features @ texts.T, dim=1)
    log_p0 = torch.log_softmax(reference.scale * z0 @ t0.T, dim=1)
    expected = (
        -log_p[range(5), labels].mean()
        + 25 * (texts - t0).abs().sum() / (3 * 16)
        + 10 * (features - z0).abs().sum() / (5 * 16)
        + (log_p0.exp() * (log_p0 - log_p)).sum() / 5 / 3
    )
    gradients = torch.autograd.grad(expected, list(p.values()))
    torch.testing.assert_close(outputs.similarities.double(), features @ texts.T, atol=2e-6, rtol=0)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4)
    for name, mine, theirs in zip(p, found, gradients, strict=True):
        error = (mine.double() - theirs).abs().max() / theirs.abs().max()
        assert error < 1e-3, (name, error)


def test_frozen_texts_are_the_mean_of_sixty_templates_before_normalisation(
    tiny_clip: Model, reference: Reference
) -> None:
    templates = template_ensemble("imagenet")[:60]
    # The ends of the released list, and some that it does not hold.
    assert {"a photo of a {}.", "a bad photo of a {}.", "the origami {}.", "itap of the {}."} <= set(templates)
    assert not {"a jpeg corrupted photo of the {}.", "a tattoo of the {}.", "itap of a {}."} & set(templates)
    expected = []
    for name in CLASSES:
        tokens = reference.tokenizer([t.replace("{}", name) for t in templates], padding="max_length", max_length=77)
        ids = torch.tensor(tokens["input_ids"])
        ends = (ids == reference.tokenizer.eos_token_id).int().argmax(dim=1)
        hidden = reference.clip.text_model(input_ids=ids).last_hidden_state
        mean = reference.clip.text_projection(hidden[torch.arange(60), ends]).mean(dim=0)
        expected.append(mean / mean.norm())
    found = built(tiny_clip).frozen_texts
    torch.testing.assert_close(found.double(), torch.stack(expected), atol=2e-6, rtol=0)


def test_initial_values(tiny_clip: Any) -> None:
    classifier = built(tiny_clip)
    (ids,) = tiny_clip.text.tokenize(["a photo of a"])
    assert torch.equal(classifier.context, tiny_clip.text.embedding_weight[ids[1:-1]])
    assert classifier.deep.shape == (1, 4, 24) and classifier.tokens.shape == (2, 4, 32)
    for drawn in (classifier.deep, classifier.tokens):
        assert 0.015 < drawn.std() < 0.025
    assert not classifier.state_dict().keys() & {"frozen_texts", "seen_weight", "sum_of_tokens"}


@given(
    st.integers(1, 60),
    st.floats(0, 1.5),
    st.floats(0.01, 50),
)
def test_epoch_weights(epochs: int, mean: float, deviation: float) -> None:
    found = np.array(epoch_weights(epochs, mean, deviation))
    assert found.sum() == pytest.approx(1) and (found >= 0).all()
    e = np.arange(1, epochs + 1, dtype=np.float64)
    exponents = -0.5 * ((e - mean * epochs) / (deviation * epochs)) ** 2
    plain = np.exp(exponents - exponents.max())
    np.testing.assert_allclose(found, plain / plain.sum(), atol=1e-9)


def test_narrow_weights_pick_an_epoch_and_wide_ones_average() -> None:
    np.testing.assert_allclose(epoch_weights(10, 0.6, 1e-6), np.eye(10)[5])
    np.testing.assert_allclose(epoch_weights(10, 0.62, 1e-9), np.eye(10)[5])  # the nearest, where none is at μ
    np.testing.assert_allclose(epoch_weights(10, 0.6, 1e6), np.full(10, 0.1))
    # (30, 30) of 50 epochs: w_e ∝ exp(−½((e − 30)/30)²).
    powers = [math.exp(-0.5 * ((e - 30) / 30) ** 2) for e in range(1, 51)]
    np.testing.assert_allclose(epoch_weights(50, 0.6, 0.6), np.array(powers) / sum(powers))


def test_the_average_is_served(tiny_clip: Model, train_set: TrainSet, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []
    end_epoch = PromptSrcClassifier.end_epoch

    def watched(self: PromptSrcClassifier, epoch: int, epochs: int) -> None:
        seen.append({name: p.detach().double().numpy() for name, p in self.named_parameters()})
        end_epoch(self, epoch, epochs)

    monkeypatch.setattr(PromptSrcClassifier, "end_epoch", watched)
    method = "promptsrc(gpa=[0.5,0.3])"
    served = de.tune(tiny_clip, CLASSES, train_set, method, val=None, recipe={"epochs": 4})
    e = np.arange(1, 5)
    weights = np.exp(-0.5 * ((e - 2) / 1.2) ** 2)
    weights /= weights.sum()
    assert len(seen) == 4
    for name, tensor in served.named_parameters():
        expected = sum(w * epoch[name] for w, epoch in zip(weights, seen, strict=True))
        np.testing.assert_allclose(tensor.double().numpy(), expected, atol=1e-6)
        assert np.abs(expected - seen[-1][name]).max() > 1e-4
    # What is served is what its model and texts were made of.
    assert served.model.vision_prompts is not None  # type: ignore[attr-defined]
    assert torch.equal(served.model.vision_prompts, served.get_parameter("tokens"))  # type: ignore[attr-defined]


@pytest.mark.filterwarnings("ignore:.*are trained on, too")
def test_validation_does_not_choose_the_epoch(tiny_clip: Model, coloured: Path, train_set: TrainSet) -> None:
    options: dict[str, Any] = {"recipe": {"epochs": 3, "patience": 1}, "seed": 4}
    alone = de.tune(tiny_clip, CLASSES, train_set, "promptsrc", **options)
    judged = de.tune(tiny_clip, CLASSES, train_set, "promptsrc", val=coloured, **options)
    assert len(judged.record["epochs"]) == 3  # whatever validation says
    for name, tensor in alone.state_dict().items():
        assert torch.equal(tensor, judged.state_dict()[name]), name


def test_an_early_end_divides_by_the_weights_that_were_seen(tiny_clip: Model) -> None:
    classifier = built(tiny_clip, PromptSrc(gpa=(0.5, 0.2)))
    seen = []
    for epoch in (1, 2, 3):
        classifier.context.data.fill_(float(epoch))
        classifier.end_epoch(epoch, 10)
        seen.append(math.exp(-0.5 * ((epoch - 5) / 2) ** 2))
    classifier.end_stage()
    expected = sum(w * e for w, e in zip(seen, (1, 2, 3), strict=True)) / sum(seen)
    np.testing.assert_allclose(classifier.context.detach().numpy(), expected, rtol=1e-5)


def test_without_weights_and_depth_it_is_coop(tiny_clip: Any, train_set: TrainSet) -> None:
    """Texts alone, no regularisation, the last epoch: the same context after the same steps."""
    method = PromptSrc(depth=1, vision_tokens=0, text_weight=0, image_weight=0, kl_weight=0, gpa=(1.0, 1e-9))
    mine = built(tiny_clip, method)
    coop: Any = CoOp(context_init="a photo of a").build(tiny_clip, CLASSES, train_set.images, torch.Generator())
    for classifier in (mine, coop):
        recipe = {"epochs": 4, "lr": 0.002, "batch_size": 4}
        fit(classifier, train_set.images, generator=torch.Generator().manual_seed(7), recipe=recipe)
    torch.testing.assert_close(mine.context, coop.context, atol=1e-6, rtol=0)
    torch.testing.assert_close(mine.text_features, coop.text_features, atol=1e-6, rtol=0)


def test_without_image_tokens_cached_features_serve(tiny_clip: Model, coloured: Path) -> None:
    method = make_method("promptsrc(vision_tokens=0)")
    assert method.needs_to_train == {Need.FEATURES} and make_method("promptsrc").needs_to_train == {Need.PIXELS}
    features = prepare_training(tiny_clip, CLASSES, coloured, shots=2, views=2, needs=method.needs_to_train)
    assert isinstance(features.images, CachedViews) and features.images.pixels is None
    classifier = de.tune(tiny_clip, CLASSES, features, method, recipe={"epochs": 2})
    assert classifier.model is tiny_clip and not classifier.prompts_images
    batch = features.images.batch(torch.arange(4), 0, torch.Generator().manual_seed(0))
    terms = classifier.train().losses(classifier(batch), batch)
    assert float(terms["|z−z⁰|"]) == 0 and float(terms["|t−t⁰|"]) > 0
    with pytest.raises(InputError, match="promptsrc needs pixels"):
        de.tune(tiny_clip, CLASSES, features, "promptsrc")


def test_a_convolutional_model_learns_texts_alone(coloured: Path) -> None:
    lite = de.load_model("lite")
    message = (
        "promptsrc puts learned tokens into the image encoder, which must be a vision transformer; 'lite' has a "
        "convolutional one."
    )
    with pytest.raises(InputError) as error:
        de.tune(lite, CLASSES, coloured, "promptsrc")
    assert str(error.value) == message
    classifier = de.tune(
        lite, CLASSES, coloured, "promptsrc(vision_tokens=0)+ebm", shots=2, views=1, recipe={"epochs": 2}
    )
    assert classifier.similarities(coloured).shape == (18, 3)
    # 9, but no more blocks than there are.
    assert classifier.get_parameter("deep").shape[0] + 1 == lite.text.blocks


def test_ebm_reaches_the_tokens_and_the_contexts(tiny_clip: Any) -> None:
    """The masked feature is the prompted one, with its gradient; the mask has none."""
    method: Any = make_method("promptsrc+ebm(weight=2,p=0.5)")
    classifier = method.build(tiny_clip, CLASSES, SimpleNamespace(), torch.Generator().manual_seed(0))
    classifier.train().requires_grad_(True)
    pixels = draw_pixels()
    batch = TrainBatch(torch.zeros(5, 16), pixels=pixels, labels=torch.zeros(5, dtype=torch.long))
    outputs = classifier(batch)
    value, _ = method.terms[0](outputs, batch)
    gradients = torch.autograd.grad(value, [classifier.tokens, classifier.deep, classifier.context])
    assert all(gradient.abs().max() > 0 for gradient in gradients)

    z, t = outputs.features, outputs.texts
    product = (z * t[(z @ t.T).argmax(dim=1)]).detach()
    mask = (product >= product.sort(dim=1, descending=True).values[:, 7:8]).float()  # the 8 largest of 16
    change = torch.logsumexp(z @ t.T, dim=1) - torch.logsumexp((z * mask) @ t.T, dim=1)
    expected = 2 * change.mean().exp()
    assert value.item() == pytest.approx(expected.item(), rel=1e-5)
    again = classifier(batch)
    z, t = again.features, again.texts
    change = torch.logsumexp(z @ t.T, dim=1) - torch.logsumexp((z * mask) @ t.T, dim=1)
    by_hand = torch.autograd.grad(2 * change.mean().exp(), [classifier.tokens, classifier.deep, classifier.context])
    for mine, theirs in zip(gradients, by_hand, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=1e-3)


def test_in_use_features_are_those_of_its_own_model(tiny_clip: Any) -> None:
    classifier = built(tiny_clip)
    pixels = draw_pixels()
    features = classifier.model.image_features(pixels)
    assert (features - tiny_clip.image_features(pixels)).abs().max() > 1e-3
    by_pixels, by_features = classifier(Inputs(pixels=pixels)), classifier(Inputs(features))
    torch.testing.assert_close(by_features.similarities, by_pixels.similarities)


def test_presets_are_the_released_shares() -> None:
    for name, shares in {"few-shot": (0.6, 0.6), "fine-grained": (0.9, 0.1), "base-to-new": (0.75, 0.05)}.items():
        method = make_method(f"promptsrc:{name}")
        assert isinstance(method, PromptSrc) and method.gpa == shares
        assert make_method(method.spec) == method
    assert PromptSrc() == make_method("promptsrc:few-shot")
    assert [c.spec for c in PromptSrc().candidates(3)] == ["promptsrc", "promptsrc:fine-grained"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gpa": (0.6,)}, r"gpa must be .*got \(0\.6,\)"),
        ({"gpa": (0.6, 0.0)}, "gpa must be"),
        ({"gpa": (-1.0, 0.1)}, "gpa must be"),
        ({"vision_tokens": -1}, "vision_tokens"),
        ({"text_weight": -1.0}, "text_weight must be"),
        ({"kl": "images"}, "kl must be"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        PromptSrc(**settings)


def test_a_batch_without_the_frozen_features_is_refused(tiny_clip: Model, train_set: TrainSet) -> None:
    classifier = built(tiny_clip)
    batch = train_set.images.batch(torch.arange(2), 0, torch.Generator().manual_seed(0))
    with pytest.raises(InputError, match="frozen model's features"):
        classifier.losses(classifier(batch), dataclasses.replace(batch, frozen=None))
