"""Helpers of the checks: a tiny model, random images and features, inputs of scores, refusals."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar
from unittest import mock

import numpy as np
import torch
from PIL import Image

from deltaenergy.benchmarks.tiny import byte_tokenizer
from deltaenergy.classifiers.base import Inputs
from deltaenergy.classifiers.methods import Method
from deltaenergy.errors import DeltaEnergyError
from deltaenergy.models.base import Model, TowerModel, require_text
from deltaenergy.models.preprocessing import Preprocessing
from deltaenergy.models.towers.clip import ClipModel
from deltaenergy.scores.base import Score, ScoreInputs

if TYPE_CHECKING:
    import numpy.typing as npt

    from deltaenergy.classifiers.base import Classifier

Subject = TypeVar("Subject", Score, Method)
# Words that are one token each; all others are spelt byte by byte.
WORDS = ("a", "photo", "of", "the", "nice", "dog", "cat", "red", "blue", "car", "sketch")
SIDE = 32


def run_checks(subject: Subject, checks: Iterable[Callable[[Subject], None]]) -> None:
    """Run all of the checks; the first that fails raises `AssertionError`, with the rule that is broken."""
    for check in checks:
        try:
            check(subject)
        except AssertionError as error:
            rule = " ".join((check.__doc__ or "").split())
            found = f" Found: {error}" if str(error) else ""
            raise AssertionError(f"{subject.spec} breaks the rule {check.__name__}: {rule}{found}") from error


def tiny_model(
    *,
    dtype: torch.dtype = torch.float32,
    feature_dim: int = 64,
    layers: int = 2,
    seed: int = 0,
    name: str = "tiny-clip",
) -> ClipModel:
    """A CLIP with random weights, made in memory: two real towers, no file, no download.

    It takes 32 × 32 pixels in 16 patches. The same seed gives the same weights and fingerprint.
    """
    from transformers import CLIPConfig, CLIPModel

    tokenizer = byte_tokenizer(WORDS)
    common: dict[str, Any] = {"hidden_act": "quick_gelu", "num_hidden_layers": layers, "num_attention_heads": 4}
    config = CLIPConfig(
        text_config={
            **common,
            "vocab_size": len(tokenizer),
            "hidden_size": 64,
            "intermediate_size": 128,
            "bos_token_id": tokenizer.bos_token_id,
            "eos_token_id": tokenizer.eos_token_id,
        },
        vision_config={**common, "hidden_size": 96, "intermediate_size": 192, "image_size": SIDE, "patch_size": 8},
        projection_dim=feature_dim,
        logit_scale_init_value=4.6052,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = CLIPModel(config)
    with torch.no_grad():
        # Default initialisation gives nearly equal texts; wider weights make prompts distinct.
        for parameter_name, parameter in module.named_parameters():
            if parameter.ndim > 1 and "embedding" not in parameter_name:
                parameter.mul_(3)
    model = ClipModel(name, module, tokenizer, Preprocessing(resize=SIDE, crop=SIDE))
    return model.to(torch.device("cpu"), dtype)


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
