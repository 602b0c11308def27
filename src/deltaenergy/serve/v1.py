"""The service's own API: verdicts by its detectors, class names of the request, calibration."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import Response

from deltaenergy.serve import samples
from deltaenergy.serve.schemas import (
    CalibrationScores,
    ClassifyRequest,
    DetectorInfo,
    ImageAnswer,
    VerdictRequest,
    Verdicts,
)
from deltaenergy.serve.bodies import (
    Form,
    Refused,
    decode_base64,
    is_form,
    read_form,
    read_json,
    split_names,
    while_connected,
)
from deltaenergy.serve.calibration import MOST_NAMES, calibrated_zip
from deltaenergy.serve.description import form_body, form_or_json
from deltaenergy.serve.engine import Engine
from deltaenergy.serve.limits import Limits
from deltaenergy.serve.targets import Target, guarantee_of

router = APIRouter(prefix="/v1", tags=["verdicts"])
MOST_SCORES = 2000


@router.get("/detectors", summary="The detectors that there are")
async def detectors(request: Request) -> list[DetectorInfo]:
    """Each with classes, score, threshold and what the threshold promises."""
    return [target.info() for target in _engine(request).detectors.values()]


@router.get("/detectors/{name}/scores", summary="The scores of a detector's calibration images")
async def calibration_scores(request: Request, name: str) -> CalibrationScores:
    """Ascending, for a histogram beside the threshold."""
    target = _target(_engine(request), name)
    assert target.detector is not None
    values = target.detector.calibration_scores
    rows = np.unique(np.linspace(0, len(values) - 1, min(len(values), MOST_SCORES)).round().astype(int))
    shown = [float(value) for value in values[rows]] if len(values) else []
    return CalibrationScores(scores=shown, images=len(values), threshold=target.detector.threshold)


@router.post(
    "/verdicts",
    summary="Which class, and whether any at all",
    openapi_extra=form_or_json(VerdictRequest, detector="Its name.", top_k="How many of the likeliest classes."),
)
async def verdicts(request: Request) -> Verdicts:
    """Files of a multipart form, or JSON with base64 images or with features."""
    engine = _engine(request)
    features = None
    if is_form(request):
        form = await read_form(request, engine.limits)
        name, top_k, images = form.one("detector"), _top_k(form), form.files
    else:
        asked = await read_json(request, VerdictRequest)
        name, top_k, features = asked.detector, asked.top_k, asked.features
        images = _sent(asked.images, engine.limits)
    target = _target(engine, name)
    if features is not None:
        if images:
            raise Refused(422, "Send images or features, not both.")
        if not 0 < len(features) <= engine.limits.rows:
            raise Refused(422, f"features must have 1 to {engine.limits.rows:,} rows, got {len(features):,}.")
        work = engine.judge_features(target, features, top_k)
        return _answer(target, await while_connected(request, work, engine.limits.seconds))
    return await _judged(request, engine, target, images, top_k)


@router.post(
    "/classify",
    summary="The same with class names of your own",
    openapi_extra=form_or_json(
        ClassifyRequest,
        ["classes"],
        classes="Names, separated by commas.",
        template="Such as: a photo of a {}.",
        score="A score that needs no calibration images.",
        top_k="How many of the likeliest classes.",
    ),
)
async def classify(request: Request) -> Verdicts:
    """Labels, confidences and scores; without known images there is no threshold, and no verdict."""
    engine = _engine(request)
    if is_form(request):
        form = await read_form(request, engine.limits)
        names: list[str] | str = ",".join(form.fields.get("classes", []))
        template, score, top_k, images = form.one("template"), form.one("score"), _top_k(form), form.files
    else:
        asked = await read_json(request, ClassifyRequest)
        names, template, score, top_k = asked.classes, asked.template, asked.score, asked.top_k
        images = _sent(asked.images, engine.limits)
    classes = split_names(names) if isinstance(names, str) else names
    target = await engine.aside(engine.class_list, classes, template or None, score or None)
    return await _judged(request, engine, target, images, top_k)


@router.post(
    "/calibrate",
    summary="A detector of your own, as a zip",
    response_class=Response,
    responses={200: {"content": {"application/zip": {}}, "description": "The folder of a detector."}},
    openapi_extra=form_body(
        ["classes"],
        classes="Names, separated by commas.",
        keep="Share of known images to keep.",
        score="A score by its name.",
    ),
)
async def calibrate(request: Request) -> Response:
    """A form with `classes`, known images as `files`, and if you like `keep` and `score`: a detector to load.

    The zip holds the folder that `Detector.load` and `--detector` take.
    """
    engine = _engine(request)
    if not is_form(request):
        raise Refused(400, "Send a multipart form with `classes` and `files`.")
    form = await read_form(request, engine.limits)
    classes = split_names(",".join(form.fields.get("classes", [])))
    if len(classes) > MOST_NAMES:
        raise Refused(422, f"classes has {len(classes):,} names, and {MOST_NAMES} are the most here.")
    if not form.files:
        raise Refused(422, "Send images of known things as `files`.")
    work = engine.aside(calibrated_zip, engine, classes, form)
    data, told = await while_connected(request, work, engine.limits.seconds)
    headers = {"Content-Disposition": 'attachment; filename="detector.zip"', "X-Deltaenergy": told}
    return Response(data, media_type="application/zip", headers=headers)


@router.get("/settings", summary="What class names of your own may be asked with")
async def settings(request: Request) -> dict[str, Any]:
    """The scores that need no calibration images, the default one, the limits, and whether there are samples."""
    engine = _engine(request)
    return {
        "own_classes": engine.model is not None,
        "scores": await asyncio.to_thread(samples.simple_scores),
        "default_score": engine.default_score,
        "files": engine.limits.files,
        "body_mb": engine.limits.body_mb,
        "samples": samples.names(),
    }


@router.get(
    "/samples/{number}",
    summary="A sample photograph",
    response_class=Response,
    responses={200: {"content": {"image/jpeg": {}}, "description": "A photograph."}},
)
async def sample(number: int) -> Response:
    """As the page shows them."""
    data = await asyncio.to_thread(samples.photograph, number)
    if data is None:
        raise Refused(404, "There is no such sample.")
    return Response(data, media_type="image/jpeg")


async def _judged(
    request: Request, engine: Engine, target: Target, images: list[tuple[str, bytes]], top_k: int
) -> Verdicts:
    if not images:
        raise Refused(422, "There is no image in the request: send files, or images as base64.")
    answers = await while_connected(request, engine.judge(target, images, top_k), engine.limits.seconds)
    found = _answer(target, answers)
    if all(answer.error is not None for answer in answers):
        raise Refused(422, "No image could be read.", detail=[_failure(answer) for answer in answers])
    return found


def _failure(answer: ImageAnswer) -> dict[str, str | None]:
    return {"id": answer.id, "error": answer.error}


def _answer(target: Target, answers: list[ImageAnswer]) -> Verdicts:
    detector = target.detector
    return Verdicts(
        detector=target.name,
        version=target.version,
        score=target.scorer.spec,
        threshold=None if detector is None else detector.threshold,
        guarantee=None if detector is None else guarantee_of(detector),
        images=answers,
    )


def _sent(images: Any, limits: Limits) -> list[tuple[str, bytes]]:
    found = images or []
    if len(found) > limits.files:
        raise Refused(413, f"There are {len(found):,} images in the request, and {limits.files} are the most.")
    return [
        (str(i) if image.id is None else image.id, decode_base64(image.data, f"images.{i}.data"))
        for i, image in enumerate(found)
    ]


def _top_k(form: Form) -> int:
    text = form.one("top_k") or "5"
    if not (text.isascii() and text.isdigit() and len(text) <= 4 and 1 <= int(text) <= 1000):
        raise Refused(422, "top_k must be a whole number from 1 to 1000.")
    return int(text)


def _engine(request: Request) -> Engine:
    engine: Engine = request.app.state.engine
    return engine


def _target(engine: Engine, name: str | None) -> Target:
    try:
        return engine.detector(name)
    except KeyError as error:
        raise Refused(404, str(error.args[0])) from None
