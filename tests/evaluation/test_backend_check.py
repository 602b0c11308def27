"""Agreement of a backend with torch, counted by hand on a tower that is changed for known images."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from PIL import Image

import deltaenergy as de
from deltaenergy.errors import InputError
from deltaenergy.evaluation.backend_check import BackendAgreement, check_agreement, check_model
from deltaenergy.models.backends.base import BackendModel, TowerEngine
from deltaenergy.models.base import TowerModel
from deltaenergy.scores.registry import make_score
from deltaenergy.source import load_images
from deltaenergy.stats.thresholds import upper_share

CLASSES = ["dog", "cat", "red car"]


class Turned(TowerEngine):
    """The torch tower, whose features are turned by an angle where the first pixel is bright."""

    def __init__(self, model: TowerModel, angle: float) -> None:
        self.model, self.angle = model, angle

    def run(self, pixels: torch.Tensor, *, patches: bool) -> tuple[torch.Tensor, ...]:
        features = self.model.image_features(pixels)
        other = torch.roll(features, 1, dims=1)
        other = torch.nn.functional.normalize(other - (other * features).sum(1, keepdim=True) * features, dim=1)
        turned = math.cos(self.angle) * features + math.sin(self.angle) * other
        return (torch.where((pixels[:, 0, 0, 0] > -0.5)[:, None], turned, features),)


def pictures(count: int, seed: int) -> list[Image.Image]:
    rng = np.random.default_rng(seed)
    return [Image.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)) for _ in range(count)]


def on_engine(model: TowerModel, angle: float) -> BackendModel:
    return BackendModel(model, Turned(model, angle), "openvino", "int8", "openvino-int8-test")


def check(model: TowerModel, angle: float, known: int, unknown: int) -> BackendAgreement:
    images, opened = load_images(pictures(known, 0)), load_images(pictures(unknown, 1)) if unknown else []
    return check_agreement(
        model, on_engine(model, angle), CLASSES, images, opened, score=make_score("max-logit"), keep=0.7
    )


def test_counts_and_differences_are_those_worked_out_by_hand(tiny_clip: TowerModel) -> None:
    from sklearn.metrics import roc_auc_score

    angle, known, unknown = 0.8, 60, 30
    found = check(tiny_clip, angle, known, unknown)
    images = [*pictures(known, 0), *pictures(unknown, 1)]
    texts = tiny_clip.encode_texts([f"a photo of a {name}." for name in CLASSES]).astype(np.float64)
    features = [model.encode_images(images).astype(np.float64) for model in (tiny_clip, on_engine(tiny_clip, angle))]
    ours, theirs = (one @ texts.T for one in features)
    labels = ours.argmax(1) != theirs.argmax(1)
    first, second = ours.max(1), theirs.max(1)
    assert 0 < labels.sum() < 90 and found.images == 90 and found.known == 60
    assert (found.labels_differ, found.open_labels_differ) == (labels[:60].sum(), labels[60:].sum())

    def threshold(scores: np.ndarray) -> float:
        return float(np.sort(scores[:60:2])[8])  # the ninth: ⌊0.3 · 31⌋

    judged = [*range(1, 60, 2), *range(60, 90)]
    plain, carried = (scores[judged] < threshold(first) for scores in (first, second))
    own = second[judged] < threshold(second)
    assert found.thresholds == pytest.approx((threshold(first), threshold(second)), abs=1e-6)
    assert found.judged == 60
    assert found.verdicts_differ == (plain != carried).sum() > 0
    assert found.own_verdicts_differ == (plain != own).sum() != found.verdicts_differ
    assert found.judged_differ == (labels[judged] | (plain != carried) | (plain != own)).sum()
    assert found.largest_score_difference == pytest.approx(np.abs(first - second)[judged].max(), abs=1e-6)
    assert found.score_deviation == pytest.approx(first[judged].std(), abs=1e-6)
    assert found.least_cosine == pytest.approx(math.cos(angle), abs=1e-5)
    truth = [True] * 30 + [False] * 30
    before, after = roc_auc_score(truth, first[judged]), roc_auc_score(truth, second[judged])
    assert found.auroc == pytest.approx(before) and found.difference is not None
    assert found.difference.value == pytest.approx(after - before)
    assert found.difference.low <= found.difference.value <= found.difference.high
    assert not found.equal and found.conclusion().startswith(f"Not equal: {found.judged_differ} of 60")


def test_equal_is_said_only_of_enough_images(tiny_clip: TowerModel) -> None:
    enough = check(tiny_clip, 0.0, 100, 249)
    assert enough.judged == 299 and enough.equal and enough.conclusion().startswith("Equal")
    few = check(tiny_clip, 0.0, 100, 248)
    assert not few.differs and not few.equal
    assert few.conclusion().startswith("Not shown to be equal") and "299" in few.conclusion()
    alone = check(tiny_clip, 0.0, 8, 0)
    assert alone.auroc is None and alone.difference is None and alone.judged == 4


def test_one_changed_label_among_those_that_set_thresholds_is_no_equality(tiny_clip: TowerModel) -> None:
    equal = check(tiny_clip, 0.0, 100, 249)
    changed = BackendAgreement(**{**vars(equal), "labels_differ": 1})
    assert not changed.equal and changed.conclusion().startswith("Not equal: 1 of the images that set thresholds")


def test_both_towers_are_timed_in_turns(tiny_clip: TowerModel) -> None:
    images = load_images(pictures(40, 0))
    found = check_agreement(
        tiny_clip, on_engine(tiny_clip, 0.1), CLASSES, images, score=make_score("mcm"), batch_size=16
    )
    assert len(found.ratios) == 2, "the last batch of 8 is no whole one"
    assert min(found.milliseconds) > 0 and found.speed == found.milliseconds[0] / found.milliseconds[1]
    assert found.to_dict()["equal"] is False and found.to_dict()["auroc_difference"] is None


@pytest.mark.parametrize(("count", "total"), [(0, 299), (0, 3), (1, 100), (17, 328), (99, 100), (100, 100)])
def test_the_bound_is_clopper_and_pearsons(count: int, total: int) -> None:
    from scipy.stats import beta

    expected = 1.0 if count == total else float(beta.ppf(0.95, count + 1, total - count))
    assert upper_share(count, total, 0.05) == pytest.approx(expected, abs=1e-9)


def test_what_cannot_be_compared_is_refused(tiny_clip: TowerModel, tmp_path: object) -> None:
    candidate = on_engine(tiny_clip, 0.1)
    images, score = load_images(pictures(8, 0)), make_score("mcm")
    with pytest.raises(InputError, match="same weights"):
        check_agreement(candidate, tiny_clip, CLASSES, images, score=score)
    with pytest.raises(InputError, match="same weights"):
        check_agreement(tiny_clip, tiny_clip, CLASSES, images, score=score)
    with pytest.raises(InputError, match="needs patches"):
        check_agreement(tiny_clip, candidate, CLASSES, images, score=make_score("gl-mcm"))
    with pytest.raises(InputError, match="at least 4"):
        check_agreement(tiny_clip, candidate, CLASSES, images[:3], score=score)
    store = de.build_store(tiny_clip, images, f"{tmp_path}/store")
    with pytest.raises(InputError, match="feature store"):
        check_model("lite", store.path, on="bf16")
