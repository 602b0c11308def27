"""`tune` as a user calls it: what it accepts, searches, and refuses."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

import deltaenergy as de
from deltaenergy import Model
from deltaenergy.classifiers.coop import CoOp
from deltaenergy.errors import InputError
from deltaenergy.tuning.prepare import TrainSet, prepare_training
from deltaenergy.tuning.views import CachedViews, Domains
from tests.labelled_pictures import CLASSES, write_pictures


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    return write_pictures(tmp_path / "train")


def tune(model: Model, train: Any, **options: Any) -> Any:
    options = {"method": "coop", "shots": 3, "views": 1, "recipe": {"epochs": 2}, **options}
    return de.tune(model, options.pop("classes", CLASSES), train, **options)


def test_ebm_learns_what_zero_shot_cannot(tiny_clip: Model, pictures: Path, tmp_path: Path) -> None:
    unseen = write_pictures(tmp_path / "unseen", seed=9)
    labels = [path.parent.name.replace("_", " ") for path in sorted(unseen.rglob("*.png"))]

    def accuracy(classifier: Any) -> float:
        found = classifier.similarities(unseen).argmax(axis=1)
        return sum(CLASSES[k] == label for k, label in zip(found, labels)) / len(labels)

    tuned = de.tune(tiny_clip, CLASSES, pictures, method="ebm", shots=6, seed=1, views=2, recipe={"epochs": 15})
    assert accuracy(de.ZeroShotClassifier(tiny_clip, CLASSES)) < 0.7
    assert accuracy(tuned) > 0.9
    assert all(0 < log["logged"]["e^L"] < 10 for log in tuned.record["epochs"])


def test_a_vanished_ebm_term_warns_once(tiny_clip: Model, pictures: Path) -> None:
    with pytest.warns(UserWarning, match="EBM term has vanished") as caught:
        tune(tiny_clip, pictures, method="ebm(loss_tau=0.001)")
    assert len([w for w in caught if "vanished" in str(w.message)]) == 1


def test_live_views_train_too(tiny_clip: Model, pictures: Path) -> None:
    one, two = (tune(tiny_clip, pictures, views="live", method="locoop") for _ in range(2))
    assert (one.text_features == two.text_features).all()
    assert one.record["views"] == "live"


def test_a_method_without_augmentation_sees_the_test_view(
    tiny_clip: Model, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever views are asked for, and whatever a prepared set holds."""
    monkeypatch.setattr(CoOp, "augments", False)
    found = tune(tiny_clip, pictures, views=5)
    assert found.record["views"] == "test"
    prepared = prepare_training(tiny_clip, CLASSES, pictures, shots=3, views=2)
    again = tune(tiny_clip, prepared)
    assert again.record["views"] == "test"
    torch.testing.assert_close(again.text_features, found.text_features, atol=1e-6, rtol=0)
    monkeypatch.setattr(CoOp, "augments", True)
    other = tune(tiny_clip, prepared)
    assert other.record["views"] == 2 and (other.text_features - found.text_features).abs().max() > 1e-6


def test_domains_are_balanced(tiny_clip: Model, tmp_path: Path) -> None:
    for domain in ("art", "photo"):
        write_pictures(tmp_path / "both" / domain)
    prepared = prepare_training(tiny_clip, CLASSES, tmp_path / "both", shots=4, views=1, domains=True)
    domains = [item.domain for item in prepared.sample.items]
    assert domains.count("art") == domains.count("photo") == 6
    assert tune(tiny_clip, tmp_path / "both", domains=True).record["images"] == 9


def test_a_run_whose_images_changed_their_domain_is_another(tiny_clip: Model, train_set: TrainSet) -> None:
    images = train_set.images
    assert isinstance(images, CachedViews)

    def identity(*names: str) -> str:
        numbers = torch.arange(len(images.labels)) % len(names)
        views = CachedViews(images.features, images.labels, domains=Domains(numbers, names))
        return dataclasses.replace(train_set, images=views).identity

    assert identity("art", "photo") == identity("art", "photo") != identity("art", "sketch")
    assert identity("train") == train_set.identity != identity("art", "photo")


def test_search_keeps_the_best_on_validation(tiny_clip: Model, pictures: Path, tmp_path: Path) -> None:
    seen: list[tuple[str, float]] = []
    val = write_pictures(tmp_path / "val", seed=3)
    classifier = tune(
        tiny_clip,
        pictures,
        method="tip-adapter",
        val=val,
        search=True,
        on_candidate=lambda spec, accuracy: seen.append((spec, accuracy)),
    )
    assert len(seen) == 25
    best = max(classifier.record["searched"], key=lambda found: (found["accuracy"], -found["loss"]))
    assert classifier.method.spec == best["method"]
    assert max(accuracy for _, accuracy in seen) == best["accuracy"]
    with pytest.raises(InputError, match="`search` needs validation"):
        tune(tiny_clip, pictures, search=True)
    with pytest.warns(UserWarning, match="coop has no grid"):
        tune(tiny_clip, pictures, search=True, val=val)


def test_fewer_images_than_shots_is_a_warning(tiny_clip: Model, pictures: Path) -> None:
    (pictures / "dog" / "0.png").unlink()
    with pytest.warns(UserWarning, match=r"Fewer than 6 .*'dog' \(5\)"):
        assert tune(tiny_clip, pictures, shots=6).record["images"] == 17


def test_bad_input_is_explained(tiny_clip: Model, pictures: Path, tmp_path: Path) -> None:
    val = write_pictures(tmp_path / "val")
    (val / "zebra").mkdir()
    (val / "cat" / "0.png").rename(val / "zebra" / "0.png")
    with pytest.raises(InputError, match=r"'zebra'.* among the 3"):
        tune(tiny_clip, pictures, val=val)
    with pytest.raises(InputError, match="only 'cat'"):
        tune(tiny_clip, pictures, classes=["cat"])
    with (
        pytest.raises(InputError, match="distinct class names"),
        pytest.warns(UserWarning, match="Duplicate class names"),
    ):
        tune(tiny_clip, pictures, classes=["cat", "dog", "red car", "cat"])
    with pytest.raises(InputError, match="no training image of 'wolf'"):
        tune(tiny_clip, pictures, classes=[*CLASSES, "wolf"])
    with pytest.raises(InputError, match=r"Training images.*'dog'"):
        tune(tiny_clip, pictures, classes=["cat", "red car"])
    with pytest.raises(InputError, match="views"):
        tune(tiny_clip, pictures, views="many")
    with pytest.raises(InputError, match="recipe has no field 'epoch'"):
        tune(tiny_clip, pictures, recipe={"epoch": 3})
    with pytest.raises(InputError, match="another class list"):
        prepared = prepare_training(tiny_clip, CLASSES, pictures, shots=1, views=1)
        tune(tiny_clip, prepared, classes=CLASSES[::-1])
    with pytest.raises(InputError, match="locoop needs patches"):
        tune(tiny_clip, prepared, method="locoop")
    (pictures / "empty").mkdir()
    with pytest.raises(InputError, match=r"folder '.*empty'"):
        tune(tiny_clip, pictures)


def test_a_validation_class_without_images_is_a_warning(tiny_clip: Model, pictures: Path, tmp_path: Path) -> None:
    val = write_pictures(tmp_path / "val")
    for path in (val / "dog").iterdir():
        path.unlink()
    (val / "dog").rmdir()
    with pytest.warns(UserWarning, match="1 of 3 classes have no"):
        tune(tiny_clip, pictures, val=val)


@pytest.mark.parametrize(
    "method", ["coop", "locoop", "plot(prompts=2)", "gallop", "gallop(projection=feature)", "maple", "plot++"]
)
def test_validation_measures_what_is_served(tiny_clip: Model, train_set: TrainSet, tmp_path: Path, method: str) -> None:
    """Whatever the method trains on: the classifier as saved gives the recorded accuracy and loss."""
    val = write_pictures(tmp_path / "val", seed=3)
    # A rate at which gallop's projection of the patches, and tokens, move visibly.
    tuned = de.tune(tiny_clip, CLASSES, train_set, method, val=val, recipe={"epochs": 2, "lr": 0.3, "warmup_epochs": 0})
    similarities = torch.from_numpy(tuned.similarities(val))
    labels = torch.tensor([CLASSES.index(path.parent.name.replace("_", " ")) for path in sorted(val.rglob("*.png"))])
    recorded = tuned.record["validation"]
    assert recorded["accuracy"] == pytest.approx(float((similarities.argmax(dim=1) == labels).float().mean()))
    assert recorded["loss"] == pytest.approx(float(tuned.cross_entropy(similarities, labels)), rel=1e-4)


def test_several_methods_share_validation_images(tiny_clip: Model, pictures: Path, tmp_path: Path) -> None:
    """Each takes of them what it needs: patch states, pixels, or features alone."""
    val = write_pictures(tmp_path / "val", seed=3)
    options: dict[str, Any] = {"shots": 3, "views": 1, "recipe": {"epochs": 1}, "score": "mcm"}
    tuned = de.tune_detector(tiny_clip, pictures, tmp_path / "out", ["gallop", "maple", "coop"], val=val, **options)
    assert tuned.comparison is not None and len(tuned.comparison.rows) == 4
