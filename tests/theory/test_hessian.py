"""The Proposition's terms against whole Hessians, and its region."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import deltaenergy as de
from deltaenergy import Model
from deltaenergy.classifiers.methods import make_method
from deltaenergy.classifiers.prompt import PromptClassifier
from deltaenergy.source import labelled_images
from deltaenergy.theory import check_theory
from deltaenergy.theory.hessian import LEVEL, farthest_step, generalisation_gaps
from tests.labelled_pictures import CLASSES, write_pictures


def test_a_step_ends_where_the_loss_has_changed_by_epsilon() -> None:
    """f(x) = 1 + 2 x²: |f − 1| ≤ ϵ up to √(ϵ/2)."""
    step = farthest_step(lambda x: 1 + 2 * (x**2).sum(), torch.zeros(2), torch.tensor([0.0, 1.0]), 1.0)
    assert step.tolist() == pytest.approx([0.0, (LEVEL / 2) ** 0.5], rel=1e-3)


@pytest.fixture(scope="module")
def tuned(tiny_clip: Model) -> PromptClassifier:
    """One context vector of 24 entries: small enough for whole Hessians."""
    made = make_method("coop(context_length=1)").build_empty(tiny_clip, CLASSES)
    assert isinstance(made, PromptClassifier)
    made.context.data.copy_(0.1 * torch.randn(made.context.shape, generator=torch.Generator().manual_seed(3)))
    return made.eval()


def test_terms_by_whole_matrices(tuned: PromptClassifier, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same directions from NumPy's eigenvectors: without the random ones there are four, each way."""
    monkeypatch.setattr("deltaenergy.theory.hessian.RANDOM", 0)
    # Otherwise power iteration stops where the eigenvalue has settled, long before the vector has.
    monkeypatch.setattr("deltaenergy.theory.hessian.ITERATIONS", 1000)
    monkeypatch.setattr("deltaenergy.theory.hessian.TOLERANCE", 0.0)
    rng = np.random.default_rng(0)
    features = torch.nn.functional.normalize(
        torch.from_numpy(rng.normal(size=(24, tuned.model.feature_dim))).float(), dim=1
    )
    labels = torch.from_numpy(rng.integers(0, len(CLASSES), 24))
    ink, oil = generalisation_gaps(tuned, features, labels, ["ink"] * 10 + ["oil"] * 14)
    assert (ink.target, oil.target) == ("ink", "oil")
    prompts, scale = tuned.prompts, tuned.model.logit_scale

    def risk(rows: slice, context: torch.Tensor) -> torch.Tensor:
        logits = scale * features[rows] @ prompts(context.view(1, -1)).T
        return torch.nn.functional.cross_entropy(logits, labels[rows])

    flat, parts = tuned.context.detach().flatten(), {"ink": slice(0, 10), "oil": slice(10, 24)}
    at = {name: float(risk(rows, flat)) for name, rows in parts.items()}
    hessian = {
        name: torch.autograd.functional.hessian(lambda v, r=rows: risk(r, v), flat).double().numpy()  # type: ignore[no-untyped-call]
        for name, rows in parts.items()
    }
    for found, target, source in ((ink, "ink", "oil"), (oil, "oil", "ink")):
        gradient = torch.autograd.functional.jacobian(lambda v, t=target: risk(parts[t], v), flat).double().numpy()  # type: ignore[no-untyped-call]
        matrices = (hessian[source], hessian[target], hessian[target] - hessian[source])
        directions = [gradient / np.linalg.norm(gradient)]
        for values, vectors in map(np.linalg.eigh, matrices):
            directions.append(vectors[:, np.abs(values).argmax()])
        terms = {"curvature": 0.0, "expanded": 0.0, "slope": 0.0}
        reached = []
        for direction in (sign * one for one in directions for sign in (1, -1)):
            way = torch.from_numpy(direction).float()
            u = farthest_step(lambda v, s=source: risk(parts[s], v), flat, way, at[source])
            reached.append(abs(float(risk(parts[target], flat + u)) - at[source]))
            step = u.double().numpy()
            for name, value in (
                ("curvature", step @ matrices[2] @ step / 2),
                ("expanded", step @ matrices[0] @ step / 2),
                ("slope", step @ gradient),
            ):
                terms[name] = max(terms[name], abs(float(value)))
        left = max(abs(at[target] - at[source]), *reached)
        assert found.left == pytest.approx(left, rel=0.01)
        assert found.at_optimum == pytest.approx(abs(at[target] - at[source]), rel=1e-4)
        for name, value in terms.items():
            assert getattr(found, name) == pytest.approx(value, rel=0.01), (target, name)
        assert found.right == pytest.approx(found.at_optimum + found.curvature + LEVEL)
    same = [
        float((features[i] - features[j]).norm()) for i in range(10) for j in range(10, 24) if labels[i] == labels[j]
    ]
    assert ink.distance == pytest.approx(np.mean(same), rel=1e-3) and ink.farthest == pytest.approx(max(same), rel=1e-3)


def test_one_domain_is_not_checked(tuned: PromptClassifier) -> None:
    assert generalisation_gaps(tuned, torch.eye(2), torch.zeros(2, dtype=torch.long), ["a", "a"]) == []


def test_the_report_has_all_of_it(tiny_clip: Model, tmp_path: Path) -> None:
    for domain in ("ink", "oil"):
        write_pictures(tmp_path / "known" / domain)
    folder = write_pictures(tmp_path / "others")
    learned = de.tune(tiny_clip, CLASSES, folder, "ebm", shots=2, views=1, recipe={"epochs": 1})
    report = check_theory(learned, labelled_images(tmp_path / "known", domains=True), open_images=folder)
    assert [gap.target for gap in report.gaps] == ["ink", "oil"]
    assert {(one.tau, one.c) for one in report.false_positives} >= {(0.01, 1), (0.01, 2)}
    assert {one.tau for one in report.many_classes} == {0.01, 1.0}
    named = [name for name, _ in report.sentences()]
    assert named.count("Proposition") == 2 and named.count("Theorem 2") == 5
    record = report.to_dict()
    assert len(record["proposition"]) == 2 and record["theorem_2"]["false_positives"]
    # Without domains, and without unknown images, it says that these are missing.
    bare = check_theory(learned, labelled_images(folder))
    assert bare.gaps == [] and bare.false_positives == []
    assert [name for name, _ in bare.sentences()].count("Theorem 2") == 2
