"""The theorems' checks against brute force, small matrices, and cases worked by hand."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import deltaenergy as de
from deltaenergy import Model
from deltaenergy.classifiers.methods import make_method
from deltaenergy.classifiers.prompt import PromptClassifier
from deltaenergy.errors import InputError
from deltaenergy.source import labelled_images
from deltaenergy.theory import check_theory
from deltaenergy.theory.bound import check_bound
from deltaenergy.theory.hessian import check_hessians, power_iteration
from deltaenergy.theory.separation import check_pairs, gradient_identities
from tests.labelled_pictures import CLASSES, write_pictures


def unit(rows: int, columns: int, seed: int) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    return torch.nn.functional.normalize(torch.from_numpy(rng.normal(size=(rows, columns))), dim=1)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**31), tau=st.sampled_from([0.05, 0.3, 1.0, 3.0]), p=st.floats(0.1, 1.0))
def test_conditions_against_their_definitions_and_each_other(seed: int, tau: float, p: float) -> None:
    features, texts = unit(20, 10, seed), unit(4, 10, seed + 1)
    found = check_bound(features, texts, p, tau)
    for i, (z, t) in enumerate((z, texts.numpy()) for z in features.numpy()):
        s = t @ z
        kept = np.argsort(-(z * t[s.argmax()]), kind="stable")[: math.ceil(round(p * 10, 9))]
        masked = np.zeros(10)
        masked[kept] = z[kept]
        total, total_masked = np.exp(s / tau).sum(), np.exp(t @ masked / tau).sum()
        a = np.exp(s.max() / tau) - 1
        delta, loss = np.log(total / (total - a)), np.log(total / total_masked)
        np.testing.assert_allclose([found.delta_energy[i], found.loss[i]], [delta, loss], atol=1e-9)
        margins = {
            "holds": delta + loss,
            "stated": a - np.expm1(loss) * total_masked,
            "absolute": a - np.expm1(abs(loss)) * total_masked,
            "needed": a - (total_masked - total),
        }
        for name, margin in margins.items():
            if abs(margin) > 1e-6 * total:
                assert bool(getattr(found, name)[i]) == (margin > 0), name
    positive = (features @ texts.T).amax(dim=1).numpy() > 0
    # The two sufficient conditions suffice, and one is the weaker.
    assert not (found.needed & positive & ~found.holds).any()
    assert not (found.absolute & positive & ~found.needed).any()


def test_the_paper_s_condition_does_not_suffice() -> None:
    """z = (.8, −.6), t_1 = (.9, .436), t_2 = (.6, −.8): masking takes away what spoke against class 1."""
    features = torch.tensor([[0.8, -0.6]], dtype=torch.float64)
    texts = torch.nn.functional.normalize(torch.tensor([[0.9, 0.436], [0.89, 0.456]], dtype=torch.float64), dim=1)
    found = check_bound(features, texts, 0.5, 0.1)
    assert found.loss[0] < 0 and found.stated[0] and not found.holds[0] and not found.needed[0]
    assert found.counterexamples == 1
    assert found.margin[0] < 0


def test_nor_does_it_where_epsilon_is_positive() -> None:
    """Z = 4, a = 1, Z' = 6 (rounded): a ≥ (e^0.1 − 1) Z' = 0.63, yet ΔE = ln 4/3 < ln 6/4 = −L."""
    features = torch.tensor([[0.8, -0.6, 0.0]], dtype=torch.float64)
    texts = torch.tensor([[0.6863, 0.3376, 0.6443], [0.6863, 0.3376, -0.6443]], dtype=torch.float64)
    found = check_bound(features, texts, 1 / 3, 0.5, epsilon=0.1)
    assert found.delta_energy[0] == pytest.approx(math.log(4 / 3), abs=1e-3)
    assert found.loss[0] == pytest.approx(math.log(4 / 6), abs=1e-3)
    assert found.stated[0] and not found.holds[0] and found.counterexamples == 1
    # A larger ε asks for more: (e^0.2 − 1) Z' = 1.33 > a. A smaller one than L is not met, whatever a is.
    assert not check_bound(features, texts, 1 / 3, 0.5, epsilon=0.2).stated[0]
    assert not check_bound(features, texts, 1 / 3, 0.5, epsilon=-0.5).stated[0]


def test_unreadable_images_are_left_out_and_listed(tiny_clip: Model, tmp_path: Path) -> None:
    folder = write_pictures(tmp_path / "train")
    whole = check_theory(de.ZeroShotClassifier(tiny_clip, CLASSES), labelled_images(folder))
    (folder / "cat" / "00 broken.png").write_bytes(b"no image")
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "x.png").write_bytes((folder / "cat").joinpath("0.png").read_bytes())
    (tmp_path / "open" / "y.png").write_bytes(b"no image")
    found = check_theory(
        de.ZeroShotClassifier(tiny_clip, CLASSES), labelled_images(folder), open_images=tmp_path / "open"
    )
    assert [Path(image.id).name for image in found.unreadable] == ["00 broken.png", "y.png"]
    np.testing.assert_array_equal(found.bound.margin, whole.bound.margin)
    (tmp_path / "open" / "x.png").unlink()
    with pytest.raises(InputError, match="None of the open images"):
        check_theory(de.ZeroShotClassifier(tiny_clip, CLASSES), labelled_images(folder), open_images=tmp_path / "open")


def test_theorem_1_where_its_assumption_holds() -> None:
    """Only the largest similarity differs between these images, so b is the same for all."""
    top = torch.linspace(0.3, 0.5, 40, dtype=torch.float64)
    similarities = torch.cat([top[:, None], torch.full((40, 5), 0.2, dtype=torch.float64)], dim=1)
    found = check_pairs(similarities, None, 0.1, np.random.default_rng(0))
    assert found.assumption == 1.0 and found.log_gap < 1e-12
    assert found.order == found.spread == found.order_if == found.spread_if == 1.0


def test_theorem_1_where_it_does_not() -> None:
    """The first image is more similar to its class, but to another class just as much: ΔEnergy ranks it lower."""
    first = torch.tensor([[0.50, 0.50, 0.1]], dtype=torch.float64)
    second = torch.tensor([[0.45, 0.20, 0.1]], dtype=torch.float64)
    found = check_pairs(first, second, 0.05, np.random.default_rng(0))
    assert found.order == 0.0 and found.assumption == 0.0 and found.order_if is None


@pytest.mark.parametrize("tau", [0.01, 0.1, 1.0])
def test_gradient_identities_hold(tau: float) -> None:
    similarities = unit(50, 8, 1) @ unit(6, 8, 2).T
    assert max(gradient_identities(similarities, tau)) < 1e-12


def test_power_iteration_on_an_indefinite_matrix() -> None:
    rng = np.random.default_rng(0)
    q, _ = np.linalg.qr(rng.normal(size=(30, 30)))
    for eigenvalues in ([5.0, -8.0, 1.0], [3.0, -3.0, 0.1], [0.0]):
        spectrum = np.zeros(30)
        spectrum[: len(eigenvalues)] = eigenvalues
        matrix = torch.from_numpy((q * spectrum) @ q.T).float()
        norm, settled, _ = power_iteration(lambda x, m=matrix: m @ x, torch.zeros(30), torch.Generator().manual_seed(0))
        assert settled and norm == pytest.approx(max(map(abs, eigenvalues)), rel=5e-3, abs=1e-6)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pictures(tmp_path_factory.mktemp("theory") / "train")


def test_hessian_distance_equals_that_of_whole_matrices(tiny_clip: Model, pictures: Path) -> None:
    learned = de.tune(tiny_clip, CLASSES, pictures, "ebm(p=0.5)", shots=3, views=1, recipe={"epochs": 2})
    # One vector of 24 entries: small enough for a whole Hessian.
    tuned = make_method("coop(context_length=1)").build_empty(tiny_clip, CLASSES)
    assert isinstance(tuned, PromptClassifier)
    tuned.context.data.copy_(learned.get_parameter("context")[:1])
    tuned.eval()
    prompts = tuned.prompts
    items = labelled_images(pictures)
    features = torch.from_numpy(tiny_clip.encode_images(items))
    labels = torch.tensor([CLASSES.index((item.label or "").replace("_", " ")) for item in items])
    found = check_hessians(tuned, features, labels, 0.5, 1.0)

    texts = tuned.text_features.detach()
    product = features * texts[(features @ texts.T).argmax(dim=1)]
    mask = torch.zeros_like(features).scatter(1, product.argsort(dim=1, descending=True)[:, :8], 1.0)

    def risk(context: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        logits = tiny_clip.logit_scale * images @ prompts(context.view(1, -1)).T
        return torch.nn.functional.cross_entropy(logits, labels)

    flat = tuned.context.flatten()
    one, two = (
        torch.autograd.functional.hessian(lambda v, x=x: risk(v, x), flat).double().numpy()  # type: ignore[no-untyped-call]
        for x in (features, features * mask)
    )
    assert found.distance == pytest.approx(np.abs(np.linalg.eigvalsh(one - two)).max(), rel=0.02)
    assert found.original == pytest.approx(np.abs(np.linalg.eigvalsh(one)).max(), rel=0.02)
    assert found.masked == pytest.approx(np.abs(np.linalg.eigvalsh(two)).max(), rel=0.02)


def test_the_report_says_what_fails(tiny_clip: Model, pictures: Path) -> None:
    zero_shot = de.ZeroShotClassifier(tiny_clip, CLASSES)
    report = check_theory(zero_shot, labelled_images(pictures))
    text = "\n".join(f"{name}: {sentence}" for name, sentence in report.sentences())
    assert "no learned context" in text and "gradient identities hold" in text
    assert report.hessian is None and report.images == 18
    tip = de.tune(tiny_clip, CLASSES, pictures, "tip-adapter", shots=3, views=1)
    with pytest.raises(InputError, match="tip-adapter"):
        check_theory(tip, labelled_images(pictures))
    with pytest.raises(InputError, match="tau must be"):
        check_theory(zero_shot, labelled_images(pictures), tau=0)
    with pytest.raises(InputError, match="epsilon"):
        check_theory(zero_shot, labelled_images(pictures), epsilon=math.nan)
