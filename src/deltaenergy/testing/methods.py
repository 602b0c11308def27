"""Contract checks of tuning methods: each takes a method and raises AssertionError if it breaks a rule.

They train on a dozen drawn images of three classes with a tiny random CLIP, whose image tower is a vision transformer;
a method that needs something else raises its own error, which is not a failure of the checks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import tempfile
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from deltaenergy.classifiers.base import Classifier, Inputs
from deltaenergy.classifiers.methods import METHODS, Method, make_method
from deltaenergy.core.needs import Need
from deltaenergy.data.items import ImageItem
from deltaenergy.detector.detector import Detector
from deltaenergy.errors import ArtifactError, InputError
from deltaenergy.scale.build import build_store
from deltaenergy.scores.registry import get_score_class, list_scores, make_score
from deltaenergy.source import load_images
from deltaenergy.testing.samples import run_checks, tiny_model
from deltaenergy.tuning.prepare import TrainSet, prepare_training
from deltaenergy.tuning.tune import tune

CLASSES = ("cat", "dog", "red car")
EPOCHS = 2
METHOD_CHECKS: list[Callable[[Method], None]] = []


def check_method(method: str | Method) -> None:
    """Run every check on a method or its text; the first that fails raises `AssertionError`."""
    run_checks(make_method(method), METHOD_CHECKS)


def _contract(function: Callable[[Method], None]) -> Callable[[Method], None]:
    METHOD_CHECKS.append(function)
    return function


@_contract
def describes_itself(method: Method) -> None:
    """It has a name, summary, formula and paper, in the class and at the top of its module."""
    for part in (method, *method.terms):
        cls = type(part)
        assert cls.name and cls.summary and cls.formula and cls.paper and cls.__doc__, f"{cls} is not described"
        module = __import__(cls.__module__, fromlist=["x"])
        assert module.__doc__ and len(module.__doc__.splitlines()) > 2, f"{cls.__module__} does not state its formula"
        for parameter in part.grid_for(len(CLASSES)):
            assert parameter in part.params, f"the grid names {parameter}, which is not a parameter"


@_contract
def spec_makes_it_again(method: Method) -> None:
    """`make_method(method.spec)` is the method, and it cannot be changed."""
    assert make_method(method.spec) == method
    for candidate in method.candidates(len(CLASSES)):
        assert make_method(candidate.spec) == candidate
    try:
        method.name = "other"  # type: ignore[misc]
    except dataclasses.FrozenInstanceError:
        return
    raise AssertionError("the method can be changed")


@_contract
def gives_a_similarity_per_class(method: Method) -> None:
    """Finite similarities, unit texts, unit features, and as many patch similarities as patches."""
    classifier, pictures = _tuned(method), _pictures()
    found = classifier.similarities(pictures)
    assert found.shape == (len(pictures), len(CLASSES)) and np.isfinite(found).all()
    assert _near(classifier.text_features.norm(dim=1), 1.0)
    assert classifier.patch_similarities(torch.eye(classifier.model.feature_dim)[None]).shape[-1] == len(CLASSES)
    assert not any(parameter.requires_grad for parameter in classifier.parameters())
    assert not classifier.training


@_contract
def every_score_works_on_it(method: Method, scores: Iterable[str] | None = None) -> None:
    """A detector with any score calibrates, predicts, and gives the same verdicts when it was saved and loaded.

    `scores` limits it to some.
    """
    classifier, pictures = _tuned(method), _pictures()
    # With classes, which some scores learn from.
    known = [ImageItem(str(i), picture, CLASSES[i % len(CLASSES)]) for i, picture in enumerate(pictures)]
    with tempfile.TemporaryDirectory() as folder:
        words = Path(folder) / "words.txt"
        words.write_text("\n".join(("cloud", "river", "stone", "music", "paper", "engine")), encoding="utf-8")
        for name in list_scores() if scores is None else scores:
            taken = {field.name for field in dataclasses.fields(get_score_class(name))}
            given = {"words": str(words), "keep": 1.0} if "words" in taken else {}
            score = make_score(name, **{key: value for key, value in given.items() if key in taken})
            if score.missing is not None and score.own_to != method.name:
                continue
            try:
                detector = Detector(classifier, score).calibrate(known, keep=0.9)
            except InputError as error:
                # The score of another method needs that method's classifier.
                assert _belongs_to_another_method(name, method), f"{name}: {error}"
                continue
            verdicts = list(detector.predict(pictures))
            assert len(verdicts) == len(pictures) and all(np.isfinite(v.score) for v in verdicts), name
            detector.save(Path(folder) / name)
            again = Detector.load(Path(folder) / name, model=_model()).predict(pictures)
            assert [v.label for v in again] == [v.label for v in verdicts], name
            assert _near([v.score for v in again], [v.score for v in verdicts], 1e-4), name


@_contract
def is_saved_and_loaded(method: Method) -> None:
    """`save` and `load` give a classifier with the same description and results."""
    classifier, pictures = _tuned(method), _pictures()
    with tempfile.TemporaryDirectory() as folder:
        classifier.save(folder)
        loaded = Classifier.load(folder, model=_model())
    assert loaded.describe() == classifier.describe() and loaded.method == method
    assert type(loaded) is type(classifier) and loaded.classes == classifier.classes
    assert loaded.model.fingerprint == classifier.model.fingerprint
    for name, tensor in classifier.state_dict().items():
        assert torch.equal(tensor, loaded.state_dict()[name]), name
    # The last bit of a product may depend on the memory addresses of its factors.
    assert _near(loaded.similarities(pictures), classifier.similarities(pictures), 1e-6)


@_contract
def batch_and_order_do_not_matter(method: Method) -> None:
    """An image's similarities do not depend on its batch, unless the method declares that."""
    classifier, pictures = _tuned(method), _pictures()
    whole = classifier.similarities(pictures)
    if classifier.batch_dependent:
        alone = np.concatenate([classifier.similarities(pictures[i : i + 1]) for i in range(len(pictures))])
        assert not _near(alone, whole), "it declares itself batch-dependent, and is not"
        return
    parts = [classifier.similarities(pictures[start : start + 5]) for start in range(0, len(pictures), 5)]
    assert _near(np.concatenate(parts), whole)
    assert _near(classifier.similarities(pictures, batch_size=1), whole)
    assert _near(classifier.similarities(pictures[::-1]), whole[::-1])


@_contract
def takes_features_in_single_and_double_precision(method: Method) -> None:
    """If features are enough they give what images give, NaN is refused, and float64 agrees with float32."""
    classifier, pictures = _tuned(method), _pictures()
    if classifier.needs_to_predict != {Need.FEATURES} or classifier.model is not classifier.base_model:
        return
    features = _model().encode_images(pictures)
    assert _near(classifier.similarities(features), classifier.similarities(pictures))
    assert classifier.similarities(features[:0]).shape == (0, len(CLASSES))
    with torch.inference_mode():
        wide = classifier(Inputs(torch.from_numpy(features).double())).similarities
    assert wide.dtype == torch.float64 and _near(wide, classifier.similarities(features))
    for bad in (np.nan, np.inf):
        broken = features.copy()
        broken[1, 2] = bad
        _refused(functools.partial(classifier.similarities, broken))


@_contract
def refuses_features_that_are_not_its_own(method: Method) -> None:
    """Features of the plain model are refused if the method encodes images in its own way."""
    classifier, pictures = _tuned(method), _pictures()
    if classifier.needs_to_predict <= {Need.FEATURES} and not classifier.prompts_images:
        return
    features = _model().encode_images(pictures)
    _refused(lambda: classifier.similarities(features))
    _refused(lambda: Detector(classifier).calibrate(features))
    items = load_images(pictures)
    with tempfile.TemporaryDirectory() as folder:
        bare = build_store(_model(), items, Path(folder) / "bare")
        _refused(lambda: classifier.similarities(bare))
        if classifier.needs_to_predict <= {Need.FEATURES}:
            own = build_store(classifier.model, items, Path(folder) / "own")
            assert _near(classifier.similarities(own), classifier.similarities(pictures))


@_contract
def refuses_what_cannot_be_learned(method: Method) -> None:
    """One class, and two classes of one name."""
    _refused(lambda: tune(_model(), CLASSES[:1], _items()[:4], method))
    _refused(lambda: tune(_model(), ("cat", "dog", "cat"), _items(), method))


@_contract
def takes_other_class_names_if_it_says_so(method: Method) -> None:
    """Other class names, with a duplicate; or a clear refusal."""
    classifier = _tuned(method)
    names = ("blue car", "dog", "blue car", "sketch")
    if not classifier.takes_other_classes:
        _refused(lambda: classifier.with_classes(names))
        return
    try:
        other = classifier.with_classes(names)
    except InputError:
        return  # settings such as a context per class rule it out
    found = other.similarities(_pictures())
    assert found.shape[1] == 4 and _near(found[:, 0], found[:, 2])
    same = classifier.with_classes(CLASSES)
    assert _near(same.similarities(_pictures()), classifier.similarities(_pictures()))


@_contract
def the_seed_decides(method: Method) -> None:
    """The same seed gives the same bits; another seed gives others, if anything is trained."""
    pictures = _pictures()
    again = _tune(method)
    for name, tensor in _tuned(method).state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name
    if method.trains:
        other = _tune(method, seed=6).similarities(pictures)
        assert np.abs(other - again.similarities(pictures)).max() > 0


@_contract
def leaves_the_world_alone(method: Method) -> None:
    """The model's weights, its gradients and torch's own random numbers stay as they were."""
    before = {name: tensor.clone() for name, tensor in _model().module.state_dict().items()}
    state = torch.get_rng_state()
    _tune(method)
    assert torch.equal(state, torch.get_rng_state()), "torch's global random numbers were used"
    for name, tensor in _model().module.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    assert all(parameter.grad is None for parameter in _model().module.parameters())


@_contract
def predicts_in_several_threads(method: Method) -> None:
    """Four threads at once find what one finds."""
    classifier, pictures = _tuned(method), _pictures()
    expected = classifier.similarities(pictures)
    found: list[Any] = [None] * 4

    def run(number: int) -> None:
        found[number] = classifier.similarities(pictures)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(one is not None and _near(one, expected, 1e-6) for one in found)


@_contract
def goes_on_after_a_kill(method: Method) -> None:
    """A run stopped after any epoch of any stage resumes to the same bits."""
    if not method.trains:
        return
    whole = _tuned(method)
    epochs = len(whole.record["epochs"])

    class Killed(Exception):
        pass

    for last in range(1, epochs):
        seen: list[int] = []

        def stop(log: Any, seen: list[int] = seen, last: int = last) -> None:
            seen.append(log.epoch)
            if len(seen) == last:
                raise Killed

        with tempfile.TemporaryDirectory() as folder:
            with contextlib.suppress(Killed):
                _tune(method, checkpoints=folder, on_epoch=stop)
            gone_on: list[int] = []
            resumed = _tune(method, checkpoints=folder, on_epoch=lambda log, seen=gone_on: seen.append(log.epoch))
        assert len(seen) == last and len(gone_on) == epochs - last
        for name, tensor in whole.state_dict().items():
            assert torch.equal(tensor, resumed.state_dict()[name]), f"{name} after a kill in epoch {last}"


def _belongs_to_another_method(score: str, method: Method) -> bool:
    owners = {cls.classifier.own_score for _, cls in METHODS.items() if issubclass(cls, Method) and cls.trains}
    return score in owners and score != method.classifier.own_score


@functools.cache
def _model() -> Any:
    return tiny_model(feature_dim=32, layers=3)


@functools.cache
def _items() -> list[ImageItem]:
    """Four images of each class, in two domains, each class in its own colour."""
    rng = np.random.default_rng(0)
    items = []
    for k, name in enumerate(CLASSES):
        for number in range(4):
            pixels = rng.integers(0, 80, (36, 40, 3), dtype=np.uint8)
            pixels[..., k] += 150
            domain = ("art", "photo")[number % 2]
            items.append(ImageItem(f"{name} {number}", Image.fromarray(pixels), name, domain))
    return items


@functools.cache
def _pictures() -> list[Image.Image]:
    rng = np.random.default_rng(1)
    return [Image.fromarray(rng.integers(0, 256, (36, 40, 3), dtype=np.uint8)) for _ in range(9)]


@functools.cache
def _train_set(needs: frozenset[Need]) -> TrainSet:
    return prepare_training(_model(), CLASSES, _items(), shots=4, seed=1, views=2, needs=needs)


def _tune(method: Method, **options: Any) -> Classifier:
    recipe = {"epochs": EPOCHS, "batch_size": 5}
    return tune(_model(), CLASSES, _train_set(method.needs_to_train), method, recipe=recipe, **options)


@functools.cache
def _tuned(method: Method) -> Classifier:
    return _tune(method)


def _near(found: Any, expected: Any, tolerance: float = 1e-5) -> bool:
    return bool(np.allclose(np.asarray(found), np.asarray(expected), atol=tolerance, rtol=0))


def _refused(call: Callable[[], object]) -> None:
    try:
        call()
    except (InputError, ArtifactError):
        return
    raise AssertionError("accepted what makes no sense")
