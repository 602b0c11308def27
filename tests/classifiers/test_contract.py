"""One suite of checks over every registered tuning method, and EBM on every prompt learner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import deltaenergy as de
from deltaenergy import Model
from deltaenergy.classifiers.methods import get_method_class, list_methods, make_method
from deltaenergy.errors import InputError
from deltaenergy.tuning.prepare import TrainSet
from tests.labelled_pictures import CLASSES

METHODS = [
    *list_methods(),
    "cocoop+ebm",
    "locoop+ebm",
    "task-res+ebm",
    "croft(as_released=True)",
    "coop(name_position=middle)",
    "coop(class_specific=True)",
]
TRAINED = [name for name in METHODS if make_method(name).trains]


def tune(model: Model, train_set: Any, method: str, **options: Any) -> Any:
    return de.tune(model, CLASSES, train_set, method=method, recipe={"epochs": 3}, **options)


@pytest.fixture(scope="module")
def features(tiny_clip: Model, coloured: Path) -> torch.Tensor:
    return torch.from_numpy(tiny_clip.encode_images(coloured))


@pytest.mark.parametrize("method", METHODS)
class TestEveryMethod:
    def test_is_documented(self, method: str, tiny_clip: Model, train_set: TrainSet) -> None:
        for name in method.split("(")[0].split("+"):
            cls = get_method_class(name)
            assert cls.summary and cls.formula and cls.paper and cls.__doc__
            module = __import__(cls.__module__, fromlist=["x"])
            assert module.__doc__ is not None and len(module.__doc__.splitlines()) > 2
            for parameter in cls.grid:
                assert parameter in cls().params

    def test_gives_similarities_on_which_every_score_works(
        self, method: str, tiny_clip: Model, train_set: TrainSet, coloured: Path
    ) -> None:
        classifier = tune(tiny_clip, train_set, method)
        found = classifier.similarities(coloured)
        assert found.shape == (18, 3) and np.isfinite(found).all()
        norms = classifier.text_features.norm(dim=1)
        torch.testing.assert_close(norms, torch.ones(3), atol=1e-5, rtol=0)
        adapted = classifier.adapted_features(torch.eye(16)[:4])
        torch.testing.assert_close(adapted.norm(dim=1), torch.ones(4), atol=1e-5, rtol=0)
        assert classifier.patch_similarities(torch.eye(16)[None]).shape == (1, 16, 3)
        for score in ("delta-energy", "mcm", "max-logit"):
            verdicts = de.Detector(classifier, score).calibrate(coloured, keep=0.9).predict(coloured)
            assert len(verdicts) == 18

    def test_save_and_load(
        self, method: str, tiny_clip: Model, train_set: TrainSet, features: torch.Tensor, tmp_path: Path
    ) -> None:
        classifier = tune(tiny_clip, train_set, method)
        detector = de.Detector(classifier).calibrate(features)
        detector.save(tmp_path / "detector")
        loaded = de.Detector.load(tmp_path / "detector", model=tiny_clip)
        # The last bit of a product may depend on where in memory its factors lie.
        found, expected = loaded.classifier.similarities(features), classifier.similarities(features)
        np.testing.assert_allclose(found, expected, atol=1e-6, rtol=0)
        torch.testing.assert_close(loaded.classifier.text_features, classifier.text_features)
        assert loaded.classifier.describe() == classifier.describe()
        assert loaded.threshold == detector.threshold

    def test_batches_and_order_do_not_matter(
        self, method: str, tiny_clip: Model, train_set: TrainSet, features: torch.Tensor
    ) -> None:
        classifier = tune(tiny_clip, train_set, method)
        whole = classifier.similarities(features)
        parts = np.concatenate([classifier.similarities(features[i : i + 5]) for i in range(0, 18, 5)])
        np.testing.assert_allclose(parts, whole, atol=1e-5)
        order = torch.randperm(18, generator=torch.Generator().manual_seed(0))
        np.testing.assert_allclose(classifier.similarities(features[order]), whole[order.numpy()], atol=1e-5)
        assert classifier.similarities(features[:0]).shape == (0, 3)

    def test_the_seed_decides(self, method: str, tiny_clip: Model, train_set: TrainSet, features: torch.Tensor) -> None:
        one, two = (tune(tiny_clip, train_set, method, seed=5) for _ in range(2))
        np.testing.assert_array_equal(one.similarities(features), two.similarities(features))
        if make_method(method).trains:
            other = tune(tiny_clip, train_set, method, seed=6)
            assert np.abs(other.similarities(features) - one.similarities(features)).max() > 0

    def test_one_class_is_refused(self, method: str, tiny_clip: Model, coloured: Path) -> None:
        with pytest.raises(InputError, match="at least two classes"):
            de.tune(tiny_clip, ["cat"], coloured, method=method)

    def test_the_model_stays_as_it_was(self, method: str, tiny_clip: Model, train_set: TrainSet) -> None:
        before = {name: tensor.clone() for name, tensor in tiny_clip.module.state_dict().items()}  # type: ignore[attr-defined]
        tune(tiny_clip, train_set, method)
        for name, tensor in tiny_clip.module.state_dict().items():  # type: ignore[attr-defined]
            assert torch.equal(tensor, before[name]), name
        assert all(p.grad is None for p in tiny_clip.module.parameters())  # type: ignore[attr-defined]


@pytest.mark.parametrize("method", TRAINED)
class TestEveryTrainedMethod:
    def test_a_killed_run_goes_on_to_the_same_end(
        self, method: str, tiny_clip: Model, train_set: TrainSet, tmp_path: Path
    ) -> None:
        whole = tune(tiny_clip, train_set, method, checkpoints=tmp_path / "whole")

        class Killed(Exception):
            pass

        def kill(log: Any) -> None:
            if log.epoch == 2:
                raise Killed

        with pytest.raises(Killed):
            tune(tiny_clip, train_set, method, checkpoints=tmp_path / "cut", on_epoch=kill)
        seen: list[int] = []
        resumed = tune(
            tiny_clip, train_set, method, checkpoints=tmp_path / "cut", on_epoch=lambda log: seen.append(log.epoch)
        )
        assert seen == [3]
        for name, tensor in whole.state_dict().items():
            assert torch.equal(tensor, resumed.state_dict()[name]), name

    def test_training_lowers_the_loss(self, method: str, tiny_clip: Model, train_set: TrainSet) -> None:
        classifier = de.tune(tiny_clip, CLASSES, train_set, method=method, recipe={"epochs": 12})
        losses = [log["loss"] for log in classifier.record["epochs"]]
        # Views are drawn anew in every epoch, so single epochs vary.
        assert np.mean(losses[-4:]) < np.mean(losses[:3])
