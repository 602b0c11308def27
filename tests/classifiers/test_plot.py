"""PLOT: similarities and gradients against transformers' texts and a plain Sinkhorn, its settings, and `lite`."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import deltaenergy as de
from deltaenergy import Model
from deltaenergy.classifiers.base import Classifier, Inputs, TrainBatch
from deltaenergy.classifiers.coop import CoOp
from deltaenergy.classifiers.methods import make_method
from deltaenergy.classifiers.plot import Plot
from deltaenergy.core.needs import Need
from deltaenergy.errors import InputError
from deltaenergy.training.recipe import Recipe
from deltaenergy.tuning.prepare import prepare_training
from tests.classifiers.prompted_reference import Reference, double
from tests.classifiers.test_transport import reference_plan
from tests.labelled_pictures import CLASSES


@pytest.fixture(scope="module")
def reference(tiny_clip_folder: Path) -> Reference:
    return Reference(tiny_clip_folder)


def built(model: Any, method: Plot = Plot(), seed: int = 0) -> Any:  # noqa: B008 (settings are frozen)
    return method.build(model, CLASSES, SimpleNamespace(), torch.Generator().manual_seed(seed))  # type: ignore[arg-type]


def seen(model: Any, count: int = 4) -> TrainBatch:
    """Features and patches of some noise."""
    pixels = torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(3))
    return TrainBatch(*model.image_and_patch_features(pixels), labels=torch.arange(count) % 3)


def by_hand(
    reference: Reference, classifier: Any, batch: TrainBatch
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Contexts as leaves, Σ T u·t with a plan from NumPy, and z·t̄, all in double precision."""
    contexts = double(classifier)["contexts"]
    raw = torch.stack([reference.texts(CLASSES, context, raw=True) for context in contexts])
    texts = raw / raw.norm(dim=-1, keepdim=True)
    mean = raw.mean(dim=0)
    assert batch.patches is not None and batch.features is not None
    s = torch.einsum("bpd,nkd->bkpn", batch.patches.double(), texts)
    plans = [[reference_plan(one, classifier.method.epsilon) for one in image] for image in s.detach().numpy()]
    carried = (torch.tensor(np.array(plans)) * s).sum(dim=(-2, -1))
    return contexts, carried, batch.features.double() @ (mean / mean.norm(dim=-1, keepdim=True)).T


@pytest.mark.parametrize("pooled", [False, True])
def test_similarities_loss_and_gradients(tiny_clip: Any, reference: Reference, pooled: bool) -> None:
    """s is b, or ½ (a + b); the loss is CE at L of b, or of a + b."""
    # ε = 0.5, since at 0.1 a plan of random features has not settled after a hundred steps.
    classifier = built(tiny_clip, Plot(pooled=pooled, epsilon=0.5)).train().requires_grad_(True)
    batch = seen(tiny_clip)
    outputs = classifier(batch)
    loss = classifier.losses(outputs, batch)["ce"]
    (found,) = torch.autograd.grad(loss, [classifier.contexts])
    contexts, b, a = by_hand(reference, classifier, batch)
    total = a + b if pooled else b
    expected = -torch.log_softmax(reference.scale * total, dim=1)[range(4), batch.labels].mean()
    (gradient,) = torch.autograd.grad(expected, contexts)
    torch.testing.assert_close(outputs.similarities.double(), total / (1 + pooled), atol=5e-6, rtol=0)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-3)
    assert (found.double() - gradient).abs().max() / gradient.abs().max() < 2e-3
    # In use it gives the same as in training.
    torch.testing.assert_close(classifier.eval()(batch).similarities, outputs.similarities)


def test_one_prompt_is_coop_on_the_mean_patch(tiny_clip: Any) -> None:
    """The mean is not normalised: its cosines are shorter."""
    classifier = built(tiny_clip, Plot(prompts=1, context_length=4))
    batch = seen(tiny_clip)
    assert batch.patches is not None
    coop: Any = CoOp(context_length=4).build_empty(tiny_clip, CLASSES)
    coop.context.data.copy_(classifier.contexts[0])
    mean = batch.patches.mean(dim=1)
    assert (mean.norm(dim=1) < 0.99).all()
    expected = coop.eval()(Inputs(mean)).similarities
    torch.testing.assert_close(classifier(batch).similarities, expected, atol=1e-5, rtol=0)


def test_the_order_of_patches_and_contexts_does_not_matter(tiny_clip: Any) -> None:
    classifier, batch = built(tiny_clip, Plot(epsilon=0.5)), seen(tiny_clip)
    expected = classifier(batch).similarities
    assert batch.patches is not None
    turned = classifier(Inputs(batch.features, batch.patches.flip(1))).similarities
    torch.testing.assert_close(turned, expected, atol=1e-5, rtol=0)
    classifier.contexts.data.copy_(classifier.contexts.data.flip(0))
    torch.testing.assert_close(classifier.eval()(batch).similarities, expected, atol=1e-5, rtol=0)


def test_initial_values_and_settings(tiny_clip: Any) -> None:
    classifier = built(tiny_clip)
    assert classifier.contexts.shape == (4, 16, 24) and 0.018 < classifier.contexts.std() < 0.022
    assert Plot().recipe == {"epochs": 200, "batch_size": 128}
    assert [one.epsilon for one in Plot().candidates(3)] == [0.05, 0.1]  # type: ignore[attr-defined]
    assert Plot().needs_to_train == {Need.FEATURES, Need.PATCHES}
    for bad, message in (
        ({"prompts": 0}, "prompts"),
        ({"context_length": 0}, "context_length"),
        ({"epsilon": 0.0}, "ε"),
    ):
        with pytest.raises(InputError, match=f"plot: {message.replace('ε', 'epsilon must be')}"):
            Plot(**bad)  # type: ignore[arg-type]


def test_what_does_not_fit_is_refused(tiny_clip: Any) -> None:
    """16 patches, 4 prompts, 3 classes, 50 images; 4 numbers of 4 bytes each."""
    found = Plot().estimate(tiny_clip, CLASSES, 50, [Recipe(batch_size=128)])
    assert found is not None and found.memory == {"similarities and plans": 16 * 4 * 3 * 50 * 16}
    with pytest.raises(InputError, match=r"plot.* GB .*16 patches"):
        de.tune(tiny_clip, CLASSES, "not there", "plot", shots=10**9, recipe={"batch_size": 10**9})


def test_ebm_is_refused() -> None:
    for method in ("plot+ebm", "plot+++ebm"):
        with pytest.raises(InputError, match=r"'ebm'.*cosines.*maple"):
            make_method(method)


def test_training_images_without_patches_are_refused(tiny_clip: Model, coloured: Path) -> None:
    features = prepare_training(tiny_clip, CLASSES, coloured, shots=2, views=1)
    with pytest.raises(InputError, match=r"plot.*patches.*training"):
        de.tune(tiny_clip, CLASSES, features, "plot")


def test_a_convolutional_model_has_a_map_of_patches(coloured: Path, tmp_path: Path) -> None:
    lite = de.load_model("lite")
    tuned = de.tune(lite, CLASSES, coloured, "plot", shots=2, views=1, recipe={"epochs": 8, "batch_size": 3})
    losses = [log["loss"] for log in tuned.record["epochs"]]
    assert np.mean(losses[-3:]) < np.mean(losses[:3])
    tuned.save(tmp_path / "plot")
    loaded = Classifier.load(tmp_path / "plot", lite)
    np.testing.assert_allclose(loaded.similarities(coloured), tuned.similarities(coloured), atol=1e-6)


def test_a_store_with_patches_serves(tiny_clip: Any, coloured: Path, tmp_path: Path) -> None:
    classifier = built(tiny_clip)
    store = de.build_store(tiny_clip, coloured, tmp_path / "store", patches=True)
    np.testing.assert_allclose(classifier.similarities(store), classifier.similarities(coloured), atol=2e-3)
