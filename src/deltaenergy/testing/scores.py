"""What every score must do, whatever its formula: each check is a function of a `Score` that raises `AssertionError`.

The checks use a score only as `scoring` and `Detector` do: it is bound to a classifier, fitted on ID inputs if needed,
and gets similarities, features and, if needed, patches or pixels. A method's own score is bound to that method's
initial classifier.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import tempfile
import threading
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import torch

from deltaenergy.classifiers.methods import make_method
from deltaenergy.classifiers.zero_shot import ZeroShotClassifier
from deltaenergy.core.needs import Need
from deltaenergy.data.items import ImageItem
from deltaenergy.detector.detector import Detector
from deltaenergy.errors import InputError, NotFittedError
from deltaenergy.scores.base import Score, ScoreInputs, Scorer
from deltaenergy.scores.registry import make_score
from deltaenergy.testing.samples import (
    inputs_of,
    no_texts,
    random_features,
    random_pictures,
    random_pixels,
    refused,
    run_checks,
    shared_model,
)
from deltaenergy.tuning.views import CachedViews

if TYPE_CHECKING:
    import numpy.typing as npt

    from deltaenergy.classifiers.base import Classifier

CLASSES = ("dog", "cat", "red car", "blue sketch")
# Words that resemble no class: the texts that unknown images point to, and candidates for mined negatives.
OTHER_WORDS = ("hut", "moss", "ink", "quilt", "elk", "vase", "yarn", "zinc")
THREADS = 8
# Views per image of a method's initial classifier: as many as the most demanding method needs.
VIEWS = 64
SCORE_CHECKS: list[Callable[[Score], None]] = []


def check_score(score: str | Score) -> None:
    """Run all of `SCORE_CHECKS` on a score or its name; the first that fails raises `AssertionError`."""
    run_checks(make_score(score), SCORE_CHECKS)


def _contract(function: Callable[[Score], None]) -> Callable[[Score], None]:
    """Add `function` to the checks, each with its own cache folder."""

    @functools.wraps(function)
    def with_own_cache(score: Score) -> None:
        with tempfile.TemporaryDirectory() as cache, mock.patch.dict(os.environ, {"DELTAENERGY_CACHE": cache}):
            function(score)

    SCORE_CHECKS.append(with_own_cache)
    return with_own_cache


@_contract
def describes_itself(score: Score) -> None:
    """It has a name, summary, formula, paper and docstring; needs are `Need`s; every parameter has a default."""
    for text in (score.name, score.summary, score.formula, score.paper):
        assert text and text.strip() == text, f"{type(score).__name__}: {text!r} is not a description"
    assert type(score).__doc__, f"{type(score).__name__} has no docstring"
    assert all(isinstance(need, Need) for need in score.needs), score.needs
    assert all(field.default is not dataclasses.MISSING for field in dataclasses.fields(score))


@_contract
def spec_and_parameters_make_it_again(score: Score) -> None:
    """`make_score(score.spec)` and `make_score(name, **params)` equal the score, and are hashed alike."""
    again = make_score(score.spec)
    assert again == score and again.spec == score.spec and hash(again) == hash(score), f"{score.spec!r} is another"
    assert make_score(score.name, **score.params) == score
    with refused(InputError, "temprature"):
        make_score(score.name, temprature=1.0)


@_contract
def is_frozen(score: Score) -> None:
    """No attribute can be set, and neither binding nor fitting changes it."""
    before = dict(vars(score))
    for name in (*score.params, "state", "needs"):
        try:
            setattr(score, name, None)
        except (AttributeError, TypeError):
            continue
        raise AssertionError(f"{score.spec}: {name} can be set; it must be a frozen dataclass")
    _ready(score, _classifier(score))
    assert vars(score) == before, "binding or fitting changed the score itself"


@_contract
def gives_one_number_per_image(score: Score) -> None:
    """(N,) finite floating-point numbers, for no image, one, or several."""
    classifier = _classifier(score)
    scorer, inputs = _ready(score, classifier), inputs_of(classifier, random_pixels(5, seed=0))
    values = scorer(inputs)
    assert values.shape == (5,) and values.is_floating_point() and torch.isfinite(values).all(), values
    assert scorer(inputs.take([2])).shape == (1,)
    assert scorer(inputs.take([])).shape == (0,)


@_contract
def does_not_depend_on_batch_or_order(score: Score) -> None:
    """An image scores the same in any batch and order, and again."""
    classifier = _classifier(score)
    scorer, inputs = _ready(score, classifier), inputs_of(classifier, random_pixels(9, seed=1))
    together = _values(scorer, inputs)
    tolerance = 1e-4 * _spread(together)
    order = [3, 8, 0, 1, 7, 2, 6, 5, 4]
    np.testing.assert_allclose(_values(scorer, inputs.take(order)), together[order], rtol=0, atol=tolerance)
    alone = np.concatenate([_values(scorer, inputs.take([i])) for i in range(9)])
    np.testing.assert_allclose(alone, together, rtol=0, atol=tolerance)
    np.testing.assert_array_equal(_values(scorer, inputs), together)


@_contract
def leaves_its_inputs_alone(score: Score) -> None:
    """It does not change its inputs."""
    classifier = _classifier(score)
    inputs = inputs_of(classifier, random_pixels(3, seed=2))
    tensors = {name: tensor for name in _TENSORS if (tensor := getattr(inputs, name)) is not None}
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    _ready(score, classifier)(inputs)
    for name, tensor in before.items():
        assert torch.equal(tensors[name], tensor), f"{name} was changed"


@_contract
def needs_no_double_precision(score: Score) -> None:
    """float32 gives what float64 gives, to a thousandth of the scores' spread; half precision is computed in single."""
    values = []
    for dtype in (torch.float32, torch.float64):
        classifier = _classifier(score, CLASSES, dtype)
        scorer = _ready(score, classifier, inputs_of(classifier, random_pixels(20, seed=99)))
        values.append(_values(scorer, inputs_of(classifier, random_pixels(8, seed=3))))
    np.testing.assert_allclose(values[0], values[1], rtol=1e-3, atol=1e-3 * _spread(values[1]))
    classifier = _classifier(score)
    inputs = inputs_of(classifier, random_pixels(4, seed=4))
    half = dataclasses.replace(
        inputs, similarities=inputs.similarities.half(), features=inputs.features.half(), outputs=None
    )
    assert _ready(score, classifier)(half).dtype in (torch.float32, torch.float64)


@_contract
def refuses_what_is_no_number(score: Score) -> None:
    """NaN and infinity are an `InputError` that names the row."""
    classifier = _classifier(score)
    scorer = _ready(score, classifier)
    for bad in (float("nan"), float("inf")):
        inputs = inputs_of(classifier, random_pixels(4, seed=5))
        tensors = {name: getattr(inputs, name).clone() for name in _TENSORS}
        for tensor in tensors.values():
            tensor[2].fill_(bad)
        with refused(InputError, "NaN or infinity", "row 2"):
            scorer(ScoreInputs(**tensors))


@_contract
def takes_one_class_and_repeated_classes(score: Score) -> None:
    """K = 1 and duplicate names give finite scores, and the order of the classes does not matter."""
    for names in (("dog",), ("dog", "cat", "dog", "dog")):
        predictions = (
            Detector(_classifier(score, names), score).calibrate(_known(score, names, 8)).predict(random_pictures(8))
        )
        assert all(np.isfinite(verdict.score) and verdict.label in names for verdict in predictions)
    if score.own_to is not None:
        return  # what is drawn for a class depends on its position
    values = []
    for names in (CLASSES, CLASSES[::-1]):
        classifier = _classifier(score, names)
        scorer = _ready(score, classifier, inputs_of(classifier, random_pixels(20, seed=99)))
        values.append(_values(scorer, inputs_of(classifier, random_pixels(6, seed=6))))
    np.testing.assert_allclose(values[0], values[1], rtol=0, atol=1e-4 * _spread(values[0]))


@_contract
def is_content_with_one_image(score: Score) -> None:
    """A detector that is calibrated on one image keeps it."""
    (verdict,) = Detector(_classifier(score), score).calibrate(_known(score, CLASSES, 1)).predict(random_pictures(1))
    assert np.isfinite(verdict.score) and not verdict.is_ood, verdict


@_contract
def says_when_it_must_be_fitted(score: Score) -> None:
    """Without ID data, a score that needs them raises `NotFittedError`, and any detector says to calibrate it."""
    classifier = _classifier(score)
    detector = Detector(classifier, score)
    with refused(NotFittedError, "calibrate"):
        detector.predict(np.eye(classifier.model.feature_dim, dtype=np.float32))
    scorer, inputs = score.bind(classifier), inputs_of(classifier, random_pixels(2, seed=7))
    if score.needs_fit:
        with refused(NotFittedError, "calibrate"):
            scorer(inputs)
    else:
        assert torch.isfinite(scorer(inputs)).all()


@_contract
def says_when_features_are_not_enough(score: Score) -> None:
    """Features suffice unless it declares a need for patches, pixels or labels."""
    detector, features = Detector(_classifier(score), score), random_features(12)
    if looks_at_images(score):
        with refused(InputError, "give it images"):
            detector.calibrate(features)
    elif Need.LABELS in score.needs:
        with refused(InputError, "needs labels"):
            detector.calibrate(features)
    else:
        assert len(detector.calibrate(features).predict(features)) == 12


@_contract
def is_saved_with_its_detector(score: Score) -> None:
    """A loaded detector gives the same scores without a cache, and without texts unless it declares them."""
    classifier, pictures = _classifier(score), random_pictures(8)
    texts = contextlib.nullcontext() if Need.PAIRS in score.needs else no_texts(classifier.model)
    detector = Detector(classifier, score).calibrate(_known(score, CLASSES, 8), keep=0.9)
    with tempfile.TemporaryDirectory() as folder:
        detector.save(Path(folder) / "detector")
        with texts, mock.patch.dict(os.environ, {"DELTAENERGY_CACHE": f"{folder}/empty"}):
            loaded = Detector.load(Path(folder) / "detector", model=classifier.base_model)
            found = loaded.predict(pictures)
    assert loaded.score == score and loaded.threshold == detector.threshold
    assert [verdict.score for verdict in found] == [verdict.score for verdict in detector.predict(pictures)]
    assert loaded.score_state.keys() == detector.score_state.keys()
    for name, tensor in detector.score_state.items():
        assert torch.equal(loaded.score_state[name], tensor), f"{name} was not saved as it was"


@_contract
def serves_several_detectors(score: Score) -> None:
    """Detectors of one score object, with other classes or other ID images, do not influence each other."""
    first, second = _classifier(score), _classifier(score, ("sketch", "blue car", "photo"))
    inputs = inputs_of(first, random_pixels(5, seed=11))
    scorer = _ready(score, first)
    before = _values(scorer, inputs)
    other = _ready(score, second, inputs_of(second, random_pixels(15, seed=12)))
    fresh = _ready(make_score(score.spec), second, inputs_of(second, random_pixels(15, seed=12)))
    scorer.fit(inputs_of(first, random_pixels(15, seed=13)))
    np.testing.assert_array_equal(_values(scorer, inputs), before)
    others = inputs_of(second, random_pixels(5, seed=11))
    np.testing.assert_array_equal(_values(other, others), _values(fresh, others))


@_contract
def runs_in_several_threads(score: Score) -> None:
    """`predict` from many threads at once gives the bits that it gives alone."""
    detector = Detector(_classifier(score), score).calibrate(_known(score, CLASSES, 8))
    work = [random_pictures(4, seed=seed) for seed in range(THREADS)]
    alone = [[verdict.score for verdict in detector.predict(pictures)] for pictures in work]
    found: list[list[float]] = [[] for _ in work]
    start = threading.Barrier(THREADS)

    def run(number: int) -> None:
        start.wait()
        found[number] = [verdict.score for verdict in detector.predict(work[number])]

    threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == alone, "threads changed scores"


@_contract
def accepts_what_it_was_calibrated_on(score: Score) -> None:
    """With keep = 1, a calibration image is kept again, in any batch.

    Scores of features are then the same to the last bit.
    """
    classifier, pictures = _classifier(score), random_pictures(7)
    detector = Detector(classifier, score).calibrate(_known(score, CLASSES, 7), keep=1.0, batch_size=5)
    for batch_size in (1, 3, 7):
        assert not any(verdict.is_ood for verdict in detector.predict(pictures, batch_size=batch_size)), batch_size
    if looks_at_images(score) or Need.LABELS in score.needs:  # features have no labels
        return
    features = random_features(70)
    detector = Detector(classifier, score).calibrate(features, keep=1.0)
    together = detector.predict(features)
    for row in (0, 33, 69):
        (alone,) = detector.predict(features[row : row + 1])
        assert (alone.score, alone.p_value) == (together[row].score, together[row].p_value), f"row {row} alone differs"
        assert not alone.is_ood


@_contract
def is_larger_for_known_images(score: Score) -> None:
    """Images that resemble one class and nothing else score higher than images that resemble another word."""
    if score.own_to is not None:
        return  # its classifier has learned nothing here
    classifier, known, unknown = _known_and_unknown()
    scorer = _ready(score, classifier, known)
    above = _values(scorer, known)[:, None] > _values(scorer, unknown)[None]
    assert above.mean() > 0.9, f"only {above.mean():.0%} of the pairs are in order"


_TENSORS = ("similarities", "features", "patches", "pixels")


def _classifier(score: Score, names: tuple[str, ...] = CLASSES, dtype: torch.dtype = torch.float32) -> Classifier:
    return classifier_for(score.own_to, names, dtype)


@functools.cache
def classifier_for(method: str | None, names: tuple[str, ...], dtype: torch.dtype = torch.float32) -> Classifier:
    """A zero-shot classifier, or the initial one of `method`; names may be repeated."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if method is None:
            return ZeroShotClassifier(shared_model(dtype), names)
        views = torch.from_numpy(random_features(2 * len(names) * VIEWS)).view(-1, VIEWS, shared_model().feature_dim)
        images = CachedViews(views, torch.arange(2 * len(names)) % len(names))
        generator = torch.Generator().manual_seed(0)
        return make_method(method).build(shared_model(dtype), names, images, generator).requires_grad_(False)


def looks_at_images(score: Score) -> bool:
    """Whether the score, or its classifier, needs more than features."""
    return score.needs_images or bool(_classifier(score).needs_to_predict - {Need.FEATURES})


def _known(score: Score, names: Sequence[str], count: int) -> list[Any]:
    """The images that a detector is calibrated on, with classes in turn if the score needs labels."""
    pictures = random_pictures(count)
    if Need.LABELS not in score.needs:
        return pictures
    return [ImageItem(f"image {i}", picture, names[i % len(names)]) for i, picture in enumerate(pictures)]


def _ready(score: Score, classifier: Classifier, known: ScoreInputs | None = None) -> Scorer:
    """Bound, and fitted on some images if it must be."""
    scorer = score.bind(classifier)
    return scorer if scorer.fitted else scorer.fit(known or inputs_of(classifier, random_pixels(20, seed=99)))


def _values(scorer: Scorer, inputs: ScoreInputs) -> npt.NDArray[np.float64]:
    return np.asarray(scorer(inputs).detach().double().numpy())


def _spread(values: npt.NDArray[np.float64]) -> float:
    return float(max(np.ptp(values), np.abs(values).max() * 1e-2, 1e-6))


@functools.cache
def _known_and_unknown() -> tuple[ZeroShotClassifier, ScoreInputs, ScoreInputs]:
    """Images that resemble one class and nothing else, and images that resemble another word and no class."""
    classifier = ZeroShotClassifier(shared_model(), CLASSES)
    words = classifier.model.encode_texts([f"the nice {word}" for word in OTHER_WORDS])
    texts = torch.cat([classifier.text_features, torch.from_numpy(words)])
    # Column i of the pseudo-inverse has cosine 0 with every text but the i-th.
    alone = torch.nn.functional.normalize(torch.linalg.pinv(texts).T, dim=1)
    known, unknown = (
        inputs_of(classifier, _draw(targets, seed))
        # Two of each class: a score may use distances to other images.
        for targets, seed in ((alone[: len(CLASSES)].repeat(2, 1), 9), (alone[len(CLASSES) :], 10))
    )
    assert known.similarities.amax(dim=1).min() > 2 * unknown.similarities.abs().max()
    return classifier, known, unknown


def _draw(targets: torch.Tensor, seed: int) -> torch.Tensor:
    """Images, changed step by step until their image features and patch features point to `targets`."""
    pixels = random_pixels(len(targets), seed).requires_grad_()
    optimiser = torch.optim.Adam([pixels], lr=0.1)
    for _ in range(150):
        features, patches = shared_model().image_and_patch_features(pixels)
        loss = -(features * targets).sum() - (patches * targets[:, None]).sum(dim=2).mean(dim=1).sum()
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return pixels.detach()
