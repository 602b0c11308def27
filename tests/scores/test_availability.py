"""What can run on what is given, known before any work: no prompt is encoded for a run that ends in a refusal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deltaenergy as de
from deltaenergy import PrecomputedClassifier, TowerModel, ZeroShotClassifier, build_store, evaluate, make_score
from deltaenergy.cli.main import run
from deltaenergy.core.needs import Lack, Need
from deltaenergy.errors import InputError
from deltaenergy.models.towers.text import TextTower
from deltaenergy.scores import get_score_class
from deltaenergy.scores.availability import Given, chosen_scores, every_score, obstacle, runnable_scores
from deltaenergy.scores.negatives.pools import wordnet_pool
from deltaenergy.scoring import score_images
from deltaenergy.source import as_source


@pytest.fixture
def store(tiny_clip: TowerModel, photos: Path, tmp_path: Path) -> Path:
    """A feature store without patches."""
    build_store(tiny_clip, photos, tmp_path / "store")
    return tmp_path / "store"


@pytest.fixture
def no_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any text that is encoded is a failure."""

    def refuse(self: TextTower, *arguments: Any, **options: Any) -> None:
        raise AssertionError("a prompt was encoded")

    monkeypatch.setattr(TextTower, "_run", refuse)


def call(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stop:
        run([str(argument) for argument in arguments])
    return int(stop.value.code or 0)


def specs(scores: list[de.Score]) -> set[str]:
    return {score.spec for score in scores}


@pytest.mark.usefixtures("no_texts")
@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["evaluate", "--id", "{store}", "-s", "neglabel,gl-mcm"], "'gl-mcm' needs patches: {store} has no patch"),
        (["evaluate", "--id", "{store}", "-s", "all,odin"], "'odin' needs pixels: give it the images, not a feature"),
        (["score", "{store}", "-c", "cat,dog", "-s", "gl-mcm"], "has no patch features"),
        (["score", "{photos}", "-c", "cat,dog", "-s", "react"], "'react' needs ID data: it is fitted on"),
        (["score", "{photos}", "-c", "cat,dog", "-s", "clipn"], "train_no_tower"),
        (["calibrate", "{store}", "-c", "cat,dog", "-s", "gl-mcm", "-o", "{out}"], "'gl-mcm' needs patches"),
        (["calibrate", "{flat}", "-c", "cat,dog", "-s", "interneg", "-o", "{out}"], "needs labels: none of the"),
        (["score", "{photos}", "--id", "{flat}", "-c", "cat,dog", "-s", "interneg"], "needs labels: none of the"),
        (["evaluate", "--id", "{flat}", "-c", "cat,dog", "-s", "interneg"], "needs labels: none of the"),
        (["choose", "--id", "{photos}", "-s", "neglabel,lsn"], "tune with lsn"),
    ],
)
def test_a_named_score_that_cannot_run_is_refused_before_any_prompt_is_encoded(
    command: list[str],
    message: str,
    store: Path,
    photos: Path,
    tiny_clip_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    places = {"store": store, "photos": photos, "flat": photos / "cat", "out": tmp_path / "out"}
    assert call(*(part.format(**places) for part in command), "--model", tiny_clip_folder) == 2
    assert "".join(message.format(**places).split()) in "".join(capsys.readouterr().err.split())


def test_evaluate_all_on_a_store_without_patches_runs_and_says_what_it_left_out(
    store: Path, tiny_clip_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("evaluate", "--id", store, "-s", "all", "--model", tiny_clip_folder) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if "Not part of all" in line]
    assert len(lines) == 1
    for words in ("gl-mcm", f"needs patches: {store} has none", f"needs pixels: {store} is a feature store", "clipn"):
        assert words in lines[0]


def test_all_leaves_out_what_cannot_run_and_names_are_taken_once(photos: Path) -> None:
    given = Given.of([as_source(photos)]).without(id_data=Lack("no known images", "give some."))
    scores, left_out = chosen_scores(["mcm, all", "mcm"], given)
    assert not any(score.needs_fit for score in scores)
    assert {"delta-energy", "gl-mcm", "odin"} <= specs(scores) and len(specs(scores)) == len(scores)
    assert scores[0].spec == "mcm" and left_out is not None and "delta-energy:robust" in left_out
    assert chosen_scores(["mcm", "energy(temperature=0.1)"], given)[1] is None
    with pytest.raises(InputError, match="`scores` is empty"):
        chosen_scores(",", given)


def test_python_calls_refuse_before_they_bind(
    store: Path, tiny_clip: TowerModel, no_texts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    classifier = PrecomputedClassifier(np.eye(2, tiny_clip.feature_dim, dtype=np.float32), ["cat", "dog"], tiny_clip)
    scores = [make_score("neglabel"), make_score("gl-mcm")]
    calls: list[Callable[[], object]] = [
        lambda: score_images(classifier, scores, as_source(store)),
        lambda: score_images(classifier, scores, as_source(de.Store.open(store))),
        lambda: score_images(classifier, scores, as_source([store])),
        lambda: evaluate(classifier, scores, [("known", store)]),
        lambda: de.Detector(classifier, "gl-mcm").calibrate(store),
    ]
    for refused in calls:
        with pytest.raises(InputError, match="'gl-mcm' needs patches"):
            refused()
    with pytest.raises(InputError, match="'odin' needs pixels"):
        score_images(
            classifier, [make_score("neglabel"), make_score("odin")], as_source(np.eye(2, tiny_clip.feature_dim))
        )


def test_a_store_with_patches_has_them(tiny_clip: TowerModel, photos: Path, tmp_path: Path) -> None:
    build_store(tiny_clip, photos, tmp_path / "patches", patches=True)
    given = Given.of([as_source(tmp_path / "patches")])
    assert set(given.lacks) == {Need.PIXELS, Need.STATES}
    assert obstacle(make_score("gl-mcm"), given) is None
    assert Given.of([as_source(photos)]) == Given()


def test_a_model_of_features_has_no_text_tower() -> None:
    given = Given.of(classifier=PrecomputedClassifier(np.eye(3, dtype=np.float32), ["a", "b", "c"]))
    usable, left_out = runnable_scores(given)
    assert not any(score.needs & {Need.TEXTS, Need.PATCHES, Need.PIXELS} for score in usable)
    assert {"mcm", "delta-energy:robust"} <= specs(usable)
    assert left_out is not None and "'precomputed' has no text encoder" in left_out


def test_a_methods_own_score_runs_with_its_classifiers_alone() -> None:
    assert "lsn" not in specs(runnable_scores(Given())[0])
    own = specs(runnable_scores(Given(method="lsn"))[0])
    assert "lsn" in own and not {"gallop", "id-like", "negprompt"} & own
    refused = obstacle(make_score("lsn"), Given(method="coop"))
    assert refused is not None and "not by coop: tune with lsn" in refused[1]


def test_every_score_and_preset_is_a_candidate_once() -> None:
    found = [score.spec for score in every_score()]
    assert len(found) == len(set(found))
    for name in de.list_scores():
        presets = get_score_class(name).presets
        assert {make_score(name).spec, *(make_score(f"{name}:{preset}").spec for preset in presets)} <= set(found)


def test_what_encodes_many_prompts_runs_when_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The counts are those of the pools' documentation: 56,788 + 14,006, and 8 × 46,446 + 4 × 11,047."""
    assert "neglabel" in specs(runnable_scores(Given())[0])  # a few words here, see conftest
    monkeypatch.setattr("deltaenergy.scores.negatives.mining.wordnet_pool", wordnet_pool)
    assert make_score("neglabel").prompts == 70_794
    assert make_score("csp").prompts == 415_756
    assert make_score("mcm").prompts == 0
    usable, left_out = runnable_scores(Given())
    assert not {"neglabel", "csp", "csp+delta-energy"} & specs(usable)
    assert left_out is not None and "70,794 prompts to encode first" in left_out
    assert specs(chosen_scores(["neglabel"], Given())[0]) == {"neglabel"}


def test_own_words_are_counted(tmp_path: Path) -> None:
    words = tmp_path / "words.txt"
    words.write_text("one\ntwo\nthree\n")
    score = make_score("neglabel", words=str(words), noun_templates="a {}|the {}")
    assert score.prompts == 6


def test_calibrating_on_a_store_still_works(store: Path, tiny_clip: TowerModel) -> None:
    detector = de.Detector(ZeroShotClassifier(tiny_clip, ["cat", "dog"]), "delta-energy:robust").calibrate(store)
    assert len(detector.calibration_scores) == 8
