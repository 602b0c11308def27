"""What each kind of model has, and what a user is told of one that lacks something; derived models."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import deltaenergy as de
from deltaenergy.benchmarks.protocol import in_train_view
from deltaenergy.errors import ArtifactError, InputError
from deltaenergy.models.base import Model, TowerModel, require_text, require_towers, require_vision
from tests.colours import ColourModel


@pytest.fixture(scope="module")
def lite() -> TowerModel:
    return de.load_model("lite")


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def test_kinds_of_models(tiny_clip: TowerModel, lite: TowerModel) -> None:
    assert isinstance(tiny_clip, TowerModel) and tiny_clip.vision is not None
    assert isinstance(lite, TowerModel) and lite.vision is None
    precomputed = de.PrecomputedModel(16)
    assert isinstance(precomputed, Model) and not isinstance(precomputed, TowerModel)
    assert precomputed.text is None
    assert not hasattr(precomputed, "encode_images")


def test_what_is_there_is_given(tiny_clip: TowerModel, lite: TowerModel) -> None:
    assert require_text(lite, "coop") is lite.text
    assert require_towers(lite, "coop") is lite
    assert require_vision(tiny_clip, "maple") is tiny_clip.vision


def test_what_is_missing_is_said() -> None:
    model = de.PrecomputedModel(16, name="my encoder")
    with pytest.raises(InputError, match=r"coop.*text.*'my encoder'"):
        require_text(model, "coop")
    with pytest.raises(InputError, match="encode_texts needs"):
        model.encode_texts("a dog")
    with pytest.raises(InputError, match=r"'my encoder'.*images"):
        require_towers(model, "odin")
    with pytest.raises(InputError, match="cannot encode images"):
        require_vision(model, "maple")


def test_a_convolutional_tower_takes_no_tokens() -> None:
    message = (
        "maple puts learned tokens into the image encoder, which must be a vision transformer; "
        "'colours' has a convolutional one."
    )
    with pytest.raises(InputError) as caught:
        require_vision(ColourModel(), "maple")
    assert str(caught.value) == message


def test_texts_are_encoded_wherever_there_is_a_text_tower(tiny_clip: TowerModel) -> None:
    model = Model()
    model.text = tiny_clip.text
    np.testing.assert_array_equal(model.encode_texts("a dog"), tiny_clip.encode_texts(["a dog"]))


def test_a_derived_model_is_told_apart(tiny_clip: TowerModel) -> None:
    other = tiny_clip.derived("colder", logit_scale=50.0)
    assert type(other) is type(tiny_clip)
    assert (other.logit_scale, other.fingerprint) == (50.0, f"{tiny_clip.fingerprint}+colder")
    assert other.describe()["derived_by"] == ["colder"]
    assert tiny_clip.logit_scale != 50.0 and "derived_by" not in tiny_clip.describe()
    twice = other.derived("slower", dtype=torch.float16)
    assert twice.fingerprint == f"{tiny_clip.fingerprint}+colder+slower"
    assert twice.describe()["derived_by"] == ["colder", "slower"]
    with pytest.raises(TypeError, match="no attribute 'logit_scales'"):
        tiny_clip.derived("colder", logit_scales=50.0)


def test_the_train_view_is_a_derived_model(tiny_clip: TowerModel) -> None:
    view = in_train_view(tiny_clip)
    assert view.fingerprint == f"{tiny_clip.fingerprint}+train-view"
    assert view.describe()["derived_by"] == ["train-view"]


def test_a_prompted_model_runs_the_prompted_tower(tiny_clip: TowerModel) -> None:
    tokens, pixels = draw(2, 3, 32), draw(2, 3, 32, 32)
    prompted = tiny_clip.with_vision_prompts(tokens)
    assert tiny_clip.vision is not None
    expected = tiny_clip.vision.run(pixels, tokens, patches=True)
    assert torch.equal(prompted.image_features(pixels), expected.features)
    features, patches = prompted.image_and_patch_features(pixels)
    assert torch.equal(features, expected.features) and torch.equal(patches, expected.patches)  # type: ignore[arg-type]
    assert not torch.allclose(features, tiny_clip.image_features(pixels), atol=1e-3)
    tokens.zero_()  # what was given may be trained further: the model keeps what it had
    assert torch.equal(prompted.image_features(pixels), expected.features)
    np.testing.assert_array_equal(prompted.encode_texts("dog"), tiny_clip.encode_texts("dog"))


def test_the_fingerprint_follows_the_tokens(tiny_clip: TowerModel) -> None:
    tokens = draw(2, 3, 32)
    prompted = tiny_clip.with_vision_prompts(tokens)
    assert prompted.fingerprint.startswith(f"{tiny_clip.fingerprint}+vision-prompts-")
    assert prompted.fingerprint == tiny_clip.with_vision_prompts(tokens.clone()).fingerprint
    changed = tokens.clone()
    changed[1, 2, 31] += 1e-6
    others = [changed, tokens.flatten(0, 1)[None], tokens[:1]]
    assert len({prompted.fingerprint, *(tiny_clip.with_vision_prompts(t).fingerprint for t in others)}) == 4


def test_a_store_of_the_bare_model_is_refused_by_name(tiny_clip: TowerModel, photos: Path, tmp_path: Path) -> None:
    store = de.build_store(tiny_clip, photos, tmp_path / "store")
    prompted = tiny_clip.with_vision_prompts(draw(1, 2, 32))
    for use in (lambda: store.check_model(prompted), lambda: prompted.encode_images(store.items())):
        with pytest.raises(ArtifactError, match="features of a different model") as caught:
            use()
        assert repr(tiny_clip.fingerprint) in str(caught.value) and repr(prompted.fingerprint) in str(caught.value)
        assert "vision-prompts" in str(caught.value)


def test_tokens_need_a_vision_transformer_and_the_right_shape(tiny_clip: TowerModel) -> None:
    with pytest.raises(InputError, match="must be a vision transformer"):
        ColourModel().with_vision_prompts(torch.zeros(1, 2, 32))
    for shape in ((3, 2, 32), (2, 0, 32), (2, 32), (1, 2, 33)):
        with pytest.raises(InputError, match=rf"32\).*at most 2 blocks.*{re.escape(str(shape))}"):
            tiny_clip.with_vision_prompts(torch.zeros(shape))


@pytest.mark.parametrize("what", ["similarities", "detector"])
def test_precomputed_classifiers_say_what_to_give(what: str, photos: Path) -> None:
    rows = torch.nn.functional.normalize(draw(3, 16), dim=1)
    classifier = de.PrecomputedClassifier(rows, ["a", "b", "c"])
    use: Any = classifier.similarities if what == "similarities" else de.Detector(classifier, "mcm").calibrate
    with pytest.raises(InputError, match="cannot encode images"):
        use(photos)
