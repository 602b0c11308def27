"""dplclip: the network and its means against float64 NumPy, the three ways to serve, and the released form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import deltaenergy as de
from deltaenergy import Model
from deltaenergy.classifiers.base import Inputs, TrainBatch
from deltaenergy.classifiers.coop import CoOp
from deltaenergy.classifiers.dplclip import DplClip, DplClipClassifier
from deltaenergy.classifiers.methods import make_method
from deltaenergy.classifiers.randomness import dropout
from deltaenergy.errors import InputError
from deltaenergy.evaluation.results import provenance_of
from deltaenergy.models.towers.prompts import LearnedPrompts
from deltaenergy.report.html import Markup
from deltaenergy.report.page import provenance_section
from deltaenergy.scoring import score_images
from deltaenergy.source import as_source
from deltaenergy.tuning.tune import fit
from deltaenergy.tuning.views import CachedViews, Domains, Validation
from tests.labelled_pictures import CLASSES

# Uneven: 6, 4 and 2 images.
UNEVEN = torch.tensor([0, 1, 0, 2, 0, 1, 0, 1, 0, 2, 0, 1])


@pytest.fixture(scope="module")
def images(train_set: Any) -> CachedViews:
    found = train_set.images
    return CachedViews(found.features[:, :1], found.labels, domains=Domains(UNEVEN, ("art", "photo", "sketch")))


def built(model: Model, images: CachedViews, **settings: Any) -> DplClipClassifier:
    made = DplClip(**settings).build(model, CLASSES, images, torch.Generator().manual_seed(3))
    assert isinstance(made, DplClipClassifier)
    return made


def in_training(model: Model, images: CachedViews, **settings: Any) -> tuple[DplClipClassifier, TrainBatch]:
    classifier = built(model, images, **settings).train()
    classifier.generator = torch.Generator().manual_seed(5)
    return classifier, images.batch(torch.arange(12), 0, torch.Generator())


def network(classifier: DplClipClassifier, rows: Any, masks: Any = (1, 1)) -> Any:
    """MLP in float64: linear, dropout, relu, twice; then linear."""
    t = {name: p.detach().double().numpy() for name, p in classifier.named_parameters()}
    x = classifier.method.input_scale * np.asarray(rows, dtype=np.float64)
    x = np.maximum((x @ t["w1"].T + t["b1"]) * masks[0], 0)
    x = np.maximum((x @ t["w2"].T + t["b2"]) * masks[1], 0)
    return (x @ t["w3"].T + t["b3"]).reshape(len(x), *classifier.context.shape)


def texts_of(model: Model, context: Any) -> Any:
    prompts = LearnedPrompts(model.text, CLASSES, len(context))  # type: ignore[arg-type]
    return prompts(torch.as_tensor(context, dtype=torch.float32)).double().numpy()


def cross_entropy(logits: Any, labels: Any) -> float:
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return float(-log_p[np.arange(len(labels)), labels].mean())


def test_begins_with_xavier_weights_and_small_biases(tiny_clip: Model, images: CachedViews) -> None:
    classifier = built(tiny_clip, images)
    shapes = {name: tuple(p.shape) for name, p in classifier.named_parameters()}
    w = 16 * 24
    assert shapes == {
        "w1": (512, 16), "w2": (512, 512), "w3": (w, 512), "b1": (512,), "b2": (512,), "b3": (w,)
    }  # fmt: skip
    for weight in (classifier.w1, classifier.w2, classifier.w3):
        bound = (6 / sum(weight.shape)) ** 0.5
        assert 0.95 * bound < weight.abs().max() <= bound
        assert weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.03)
    for bias in (classifier.b1, classifier.b2, classifier.b3):
        assert (bias == 0.01).all()


def test_without_an_output_layer_the_context_is_its_bias(tiny_clip: Model, images: CachedViews) -> None:
    classifier, batch = in_training(tiny_clip, images)
    classifier.w3.data.zero_()
    expected = torch.full((12, 16, 24), 0.01)
    torch.testing.assert_close(classifier.contexts(batch.features), expected, atol=0, rtol=0)  # type: ignore[arg-type]


@pytest.mark.parametrize("as_released", [False, True])
def test_a_training_step_against_numpy(tiny_clip: Model, images: CachedViews, as_released: bool) -> None:
    """The dropout masks are drawn again from a generator of the same seed; all else is written down anew."""
    classifier, batch = in_training(tiny_clip, images, dropout=0.3, as_released=as_released)
    outputs = classifier(batch)
    found = classifier.losses(outputs, batch)
    draws = torch.Generator().manual_seed(5)
    masks = [(torch.rand(12, 512, generator=draws) >= 0.3).double().numpy() / 0.7 for _ in range(2)]
    z, y = batch.features.double().numpy(), batch.labels.numpy()  # type: ignore[union-attr]
    contexts = network(classifier, z, masks)
    texts = [texts_of(tiny_clip, contexts[UNEVEN.numpy() == e].mean(axis=0)) for e in range(3)]
    if as_released:
        logits = z @ np.concatenate(texts).T
        assert outputs.texts.shape == (9, 16)
    else:
        logits = np.stack([texts[e] @ row for e, row in zip(UNEVEN.tolist(), z)])
        assert outputs.texts.shape == (12, 3, 16)
    np.testing.assert_allclose(outputs.similarities.detach().numpy(), logits, atol=1e-5)
    expected = cross_entropy(tiny_clip.logit_scale * logits, y)
    assert set(found) == {"ce"} and found["ce"].item() == pytest.approx(expected, rel=1e-4)


def test_with_one_domain_the_released_loss_is_the_same(tiny_clip: Model, images: CachedViews) -> None:
    alone = CachedViews(images.features, images.labels)
    losses = []
    for as_released in (False, True):
        with pytest.warns(UserWarning, match=r"dplclip.*'train'"):
            classifier, batch = in_training(tiny_clip, alone, as_released=as_released)
        losses.append(classifier.losses(classifier(batch), batch)["ce"].item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


@pytest.mark.parametrize("as_released", [False, True])
def test_the_order_of_domains_matters_as_released_only(
    tiny_clip: Model, images: CachedViews, as_released: bool
) -> None:
    losses = []
    for numbers in (UNEVEN, (UNEVEN + 1) % 3):
        named = CachedViews(images.features, images.labels, domains=Domains(numbers, ("a", "b", "c")))
        classifier, batch = in_training(tiny_clip, named, as_released=as_released, dropout=0)
        losses.append(classifier.losses(classifier(batch), batch)["ce"].item())
    assert (abs(losses[0] - losses[1]) > 1e-3) == as_released


def test_a_domain_that_is_absent_from_the_batch_is_no_matter(tiny_clip: Model, images: CachedViews) -> None:
    classifier, _ = in_training(tiny_clip, images, dropout=0)
    chosen = torch.nonzero(UNEVEN == 2).flatten()
    batch = images.batch(chosen, 0, torch.Generator())
    z = batch.features.double().numpy()  # type: ignore[union-attr]
    texts = texts_of(tiny_clip, network(classifier, z).mean(axis=0))
    np.testing.assert_allclose(classifier(batch).similarities.detach().numpy(), z @ texts.T, atol=1e-5)


def test_gradients_reach_every_layer(tiny_clip: Model, images: CachedViews) -> None:
    classifier, batch = in_training(tiny_clip, images)
    classifier.losses(classifier(batch), batch)["ce"].backward()  # type: ignore[no-untyped-call]
    for name, parameter in classifier.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().max() > 0, name


class TestServing:
    def test_train_weighs_domains_alike_and_is_a_coop_classifier(self, tiny_clip: Model, images: CachedViews) -> None:
        classifier = built(tiny_clip, images)
        z = images.features[:, 0].numpy()
        contexts = network(classifier, z)
        by_domain = np.stack([contexts[UNEVEN.numpy() == e].mean(axis=0) for e in range(3)])
        np.testing.assert_allclose(classifier.context.numpy(), by_domain.mean(axis=0), atol=1e-5)
        assert np.abs(by_domain.mean(axis=0) - contexts.mean(axis=0)).max() > 1e-4  # not the mean over images
        np.testing.assert_allclose(classifier.similarities(z), z @ texts_of(tiny_clip, classifier.context).T, atol=1e-5)
        coop = CoOp().build_empty(tiny_clip, CLASSES)
        coop.context.data.copy_(classifier.context)  # type: ignore[operator, union-attr]
        np.testing.assert_allclose(coop.eval().similarities(z), classifier.similarities(z), atol=1e-6)

    def test_the_stored_context_is_that_of_the_trained_network(self, tiny_clip: Model, images: CachedViews) -> None:
        classifier = built(tiny_clip, images)
        before = classifier.context.clone()
        fit(classifier, images, generator=torch.Generator().manual_seed(4), recipe={"epochs": 3})
        contexts = network(classifier, images.features[:, 0].numpy())
        expected = np.stack([contexts[UNEVEN.numpy() == e].mean(axis=0) for e in range(3)]).mean(axis=0)
        np.testing.assert_allclose(classifier.context.numpy(), expected, atol=1e-5)
        assert (classifier.context - before).abs().max() > 1e-4

    def test_the_best_epoch_s_context_is_stored(self, tiny_clip: Model, images: CachedViews) -> None:
        """Shuffled labels: the best epoch is not the last, and the context must be its own."""
        validation = Validation(images.features[:, 0], images.labels.roll(4))
        classifier = built(tiny_clip, images)
        trained = fit(
            classifier,
            images,
            generator=torch.Generator().manual_seed(4),
            recipe={"epochs": 12, "patience": 3, "lr": 0.01},
            validation=validation,
        )
        assert trained.kept_epoch < len(trained.epochs)
        contexts = network(classifier, images.features[:, 0].numpy())
        expected = np.stack([contexts[UNEVEN.numpy() == e].mean(axis=0) for e in range(3)]).mean(axis=0)
        np.testing.assert_allclose(classifier.context.numpy(), expected, rtol=1e-5, atol=1e-5)

    def test_image_gives_each_its_own_context(self, tiny_clip: Model, images: CachedViews) -> None:
        classifier = built(tiny_clip, images, serve="image")
        z = images.features[:, 0]
        found = classifier.similarities(z)
        for i in (0, 5, 11):
            texts = texts_of(tiny_clip, network(classifier, z[i : i + 1].numpy())[0])
            np.testing.assert_allclose(found[i], texts @ z[i].double().numpy(), atol=1e-5)
        many = z.repeat(3, 1)  # more than are computed at once
        np.testing.assert_allclose(classifier.similarities(many), np.tile(found, (3, 1)), atol=1e-5)

    def test_batch_is_the_mean_over_whatever_comes(self, tiny_clip: Model, images: CachedViews) -> None:
        classifier = built(tiny_clip, images, serve="batch")
        z = images.features[:7, 0]
        texts = texts_of(tiny_clip, network(classifier, z.numpy()).mean(axis=0))
        np.testing.assert_allclose(classifier.similarities(z), z.numpy() @ texts.T, atol=1e-5)
        assert torch.isfinite(classifier(Inputs(z[:0])).texts).all()

    def test_a_batch_of_equal_images_is_one_image(self, tiny_clip: Model, images: CachedViews) -> None:
        z = images.features[2:3, 0]
        alone = built(tiny_clip, images, serve="image").similarities(z)
        together = built(tiny_clip, images, serve="batch").similarities(z.expand(9, -1))
        np.testing.assert_allclose(together, np.tile(alone, (9, 1)), atol=1e-5)

    def test_only_batch_is_declared_as_such(self, tiny_clip: Model, images: CachedViews) -> None:
        for serve, expected in (("train", False), ("image", False), ("batch", True)):
            classifier = built(tiny_clip, images, serve=serve)
            assert classifier.batch_dependent is expected
            assert provenance_of(classifier)["classifier"]["batch_dependent"] is expected
        assert not de.ZeroShotClassifier(tiny_clip, CLASSES).batch_dependent

    def test_scores_of_a_batch_see_that_batch_and_no_filling(self, tiny_clip: Model, images: CachedViews) -> None:
        """Seven rows are scored as seven, whatever blocks other classifiers are run in."""
        classifier = built(tiny_clip, images, serve="batch")
        z = images.features[:7, 0]
        texts = texts_of(tiny_clip, network(classifier, z.numpy()).mean(axis=0))
        found = score_images(classifier, [de.make_score("max-logit")], as_source(z))
        np.testing.assert_allclose(found.values["max-logit"], (z.numpy() @ texts.T).max(axis=1), atol=1e-5)

    def test_a_report_says_so(self, tiny_clip: Model, images: CachedViews) -> None:
        for serve in ("train", "batch"):
            made = provenance_of(built(tiny_clip, images, serve=serve))
            page = str(provenance_section(made, Markup("")).body)
            assert ("depends on the other images" in page) == (serve == "batch")

    def test_other_classes_and_files_keep_the_context(
        self, tiny_clip: Model, images: CachedViews, tmp_path: Path
    ) -> None:
        classifier = built(tiny_clip, images)
        other = classifier.with_classes(["zebra", "cat"])
        torch.testing.assert_close(other.text_features[1], classifier.text_features[0], atol=1e-6, rtol=0)
        classifier.save(tmp_path)
        loaded = de.Classifier.load(tmp_path, tiny_clip)
        torch.testing.assert_close(loaded.eval().text_features, classifier.text_features, atol=1e-6, rtol=0)


def test_dropout_comes_from_the_training_s_generator_alone(tiny_clip: Model, images: CachedViews) -> None:
    classifier, batch = in_training(tiny_clip, images, dropout=0.5)
    before = torch.get_rng_state()
    one, two = classifier(batch).similarities, classifier(batch).similarities
    assert torch.equal(before, torch.get_rng_state())
    assert (one - two).abs().max() > 1e-4
    classifier.generator = torch.Generator().manual_seed(5)
    assert torch.equal(classifier(batch).similarities, one)
    classifier.eval()
    x = Inputs(batch.features)
    assert torch.equal(classifier(x).similarities, classifier(x).similarities)


def test_dropout_keeps_the_mean() -> None:
    x = torch.ones(400, 500, dtype=torch.float64)
    found = dropout(x, 0.1, torch.Generator().manual_seed(0))
    assert set(found.unique().tolist()) == {0.0, 1 / 0.9}
    # 200,000 entries: the mean's deviation is 0.0007.
    assert found.mean().item() == pytest.approx(1, abs=0.005)
    assert torch.equal(dropout(x, 0, None), x)
    with pytest.raises(ValueError, match="training's generator"):
        dropout(x, 0.1, None)


def test_ebm_sees_the_texts_of_each_image(tiny_clip: Model, images: CachedViews) -> None:
    from deltaenergy.classifiers.ebm import Ebm

    classifier, batch = in_training(tiny_clip, images, dropout=0)
    outputs = classifier(batch)
    term, _ = Ebm(p=0.5)(outputs, batch)
    z, changes = batch.features.double().numpy(), []  # type: ignore[union-attr]
    for row, texts in zip(z, outputs.texts.detach().double().numpy()):
        product = row * texts[np.argmax(texts @ row)]
        kept = np.argsort(-product)[:8]
        masked = np.zeros(16)
        masked[kept] = row[kept]
        changes.append(np.log(np.exp(texts @ row).sum()) - np.log(np.exp(texts @ masked).sum()))
    assert term.item() == pytest.approx(np.exp(np.mean(changes)), rel=1e-5)
    (gradient,) = torch.autograd.grad(term, classifier.w1)
    assert gradient.abs().max() > 0


def test_on_the_bundled_model() -> None:
    lite = de.load_model("lite")
    features = nn.functional.normalize(torch.randn(6, 1, lite.feature_dim, generator=torch.Generator()), dim=-1)
    images = CachedViews(features, torch.arange(6) % 2, domains=Domains(torch.arange(6) // 3, ("photo", "sketch")))
    classifier = DplClip().build(lite, ["dog", "cat"], images, torch.Generator().manual_seed(0))
    trained = fit(classifier, images, generator=torch.Generator().manual_seed(0), recipe={"epochs": 8})
    assert trained.epochs[-1].loss < trained.epochs[0].loss


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("dplclip(serve=domain)", r"serve must be"),
        ("dplclip(dropout=1)", "dropout"),
        ("dplclip(input_scale=0)", "input_scale must be"),
        ("dplclip(context_length=0)", "context_length"),
    ],
)
def test_wrong_settings_are_explained(spec: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_method(spec)
