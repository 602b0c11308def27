"""CRoFT's losses and its closed-form gradient against NumPy in float64 and autograd's double backward."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import deltaenergy as de
from deltaenergy import Model
from deltaenergy.classifiers.base import TrainBatch
from deltaenergy.classifiers.croft import IMAGENET7, Croft, CroftClassifier, energy_gradients
from deltaenergy.classifiers.methods import make_method
from deltaenergy.errors import InputError
from deltaenergy.tuning.prepare import TrainSet
from tests.labelled_pictures import CLASSES

D, K, B, L = 6, 3, 5, 40.0
LABELS = torch.tensor([0, 1, 1, 2, 0])
Array = np.ndarray[Any, Any]


def unit(rows: Any) -> Any:
    if isinstance(rows, torch.Tensor):
        return rows / rows.norm(dim=-1, keepdim=True)
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def draw(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def near_identity(seed: int, size: float = 0.3, dim: int = D) -> torch.Tensor:
    return torch.eye(dim, dtype=torch.float64) + size * draw(seed, dim, dim)


def classifier(phase: str = "main", **settings: Any) -> CroftClassifier:
    """A CRoFT in float64 in the middle of its training."""
    vectors = unit(draw(1, K, D)).numpy()
    model = de.PrecomputedModel(D, logit_scale=L, class_vectors=(["a", "b", "c"], vectors))
    built = CroftClassifier(model, ["a", "b", "c"], Croft(**settings)).double()
    built.frozen_texts.copy_(torch.from_numpy(vectors))
    for seed, matrix in enumerate((built.image_map, built.text_map, built.generator_map)):
        matrix.data.copy_(near_identity(10 + seed))
    built.phase = phase
    return built.train()


def batch() -> TrainBatch:
    return TrainBatch(unit(draw(2, B, D)), labels=LABELS)


def numpy_state(built: CroftClassifier) -> tuple[Array, Array, Array, Array, Array]:
    """z, t, W_I, W_T, G."""
    matrices = (built.image_map, built.text_map, built.generator_map)
    z, t = batch().features, built.frozen_texts
    assert z is not None
    return z.numpy(), t.numpy(), *(matrix.detach().numpy() for matrix in matrices)  # type: ignore[return-value]


def cross_entropy(similarities: Array) -> float:
    logits = L * similarities
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return float(-log_p[np.arange(B), LABELS.numpy()].mean())


def agreement(one: Array, two: Array) -> float:
    """Written as loops, so that it shares nothing with what is tested."""
    total = 0.0
    for i in range(B):
        for j in range(B):
            if LABELS[i] == LABELS[j]:
                total += float(one[i] @ two[j])
    return total / B**2


def by_double_backward(
    z: torch.Tensor,
    t: torch.Tensor,
    w_i: torch.Tensor,
    w_t: torch.Tensor,
    r: float,
    r_t: float,
    delta: float = 0.0,
    transposed: bool = False,
    reduction: str = "mean",
) -> torch.Tensor:
    """R from its definition; with gradients for a second pass."""
    moved = torch.full_like(w_i, delta).requires_grad_()
    a, b = (w_i + moved, w_t + moved) if transposed else ((w_i + moved).T, (w_t + moved).T)
    energy = torch.exp(unit(r * z @ a + (1 - r) * z) @ unit(r_t * t @ b + (1 - r_t) * t).T)
    (gradient,) = torch.autograd.grad(energy.mean() if reduction == "mean" else energy.sum(), moved, create_graph=True)
    return (gradient**2).sum() if reduction == "mean" else (gradient**2).mean()


@settings(max_examples=30)
@given(
    seed=st.integers(0, 10_000),
    rows=st.integers(1, 7),
    classes=st.integers(1, 5),
    dim=st.integers(2, 6),
    r=st.floats(0, 1),
    r_t=st.floats(0, 1),
)
def test_the_closed_form_is_the_double_backward(
    seed: int, rows: int, classes: int, dim: int, r: float, r_t: float
) -> None:
    """In value, and in its gradient by both matrices and by the rows."""
    z, t = unit(draw(seed, rows, dim)).requires_grad_(), unit(draw(seed + 1, classes, dim))
    # Near the identity no mapped row comes near zero, where directions are not defined.
    w_i, w_t = (near_identity(seed + i, 0.05, dim).requires_grad_() for i in (2, 3))
    images, texts = energy_gradients(z, t, w_i, w_t, r, r_t)
    ours, theirs = (images + texts).square().sum(), by_double_backward(z, t, w_i, w_t, r, r_t)
    assert abs(ours.item() - theirs.item()) < 1e-10
    for one, two in zip(torch.autograd.grad(ours, (w_i, w_t, z)), torch.autograd.grad(theirs, (w_i, w_t, z))):
        torch.testing.assert_close(one, two, atol=1e-10, rtol=1e-8)


def test_each_gradient_is_its_matrix_s_own() -> None:
    z, t = unit(draw(2, B, D)), unit(draw(1, K, D))
    w_i, w_t = near_identity(3).requires_grad_(), near_identity(4).requires_grad_()
    energy = torch.exp(unit(0.2 * z @ w_i.T + 0.8 * z) @ unit(0.5 * t @ w_t.T + 0.5 * t).T).mean()
    expected = torch.autograd.grad(energy, (w_i, w_t))
    for found, wanted in zip(energy_gradients(z, t, w_i, w_t, 0.2, 0.5), expected):
        torch.testing.assert_close(found, wanted, atol=1e-12, rtol=0)


def test_at_the_identity_the_gradients_have_no_trace() -> None:
    """Scaling a feature does not change its direction."""
    z, t, one = unit(draw(2, B, D)), unit(draw(1, K, D)), torch.eye(D, dtype=torch.float64)
    for gradient in energy_gradients(z, t, one, one, 0.2, 0.5):
        assert abs(torch.trace(gradient).item()) < 1e-14
        assert gradient.abs().max() > 1e-3


@pytest.mark.parametrize("c", [0.3, 2.0, 7.0])
def test_a_scaled_identity_keeps_predictions_and_shrinks_the_gradient(c: float) -> None:
    z, t, one = unit(draw(2, B, D)), unit(draw(1, K, D)), torch.eye(D, dtype=torch.float64)
    plain, scaled = (energy_gradients(z, t, factor * one, factor * one, 0.2, 0.5) for factor in (1.0, c))
    for before, after, share in zip(plain, scaled, (0.2, 0.5)):
        torch.testing.assert_close(after, before / (share * c + 1 - share), atol=1e-14, rtol=0)
    built = classifier()
    for matrix in (built.image_map, built.text_map):
        matrix.data.copy_(c * one)
    torch.testing.assert_close(built(batch()).similarities, z @ t.T, atol=1e-14, rtol=0)


def test_without_the_maps_there_is_no_gradient() -> None:
    built = classifier(ratio=0.0, text_ratio=0.0)
    assert built.flatness(unit(draw(2, B, D))).item() == 0


def test_an_identity_generator_shifts_nothing() -> None:
    built = classifier()
    built.generator_map.data.copy_(torch.eye(D))
    adapted = built.adapt(unit(draw(2, B, D)))
    torch.testing.assert_close(built.shift(adapted), adapted, atol=1e-15, rtol=0)


def test_main_losses_against_numpy() -> None:
    built = classifier(lambda1=3.0, lambda2=7.0)
    z, t, w_i, w_t, g = numpy_state(built)
    outputs = built(batch())
    adapted, texts = unit(0.2 * z @ w_i.T + 0.8 * z), unit(0.5 * t @ w_t.T + 0.5 * t)
    np.testing.assert_allclose(outputs.similarities.detach(), adapted @ texts.T, atol=1e-12)
    shifted = unit(adapted @ g.T + adapted)
    again = unit(0.2 * shifted @ w_i.T + 0.8 * shifted)
    rows = torch.from_numpy(np.concatenate([z, shifted]))
    gradient = by_double_backward(rows, *(torch.from_numpy(x) for x in (t, w_i, w_t)), 0.2, 0.5)  # type: ignore[arg-type,misc]
    expected = {
        "ce": cross_entropy(adapted @ texts.T),
        "ce shifted": cross_entropy(again @ texts.T),
        "−λ1 A": -3 * agreement(shifted, z),
        "λ2 R": 7 * gradient.item(),
    }
    found = {name: loss.item() for name, loss in built.losses(outputs, batch()).items()}
    assert found == pytest.approx(expected, abs=1e-10)
    assert built.logged() == {"R": pytest.approx(gradient.item(), abs=1e-12)}


def test_generator_losses_against_numpy_and_held_fixed() -> None:
    built = classifier("generator", lambda1=3.0)
    z, t, w_i, w_t, g = numpy_state(built)
    adapted, texts = unit(0.2 * z @ w_i.T + 0.8 * z), unit(0.5 * t @ w_t.T + 0.5 * t)
    shifted = unit(adapted @ g.T + adapted)
    losses = built.losses(built(batch()), batch())
    found = {name: loss.item() for name, loss in losses.items()}
    expected = {"generator ce": cross_entropy(shifted @ texts.T), "λ1 A": 3 * agreement(shifted, adapted)}
    assert found == pytest.approx(expected, abs=1e-10)
    parameters = (built.image_map, built.text_map, built.generator_map)
    gradients = torch.autograd.grad(sum(losses.values()), parameters, allow_unused=True)  # type: ignore[arg-type]
    assert gradients[0] is None and gradients[1] is None and gradients[2] is not None
    assert built.logged() == {}


def test_the_main_step_s_gradient_against_a_second_implementation() -> None:
    """Gradients flow through z^c as well."""
    built = classifier(lambda1=3.0, lambda2=7.0)
    z, t, w_i, w_t, g = (torch.from_numpy(np.array(x)) for x in numpy_state(built))
    w_i.requires_grad_(), w_t.requires_grad_()
    adapted, texts = unit(0.2 * z @ w_i.T + 0.8 * z), unit(0.5 * t @ w_t.T + 0.5 * t)
    shifted = unit(adapted @ g.T + adapted)
    again = unit(0.2 * shifted @ w_i.T + 0.8 * shifted)
    same = (LABELS[:, None] == LABELS[None, :]).double()
    loss = sum(torch.nn.functional.cross_entropy(L * rows @ texts.T, LABELS) for rows in (adapted, again))
    loss = loss - 3 * (same * (shifted @ z.T)).sum() / B**2
    loss = loss + 7 * by_double_backward(torch.cat([z, shifted]), t, w_i, w_t, 0.2, 0.5)
    expected = torch.autograd.grad(loss, (w_i, w_t))
    total = sum(built.losses(built(batch()), batch()).values())
    for found, wanted in zip(torch.autograd.grad(total, (built.image_map, built.text_map)), expected):  # type: ignore[arg-type]
        torch.testing.assert_close(found, wanted, atol=1e-9, rtol=1e-8)


def test_as_released_against_a_second_implementation() -> None:
    """zW in R and in ẑ^c, whose shares are exchanged and which has no norm; δ = 1e-4; sums and means exchanged."""
    built = classifier(lambda1=3.0, lambda2=0.5, as_released=True)
    z, t, w_i, w_t, g = (torch.from_numpy(np.array(x)) for x in numpy_state(built))
    adapted, texts = unit(0.2 * z @ w_i.T + 0.8 * z), unit(0.5 * t @ w_t.T + 0.5 * t)
    shifted = unit(adapted @ g.T + adapted)
    again = 0.2 * shifted + 0.8 * shifted @ w_i
    rows = torch.cat([z, shifted])
    gradient = by_double_backward(rows, t, w_i, w_t, 0.2, 0.5, delta=1e-4, transposed=True, reduction="sum")
    found = {name: loss.item() for name, loss in built.losses(built(batch()), batch()).items()}
    expected = {
        "ce": cross_entropy((adapted @ texts.T).numpy()),
        "ce shifted": cross_entropy((again @ texts.T).numpy()),
        "−λ1 A": -3 * agreement(shifted.numpy(), z.numpy()),
        "λ2 R": 0.5 * gradient.item(),
    }
    assert found == pytest.approx(expected, rel=1e-9)
    plain = classifier(lambda2=0.5)
    plain.image_map.data.copy_((built.image_map + 1e-4).T)
    plain.text_map.data.copy_((built.text_map + 1e-4).T)
    factor = (2 * B * K / D) ** 2
    assert built.flatness(rows).item() == pytest.approx(factor * plain.flatness(rows).item(), rel=1e-9)
    released = classifier("generator", as_released=True)
    total = sum(released.losses(released(batch()), batch()).values())
    assert all(g.abs().max() > 0 for g in torch.autograd.grad(total, list(released.parameters())))  # type: ignore[arg-type]


def test_begins_as_zero_shot(tiny_clip: Model, train_set: TrainSet, coloured: Path) -> None:
    built = Croft().build(tiny_clip, CLASSES, train_set.images, torch.Generator())
    expected = de.ZeroShotClassifier(tiny_clip, CLASSES)
    torch.testing.assert_close(built.text_features, expected.text_features, atol=1e-6, rtol=0)
    np.testing.assert_allclose(built.similarities(coloured), expected.similarities(coloured), atol=1e-6)


@pytest.mark.parametrize("as_released", [False, True])
def test_each_phase_moves_its_own_matrices(as_released: bool) -> None:
    (stage,) = Croft(as_released=as_released).stages
    moved = {phase.name: set(phase.parameters(classifier())) for phase in stage.phases}
    everything = {"image_map", "text_map", "generator_map"}
    if as_released:
        assert moved == {"generator": everything, "main": everything}
    else:
        assert moved == {"generator": {"generator_map"}, "main": {"image_map", "text_map"}}
    assert list(moved) == ["generator", "main"]


def test_trained_classifier_follows_the_formula_and_logs_r(
    tiny_clip: Model, train_set: TrainSet, coloured: Path
) -> None:
    tuned = de.tune(tiny_clip, CLASSES, train_set, "croft(ratio=0.3,text_ratio=0.6)", recipe={"epochs": 3, "lr": 0.02})
    state = {name: tensor.double().numpy() for name, tensor in tuned.state_dict().items()}
    for name in ("image_map", "text_map", "generator_map"):
        assert np.abs(state[name] - np.eye(16)).max() > 1e-4, name
    z = tiny_clip.encode_images(coloured).astype(np.float64)
    texts = unit(0.6 * state["frozen_texts"] @ state["text_map"].T + 0.4 * state["frozen_texts"])
    expected = unit(0.3 * z @ state["image_map"].T + 0.7 * z) @ texts.T
    np.testing.assert_allclose(tuned.similarities(coloured), expected, atol=1e-5)
    np.testing.assert_allclose(state["text_features"], texts, atol=1e-6)
    assert all(log["logged"]["R"] > 0 for log in tuned.record["epochs"])


def test_the_log_holds_r_once_per_step(tiny_clip: Model, train_set: TrainSet) -> None:
    """At rate 0 nothing moves, and R is that of the identity, where z^c = z: of the batch twice, so of the batch."""
    recipe = {"epochs": 2, "warmup_epochs": 2, "warmup_lr": 0.0, "batch_size": 5}
    tuned = de.tune(tiny_clip, CLASSES, one_view(train_set), "croft", recipe=recipe)
    z = train_set.images.features[:, 0].double()  # type: ignore[attr-defined]
    one, t = torch.eye(16, dtype=torch.float64), de.ZeroShotClassifier(tiny_clip, CLASSES).text_features.double()
    # The batches of an epoch are weighted by their size; which images they hold is drawn, so bounds are what is known.
    values = [by_double_backward(z[i : i + 1], t, one, one, 0.2, 0.5).item() for i in range(len(z))]
    for log in tuned.record["epochs"]:
        assert 0 < log["logged"]["R"] < max(values)
    whole = de.tune(tiny_clip, CLASSES, one_view(train_set), "croft", recipe={**recipe, "batch_size": 32})
    expected = by_double_backward(z, t, one, one, 0.2, 0.5).item()
    assert whole.record["epochs"][0]["logged"]["R"] == pytest.approx(expected, rel=1e-4)


def one_view(train_set: TrainSet) -> TrainSet:
    from deltaenergy.tuning.views import CachedViews

    images = train_set.images
    return TrainSet(train_set.sample, CachedViews(images.features[:, :1], images.labels), 1)  # type: ignore[attr-defined]


def test_serves_other_class_names(tiny_clip: Model, train_set: TrainSet, coloured: Path) -> None:
    tuned = de.tune(tiny_clip, CLASSES, train_set, "croft", recipe={"epochs": 2, "lr": 0.02})
    other = tuned.with_classes(["blue car", "cat"])
    same = tuned.similarities(coloured)[:, CLASSES.index("cat")]
    np.testing.assert_allclose(other.similarities(coloured)[:, 1], same, atol=1e-6)
    assert other.classes == ("blue car", "cat") and other.record == tuned.record


def test_patches_are_mapped_as_images_are() -> None:
    built = classifier().eval()
    rows = unit(draw(5, 4, D))
    torch.testing.assert_close(built.patch_similarities(rows[None])[0], built.similarities_of_features(rows))


def test_the_ensemble_for_imagenet(tiny_clip: Model, train_set: TrainSet) -> None:
    method = make_method("croft:imagenet7")
    assert isinstance(method, Croft) and method.templates == IMAGENET7 and method.spec == "croft:imagenet7"
    built = method.build(tiny_clip, CLASSES, train_set.images, torch.Generator())
    for k, name in enumerate(CLASSES):
        prompts = tiny_clip.encode_texts([template.replace("{}", name) for template in IMAGENET7])
        np.testing.assert_allclose(built.text_features[k], unit(prompts.astype(np.float64).mean(axis=0)), atol=1e-6)


def test_grids() -> None:
    assert len(list(Croft().candidates(7))) == 9
    published = {(one.lambda1, one.lambda2) for one in Croft(as_released=True).candidates(400)}  # type: ignore[attr-defined]
    assert published == {(a, b) for a in (1, 5, 10, 15, 20) for b in (1, 5, 10, 15, 20)}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("croft(ratio=1.5)", "ratio"),
        ("croft(text_ratio=-0.1)", "text_ratio must be"),
        ("croft(lambda1=-1)", "lambda1 must be"),
        ("croft(lambda2=-1)", "lambda2 must be"),
        ("croft(templates=['a photo'])", "templates must be"),
        ("croft:imagenet8", r"'imagenet8'.*'imagenet7'"),
        ("croft+ebm", r"attaches to.*cosines"),
    ],
)
def test_wrong_settings_are_explained(spec: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_method(spec)


def test_the_generator_may_move_several_times_in_a_step_by_one_optimiser() -> None:
    (stage,) = Croft(generator_steps=3).stages
    assert [phase.name for phase in stage.phases] == ["generator", "generator", "generator", "main"]
    assert len(set(stage.phases)) == 2  # equal phases share an optimiser, and a place in the checkpoint


def test_as_released_for_domains_lambda2_has_the_units_that_ours_has() -> None:
    z = unit(draw(5, 7, D))
    imagenet, domains = (float(classifier(as_released=kind).flatness(z).detach()) for kind in (True, "domains"))
    assert imagenet == pytest.approx((len(z) * K / D) ** 2 * domains)
    assert len(list(Croft(as_released=True).candidates(400))) == 25
    assert len(list(Croft(as_released="domains").candidates(7))) == 9
