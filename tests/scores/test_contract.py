"""What every registered score must do, whatever its formula. A score that lands later is covered by being registered.

The checks speak to scores only as `scoring` and `Detector` do: prepared with a classifier, fitted on ID inputs if
they ask for it, given similarities, features, and (if they ask) patches or pixels.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from deltaenergy import Detector, Model, Score, ZeroShotClassifier, list_scores, load_model, make_score
from deltaenergy.errors import DeltaEnergyError, InputError, NotFittedError
from deltaenergy.needs import Need
from deltaenergy.scores.base import ScoreInputs
from deltaenergy.scores.clipn.tower import NoTower
from deltaenergy.scores.registry import get_score_class
from tests.checkpoints import write_clip
from tests.scores.conftest import CLASSES

# Every score with its defaults, and every named setting of one.
SPECS = [
    spec for name in list_scores() for spec in (name, *(f"{name}:{preset}" for preset in get_score_class(name).presets))
]
# Candidates for scores that mine negatives: few, since all texts of the tiny model share sixteen dimensions.
WORDS = ["hut", "moss", "ink", "quilt", "elk", "vase", "yarn", "zinc"]
MakeScore = Callable[..., Score]


@pytest.fixture(params=SPECS)
def spec(request: pytest.FixtureRequest) -> str:
    value: str = request.param
    return value


@pytest.fixture
def new_score(spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeScore:
    """Make the score; those that mine a word list get a short one, those with a "no" tower one for any model."""
    fields = {field.name for field in dataclasses.fields(make_score(spec))}
    settings: dict[str, Any] = {}
    if "words" in fields:
        path = tmp_path / "words.txt"
        path.write_text("\n".join(WORDS), encoding="utf-8")
        settings = {"words": str(path), "keep": 1.0}
    if "no_tower" in fields:
        monkeypatch.setattr(NoTower, "load", lambda _, model: opposite_tower(model))
        settings = {"no_tower": str(tmp_path)}
    return lambda **params: make_score(spec, **{**settings, **params})


def opposite_tower(model: Model) -> NoTower:
    """A "no" tower whose every text is the opposite of the model's own."""
    tower = NoTower(model, torch.zeros(1, model.text.width)).requires_grad_(False)
    for parameter in tower.projection.parameters():
        parameter.neg_()
    return tower


@pytest.fixture(scope="module")
def double_clip(tiny_clip_folder: Path) -> Model:
    return load_model(tiny_clip_folder, dtype=torch.float64)


def random_pixels(n: int, seed: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(n, 3, 32, 32)).astype(np.float32))


def inputs_of(classifier: ZeroShotClassifier, pixels: torch.Tensor, dtype: torch.dtype = torch.float32) -> ScoreInputs:
    with torch.inference_mode():
        features, patches = classifier.model.image_and_patch_features(pixels.to(dtype))
        features, patches = features.to(dtype), patches.to(dtype)
        return ScoreInputs(classifier.similarities_of_features(features), features, patches, pixels.to(dtype))


def take(inputs: ScoreInputs, rows: list[int]) -> ScoreInputs:
    assert inputs.patches is not None and inputs.pixels is not None
    return ScoreInputs(*(part[rows] for part in (inputs.similarities, inputs.features, inputs.patches, inputs.pixels)))


def ready(score: Score, classifier: ZeroShotClassifier, known: ScoreInputs | None = None) -> Score:
    """Prepared, and fitted on some images if it must be."""
    score.prepare(classifier)
    if score.needs_fit:
        score.fit(known or inputs_of(classifier, random_pixels(20, seed=99)))
    return score


def values_of(score: Score, inputs: ScoreInputs) -> np.ndarray:
    return score(inputs).detach().double().numpy()


def spread(values: np.ndarray) -> float:
    return float(max(np.ptp(values), np.abs(values).max() * 1e-2, 1e-6))


def test_it_describes_itself(spec: str) -> None:
    score = make_score(spec)
    for text in (score.name, score.summary, score.formula, score.paper):
        assert text.strip() == text
        assert text
    assert type(score).__doc__
    assert all(isinstance(need, Need) for need in score.needs)
    assert all(field.default is not dataclasses.MISSING for field in dataclasses.fields(score))


def test_spec_and_parameters_make_the_same_score_again(new_score: MakeScore) -> None:
    score = new_score()
    again = make_score(score.spec)
    assert again.spec == score.spec
    assert again == score
    base = f"{score.name}:{score.preset}" if score.preset else score.name
    assert make_score(base, **score.params) == score


def test_unknown_parameters_are_refused(spec: str) -> None:
    with pytest.raises(InputError, match="temprature"):
        make_score(spec, temprature=1.0)


def test_one_number_per_image(new_score: MakeScore, classifier: ZeroShotClassifier) -> None:
    score = ready(new_score(), classifier)
    inputs = inputs_of(classifier, random_pixels(5, seed=0))
    values = score(inputs)
    assert values.shape == (5,)
    assert values.is_floating_point()
    assert torch.isfinite(values).all()
    assert score(take(inputs, [2])).shape == (1,)
    assert score(take(inputs, [])).shape == (0,)


def test_an_image_scores_the_same_in_any_batch_and_order(new_score: MakeScore, classifier: ZeroShotClassifier) -> None:
    score = ready(new_score(), classifier)
    inputs = inputs_of(classifier, random_pixels(9, seed=1))
    together = values_of(score, inputs)
    tolerance = 1e-4 * spread(together)
    order = [3, 8, 0, 1, 7, 2, 6, 5, 4]
    np.testing.assert_allclose(values_of(score, take(inputs, order)), together[order], rtol=0, atol=tolerance)
    alone = np.concatenate([values_of(score, take(inputs, [i])) for i in range(9)])
    np.testing.assert_allclose(alone, together, rtol=0, atol=tolerance)
    np.testing.assert_array_equal(values_of(score, inputs), together)


def test_it_leaves_its_inputs_alone(new_score: MakeScore, classifier: ZeroShotClassifier) -> None:
    score = ready(new_score(), classifier)
    inputs = inputs_of(classifier, random_pixels(3, seed=2))
    before = take(inputs, [0, 1, 2])
    score(inputs)
    for field in dataclasses.fields(inputs):
        assert torch.equal(getattr(inputs, field.name), getattr(before, field.name)), field.name


def test_single_precision_is_enough(new_score: MakeScore, tiny_clip: Model, double_clip: Model) -> None:
    pixels, known = random_pixels(8, seed=3), random_pixels(20, seed=99)
    values = []
    for model, dtype in ((tiny_clip, torch.float32), (double_clip, torch.float64)):
        classifier = ZeroShotClassifier(model, CLASSES)
        score = ready(new_score(), classifier, inputs_of(classifier, known, dtype))
        values.append(values_of(score, inputs_of(classifier, pixels, dtype)))
    np.testing.assert_allclose(values[0], values[1], rtol=1e-3, atol=1e-3 * spread(values[1]))


def test_half_precision_inputs_are_computed_in_single(new_score: MakeScore, classifier: ZeroShotClassifier) -> None:
    score = ready(new_score(), classifier)
    inputs = inputs_of(classifier, random_pixels(4, seed=4))
    half = dataclasses.replace(inputs, similarities=inputs.similarities.half(), features=inputs.features.half())
    assert score(half).dtype in (torch.float32, torch.float64)


def test_a_saved_detector_gives_the_same_scores(
    new_score: MakeScore, classifier: ZeroShotClassifier, photos: Path, tmp_path: Path
) -> None:
    detector = Detector(classifier, new_score()).calibrate(photos, keep=0.9)
    detector.save(tmp_path / "detector")
    # A second model object, as in a new process; and a cache folder that holds nothing.
    loaded = Detector.load(tmp_path / "detector", model=classifier.model)
    assert loaded.score == detector.score
    assert loaded.score.spec == detector.score.spec
    assert loaded.threshold == detector.threshold
    assert [v.score for v in loaded.predict(photos)] == [v.score for v in detector.predict(photos)]
    assert {name: tensor.shape for name, tensor in loaded.score.state.items()} == {
        name: tensor.shape for name, tensor in detector.score.state.items()
    }


def test_what_was_learned_is_saved_and_not_computed_again(
    new_score: MakeScore, classifier: ZeroShotClassifier, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Detector(classifier, new_score()).calibrate(photos).save(tmp_path / "detector")
    loaded = Detector.load(tmp_path / "detector", model=classifier.model)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the text tower must not run again")

    monkeypatch.setattr(classifier.model.text, "_run", refuse)
    monkeypatch.setenv("DELTAENERGY_CACHE", str(tmp_path / "empty"))
    assert len(loaded.predict(photos)) == 8


def test_another_classifier_begins_anew(new_score: MakeScore, classifier: ZeroShotClassifier, tiny_clip: Model) -> None:
    other = ZeroShotClassifier(tiny_clip, ["sketch", "blue car", "photo"])
    inputs = inputs_of(other, random_pixels(5, seed=11))
    used, fresh = ready(new_score(), classifier), new_score()
    np.testing.assert_array_equal(values_of(ready(used, other), inputs), values_of(ready(fresh, other), inputs))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_values_that_are_no_numbers_are_named(new_score: MakeScore, classifier: ZeroShotClassifier, bad: float) -> None:
    score = ready(new_score(), classifier)
    inputs = inputs_of(classifier, random_pixels(4, seed=5))
    spoilt = take(inputs, [0, 1, 2, 3])
    for part in (spoilt.similarities, spoilt.features, spoilt.patches, spoilt.pixels):
        assert part is not None
        with torch.inference_mode():
            part[2].fill_(bad)
    with pytest.raises(InputError, match=r"NaN or infinity.*row 2"):
        score(spoilt)


@pytest.mark.parametrize("names", [["dog"], ["dog", "cat", "dog", "dog"]], ids=["one class", "duplicates"])
@pytest.mark.filterwarnings("ignore:Class names stand more than once")
def test_few_and_repeated_classes(new_score: MakeScore, tiny_clip: Model, photos: Path, names: list[str]) -> None:
    detector = Detector(ZeroShotClassifier(tiny_clip, names), new_score()).calibrate(photos)
    predictions = detector.predict(photos)
    assert all(np.isfinite(v.score) and v.label in names for v in predictions)


def test_the_order_of_the_classes_does_not_matter(new_score: MakeScore, tiny_clip: Model) -> None:
    pixels, known = random_pixels(6, seed=6), random_pixels(20, seed=99)
    values = []
    for names in (CLASSES, CLASSES[::-1]):
        classifier = ZeroShotClassifier(tiny_clip, names)
        score = ready(new_score(), classifier, inputs_of(classifier, known))
        values.append(values_of(score, inputs_of(classifier, pixels)))
    np.testing.assert_allclose(values[0], values[1], rtol=0, atol=1e-4 * spread(values[0]))


def test_one_image_is_enough(new_score: MakeScore, classifier: ZeroShotClassifier) -> None:
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8))
    detector = Detector(classifier, new_score()).calibrate([picture])
    (verdict,) = detector.predict([picture])
    assert np.isfinite(verdict.score)
    assert not verdict.is_ood


def test_use_before_it_is_ready_says_what_to_do(new_score: MakeScore, classifier: ZeroShotClassifier) -> None:
    score = new_score()
    inputs = inputs_of(classifier, random_pixels(2, seed=7))
    detector = Detector(classifier, new_score())
    with pytest.raises(NotFittedError, match="calibrate"):
        detector.predict(np.eye(16, dtype=np.float32))
    if score.needs_fit:
        score.prepare(classifier)
        with pytest.raises(NotFittedError, match="calibrate"):
            score(inputs)
    try:
        assert torch.isfinite(new_score()(inputs)).all()
    except DeltaEnergyError as error:
        assert isinstance(error, NotFittedError)
        assert "prepare" in str(error) or "calibrate" in str(error)


def test_features_are_enough_unless_it_says_otherwise(new_score: MakeScore, classifier: ZeroShotClassifier) -> None:
    features = np.random.default_rng(8).normal(size=(12, 16)).astype(np.float32)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    detector = Detector(classifier, new_score())
    if detector.score.needs_images:
        with pytest.raises(InputError, match="give it images"):
            detector.calibrate(features)
    else:
        assert len(detector.calibrate(features).predict(features)) == 12


def draw(model: Model, targets: torch.Tensor, seed: int) -> torch.Tensor:
    """Images, changed step by step until their image features and patch features point to `targets`."""
    pixels = random_pixels(len(targets), seed).requires_grad_()
    optimiser = torch.optim.Adam([pixels], lr=0.1)
    for _ in range(150):
        features, patches = model.image_and_patch_features(pixels)
        loss = -(features * targets).sum() - (patches * targets[:, None]).sum(dim=2).mean(dim=1).sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return pixels.detach()


@pytest.fixture(scope="module")
def known_and_unknown(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[ZeroShotClassifier, ScoreInputs, ScoreInputs]:
    """Images that resemble one class and nothing else, and images that resemble another word and no class."""
    # Wide enough that a feature can resemble one text alone.
    folder = write_clip(tmp_path_factory.mktemp("contract") / "clip", width=96, text_width=64, projection=64)
    model = load_model(folder)
    classifier = ZeroShotClassifier(model, CLASSES)
    words = model.encode_texts([f"the nice {word}" for word in WORDS])
    texts = torch.cat([classifier.text_features, torch.from_numpy(words)])
    # Column i of the pseudo-inverse has cosine 0 with every text but the i-th.
    alone = torch.nn.functional.normalize(torch.linalg.pinv(texts).T, dim=1)
    known, unknown = draw(model, alone[: len(CLASSES)], seed=9), draw(model, alone[len(CLASSES) :], seed=10)
    return classifier, inputs_of(classifier, known), inputs_of(classifier, unknown)


def test_larger_means_more_in_distribution(
    new_score: MakeScore, known_and_unknown: tuple[ZeroShotClassifier, ScoreInputs, ScoreInputs]
) -> None:
    classifier, known, unknown = known_and_unknown
    assert known.similarities.diag().min() > 2 * unknown.similarities.abs().max()
    score = ready(new_score(), classifier, known)
    above = values_of(score, known)[:, None] > values_of(score, unknown)[None]
    assert above.mean() > 0.9
