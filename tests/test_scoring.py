"""The one way through: batches as they are asked for, fits on the way, and what each part is given."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.covariance import LedoitWolf
from sklearn.metrics import roc_auc_score

import deltaenergy as de
from deltaenergy import Detector, Model, PrecomputedClassifier, Score, ZeroShotClassifier, make_score
from deltaenergy.classifiers.base import Inputs, Outputs
from deltaenergy.core.arrays import ROW_BLOCK
from deltaenergy.core.needs import Need
from deltaenergy.errors import InputError, NotFittedError
from deltaenergy.models.encoding import stream_batches
from deltaenergy.scores.base import ScoreInputs, Scorer
from deltaenergy.scoring import (
    CrossFitted,
    Encoded,
    KnownImages,
    bind,
    cross_fit,
    deal_folds,
    fit,
    known_images,
    score_images,
    score_inputs,
    stream_scores,
)
from deltaenergy.source import as_source
from tests.cross_fitting import cross_fitted


def unit(count: int, dimension: int, seed: int = 0) -> np.ndarray:
    rows = np.random.default_rng(seed).normal(size=(count, dimension)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.fixture
def classifier() -> PrecomputedClassifier:
    return PrecomputedClassifier(unit(5, 12, seed=1), list("abcde"))


def pictures(count: int) -> list[Image.Image]:
    rng = np.random.default_rng(3)
    return [Image.fromarray(rng.integers(0, 256, (40, 40, 3), dtype=np.uint8)) for _ in range(count)]


def test_rows_are_read_as_batches_are_asked_for(classifier: PrecomputedClassifier) -> None:
    """An array that counts which of its rows were looked at."""
    looked_at: list[slice] = []

    class Counted(np.ndarray):
        def __getitem__(self, key: Any) -> Any:
            if isinstance(key, slice):
                looked_at.append(key)
            return super().__getitem__(key)

    features = unit(3000, 12).view(Counted)
    batches = stream_scores(classifier, [make_score("msp")], as_source(features))
    assert not looked_at
    first = next(batches)
    assert len(first.items) < 3000 and max(part.stop for part in looked_at) <= len(first.items)
    rest = [len(batch.items) for batch in batches]
    assert len(first.items) + sum(rest) == 3000
    assert first.features is not None and len(first.features) == len(first.items)
    assert score_images(classifier, [make_score("msp")], as_source(features)).features is None, (
        "all of them would fill memory"
    )


def test_images_are_read_as_batches_are_asked_for(tiny_clip: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[int] = []
    original = tiny_clip.image_features
    monkeypatch.setattr(tiny_clip, "image_features", lambda x: encoded.append(len(x)) or original(x))
    detector = Detector(ZeroShotClassifier(tiny_clip, ["dog", "cat"])).calibrate(pictures(3))
    encoded.clear()
    stream = detector.stream([*pictures(20), b"no picture"], batch_size=2)
    assert not encoded
    next(stream)
    # On each core one runs ahead, and one waits.
    assert 1 <= len(encoded) <= torch.get_num_threads() + 1
    assert len(list(stream)) == 19 and encoded == [2] * 10
    assert [image.id for image in stream.unreadable] == ["image 20"]


def test_stream_and_predict_say_the_same(tiny_clip: Model, photos: Path) -> None:
    detector = Detector(ZeroShotClassifier(tiny_clip, ["dog", "cat"])).calibrate(photos)
    (photos / "dog" / "broken.png").write_bytes(b"nothing")
    stream = detector.stream(photos, batch_size=3)
    predicted = detector.predict(photos, batch_size=3)
    assert list(stream) == list(predicted) and stream.unreadable == predicted.unreadable
    assert len(predicted.unreadable) == 1


def test_mistakes_are_told_at_once_not_with_the_first_verdict(
    classifier: PrecomputedClassifier, tiny_clip: Model
) -> None:
    with pytest.raises(NotFittedError, match="calibrate"):
        Detector(classifier, "delta-energy").stream(unit(3, 12))
    with pytest.raises(NotFittedError, match="calibrate"):
        stream_scores(classifier, [make_score("react")], as_source(unit(3, 12)))
    with pytest.raises(InputError, match="needs pixels: give it images"):
        stream_scores(classifier, [make_score("odin")], as_source(unit(3, 12)))
    detector = Detector(ZeroShotClassifier(tiny_clip, ["dog"]), "delta-energy").calibrate(pictures(2))
    with pytest.raises(InputError, match="does not exist"):
        detector.stream("nowhere/at all")
    with pytest.raises(InputError, match="another classifier"):
        stream_scores(classifier, [detector.scorer], as_source(unit(3, 12)))


@pytest.mark.parametrize("bad_row", [0, 1023, 1024, 2500])
def test_a_bad_row_is_named_by_its_place_in_the_whole(classifier: PrecomputedClassifier, bad_row: int) -> None:
    features = unit(2600, 12)
    features[bad_row] *= 3
    with pytest.raises(InputError, match=f"row {bad_row} has length 3"):
        score_images(classifier, [make_score("msp")], as_source(features))
    features[bad_row, 4] = np.nan
    with pytest.raises(InputError, match=f"first in row {bad_row}"):
        score_images(classifier, [make_score("msp")], as_source(features))


def test_a_read_only_map_of_a_file_is_taken_without_a_warning(
    classifier: PrecomputedClassifier, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    features = unit(30, 12)
    np.save(tmp_path / "features.npy", features)
    mapped = score_images(classifier, [make_score("msp")], as_source(np.load(tmp_path / "features.npy", mmap_mode="r")))
    whole = score_images(classifier, [make_score("msp")], as_source(features))
    np.testing.assert_array_equal(mapped.values["msp"], whole.values["msp"])
    assert not recwarn.list


@pytest.mark.parametrize("count", [0, 1, ROW_BLOCK - 1, ROW_BLOCK, ROW_BLOCK + 1, 1024, 1025])
def test_scores_equal_those_of_the_plain_functions(classifier: PrecomputedClassifier, count: int) -> None:
    features = unit(count, 12) if count else np.zeros((0, 12), np.float32)
    scored = score_images(
        classifier, [make_score("delta-energy"), make_score("energy")], as_source(features), keep_features=True
    )
    cosines = features.astype(np.float64) @ classifier.text_features.double().numpy().T
    from tests.scores.reference import delta_energy, log_sum_exp

    expected = {
        "delta-energy": delta_energy(cosines, 0.01, 2) if count else np.zeros(0),
        "energy": 0.01 * log_sum_exp(cosines / 0.01) if count else np.zeros(0),
    }
    for spec, values in expected.items():
        np.testing.assert_allclose(scored.values[spec], values, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(scored.predicted, cosines.argmax(axis=1))
    probabilities = np.exp(100 * (cosines - cosines.max(axis=1, keepdims=True)))
    np.testing.assert_allclose(scored.confidence, 1 / probabilities.sum(axis=1), rtol=1e-3)
    assert scored.features is not None
    np.testing.assert_array_equal(scored.features, features)


@dataclass(frozen=True)
class Watching(Score):
    """Remembers what it was given."""

    name = "watching"

    def compute(self, inputs: ScoreInputs, scorer: Scorer) -> torch.Tensor:
        """Scores (N,)."""
        SEEN.append(inputs)
        return inputs.similarities.amax(dim=1)


@dataclass(frozen=True)
class WatchingPatches(Watching):
    """Asks for patches."""

    name = "watching-patches"
    needs = frozenset({Need.PATCHES})


@dataclass(frozen=True)
class FittedOnPatches(WatchingPatches):
    """Learns from the patches of ID images."""

    name = "fitted-on-patches"
    needs = frozenset({Need.PATCHES, Need.ID_DATA})

    def learn(self, inputs: ScoreInputs, scorer: Scorer) -> dict[str, torch.Tensor]:
        """Their mean."""
        assert inputs.patches is not None and len(inputs.patches) == len(inputs.features)
        return {"mean": inputs.patches.mean()}

    def compute(self, inputs: ScoreInputs, scorer: Scorer) -> torch.Tensor:
        """Scores (N,)."""
        assert inputs.patches is not None
        return inputs.patches.mean(dim=(1, 2)) - scorer.learned("mean")


SEEN: list[ScoreInputs] = []


class Patchy(ZeroShotClassifier):
    """A classifier that needs patches, and has negatives."""

    needs_to_predict = frozenset({Need.FEATURES, Need.PATCHES})

    def forward(self, x: Inputs) -> Outputs:
        """Cosines with the mean of feature and patches."""
        mean = torch.nn.functional.normalize(x.need(Need.FEATURES) + x.need(Need.PATCHES).mean(dim=1), dim=1)
        similarities = mean @ self.text_features.T
        return Outputs(similarities, mean, self.text_features, negatives=-similarities)


def test_scores_see_what_they_ask_for_and_what_the_classifier_made(tiny_clip: Model) -> None:
    plain, patchy = ZeroShotClassifier(tiny_clip, ["dog", "cat"]), Patchy(tiny_clip, ["dog", "cat"])
    SEEN.clear()
    score_images(plain, [Watching()], as_source(pictures(3)), batch_size=2)
    assert all(one.patches is None and one.outputs is not None for one in SEEN)
    # Filled up, so that a row's score does not depend on how many came with it.
    assert [len(one.similarities) for one in SEEN] == [ROW_BLOCK, ROW_BLOCK]
    SEEN.clear()
    score_images(plain, [WatchingPatches()], as_source(pictures(3)), batch_size=2)
    assert [len(one.similarities) for one in SEEN] == [2, 1]
    assert all(one.patches is not None and len(one.patches) == len(one.features) for one in SEEN)
    SEEN.clear()
    scored = score_images(patchy, [Watching()], as_source(pictures(3)), batch_size=2)
    assert [len(one.similarities) for one in SEEN] == [2, 1]
    for one in SEEN:
        assert one.outputs is not None and one.outputs.negatives is not None
        assert torch.equal(one.outputs.negatives, -one.similarities)
    expected = patchy.similarities(pictures(3)).max(axis=1)
    np.testing.assert_allclose(scored.values["watching"], expected, rtol=1e-5)
    with pytest.raises(InputError, match="needs patches: give it images"):
        score_images(patchy, [Watching()], as_source(unit(3, tiny_clip.feature_dim)))


@pytest.mark.parametrize("kind", [ZeroShotClassifier, Patchy])
def test_every_score_can_be_fitted_with_classifiers_of_features_and_of_patches(
    tiny_clip: Model, kind: Callable[..., ZeroShotClassifier]
) -> None:
    classifier = kind(tiny_clip, ["dog", "cat", "car"])
    scores = [make_score("msp"), FittedOnPatches(), make_score("react"), make_score("gl-mcm")]
    found, scorers = cross_fitted(classifier, scores, pictures(7), batch_size=3)
    assert list(found.values) == list(scorers) == [score.spec for score in scores]
    patches = torch.from_numpy(tiny_clip.encode(pictures(7), patches=True).patches)
    folds = deal_folds([None] * 7)
    others = torch.stack([patches[torch.from_numpy(folds != fold)].mean() for fold in folds])
    np.testing.assert_allclose(found.values["fitted-on-patches"], patches.mean(dim=(1, 2)) - others, atol=1e-6)
    bound = bind(classifier, scores)
    fitted = fit(bound, known_images([Encoded(classifier, bound, as_source(pictures(7)), batch_size=3)], bound))
    assert [scorer.spec for scorer in fitted] == list(found.values) and all(scorer.fitted for scorer in fitted)
    by_hand = patches.mean(dim=(1, 2)) - patches.mean()
    again = score_images(classifier, fitted, as_source(pictures(7)), batch_size=2)
    np.testing.assert_allclose(again.values["fitted-on-patches"], by_hand, atol=1e-6)


@pytest.mark.parametrize("labels", [[0] * 37, [*"abc" * 12, "d"], sorted("abbbbbbcccccccddddddddddddddd")])
def test_folds_are_dealt_evenly_by_class_and_at_random(labels: list[Any]) -> None:
    folds = deal_folds(labels)
    assert folds.tolist() == deal_folds(labels).tolist()
    counts = np.bincount(folds)
    assert len(counts) == 5 and np.ptp(counts) <= 1
    for label in set(labels):
        of_class = np.bincount(folds[[one == label for one in labels]], minlength=5)
        assert np.ptp(of_class) <= 1
    # Neither in blocks nor in turns.
    steps = np.diff(folds) % 5
    assert len(set(steps.tolist())) > 2


def test_few_images_make_few_folds_and_one_makes_none() -> None:
    assert sorted(deal_folds([None] * 3)) == [0, 1, 2]
    assert sorted(deal_folds(["a", "b"])) == [0, 1]
    with pytest.raises(InputError, match="at least 2"):
        deal_folds(["a"])


@dataclass(frozen=True)
class Seen(Score):
    """1 for an image that it learned from, 0 for others, and 10 times the number of those that it learned from."""

    name = "seen"
    summary = formula = paper = "none"
    needs = frozenset({Need.FEATURES, Need.ID_DATA})

    def learn(self, inputs: ScoreInputs, scorer: Scorer) -> dict[str, torch.Tensor]:
        return {"known": inputs.features.clone()}

    def compute(self, inputs: ScoreInputs, scorer: Scorer) -> torch.Tensor:
        known = scorer.learned("known")
        return (inputs.features @ known.T > 0.9999).any(dim=1) + 10.0 * len(known)


@pytest.mark.parametrize(("count", "every"), [(53, 1), (2, 1), (2501, 1), (2501, 7)])
def test_no_scorer_has_seen_the_images_of_its_fold(classifier: PrecomputedClassifier, count: int, every: int) -> None:
    """Others have seen all images but those of their own fold, or every so many of them."""
    features = unit(count, 12)
    found, scorers = cross_fitted(classifier, [Seen()], features, every=every)
    fitted = scorers["seen"]
    assert isinstance(fitted, CrossFitted)
    assert (found.values["seen"] % 10 == 0).all()
    taught = np.arange(0, count, every)
    for fold, scorer in enumerate(fitted.scorers):
        others = taught[fitted.folds[taught] != fold]
        np.testing.assert_array_equal(scorer.learned("known").numpy(), features[others])
        np.testing.assert_array_equal(found.values["seen"][fitted.folds == fold], 10.0 * len(others))


def test_new_images_take_turns_with_the_scorers_of_all_folds(classifier: PrecomputedClassifier) -> None:
    """Whatever the batches; each score is that of one scorer alone, to the last bit."""
    fitted = cross_fitted(classifier, [make_score("mahalanobis")], unit(61, 12))[1]["mahalanobis"]
    assert isinstance(fitted, CrossFitted)
    new = unit(3001, 12, seed=9)
    found = score_images(classifier, [fitted], as_source(new)).values["mahalanobis"]
    for fold, scorer in enumerate(fitted.scorers):
        alone = score_images(classifier, [scorer], as_source(new)).values["mahalanobis"]
        np.testing.assert_array_equal(found[fold::5], alone[fold::5])
        assert not np.array_equal(found[(fold + 1) % 5 :: 5], alone[(fold + 1) % 5 :: 5])


def test_known_rows_of_features_are_dealt_by_their_labels(classifier: PrecomputedClassifier) -> None:
    labels = sorted("aabbccdde" * 5)
    fitted = cross_fitted(classifier, [Seen()], de.LabelledFeatures(unit(45, 12), labels))[1]["seen"]
    assert isinstance(fitted, CrossFitted)
    np.testing.assert_array_equal(fitted.folds, deal_folds(labels))
    assert fitted.folds.tolist() != deal_folds([None] * 45).tolist()


def test_out_of_fold_mahalanobis_is_that_of_numpy(classifier: PrecomputedClassifier) -> None:
    """In double precision, from the images of the other folds alone; the same from inputs that are at hand."""
    rng = np.random.default_rng(4)
    rows = unit(400, 12, seed=3) * 0.3 + unit(5, 12, seed=1)[rng.integers(0, 5, 400)]
    features = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    found, scorers = cross_fitted(classifier, [make_score("mahalanobis")], features)
    fitted = scorers["mahalanobis"]
    assert isinstance(fitted, CrossFitted)
    z = features.astype(np.float64)
    predicted = (z @ unit(5, 12, seed=1).T.astype(np.float64)).argmax(axis=1)
    expected = np.empty(400)
    for fold in range(5):
        learned, mine = fitted.folds != fold, fitted.folds == fold
        means = np.stack([z[learned & (predicted == k)].mean(axis=0) for k in range(5)])
        residuals = z[learned] - means[predicted[learned]]
        precision = np.linalg.inv(LedoitWolf(assume_centered=True).fit(residuals).covariance_)
        apart = z[mine, None] - means
        expected[mine] = -np.einsum("nkd,de,nke->nk", apart, precision, apart).min(axis=1)
    np.testing.assert_allclose(found.values["mahalanobis"], expected, rtol=1e-4)
    at_hand = ScoreInputs(torch.from_numpy(features @ unit(5, 12, seed=1).T), torch.from_numpy(features))
    again = cross_fit(bind(classifier, [make_score("mahalanobis")]), KnownImages(at_hand, [None] * 400))
    np.testing.assert_allclose(score_inputs(again, at_hand, known=True)["mahalanobis"], expected, rtol=1e-4)


@pytest.mark.parametrize("spec", ["mahalanobis", "knn", "knn(k=10)"])
def test_known_and_new_images_that_are_alike_score_alike(classifier: PrecomputedClassifier, spec: str) -> None:
    """Of one distribution, in 12 dimensions: a score that has seen the known images would tell them from the others."""
    known, new = unit(300, 12, seed=5), unit(300, 12, seed=6)
    score = make_score(spec)
    found, scorers = cross_fitted(classifier, [score], known)
    others = score_images(classifier, list(scorers.values()), as_source(new)).values[score.spec]
    truth = np.repeat([1, 0], 300)
    # The standard error is 2.4 points.
    assert abs(roc_auc_score(truth, np.concatenate([found.values[score.spec], others])) - 0.5) < 0.06


def test_a_score_cannot_learn_without_a_readable_image(tiny_clip: Model) -> None:
    classifier = ZeroShotClassifier(tiny_clip, ["dog", "cat"])
    with pytest.raises(InputError, match=r"react.*image 0"):
        cross_fitted(classifier, [make_score("react"), make_score("msp")], [b"nothing"])
    found = score_images(classifier, [make_score("msp")], as_source([b"nothing"]))
    assert not found.items and len(found.unreadable) == 1
    assert {spec: len(values) for spec, values in found.values.items()} == {"msp": 0}


@pytest.mark.parametrize(("spec", "passes"), [("react", 1), ("fitted-on-patches", 2)])
def test_images_are_encoded_once_unless_more_than_features_is_looked_at(
    spec: str, passes: int, tiny_clip: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a score gets what it gets from features that are encoded for every pass."""
    classifier = ZeroShotClassifier(tiny_clip, ["dog", "cat"])
    score = FittedOnPatches() if spec == "fitted-on-patches" else make_score(spec)
    seen: list[tuple[int, int | None]] = []
    encoded: list[int] = []
    monkeypatch.setattr(
        "deltaenergy.scoring.stream_batches", lambda *a, **k: encoded.append(1) or stream_batches(*a, **k)
    )
    options = {"batch_size": 3, "progress": lambda *done: seen.append(done)}
    held, _ = cross_fitted(classifier, [score], pictures(8), **options)
    assert len(encoded) == passes
    assert seen == [(3, 8), (6, 8), (8, 8)], "progress is that of the first pass"
    monkeypatch.setattr(Encoded, "_holding", lambda self, batches: batches)
    again, _ = cross_fitted(classifier, [score], pictures(8), batch_size=3)
    np.testing.assert_array_equal(held.values[spec], again.values[spec])


def test_several_sets_are_learned_from_as_one(classifier: PrecomputedClassifier) -> None:
    """Of the second set, every third image; folds go on from set to set."""
    first, second = unit(30, 12, seed=1), unit(50, 12, seed=2)
    (scorer,) = bind(classifier, [Seen()])
    encoded = [Encoded(classifier, [scorer], as_source(rows)) for rows in (first, second)]
    known = known_images(encoded, [scorer], every=[1, 3])
    np.testing.assert_array_equal(known.inputs.features.numpy(), np.concatenate([first, second[::3]]))
    assert known.images == 80 and known.rows is not None
    assert known.rows.tolist() == [*range(30), *range(30, 80, 3)]
    (fitted,) = cross_fit([scorer], known)
    assert isinstance(fitted, CrossFitted)
    np.testing.assert_array_equal(fitted.folds[known.rows], deal_folds([None] * 47))
    others = np.setdiff1d(np.arange(80), known.rows)
    np.testing.assert_array_equal(fitted.folds[others], others % 5)


@dataclass(frozen=True)
class Remembers(Score):
    """Keeps what it learns from."""

    name = "remembers"
    summary = formula = paper = "none"
    needs = frozenset({Need.ID_DATA})

    def learn(self, inputs: ScoreInputs, scorer: Scorer) -> dict[str, torch.Tensor]:
        assert inputs.compared is not None
        shared = inputs.compared.data_ptr() == inputs.features.data_ptr()
        return {"shared": torch.tensor(shared), "compared": inputs.compared.clone()}

    def compute(self, inputs: ScoreInputs, scorer: Scorer) -> torch.Tensor:
        return inputs.similarities.amax(dim=1)


@pytest.mark.parametrize("every", [1, 3])
def test_features_that_are_compared_as_they_are_are_held_once(classifier: PrecomputedClassifier, every: int) -> None:
    features = unit(2500, 12)
    fitted = cross_fitted(classifier, [Remembers()], features, every=every)[1]["remembers"]
    assert isinstance(fitted, CrossFitted)
    for fold, scorer in enumerate(fitted.scorers):
        assert bool(scorer.state["shared"])
        learned = features[::every][fitted.folds[::every] != fold]
        np.testing.assert_allclose(scorer.state["compared"].numpy(), learned, atol=1e-6)


def test_a_fitted_scorer_is_fitted_once(classifier: PrecomputedClassifier) -> None:
    known, other = (
        KnownImages(ScoreInputs(*map(torch.from_numpy, (unit(50, 5, seed), unit(50, 12, seed)))), [None] * 50)
        for seed in (5, 6)
    )
    (scorer,) = fit(bind(classifier, [make_score("react")]), known)
    assert fit([scorer], other) == cross_fit([scorer], other) == [scorer]
    with pytest.raises(TypeError):
        scorer.state["bound"] = torch.zeros(())  # type: ignore[index]


@pytest.mark.parametrize("spec", ["delta-energy", "neglabel", "react", "odin", "gl-mcm"])
def test_the_first_calls_of_eight_threads_bind_once(
    spec: str, tiny_clip: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A detector that is loaded and then asked from all sides: text-side work is done once, bits are the same."""
    words = tmp_path / "words.txt"
    words.write_text("hut\nmoss\nink\nelk\n", encoding="utf-8")
    settings = {"words": str(words), "keep": 1.0} if spec == "neglabel" else {}
    score = make_score(spec, **settings)
    bound: list[str] = []
    original = type(score).bind
    monkeypatch.setattr(
        type(score), "bind", lambda self, *args, **options: bound.append(spec) or original(self, *args, **options)
    )
    images = pictures(6)
    fresh = Detector(ZeroShotClassifier(tiny_clip, ["dog", "cat"]), score)
    threads = [threading.Thread(target=fresh.prepare) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert bound == [spec]
    fresh.calibrate(images)
    serial = [list(fresh.predict(images[i:])) for i in range(6)]
    found: dict[int, list[Any]] = {}

    def run(number: int) -> None:
        found[number] = [list(fresh.predict(images[i:])) for i in range(6)]

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(found[number] == serial for number in range(8))
