"""Helpers of the checks: random images and features, inputs of scores, refusals."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar
from unittest import mock

import numpy as np
import torch
from PIL import Image

from deltaenergy.classifiers.base import Inputs
from deltaenergy.classifiers.methods import Method
from deltaenergy.errors import DeltaEnergyError
from deltaenergy.models.base import Model, TowerModel, require_text
from deltaenergy.scores.base import Score, ScoreInputs
from deltaenergy.testing.models import SIDE, tiny_model

if TYPE_CHECKING:
    import numpy.typing as npt

    from deltaenergy.classifiers.base import Classifier


Subject = TypeVar("Subject", Score, Method)


def run_checks(subject: Subject, checks: Iterable[Callable[[Subject], None]]) -> None:
    """Run all of the checks; the first that fails raises `AssertionError`, with the rule that is broken."""
    for check in checks:
        try:
            check(subject)
        except AssertionError as error:
            rule = " ".join((check.__doc__ or "").split())
            found = f" Found: {error}" if str(error) else ""
            raise AssertionError(f"{subject.spec} breaks the rule {check.__name__}: {rule}{found}") from error


@functools.cache
def shared_model(dtype: torch.dtype = torch.float32) -> TowerModel:
    """One tiny model for all checks, which must not change it."""
    return tiny_model(dtype=dtype)


def random_pixels(count: int, seed: int) -> torch.Tensor:
    """Preprocessed images (N, 3, H, W) of noise."""
    pixels = np.random.default_rng(seed).normal(size=(count, 3, SIDE, SIDE))
    return torch.from_numpy(pixels.astype(np.float32))


def random_pictures(count: int, seed: int = 0) -> list[Image.Image]:
    """Images of noise."""
    rng = np.random.default_rng(seed)
    return [Image.fromarray(rng.integers(0, 256, (40, 48, 3), dtype=np.uint8)) for _ in range(count)]


def random_features(count: int, seed: int = 8) -> npt.NDArray[np.float32]:
    """Unit features (N, D) for the shared model."""
    features = np.random.default_rng(seed).normal(size=(count, shared_model().feature_dim)).astype(np.float32)
    return np.asarray(features / np.linalg.norm(features, axis=1, keepdims=True))


def inputs_of(classifier: Classifier, pixels: torch.Tensor) -> ScoreInputs:
    """All inputs of a score, for preprocessed images, in the model's precision."""
    model = classifier.model
    assert isinstance(model, TowerModel)
    with torch.inference_mode():
        pixels = pixels.to(model.dtype)
        features, patches = (part.to(model.dtype) for part in model.image_and_patch_features(pixels))
        outputs = classifier(Inputs(features, patches, pixels=pixels))
    # Clones: inference tensors cannot be changed outside of inference mode.
    similarities, features, patches = (tensor.clone() for tensor in (outputs.similarities, features, patches))
    # Labels that do not depend on the order of the classes.
    return ScoreInputs(similarities, features, patches, pixels, outputs, similarities.argmax(dim=1))


@contextlib.contextmanager
def refused(kind: type[DeltaEnergyError], *words: str) -> Iterator[None]:
    """The block must raise an error of this type whose message contains the words."""
    try:
        yield
    except kind as error:
        missing = [word for word in words if word not in str(error)]
        assert not missing, f"the message {str(error)!r} does not say {missing[0]!r}"
    else:
        raise AssertionError(f"{kind.__name__} was not raised")


@contextlib.contextmanager
def no_texts(model: Model) -> Iterator[None]:
    """The text tower must not run in the block."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the text tower ran again")

    tower = require_text(model, "the check")
    with mock.patch.object(tower, "encode", refuse), mock.patch.object(tower, "project", refuse):
        yield
