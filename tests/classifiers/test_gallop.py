"""GalLoP: pooling of patches, the two losses by hand, prompt dropout, V in the tower, and its score."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import deltaenergy as de
from deltaenergy import Model
from deltaenergy.classifiers.base import Inputs, TrainBatch
from deltaenergy.classifiers.gallop import GallopClassifier, GallopOutputs, top_mean
from deltaenergy.classifiers.methods import make_method
from deltaenergy.core.needs import Need
from deltaenergy.errors import InputError
from deltaenergy.tuning.prepare import TrainSet, prepare_training
from tests.labelled_pictures import CLASSES

SMALL = "gallop(top_k=[1,3,16])"


@pytest.fixture(scope="module")
def states(tiny_clip: Model, coloured: Path) -> TrainSet:
    needs = frozenset({Need.STATES, Need.PATCHES})
    return prepare_training(tiny_clip, CLASSES, coloured, shots=4, seed=1, views=2, needs=needs)


def build(model: Model, data: TrainSet, spec: str = SMALL, seed: int = 0) -> GallopClassifier:
    built = make_method(spec).build(model, CLASSES, data.images, torch.Generator().manual_seed(seed))
    assert isinstance(built, GallopClassifier)
    return built


def disturb(classifier: GallopClassifier) -> GallopClassifier:
    """Parameters that differ from one another, so that mixing them up would show."""
    generator = torch.Generator().manual_seed(3)
    for parameter in (classifier.global_contexts, classifier.local_contexts):
        parameter.data.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    noise = torch.randn(classifier.patch_map.shape, generator=generator)
    classifier.patch_map.data.add_(0.1 * noise)
    return classifier.eval()


@given(st.integers(1, 6), st.integers(0, 1000))
@settings(max_examples=30)
def test_pooling(k: int, seed: int) -> None:
    """k = 1 is the maximum, k = P the mean; the value falls with k, patches' order is irrelevant, gradients are 1/k."""
    x = torch.randn(2, 6, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64, requires_grad=True)
    found = top_mean(x, k)
    expected = np.sort(x.detach().numpy(), axis=1)[:, ::-1][:, :k].mean(axis=1)
    np.testing.assert_allclose(found.detach().numpy(), expected, atol=1e-12)
    if k < 6:
        assert (top_mean(x, k + 1) <= found + 1e-12).all()
    order = torch.randperm(6, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(top_mean(x[:, order], k), found)
    (gradient,) = torch.autograd.grad(found.sum(), x)
    assert torch.equal((gradient > 0).sum(dim=1), torch.full((2, 3), k))
    torch.testing.assert_close(gradient.max(), torch.tensor(1 / k, dtype=torch.float64))
    torch.testing.assert_close(top_mean(x, 99), x.mean(dim=1))


@pytest.mark.parametrize("projection", ["hidden", "feature"])
def test_similarities_are_the_formula(tiny_clip: Model, states: TrainSet, coloured: Path, projection: str) -> None:
    """½ (mean_m z·t^g + mean_m top-k_m of u'·t^l), u' = norm(Proj(V x)) or norm(V u), in float64 NumPy."""
    classifier = disturb(build(tiny_clip, states, f"gallop(top_k=[1,3,16],projection={projection})"))
    outputs = classifier(Inputs(torch.zeros(1, 16), torch.zeros(1, 16, 16)))
    assert isinstance(outputs, GallopOutputs)
    items = sorted(coloured.rglob("*.png"))
    pixels = torch.stack([torch.from_numpy(tiny_clip.preprocessing(de_open(path))) for path in items])
    run = tiny_clip.vision.run(pixels, patches=True, hidden=True)
    z, u, x = (t.detach().double().numpy() for t in (run.features, run.patches, run.hidden))
    v = classifier.patch_map.detach().double().numpy()
    if projection == "hidden":
        weight = tiny_clip.module.visual_projection.weight.double().numpy()  # type: ignore[attr-defined]
        mapped = (x @ v.T) @ weight.T
    else:
        mapped = u @ v.T
    mapped /= np.linalg.norm(mapped, axis=-1, keepdims=True)
    whole, local = (t.double().numpy() for t in (classifier.global_features, classifier.local_features))
    g = np.mean([z @ t.T for t in whole], axis=0)
    pooled = [np.sort(mapped @ t.T, axis=1)[:, ::-1][:, :k].mean(axis=1) for t, k in zip(local, (1, 3, 16))]
    np.testing.assert_allclose(classifier.similarities(items), (g + np.mean(pooled, axis=0)) / 2, atol=1e-5)

    # Its own score: mcm of mean g, and the best patch with mean l, both at T = 1.
    def softmax_max(s: np.ndarray) -> np.ndarray:
        e = np.exp(s - s.max(axis=-1, keepdims=True))
        return (e / e.sum(axis=-1, keepdims=True)).max(axis=-1)

    expected = softmax_max(g) + softmax_max(mapped @ local.mean(axis=0).T).max(axis=1)
    detector = de.Detector(classifier, "gallop").calibrate(items)
    np.testing.assert_allclose([v.score for v in detector.predict(items)], expected, atol=1e-5)


def de_open(path: Path) -> object:
    from deltaenergy.data.decode import open_image
    from deltaenergy.data.file import LocalFile

    return open_image(LocalFile(path))


def test_untrained_it_is_gl_mcm_s(tiny_clip: Model, states: TrainSet, coloured: Path) -> None:
    """V = 1 and equal prompts: patches are the model's own, and the score is gl-mcm's with the same words."""
    classifier = build(tiny_clip, states, "gallop")
    plain = de.ZeroShotClassifier(tiny_clip, CLASSES, template="a photo of a {}")
    torch.testing.assert_close(classifier.text_features, plain.text_features, atol=1e-5, rtol=0)
    expected = [v.score for v in de.Detector(plain, "gl-mcm").calibrate(coloured).predict(coloured)]
    found = [v.score for v in de.Detector(classifier, "gallop").calibrate(coloured).predict(coloured)]
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_losses_by_hand(tiny_clip: Model, states: TrainSet) -> None:
    """CE of the drawn global prompt, and the mean of the local prompts' CEs."""
    classifier = disturb(build(tiny_clip, states, "gallop(top_k=[1,3],dropout=0.5)")).train()
    batch = states.images.batch(torch.arange(4), 0, torch.Generator().manual_seed(0))
    classifier.generator = torch.Generator().manual_seed(7)
    outputs = classifier(batch)
    assert isinstance(outputs, GallopOutputs)
    losses = classifier.losses(outputs, batch)
    drawn = torch.randint(2, (4, 1), generator=torch.Generator().manual_seed(7))[:, 0].tolist()
    scale, labels = tiny_clip.logit_scale, batch.labels.tolist()

    def ce(rows: np.ndarray) -> float:
        return float(np.mean([np.log(np.exp(scale * (r - r.max())).sum()) - scale * (r[y] - r.max())
                              for r, y in zip(rows, labels)]))  # fmt: skip

    whole, parts = outputs.whole.detach().double().numpy(), outputs.parts.detach().double().numpy()
    chosen = np.stack([whole[i, m] for i, m in enumerate(drawn)])
    assert float(losses["global"]) == pytest.approx(ce(chosen), rel=1e-4)
    assert float(losses["local"]) == pytest.approx(np.mean([ce(parts[:, m]) for m in range(2)]), rel=1e-4)
    assert len(set(drawn)) == 2 and set(losses) == {"global", "local"}


def test_prompts_stay_equal_without_dropout_and_with_one_k(tiny_clip: Model, states: TrainSet) -> None:
    same = de.tune(tiny_clip, CLASSES, states, "gallop(top_k=[4,4],dropout=0)", recipe={"epochs": 2})
    torch.testing.assert_close(same.local_contexts[0], same.local_contexts[1], atol=1e-6, rtol=0)  # type: ignore[index]
    parted = de.tune(tiny_clip, CLASSES, states, "gallop(top_k=[1,16],dropout=0.5)", recipe={"epochs": 2, "lr": 0.02})
    local, overall = parted.local_contexts, parted.global_contexts  # type: ignore[union-attr]
    assert (local[0] - local[1]).abs().max() > 1e-5  # type: ignore[index]
    assert (overall[0] - overall[1]).abs().max() > 1e-5  # type: ignore[index]


def test_every_parameter_learns(tiny_clip: Model, states: TrainSet) -> None:
    fresh = build(tiny_clip, states, "gallop", seed=1)
    before = {name: parameter.detach().clone() for name, parameter in fresh.named_parameters()}
    tuned = de.tune(tiny_clip, CLASSES, states, "gallop", recipe={"epochs": 1})
    for name, parameter in tuned.named_parameters():
        assert not torch.equal(parameter, before[name]), name
    assert tuned.record["recipe"]["weight_decay"] == 0.01 and tuned.record["recipe"]["warmup_epochs"] == 0


def test_the_mapped_model_is_another_one(tiny_clip: Model, states: TrainSet) -> None:
    classifier = disturb(build(tiny_clip, states))
    assert classifier.model.fingerprint != tiny_clip.fingerprint
    assert disturb(build(tiny_clip, states)).model.fingerprint == classifier.model.fingerprint
    assert build(tiny_clip, states).model.fingerprint != classifier.model.fingerprint


def test_on_a_cnn_and_with_too_many_patches_asked_for(coloured: Path) -> None:
    lite = de.load_model("lite")
    tuned = de.tune(lite, CLASSES, coloured, "gallop(top_k=[5,500])", shots=2, views=1, recipe={"epochs": 1})
    assert tuned.similarities(coloured).shape == (18, 3)
    assert tuned.get_parameter("patch_map").shape == (lite.feature_dim, lite.feature_dim)
    with pytest.raises(InputError, match="'lite' has a convolutional"):
        make_method("gallop(projection=hidden)").build_empty(lite, CLASSES)


def test_features_are_not_enough(tiny_clip: Model, states: TrainSet) -> None:
    classifier = build(tiny_clip, states)
    with pytest.raises(InputError, match="gallop needs patches"):
        classifier.similarities(np.eye(16, dtype=np.float32)[:2])
    with pytest.raises(InputError, match="patches are needed"):
        classifier(Inputs(torch.eye(16)[:2]))
    with pytest.raises(InputError, match="patch states are needed"):
        classifier.train()(TrainBatch(torch.eye(16)[:2], labels=torch.zeros(2, dtype=torch.long)))
