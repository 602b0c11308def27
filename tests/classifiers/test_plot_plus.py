"""PLOT++: its runs, stages and losses against transformers and a plain Sinkhorn, its phrases, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import deltaenergy as de
from deltaenergy import Model
from deltaenergy.classifiers.base import Inputs, TrainBatch
from deltaenergy.classifiers.methods import make_method
from deltaenergy.classifiers.plot_plus import TOKENS_FIRST, PlotPlus
from deltaenergy.core.needs import Need
from deltaenergy.errors import InputError
from deltaenergy.source import load_images
from deltaenergy.training.recipe import Recipe
from deltaenergy.tuning.prepare import TrainSet
from deltaenergy.tuning.tune import fit
from tests.classifiers.prompted_reference import Reference, double
from tests.classifiers.test_transport import reference_plan
from tests.labelled_pictures import CLASSES, write_pictures

# A plan of random features settles within a hundred steps only where ε is large.
WIDE = PlotPlus(epsilon=0.5)


@pytest.fixture(scope="module")
def reference(tiny_clip_folder: Path) -> Reference:
    return Reference(tiny_clip_folder)


def built(model: Any, method: PlotPlus = WIDE, seed: int = 0) -> Any:
    return method.build(model, CLASSES, SimpleNamespace(), torch.Generator().manual_seed(seed))  # type: ignore[arg-type]


def drawn_batch(count: int = 4) -> TrainBatch:
    pixels = torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(3))
    return TrainBatch(pixels=pixels, labels=torch.arange(count) % 3)


def unit(rows: torch.Tensor) -> torch.Tensor:
    return rows / rows.norm(dim=-1, keepdim=True)


def by_hand(reference: Reference, classifier: Any, batch: TrainBatch) -> tuple[dict[str, torch.Tensor], Any, Any]:
    """Parameters as leaves, a and b, in double precision."""
    p = double(classifier)
    assert batch.pixels is not None
    images = torch.stack([reference.features(batch.pixels, tokens[None], raw=True) for tokens in p["tokens"]], dim=1)
    contexts = [p[f"contexts.{n}"] for n in range(len(classifier.contexts))]
    texts = torch.stack([reference.texts(CLASSES, context, raw=True) for context in contexts])
    s = torch.einsum("bmd,nkd->bkmn", unit(images), unit(texts))
    plans = [[reference_plan(one, classifier.method.epsilon) for one in image] for image in s.detach().numpy()]
    b = (torch.tensor(np.array(plans)) * s).sum(dim=(-2, -1))
    return p, unit(images.mean(dim=1)) @ unit(texts.mean(dim=0)).T, b


@pytest.mark.parametrize("phase", [TOKENS_FIRST, "both"])
def test_similarities_losses_and_gradients(tiny_clip: Any, reference: Reference, phase: str) -> None:
    """The first stage compares ½ (a + b) and learns at L (a + b), the second b at L."""
    classifier = built(tiny_clip).train().requires_grad_(True)
    classifier.phase = phase
    batch = drawn_batch()
    outputs = classifier(batch)
    loss = classifier.losses(outputs, batch)["ce"]
    found = torch.autograd.grad(loss, list(classifier.parameters()))
    p, a, b = by_hand(reference, classifier, batch)
    total = a + b if phase == TOKENS_FIRST else b
    expected = -torch.log_softmax(reference.scale * total, dim=1)[range(4), batch.labels].mean()
    gradients = torch.autograd.grad(expected, list(p.values()))
    compared = total / 2 if phase == TOKENS_FIRST else total
    torch.testing.assert_close(outputs.similarities.double(), compared, atol=5e-6, rtol=0)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-3)
    for name, mine, theirs in zip(p, found, gradients, strict=True):
        assert (mine.double() - theirs).abs().max() / theirs.abs().max() < 2e-3, name


def test_in_use_it_compares_b_alone(tiny_clip: Any, reference: Reference) -> None:
    classifier, batch = built(tiny_clip), drawn_batch()
    _, _, b = by_hand(reference, classifier, batch)
    found = classifier(batch)
    torch.testing.assert_close(found.similarities.double(), b.detach(), atol=5e-6, rtol=0)
    torch.testing.assert_close(found.features.norm(dim=1), torch.ones(4))


def test_the_first_stage_moves_the_tokens_alone(tiny_clip: Any, train_set: TrainSet) -> None:
    method = PlotPlus()
    assert [(stage.phases[0].name, stage.phases[0].trains) for stage in method.stages] == [
        (TOKENS_FIRST, ("tokens",)),
        ("both", ()),
    ]
    classifier = built(tiny_clip, method)
    begun = {name: p.detach().clone() for name, p in classifier.named_parameters()}
    moved: list[set[str]] = []

    def look(_: Any) -> None:
        moved.append({name for name, p in classifier.named_parameters() if not torch.equal(p, begun[name])})

    recipe = {"epochs": 2, "batch_size": 4}
    trained = fit(
        classifier, train_set.images, generator=torch.Generator().manual_seed(1), recipe=recipe, on_epoch=look
    )
    assert [(log.stage, log.epoch) for log in trained.epochs] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert moved[0] == moved[1] == {"tokens"}
    assert moved[2] == moved[3] == set(begun)
    assert classifier.phase == "" and not classifier.training


def test_validation_judges_each_stage_by_what_it_learns(tiny_clip: Model, coloured: Path, tmp_path: Path) -> None:
    held_out = write_pictures(tmp_path / "val", seed=5)
    options: dict[str, Any] = {"shots": 2, "views": 1, "recipe": {"epochs": 2, "batch_size": 3}}
    classifier = de.tune(tiny_clip, CLASSES, coloured, "plot++", val=held_out, **options)
    items = load_images(held_out)
    truth = [CLASSES.index(item.label.replace("_", " ")) for item in items if item.label]
    predicted = classifier.similarities(items).argmax(axis=1)
    assert classifier.record["validation"]["accuracy"] == pytest.approx(np.mean(predicted == truth))


def test_every_phrase_has_its_own_length(tiny_clip: Any) -> None:
    """Untrained, each context is a template, the three-word one too; class names stay whole."""
    classifier = built(tiny_clip, PlotPlus())
    phrases = ["a photo of a", "this is a photo", "this is a", "one picture of a"]
    assert list(PlotPlus().phrases) == phrases
    for texts, context, phrase in zip(classifier.class_prompts, classifier.contexts, phrases, strict=True):
        expected = de.ZeroShotClassifier(tiny_clip, CLASSES, template=phrase + " {}.").text_features
        torch.testing.assert_close(texts, expected, atol=1e-5, rtol=0)
        (ids,) = tiny_clip.text.tokenize([phrase])
        assert len(context) == len(ids) - 2


def test_initial_tokens_and_the_parameters_of_vit_b16(tiny_clip: Any) -> None:
    classifier = built(tiny_clip, PlotPlus())
    assert classifier.tokens.shape == (4, 2, 32) and 0.015 < classifier.tokens.std() < 0.025
    # 4 · 2 · 768 + (4 + 4 + 3 + 4) · 512 where every word is one token: about 14,000.
    words = sum(len(phrase.split()) for phrase in PlotPlus().phrases)
    assert 4 * 2 * 768 + words * 512 == 13_824


def test_one_run_of_the_tower_per_prompt(tiny_clip: Any) -> None:
    classifier, batch = built(tiny_clip), drawn_batch()
    runs: list[torch.Tensor] = []
    run = classifier.raw_vision.run
    classifier.raw_vision.run = lambda pixels, tokens: runs.append(tokens) or run(pixels, tokens)
    classifier(batch)
    assert [tuple(tokens.shape) for tokens in runs] == [(1, 2, 32)] * 4
    assert torch.equal(torch.cat(runs), classifier.tokens)


def test_all_runs_share_what_may_be_kept(tiny_clip: Any) -> None:
    assert built(tiny_clip).raw_vision.activation_budget == tiny_clip.vision.activation_budget // 4
    recipes = [Recipe(batch_size=4, epochs=5), Recipe(batch_size=8, epochs=3)]
    one, four = (PlotPlus(prompts=n).estimate(tiny_clip, CLASSES, 100, recipes) for n in (1, 4))
    assert one is not None and four is not None
    # 8 images of 19 tokens, 2 blocks, 18 numbers of 4 bytes per unit of width.
    assert one.memory == {"activations": 8 * 19 * 2 * 18 * 32 * 4}
    assert four.memory == {"activations": 4 * one.memory["activations"]}
    assert four.operations == pytest.approx(4 * one.operations)
    assert one.operations == pytest.approx(2 * 24 * 32**2 * 2 * 19 * 100 * 8)
    with pytest.raises(InputError, match=r"plot\+\+.* GB .* 4 times"):
        de.tune(tiny_clip, CLASSES, "not there", "plot++", shots=10**8, recipe={"batch_size": 10**8})


def test_it_is_found_by_its_name() -> None:
    assert make_method("plot++") == PlotPlus() and PlotPlus().spec == "plot++"
    method = make_method("plot++(epsilon=0.05,phrases=['a plus + sign','x'])")
    assert isinstance(method, PlotPlus) and method.phrases == ("a plus + sign", "x")
    assert make_method(method.spec) == method
    assert "plot++" in de.list_methods() and "plot" in de.list_methods()
    with pytest.raises(InputError, match=r"Did you mean 'plot\+\+'"):
        make_method("plott++(epsilon=0.1)")


def test_features_and_stores_are_refused(tiny_clip: Any, coloured: Path, tmp_path: Path) -> None:
    classifier = built(tiny_clip)
    assert classifier.needs_to_predict == {Need.PIXELS}
    features = torch.from_numpy(tiny_clip.encode_images(coloured))
    with pytest.raises(InputError, match=r"plot\+\+ needs pixels"):
        classifier.similarities(features)
    with pytest.raises(InputError, match=r"pixels"):
        classifier(Inputs(features))
    store = de.build_store(tiny_clip, coloured, tmp_path / "store")
    with pytest.raises(InputError, match=r"pixels"):
        classifier.similarities(store)
    with pytest.raises(InputError, match=r"pixels.*store"):
        de.Detector(classifier, "mcm").calibrate(store)


def test_a_convolutional_model_is_refused_before_any_image_is_read() -> None:
    with pytest.raises(InputError) as error:
        de.tune(de.load_model("lite"), CLASSES, "not there", "plot++")
    assert str(error.value) == (
        "plot++ puts learned tokens into the image encoder, which must be a vision transformer; 'lite' has a "
        "convolutional one."
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prompts": 0}, "prompts must be"),
        ({"tokens": 0}, "tokens must be"),
        ({"epsilon": -0.1}, "epsilon must be"),
        ({"phrases": ("a photo", " ")}, "phrases must be"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        PlotPlus(**settings)
