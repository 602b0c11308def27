"""lsn: losses against float64 NumPy and autograd, its two stages, and what it says of its cost."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import deltaenergy as de
from deltaenergy import Model
from deltaenergy.classifiers import estimate
from deltaenergy.classifiers.base import Outputs, TrainBatch
from deltaenergy.classifiers.cocoop import CoCoOp
from deltaenergy.classifiers.coop import CoOp
from deltaenergy.classifiers.lsn import NEGATIVES, POSITIVES, Lsn, LsnClassifier, likeness
from deltaenergy.classifiers.methods import make_method
from deltaenergy.errors import InputError
from deltaenergy.models.towers.prompts import LearnedPrompts
from deltaenergy.tuning.prepare import TrainSet
from deltaenergy.tuning.tune import fit, recipes_of
from deltaenergy.tuning.views import CachedViews, Validation
from tests.labelled_pictures import CLASSES


@pytest.fixture(scope="module")
def images(train_set: TrainSet) -> CachedViews:
    found = train_set.images
    assert isinstance(found, CachedViews)
    return CachedViews(found.features[:, :1], found.labels)


def built(model: Model, images: CachedViews, **settings: Any) -> LsnClassifier:
    made = Lsn(**settings).build(model, CLASSES, images, torch.Generator().manual_seed(3))
    assert isinstance(made, LsnClassifier)
    return made


def in_second_stage(model: Model, images: CachedViews, **settings: Any) -> tuple[LsnClassifier, TrainBatch]:
    classifier = built(model, images, **settings).train()
    classifier.phase = NEGATIVES
    return classifier, images.batch(torch.arange(12), 0, torch.Generator())


def unit(*shape: int, seed: int = 0) -> torch.Tensor:
    drawn = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return nn.functional.normalize(drawn, dim=-1)


def loss_of(classifier: LsnClassifier, batch: TrainBatch) -> torch.Tensor:
    return torch.stack(list(classifier.losses(classifier(batch), batch).values())).sum()


class TestLikeness:
    @pytest.mark.parametrize("absolute", [False, True])
    def test_against_numpy(self, absolute: bool) -> None:
        n = unit(3, 5, 8)
        a = n.numpy()
        expected = 0.0
        for m in range(3):
            for k in range(5):
                cos = [float(a[m, k] @ a[other, k]) for other in range(3) if other != m]
                expected += np.mean(np.abs(cos) if absolute else cos) / 5
        assert likeness(n, absolute=absolute).item() == pytest.approx(expected, rel=1e-12)

    def test_gradient_is_that_of_the_pairs_mean_times_three_halves(self) -> None:
        n = unit(3, 5, 8).requires_grad_()
        (found,) = torch.autograd.grad(likeness(n), n)
        pairs = [(n[a] * n[b]).sum(dim=1).mean() for a, b in ((0, 1), (0, 2), (1, 2))]
        (expected,) = torch.autograd.grad(1.5 * torch.stack(pairs).mean(), n)
        torch.testing.assert_close(found, expected)

    def test_one_negative_is_like_no_other(self) -> None:
        assert likeness(unit(1, 5, 8)).item() == 0

    def test_right_angles_satisfy_the_absolute_form_and_opposites_do_not(self) -> None:
        crossed = torch.eye(3, dtype=torch.float64)[:, None]
        opposed = torch.stack([torch.eye(3)[:1], -torch.eye(3)[:1]]).double()
        assert likeness(crossed, absolute=True).item() == 0
        assert likeness(opposed, absolute=True).item() > 0 > likeness(opposed).item()


class TestLoss:
    @pytest.mark.parametrize("as_released", [False, True])
    @pytest.mark.parametrize("orthogonality", ["cos", "abs"])
    def test_second_stage_against_numpy(
        self, tiny_clip: Model, images: CachedViews, as_released: bool, orthogonality: str
    ) -> None:
        classifier, batch = in_second_stage(
            tiny_clip, images, weight=0.3, as_released=as_released, orthogonality=orthogonality
        )
        found = classifier.losses(classifier(batch), batch)
        prompts = LearnedPrompts(tiny_clip.text, CLASSES, 16, class_specific=True)  # type: ignore[arg-type]
        z, y = batch.features.double().numpy(), batch.labels.numpy()  # type: ignore[union-attr]
        n = np.stack([prompts(context).detach().double().numpy() for context in classifier.contexts])

        def log_softmax(a: Any) -> Any:
            shifted = a - a.max(axis=1, keepdims=True)
            return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))

        ce = apart = 0.0
        for m in range(3):
            logits = 20 * (1 - z @ n[m].T)
            ce -= log_softmax(np.exp(log_softmax(logits)) if as_released else logits)[np.arange(12), y].mean()
            cos = np.stack([(n[m] * n[other]).sum(axis=1) for other in range(3) if other != m])
            apart += (np.abs(cos) if orthogonality == "abs" else cos).mean()
        assert found["ce"].item() == pytest.approx(ce, rel=1e-4)
        assert found["apart"].item() == pytest.approx(0.3 * apart, rel=1e-4)
        assert set(found) == {"ce", "apart"}

    @pytest.mark.parametrize("as_released", [False, True])
    def test_first_stage_is_the_positives_cross_entropy(
        self, tiny_clip: Model, images: CachedViews, as_released: bool
    ) -> None:
        classifier, batch = in_second_stage(tiny_clip, images, as_released=as_released)
        classifier.phase = POSITIVES
        outputs = classifier(batch)
        assert outputs.negative_texts is None
        logits = tiny_clip.logit_scale * (batch.features @ classifier.positives.texts().T)  # type: ignore[operator]
        expected = nn.functional.cross_entropy(logits.softmax(dim=1) if as_released else logits, batch.labels)
        found = classifier.losses(outputs, batch)
        assert set(found) == {"ce"} and found["ce"].item() == pytest.approx(expected.item(), rel=1e-5)

    def test_the_one_in_one_minus_cosine_is_irrelevant(self, tiny_clip: Model, images: CachedViews) -> None:
        classifier, batch = in_second_stage(tiny_clip, images)
        outputs = classifier(batch)
        assert outputs.negative_texts is not None and outputs.negatives is not None
        without = sum(nn.functional.cross_entropy(-20 * outputs.negatives[:, m], batch.labels) for m in range(3))
        torch.testing.assert_close(classifier.losses(outputs, batch)["ce"], without)

    def test_the_released_loss_has_a_floor(self, tiny_clip: Model, images: CachedViews) -> None:
        """Cosines of −1 to the own class and 1 to the others, the most there can be: log(1 + 2/e) per negative."""
        classifier, batch = in_second_stage(tiny_clip, images, as_released=True)
        own = nn.functional.one_hot(batch.labels, 3).float()
        best = (1 - 2 * own)[:, None].expand(-1, 3, -1)
        outputs = classifier(batch)
        assert outputs.negative_texts is not None
        perfect = Outputs(outputs.similarities, outputs.features, outputs.texts, best, outputs.negative_texts)
        floor = 3 * math.log(1 + 2 / math.e)
        assert classifier.losses(perfect, batch)["ce"].item() == pytest.approx(floor, rel=1e-6)
        assert classifier.losses(outputs, batch)["ce"].item() > floor
        plain, _ = in_second_stage(tiny_clip, images)
        assert plain.losses(perfect, batch)["ce"].item() < 1e-6

    def test_the_order_of_negatives_is_no_matter(self, tiny_clip: Model, images: CachedViews) -> None:
        classifier, batch = in_second_stage(tiny_clip, images)
        before = loss_of(classifier, batch).item()
        classifier.contexts.data = classifier.contexts.data[[2, 0, 1]]
        assert loss_of(classifier, batch).item() == pytest.approx(before, rel=1e-6)

    @pytest.mark.parametrize("weight", [0.0, 1.0])
    def test_without_weight_negatives_are_independent(
        self, tiny_clip: Model, images: CachedViews, weight: float
    ) -> None:
        classifier, batch = in_second_stage(tiny_clip, images, weight=weight)
        gradients = []
        for _ in range(2):
            gradients.append(torch.autograd.grad(loss_of(classifier, batch), classifier.contexts)[0][0])
            noise = torch.randn(classifier.contexts[1:].shape, generator=torch.Generator().manual_seed(1))
            classifier.contexts.data[1:] += noise
        assert gradients[0].abs().max() > 1e-4
        assert ((gradients[0] - gradients[1]).abs().max() < 1e-6) == (weight == 0)


class TestStages:
    def test_recipes_are_the_paper_s_with_large_batches(self) -> None:
        first, second = recipes_of(Lsn(), {})
        assert (first.optimizer, first.lr, first.epochs, first.warmup_epochs) == ("sgd", 1e-3, 50, 0)
        assert (second.optimizer, second.lr, second.epochs, second.warmup_epochs) == ("adam", 0.002, 100, 0)
        assert second.batch_size == 256 and second.weight_decay == 0 and second.schedule == "cosine"

    def test_negatives_begin_at_random_one_by_one(self, tiny_clip: Model, images: CachedViews) -> None:
        contexts = built(tiny_clip, images).contexts
        assert contexts.shape == (3, 3, 16, 24)
        assert contexts.std().item() == pytest.approx(0.02, rel=0.05) and abs(contexts.mean().item()) < 0.002
        assert len({round(value, 9) for value in contexts.flatten().tolist()}) > 3000

    def test_each_moves_its_own(self, tiny_clip: Model, images: CachedViews) -> None:
        classifier = built(tiny_clip, images)
        begun = {name: tensor.clone() for name, tensor in classifier.state_dict().items()}
        seen: list[tuple[bool, bool]] = []
        positives: list[torch.Tensor] = []

        def look(log: Any) -> None:
            now = classifier.state_dict()
            moved = [not torch.equal(now[name], begun[name]) for name in ("positives.context", "contexts")]
            seen.append((moved[0], moved[1]))
            positives.append(now["positives.context"].clone())

        fit(classifier, images, generator=torch.Generator().manual_seed(4), recipe={"epochs": 2}, on_epoch=look)
        assert seen == [(True, False), (True, False), (True, True), (True, True)]
        assert torch.equal(positives[1], positives[3])

    @pytest.mark.parametrize(("name", "alone"), [("coop", CoOp()), ("cocoop", CoCoOp())])
    def test_positives_are_those_of_the_method_alone(
        self, tiny_clip: Model, images: CachedViews, name: str, alone: Any
    ) -> None:
        """All images in one batch, so that the order in which they are drawn is no matter."""
        recipe = {"epochs": 4, "batch_size": 64}
        classifier = built(tiny_clip, images, positives=name)
        fit(classifier, images, generator=torch.Generator().manual_seed(4), recipe=recipe)
        other = alone.build(tiny_clip, CLASSES, images, torch.Generator().manual_seed(3))
        fit(
            other,
            images,
            generator=torch.Generator().manual_seed(4),
            recipe={**recipe, "lr": 1e-3, "warmup_epochs": 0},
        )
        z = images.features[:, 0]
        np.testing.assert_allclose(classifier.similarities(z), other.similarities(z), atol=1e-4)
        begun = built(tiny_clip, images, positives=name).similarities(z)
        assert np.abs(begun - other.similarities(z)).max() > 1e-3
        torch.testing.assert_close(classifier.text_features, other.text_features, atol=1e-4, rtol=0)

    def test_validation_chooses_among_positives_alone(self, tiny_clip: Model, images: CachedViews) -> None:
        validation = Validation(images.features[:, 0], images.labels.roll(4))
        trained = fit(
            built(tiny_clip, images),
            images,
            generator=torch.Generator().manual_seed(4),
            recipe={"epochs": 12, "patience": 2},
            validation=validation,
        )
        by_stage = [[log for log in trained.epochs if log.stage == stage] for stage in (1, 2)]
        assert len(by_stage[0]) < 12 and len(by_stage[1]) == 12
        # The positives that were kept do not change any more.
        assert len({log.val_accuracy for log in by_stage[1]}) == 1

    def test_negatives_learn_to_be_far_from_their_class(self, tiny_clip: Model, images: CachedViews) -> None:
        classifier = built(tiny_clip, images)
        fit(classifier, images, generator=torch.Generator().manual_seed(4), recipe={"epochs": 60})
        compared = np.einsum("nd,mkd->nmk", images.features[:, 0].numpy(), classifier.negative_features.numpy())
        nearest_by_distance = (1 - compared).argmax(axis=2)
        assert (nearest_by_distance == images.labels.numpy()[:, None]).mean() > 0.9

    def test_the_second_stage_logs_the_accuracy_of_the_learned_positives(
        self, tiny_clip: Model, images: CachedViews
    ) -> None:
        classifier = built(tiny_clip, images)
        z, labels = images.features[:, 0], images.labels.numpy()
        begun = (classifier.similarities(z).argmax(axis=1) == labels).mean()
        trained = fit(classifier, images, generator=torch.Generator().manual_seed(4), recipe={"epochs": 15})
        learned = (classifier.similarities(z).argmax(axis=1) == labels).mean()
        assert learned > begun
        logged = [log.accuracy for log in trained.epochs if log.stage == 2]
        assert len(logged) == 15 and logged == pytest.approx([learned] * 15)

    def test_sees_the_test_view(self, tiny_clip: Model, train_set: TrainSet, coloured: Path) -> None:
        found = de.tune(tiny_clip, CLASSES, coloured, "lsn", shots=2, views=4, recipe={"epochs": 1})
        assert found.record["views"] == "test"
        assert de.tune(tiny_clip, CLASSES, train_set, "lsn", recipe={"epochs": 1}).record["views"] == "test"


class TestUse:
    def test_outputs_hold_what_the_score_looks_at(self, tiny_clip: Model, images: CachedViews) -> None:
        classifier, batch = in_second_stage(tiny_clip, images)
        classifier.phase = ""
        trained = classifier(batch).negatives
        served = classifier.eval()(batch).negatives
        assert trained is not None and served is not None and served.shape == (12, 3, 3)
        torch.testing.assert_close(served, trained.detach(), atol=1e-5, rtol=0)
        expected = torch.einsum("nd,mkd->nmk", batch.features, classifier.negative_features)
        torch.testing.assert_close(served, expected, atol=1e-6, rtol=0)

    def test_files_keep_the_negatives_and_loading_runs_no_prompt(
        self, tiny_clip: Model, images: CachedViews, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        classifier = built(tiny_clip, images)
        classifier.save(tmp_path)

        def refuse(*_: Any, **__: Any) -> torch.Tensor:
            raise AssertionError("loading must not run the text tower")

        monkeypatch.setattr(LearnedPrompts, "__call__", refuse)
        loaded = de.Classifier.load(tmp_path, tiny_clip)
        assert isinstance(loaded, LsnClassifier)
        assert torch.equal(loaded.negative_features, classifier.negative_features)

    def test_other_classes_and_terms_are_refused(self, tiny_clip: Model, images: CachedViews) -> None:
        with pytest.raises(InputError, match="lsn learned"):
            built(tiny_clip, images).with_classes(["zebra", "cat"])
        with pytest.raises(InputError, match=r"attaches to.*cosines"):
            make_method("lsn+ebm")

    def test_on_the_bundled_model(self) -> None:
        lite = de.load_model("lite")
        features = nn.functional.normalize(torch.randn(6, 1, lite.feature_dim, generator=torch.Generator()), dim=-1)
        images = CachedViews(features, torch.arange(6) % 2)
        classifier = Lsn().build(lite, ["dog", "cat"], images, torch.Generator().manual_seed(0))
        trained = fit(classifier, images, generator=torch.Generator().manual_seed(0), recipe={"epochs": 4})
        for stage in (1, 2):
            losses = [log.loss for log in trained.epochs if log.stage == stage]
            assert losses[-1] < losses[0]


class TestCost:
    def test_what_is_estimated(self, tiny_clip: Model) -> None:
        """By hand: 3 × 3 classes × 16 × 24 parameters; prompts of [start], 16, name, full stop, [end]."""
        names = [len(tiny_clip.text.tokenize([name])[0]) - 2 for name in CLASSES]  # type: ignore[union-attr]
        tokens = 3 * sum(1 + 16 + length + 1 + 1 for length in names)
        found = Lsn().estimate(tiny_clip, CLASSES, 12, recipes_of(Lsn(), {"epochs": 7}))
        assert found is not None
        parameters, activations = found.memory.values()
        assert parameters == 16 * 3 * 3 * 16 * 24
        assert f"9 whole prompts of {tokens} tokens" in found.step
        # Two blocks of width 24, 18 floats of that width each; then similarities and logits of 12 images.
        assert activations == tokens * 2 * 18 * 24 * 4 + 16 * 12 * 9
        assert found.operations == 7 * tokens * 2 * 24 * 24**2 * 2

    def test_too_much_is_refused_before_any_image_is_read(
        self, tiny_clip: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(estimate, "memory_of", lambda _: 100_000)
        message = (
            r"lsn would take about .* GB of memory \(.* GB for 0.0 M parameters, .* GB for activations\), and this "
            r"machine has .* GB. A step runs 9 whole prompts of \d+ tokens. Use fewer classes, lsn\(negatives=1\)"
        )
        for call in (
            lambda: de.tune(tiny_clip, CLASSES, tmp_path / "absent", "lsn"),
            lambda: de.tune(tiny_clip, CLASSES, tmp_path / "absent", "lsn", recipe={"epochs": 1}),
        ):
            with pytest.raises(InputError, match=message):
                call()

    def test_a_detector_that_cannot_be_tuned_is_refused_before_images_are_encoded(
        self, tiny_clip: Model, coloured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from deltaenergy import pipeline as tuned_detector
        from deltaenergy.tuning import prepare

        monkeypatch.setattr(estimate, "memory_of", lambda _: 100_000)
        monkeypatch.setattr(prepare, "prepare_training", lambda *_, **__: pytest.fail("images were encoded"))
        with pytest.raises(InputError, match="this machine has"):
            tuned_detector.tune_detector(tiny_clip, coloured, tmp_path / "out", "lsn", shots=2)

    def test_days_on_a_processor_are_told(
        self, tiny_clip: Model, train_set: TrainSet, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(estimate, "CPU_SPEED", 1.0)
        with pytest.warns(UserWarning, match=r"lsn.*GPU.* 9 whole prompts"):
            de.tune(tiny_clip, CLASSES, train_set, "lsn", recipe={"epochs": 1})

    def test_an_affordable_run_is_not_spoken_of(
        self, tiny_clip: Model, train_set: TrainSet, recwarn: pytest.WarningsRecorder
    ) -> None:
        de.tune(tiny_clip, CLASSES, train_set, "lsn", recipe={"epochs": 1})
        assert not [one for one in recwarn if "GPU" in str(one.message)]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("lsn(positives=locoop)", r"positives.*cocoop.*'locoop'"),
        ("lsn(negatives=0)", "negatives must be"),
        ("lsn(weight=-1)", "weight must be"),
        ("lsn(orthogonality=sin)", r"orthogonality.*'sin'"),
    ],
)
def test_wrong_settings_are_explained(spec: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_method(spec)
