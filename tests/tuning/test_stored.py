"""Tuning on what was encoded before: labelled rows of features, class vectors, feature stores."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import deltaenergy as de
from deltaenergy import LabelledFeatures, Model, PrecomputedModel, Store
from deltaenergy.classifiers.coop import CoOp
from deltaenergy.classifiers.task_res import TaskRes
from deltaenergy.core.needs import Need
from deltaenergy.errors import ArtifactError, InputError
from deltaenergy.source import labelled_folders
from deltaenergy.tuning.prepare import prepare_training, prepare_validation
from tests.labelled_pictures import CLASSES, write_pictures

# The methods that learn from features and fixed class texts.
FEATURE_METHODS = ["task-res", "task-res+ebm", "croft", "clip-adapter", "tip-adapter", "tip-adapter-f", "clap", "lp++"]
RECIPE = {"epochs": 3}


@pytest.fixture(scope="module")
def features(tiny_clip: Model, coloured: Path) -> np.ndarray:
    """Six rows of each class, in the order of the classes."""
    return tiny_clip.encode_images(labelled_folders(coloured))


@pytest.fixture(scope="module")
def rows(features: np.ndarray) -> LabelledFeatures:
    return LabelledFeatures(features, np.repeat([0, 1, 2], 6))


@pytest.fixture(scope="module")
def vectors(tiny_clip: Model) -> PrecomputedModel:
    """No towers, but the class vectors that the tiny CLIP gives, among others and in another order."""
    names = ["red car", "wolf", "dog", "cat"]
    texts = tiny_clip.encode_texts([f"a photo of a {name}." for name in names])
    return PrecomputedModel(16, logit_scale=tiny_clip.logit_scale, class_vectors=(names, texts))


@pytest.fixture(scope="module")
def store(tiny_clip: Model, coloured: Path, tmp_path_factory: pytest.TempPathFactory) -> Store:
    return de.build_store(tiny_clip, coloured, tmp_path_factory.mktemp("stores") / "train.store")


def tune(model: Model, train: Any, method: Any = "task-res", **options: Any) -> Any:
    return de.tune(model, CLASSES, train, method, **{"shots": 4, "recipe": RECIPE, **options})


@pytest.mark.parametrize("method", FEATURE_METHODS)
def test_class_vectors_stand_for_the_text_tower(
    tiny_clip: Model, vectors: PrecomputedModel, rows: LabelledFeatures, features: np.ndarray, method: str
) -> None:
    with_tower, without = tune(tiny_clip, rows, method), tune(vectors, rows, method)
    np.testing.assert_allclose(without.similarities(features), with_tower.similarities(features), atol=1e-5)
    assert without.record["views"] == "test" and without.record["images"] == 12
    assert without.record["sample"] == with_tower.record["sample"]


@pytest.mark.parametrize("method", ["task-res", "croft", "tip-adapter-f"])
def test_detectors_are_saved_and_loaded_with_the_model_given(
    vectors: PrecomputedModel, rows: LabelledFeatures, features: np.ndarray, method: str, tmp_path: Path
) -> None:
    detector = de.Detector(tune(vectors, rows, method), "mcm").calibrate(features)
    detector.save(tmp_path / "detector")
    # The class vectors are part of the classifier by now; the model needs none to read it.
    bare = PrecomputedModel(16, logit_scale=vectors.logit_scale)
    loaded = de.Detector.load(tmp_path / "detector", model=bare)
    assert [(v.label, v.is_ood) for v in loaded.predict(features)] == [
        (v.label, v.is_ood) for v in detector.predict(features)
    ]
    with pytest.raises(ArtifactError, match="PrecomputedModel"):
        de.Detector.load(tmp_path / "detector")
    with pytest.raises(ArtifactError, match="another model"):
        de.Detector.load(tmp_path / "detector", model=PrecomputedModel(16, name="other"))
    detector.classifier.save(tmp_path / "classifier")
    again = de.Classifier.load(tmp_path / "classifier", model=bare)
    np.testing.assert_array_equal(again.similarities(features), detector.classifier.similarities(features))


def test_zero_shot_and_other_class_names_by_class_vectors(
    tiny_clip: Model, vectors: PrecomputedModel, rows: LabelledFeatures, features: np.ndarray
) -> None:
    zero_shot = de.ZeroShotClassifier(vectors, CLASSES)
    expected = de.ZeroShotClassifier(tiny_clip, CLASSES)
    torch.testing.assert_close(zero_shot.text_features, expected.text_features, atol=1e-6, rtol=0)
    adapted = tune(vectors, rows, "clip-adapter").with_classes(["wolf", "cat"])
    same = tune(tiny_clip, rows, "clip-adapter").with_classes(["wolf", "cat"])
    np.testing.assert_allclose(adapted.similarities(features), same.similarities(features), atol=1e-5)


def test_what_is_drawn_is_what_is_trained_on(tiny_clip: Model, features: np.ndarray) -> None:
    """Shots and seed sample rows, spread over domains, and every drawn row carries its own label and features."""
    labels = [CLASSES[i // 6] for i in range(18)]
    domains = ["art", "photo", "photo", "art", "photo", "photo"] * 3
    train = LabelledFeatures(torch.from_numpy(features).half(), labels, domains)
    prepared = prepare_training(tiny_clip, CLASSES, train, shots=4, seed=3)
    drawn = [int(item.id.split()[1]) for item in prepared.sample.items]
    assert len(set(drawn)) == 12 and [i // 6 for i in drawn] == prepared.sample.labels
    assert [domains[i] for i in drawn].count("art") == 6
    assert prepared.images.domain_names == ("art", "photo")
    batch = prepared.images.batch(torch.arange(12), 0, torch.Generator())
    np.testing.assert_array_equal(batch.features, features[drawn].astype(np.float16))
    assert [prepared.images.domain_names[k] for k in batch.domains] == [domains[i] for i in drawn]  # type: ignore[union-attr]
    other = prepare_training(tiny_clip, CLASSES, train, shots=4, seed=4)
    assert other.sample.hash != prepared.sample.hash and prepared.views == "test"


def test_memory_mapped_rows_are_not_copied_as_a_whole(
    vectors: PrecomputedModel, features: np.ndarray, tmp_path: Path
) -> None:
    np.save(tmp_path / "features.npy", features.astype(np.float16))
    mapped = np.load(tmp_path / "features.npy", mmap_mode="r")
    train = LabelledFeatures(mapped, [CLASSES[i // 6] for i in range(18)])
    assert train.features is mapped and len(train) == 18
    tuned = tune(vectors, train)
    assert tuned.record["images"] == 12
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a map cannot be written to, which torch would tell of
        whole = np.load(tmp_path / "features.npy", mmap_mode="r").astype(np.float32)
        whole.flags.writeable = False
        np.testing.assert_array_equal(tuned.similarities(whole), tuned.similarities(mapped))


def test_a_feature_store_trains_and_validates(tiny_clip: Model, store: Store) -> None:
    prepared = prepare_training(tiny_clip, CLASSES, store.path, shots=4)
    place = {name: row for row, name in enumerate(store.ids)}
    drawn = [place[item.id] for item in prepared.sample.items]
    np.testing.assert_allclose(prepared.images.mean_features(), store.features(drawn), atol=1e-6)
    held_out = prepare_validation(tiny_clip, CLASSES, store)
    np.testing.assert_array_equal(held_out.features, store.features())
    assert tune(tiny_clip, store).record["views"] == "test"
    same = LabelledFeatures(store.features(), [label.replace("_", " ") for label in store.labels if label])
    # With all images of each class, names of rows do not decide what is drawn.
    everything = tune(tiny_clip, store, "tip-adapter", shots=6), tune(tiny_clip, same, "tip-adapter", shots=6)
    np.testing.assert_allclose(*(one.similarities(store.features()) for one in everything), atol=1e-6)


def test_a_store_of_another_model_is_refused(tiny_clip: Model, vectors: PrecomputedModel, store: Store) -> None:
    with pytest.raises(ArtifactError, match="fingerprint"):
        tune(vectors, store)
    texts = vectors.class_features(CLASSES)
    known = PrecomputedModel(
        16, logit_scale=tiny_clip.logit_scale, fingerprint=store.fingerprint, class_vectors=(CLASSES, texts)
    )
    one, two = tune(known, store), tune(tiny_clip, store)
    np.testing.assert_allclose(one.similarities(store.features()), two.similarities(store.features()), atol=1e-5)


def test_images_of_several_stores_keep_their_own_features(tiny_clip: Model, store: Store, tmp_path: Path) -> None:
    other = de.build_store(tiny_clip, write_pictures(tmp_path / "more", seed=5), tmp_path / "more.store")
    items = [item for pair in zip(store.items(), other.items()) for item in pair]
    held_out = prepare_validation(tiny_clip, CLASSES, items)
    np.testing.assert_array_equal(held_out.features[0::2], store.features())
    np.testing.assert_array_equal(held_out.features[1::2], other.features())


def test_images_of_which_a_store_has_no_features_are_replaced(tiny_clip: Model, tmp_path: Path) -> None:
    pictures = write_pictures(tmp_path / "pictures")
    for i in range(3):
        (pictures / "cat" / f"{i}.png").write_bytes(b"no picture")
    store = de.build_store(tiny_clip, pictures, tmp_path / "broken.store")
    with pytest.warns(UserWarning, match="unreadable training image"):
        prepared = prepare_training(tiny_clip, CLASSES, store, shots=3, seed=1)
    assert prepared.sample.labels.count(0) == 3


@dataclass(frozen=True)
class NeedsPixels(TaskRes):
    name = "needs-pixels"
    needs_to_train = frozenset({Need.FEATURES, Need.PIXELS})


def test_methods_that_look_at_more_refuse_features_by_name(
    tiny_clip: Model, rows: LabelledFeatures, store: Store, coloured: Path
) -> None:
    with pytest.raises(InputError, match=r"locoop.*LabelledFeatures"):
        tune(tiny_clip, rows, "locoop")
    with pytest.raises(InputError, match=r"locoop.*train\.store"):
        tune(tiny_clip, store, "locoop")
    with pytest.raises(InputError, match=r"needs-pixels.*train\.store"):
        tune(tiny_clip, store, NeedsPixels())
    with pytest.raises(InputError, match=r"gallop.*train\.store"):
        tune(tiny_clip, coloured, "gallop", val=store, views=1)
    with pytest.raises(InputError, match="views='live'"):
        tune(tiny_clip, store, views="live")


def test_a_store_with_patches_serves_a_method_that_looks_at_them(
    tiny_clip: Model, coloured: Path, tmp_path: Path
) -> None:
    store = de.build_store(tiny_clip, coloured, tmp_path / "patches.store", patches=True)
    prepared = prepare_training(tiny_clip, CLASSES, store, shots=4, needs=frozenset({Need.PATCHES}))
    place = {name: row for row, name in enumerate(store.ids)}
    drawn = [place[item.id] for item in prepared.sample.items]
    batch = prepared.images.batch(torch.arange(12), 0, torch.Generator())
    np.testing.assert_allclose(batch.patches, store.patches(drawn), atol=1e-3)
    with pytest.warns(UserWarning, match="trained on"):
        assert tune(tiny_clip, store, "locoop", val=store).record["kept_epoch"] >= 1


@pytest.mark.parametrize("method", ["coop", "ebm", "cocoop", "locoop"])
def test_prompt_learners_need_a_text_tower(vectors: PrecomputedModel, rows: LabelledFeatures, method: str) -> None:
    with pytest.raises(InputError, match=r"patches|needs a text encoder"):
        tune(vectors, rows, method)


def test_pictures_need_an_image_tower(vectors: PrecomputedModel, coloured: Path, rows: LabelledFeatures) -> None:
    message = "LabelledFeatures"
    with pytest.raises(InputError, match=message):
        tune(vectors, coloured)
    with pytest.raises(InputError, match=message):
        tune(vectors, rows, val=coloured)
    mixture = [*rows.items(CLASSES), *labelled_folders(coloured)]
    with pytest.raises(InputError, match="mixes stored"):
        tune(vectors, mixture, shots=12)


def test_validation_chooses_the_epoch_and_overlap_is_told(
    vectors: PrecomputedModel, rows: LabelledFeatures, features: np.ndarray, store: Store, tiny_clip: Model
) -> None:
    with pytest.warns(UserWarning, match="12 of the 18 validation"):
        tuned = tune(vectors, rows, val=rows)
    expected = (tuned.similarities(features).argmax(axis=1) == np.repeat([0, 1, 2], 6)).mean()
    assert tuned.record["validation"]["accuracy"] == pytest.approx(expected)
    with pytest.warns(UserWarning, match="12 of the 18 validation"):
        tune(tiny_clip, store, val=store.path)
    with pytest.warns(UserWarning, match="2 of 3 classes have no"):
        tune(vectors, rows, val=LabelledFeatures(features[:2].copy(), ["cat", "cat"]))


def test_a_killed_run_goes_on_and_other_class_vectors_are_another_run(
    vectors: PrecomputedModel, rows: LabelledFeatures, tmp_path: Path
) -> None:
    class Killed(Exception):
        pass

    def kill(log: Any) -> None:
        if log.epoch == 2:
            raise Killed

    whole = tune(vectors, rows, "croft")
    with pytest.raises(Killed):
        tune(vectors, rows, "croft", checkpoints=tmp_path, on_epoch=kill)
    texts = vectors.class_features(CLASSES).flip(0)
    others = PrecomputedModel(16, logit_scale=vectors.logit_scale, class_vectors=(CLASSES, texts))
    with pytest.raises(ArtifactError, match="class vectors: saved"):
        tune(others, rows, "croft", checkpoints=tmp_path)
    resumed = tune(vectors, rows, "croft", checkpoints=tmp_path)
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name]), name


@pytest.mark.parametrize(
    ("features", "labels", "domains", "message"),
    [
        ([[1.0, 0.0]], ["cat"], None, r"features.* got list"),
        (np.zeros(4), ["cat"], None, r"features.* got \(4,\)"),
        (np.zeros((2, 2), int), ["cat", "dog"], None, r"features must be a float array"),
        (np.zeros((2, 2)), ["cat"], None, r"labels has 1 .* 2 rows"),
        (np.zeros((2, 2)), ["cat", "dog"], ["art"], r"domains has 1 .* 2 rows"),
    ],
)
def test_rows_that_do_not_fit_are_refused_at_once(features: Any, labels: Any, domains: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        LabelledFeatures(features, labels, domains)


def test_wrong_rows_are_explained(vectors: PrecomputedModel, features: np.ndarray) -> None:
    names = [CLASSES[i // 6] for i in range(18)]
    with pytest.raises(InputError, match=r"labels\[17\] is 3"):
        tune(vectors, LabelledFeatures(features, [0] * 6 + [1] * 6 + [2] * 5 + [3]))
    with pytest.raises(InputError, match=r"labels\[0\] is 0\.5"):
        tune(vectors, LabelledFeatures(features, [0.5] * 18))
    with pytest.raises(InputError, match=r"labels\[2\] is None"):
        tune(vectors, LabelledFeatures(features, [*names[:2], None, *names[3:]]))
    with pytest.raises(InputError, match=r"domains\[0\] is 7, not a name"):
        tune(vectors, LabelledFeatures(features, names, [7] * 18))
    with pytest.raises(InputError, match=r"row 17 .*'cart'.*Did you mean"):
        tune(vectors, LabelledFeatures(features, [*names[:17], "cart"]))
    broken = features.copy()
    broken[17] = np.nan
    with pytest.raises(InputError, match=r"1 row.*row 17"):
        tune(vectors, LabelledFeatures(broken, names), shots=6)
    broken[17] = 3 * features[17]
    with pytest.raises(InputError, match="row 17 has length 3"):
        tune(vectors, LabelledFeatures(broken, names), shots=6)
    with pytest.raises(InputError, match=r"features have 8.*16"):
        tune(vectors, LabelledFeatures(features[:, :8], names))


def test_missing_class_vectors_are_named(vectors: PrecomputedModel, rows: LabelledFeatures) -> None:
    with pytest.raises(InputError, match=r"'lynx' and 1 more.*Known: cat"):
        de.ZeroShotClassifier(vectors, ["Red_Car", "lynx", "bat"])
    with pytest.raises(InputError, match="class vectors"):
        tune(PrecomputedModel(16), rows)
    with pytest.raises(InputError, match=r"'a sketch of \{\}'"):
        tune(vectors, rows, "clip-adapter(template='a sketch of {}')")
    with pytest.raises(InputError, match="'itap of a"):
        tune(vectors, rows, "croft:imagenet7")
    many = PrecomputedModel(4, class_vectors={f"class {i}": np.eye(4)[i % 4] for i in range(60)})
    with pytest.raises(InputError, match=r"'klass 7'.*'class 7'"):
        many.class_features(["klass 7"])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.eye(4), "must be {name: vector}, or"),
        ((["a", "b"], np.eye(4)), "has 2 names for 4 vectors"),
        ((["a", "a"], np.eye(4)[:2]), "'a' more than once"),
        ({"a": np.ones(4)}, r"class_vectors.*row 0"),
        ({"a": np.eye(3)[0]}, "class_vectors have 3 columns"),
        ({"a": np.eye(4)[0], "b": np.eye(3)[0]}, "one vector"),
        ({"a": "text"}, "one vector"),
        ({"a": 1.0}, "one vector"),
        ({" ": np.eye(4)[0]}, "blank"),
        ({"a": np.full(4, np.nan)}, "class_vectors have NaN"),
        ({}, "classes is empty"),
    ],
)
def test_wrong_class_vectors_are_explained(given: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        PrecomputedModel(4, class_vectors=given)


def test_a_pixel_method_is_not_served_by_a_prepared_set_of_rows(
    vectors: PrecomputedModel, rows: LabelledFeatures
) -> None:
    prepared = prepare_training(vectors, CLASSES, rows, shots=2)
    with pytest.raises(InputError, match="locoop needs patches"):
        tune(vectors, prepared, "locoop")
    with pytest.raises(InputError, match="needs a text encoder"):
        tune(vectors, prepared, CoOp())


@pytest.mark.parametrize("precomputed", [False, True])
def test_a_detector_in_one_call(
    tiny_clip: Model,
    vectors: PrecomputedModel,
    rows: LabelledFeatures,
    features: np.ndarray,
    tmp_path: Path,
    precomputed: bool,
) -> None:
    """Rows that were not drawn set the threshold: of eighteen, six."""
    model = vectors if precomputed else tiny_clip
    found = de.tune_detector(
        model, rows, tmp_path / "out", "task-res", classes=CLASSES, shots=4, score="mcm", recipe=RECIPE
    )
    assert found.calibrated_on == "unused training images" and found.training_images == 12
    prepared = prepare_training(model, CLASSES, rows, shots=4)
    drawn = {int(item.id.split()[1]) for item in prepared.sample.items}
    rest = sorted(set(range(18)) - drawn)
    expected = de.Detector(found.detector.classifier, "mcm").calibrate(features[rest])
    np.testing.assert_array_equal(found.detector.calibration_scores, expected.calibration_scores)
    loaded = de.Detector.load(tmp_path / "out", model=model)
    assert loaded.threshold == expected.threshold


def test_a_detector_from_a_store_without_towers(
    tiny_clip: Model, vectors: PrecomputedModel, store: Store, tmp_path: Path
) -> None:
    known = PrecomputedModel(
        16,
        logit_scale=tiny_clip.logit_scale,
        fingerprint=store.fingerprint,
        class_vectors=(CLASSES, vectors.class_features(CLASSES)),
    )
    options: dict[str, Any] = {"shots": 4, "score": "mcm", "recipe": RECIPE}
    without = de.tune_detector(known, store.path, tmp_path / "without", "task-res", **options)
    with_tower = de.tune_detector(tiny_clip, store.path, tmp_path / "with", "task-res", **options)
    assert without.detector.threshold == pytest.approx(with_tower.detector.threshold, abs=1e-5)
    # One model made both, so that the one's detector is the other's.
    de.Detector.load(tmp_path / "without", model=tiny_clip)


def test_auto_without_class_texts_tries_what_needs_none(rows: LabelledFeatures, tmp_path: Path) -> None:
    """There is no zero-shot to compare with, and nothing to warn of."""
    model = PrecomputedModel(16)
    found = de.tune_detector(model, rows, tmp_path / "out", "auto", classes=CLASSES, shots=4, score="mcm")
    assert found.comparison is not None
    assert [row.method for row in found.comparison.rows] == ["centroids", "linear-probe"]
    assert all(row.accuracy is not None and row.accuracy_gain is None for row in found.comparison.rows)
    assert found.detector.classifier.method.spec == found.comparison.kept and found.comparison.warnings() == []
    with pytest.raises(InputError, match="linear-probe and centroids"):
        de.tune(model, CLASSES, rows)


def test_too_much_to_tune_again_is_not_chosen_among_blindly(
    vectors: PrecomputedModel, rows: LabelledFeatures, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without images to measure on, zero-shot would be the only one with a number, and be kept."""
    monkeypatch.setattr("deltaenergy.evaluation.tuning_gain.MOST_WORK", 10)
    with pytest.raises(InputError, match=r"centroids.*fold"):
        de.tune_detector(vectors, rows, tmp_path / "out", "auto", classes=CLASSES, shots=6)
    one = de.tune_detector(vectors, rows, tmp_path / "one", "lp++", classes=CLASSES, shots=6)
    assert one.comparison is None
