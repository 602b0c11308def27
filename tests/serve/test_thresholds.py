"""`/v1/thresholds` and `/v1/calibrate` by scores: the same numbers as a detector's own, to the last bit."""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deltaenergy as de
from deltaenergy.serve.engine import at_rank
from deltaenergy.stats.thresholds import rank_of
from tests.serve.conftest import CLASSES, make_client, png

KNOWN = np.random.default_rng(0).normal(size=60).tolist()
# The known scores themselves are kept down to the threshold, and so is what rounding makes of them.
OTHERS = [-9.0, *np.random.default_rng(1).normal(size=20).tolist(), 9.0, *KNOWN, *(x - 1e-7 for x in KNOWN)]
NAMES = {"classes": ",".join(CLASSES), "score": "mcm"}


def post(client: Any, **fields: Any) -> Any:
    sent = {name: value if isinstance(value, str) else json.dumps(value) for name, value in fields.items()}
    return client.post("/v1/thresholds", data=sent)


def load(data: bytes, folder: Path, lite: Any) -> de.Detector:
    zipfile.ZipFile(io.BytesIO(data)).extractall(folder)
    return de.Detector.load(folder / "detector", model=lite)


@pytest.mark.parametrize("choice", [{}, {"keep": 0.5}, {"keep": 0.99}, {"rank": 1}, {"rank": 17}, {"rank": 60}])
def test_a_threshold_is_that_of_the_detector_calibrated_with_its_keep(
    client: Any, lite: Any, tmp_path: Path, choice: dict[str, Any]
) -> None:
    found = post(client, **NAMES, known=KNOWN, scores=OTHERS, **choice).json()
    made = client.post("/v1/calibrate", data={**NAMES, "known": json.dumps(KNOWN), "keep": str(found["keep"])})
    loaded = load(made.content, tmp_path, lite)
    assert found["threshold"] == loaded.threshold == sorted(KNOWN)[found["rank"] - 1]
    assert found["guarantee"] == str(loaded.guarantee) == json.loads(made.headers["x-deltaenergy"])["guarantee"]
    assert found["is_ood"] == loaded.rejects(np.array(OTHERS)).tolist() and {True, False} == set(found["is_ood"])
    assert found["p_values"] == loaded.p_values(np.array(OTHERS)).tolist()
    assert found["images"] == len(loaded.calibration_scores) == 60
    assert found["rank"] == choice.get("rank", max(1, rank_of(60, choice.get("keep", 0.95), None)))


def test_a_detector_s_own_threshold_and_another(client: Any, detectors: Any) -> None:
    own = detectors["colours"].require_calibration()
    found = post(client, detector="colours", scores=OTHERS).json()
    assert (found["threshold"], found["guarantee"]) == (own.threshold, str(own.guarantee))
    moved = post(client, detector="colours", scores=OTHERS, rank=3).json()
    assert moved["threshold"] == own.scores[2] and moved["keep"] == 0.9
    assert moved["is_ood"] == at_rank(own, 3).rejects(np.array(OTHERS)).tolist()
    told = client.get("/v1/detectors/colours/scores").json()
    assert (told["rank"], told["threshold"], told["images"]) == (own.rank, own.threshold, 30)


@pytest.mark.parametrize("count", [1, 9, 30, 98, 99, 100, 9_999])
def test_every_rank_has_a_share_of_few_digits(count: int, detectors: Any) -> None:
    own = detectors["colours"].require_calibration()
    known = replace(own, scores=np.arange(float(count)), guarantee=replace(own.guarantee, images=count))
    for rank in {1, 2, count // 3, count - 1, count} & set(range(1, count + 1)):
        moved = at_rank(known, rank)
        assert moved.rank == rank and moved.threshold == rank - 1 and len(str(moved.guarantee.keep)) <= 7


def test_a_single_threshold_is_needed(lite: Any) -> None:
    known = [png(seed) for seed in range(20)]
    detector = de.Detector(de.ZeroShotClassifier(lite, CLASSES), "mahalanobis").calibrate(known)
    with make_client({"fitted": detector}, lite) as made:
        answer = post(made, detector="fitted", rank=3)
        assert answer.status_code == 422 and "detector" in answer.json()["error"]
        assert made.get("/v1/detectors/fitted/scores").json()["rank"] is None


@pytest.mark.parametrize(
    ("fields", "status", "said"),
    [
        ({"detector": "colors"}, 404, "There are: colours, letters"),
        ({"detector": "colours", "rank": 31}, 422, "rank"),
        ({"detector": "colours", "rank": 0}, 422, "rank"),
        ({"detector": "colours", "rank": "9" * 5000}, 422, "rank"),
        ({"detector": "colours", "scores": "[1, 2"}, 422, "scores"),
        ({"detector": "colours", "scores": "[1e999]"}, 422, "scores.0"),
        ({"detector": "colours", "scores": [0] * 10_001}, 413, "scores"),
        (NAMES, 422, "known"),
        ({**NAMES, "known": "[NaN]"}, 422, "known.0"),
        ({**NAMES, "known": "{}"}, 422, "known"),
        ({**NAMES, "known": [0] * 10_001}, 413, "known"),
        ({**NAMES, "known": KNOWN, "keep": "0"}, 422, "keep"),
        ({**NAMES, "known": KNOWN, "keep": "nan"}, 422, "keep"),
        ({**NAMES, "known": KNOWN, "score": "knn"}, 422, "score"),
    ],
)
def test_wrong_requests_name_the_field(client: Any, fields: dict[str, Any], status: int, said: str) -> None:
    answer = post(client, **fields)
    assert answer.status_code == status, answer.text
    assert said in answer.json()["error"]


def test_fitted_scores_are_calibrated_from_images(client: Any, lite: Any, tmp_path: Path) -> None:
    images = [("files", (f"{seed}.png", png(seed))) for seed in range(20)]
    answer = client.post("/v1/calibrate", data={**NAMES, "score": "knn"}, files=images)
    assert answer.status_code == 200, answer.text
    loaded = load(answer.content, tmp_path, lite)
    assert loaded.score.spec == "knn" and loaded.threshold is None and len(loaded.calibration_scores) == 20
