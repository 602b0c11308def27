"""The web application: the routes of /v1, errors as JSON, the two pages, and the guard around them."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import hashlib
import io
import json
import math
import re
import tempfile
import warnings
import zipfile
from collections.abc import AsyncIterator, Sequence
from importlib.resources import files as resource
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Depends, FastAPI, File, Form, Request, Security, UploadFile
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from fastapi.security import APIKeyHeader, HTTPBearer
from PIL import Image
from pydantic import FiniteFloat, Json
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from deltaenergy import __version__
from deltaenergy.core.needs import Need
from deltaenergy.data.decode import UnreadableImage
from deltaenergy.data.items import ImageItem, load_rgb
from deltaenergy.detector.detector import Detector
from deltaenergy.errors import DeltaEnergyError, InputError
from deltaenergy.explanation import Explainer
from deltaenergy.scores.registry import DEFAULT_SCORE, list_scores, make_score
from deltaenergy.serve import v2
from deltaenergy.serve.engine import Engine, Pixels, Predictor, TheEngine, at_rank, encode, guarantee_of, without_images
from deltaenergy.serve.guard import Guard, Keys, while_connected
from deltaenergy.serve.schemas import (
    CalibrationScores,
    DetectorInfo,
    Explained,
    FeaturesRequest,
    ImageAnswer,
    Problem,
    Sample,
    ServiceSettings,
    Thresholds,
    VerdictList,
)

ABOUT = """Classify images, and reject those that belong to none of your classes.

Scores: larger = more like the known classes. `is_ood` is true for *none of these*. Each image has a verdict or an
`error`; the status is 422 if no image of a request could be read. 429 means that the service is busy: try again after
`Retry-After` seconds."""
MOST_SCORES = 2000
LONGEST_NAME = 1000
SAMPLE_SIDE = 640

router = APIRouter(prefix="/v1", tags=["verdicts"])
operation = APIRouter(tags=["operation"])

Files = Annotated[list[UploadFile], File(description="Images.")]
DetectorName = Annotated[str | None, Form(description="Name of the detector; optional if there is only one.")]
ClassNames = Annotated[list[str], Form(description="Class names, separated by commas.")]
SomeClassNames = Annotated[list[str] | None, Form(description="Class names between commas, instead of a detector.")]
Template = Annotated[str | None, Form(max_length=500, description="Prompt template, such as: a photo of a {}.")]
ScoreName = Annotated[str | None, Form(max_length=500, description="Score to use with class names.")]
TopK = Annotated[int, Form(ge=1, le=1000, description="Number of closest classes to report per image.")]
Keep = Annotated[float, Form(gt=0, le=1, description="Share of known images to keep.")]
Numbers = Json[list[FiniteFloat]]
KnownScores = Annotated[
    Numbers, Form(default_factory=list, description="JSON list of the scores that /v1/classify gave to known images.")
]


async def class_list(
    request: Request, engine: TheEngine, classes: ClassNames, template: Template = None, score: ScoreName = None
) -> Predictor:
    work = engine.run_in_background(engine.class_list, split_names(classes), template, score)
    found: Predictor = await while_connected(request, work, engine.limits.seconds)
    return found


async def detector_or_classes(
    request: Request,
    engine: TheEngine,
    detector: DetectorName = None,
    classes: SomeClassNames = None,
    template: Template = None,
    score: ScoreName = None,
) -> Predictor:
    """A detector of the service, unless class names are given."""
    if classes is None:
        return engine.detector(detector)
    return await class_list(request, engine, classes, template, score)


ByClasses = Annotated[Predictor, Depends(class_list)]
ByEither = Annotated[Predictor, Depends(detector_or_classes)]


@router.get("/detectors", summary="Detectors of this service")
async def detectors(engine: TheEngine) -> list[DetectorInfo]:
    """Classes, score, threshold and guarantee of each detector."""
    return [predictor.info() for predictor in engine.detectors.values()]


@router.get("/detectors/{name}/scores", summary="Scores of a detector's calibration images")
async def calibration_scores(engine: TheEngine, name: str) -> CalibrationScores:
    """In ascending order, for a histogram next to the threshold."""
    predictor = engine.detector(name)
    assert predictor.detector is not None
    values, known = predictor.detector.calibration_scores, predictor.one_threshold
    rows = np.unique(np.linspace(0, len(values) - 1, min(len(values), MOST_SCORES)).round().astype(int))
    shown = [float(value) for value in values[rows]] if len(values) else []
    return CalibrationScores(
        scores=shown,
        images=len(values),
        threshold=predictor.detector.threshold,
        rank=None if known is None else known.rank,
    )


@router.post("/verdicts", summary="Classify images")
async def verdicts(
    request: Request, engine: TheEngine, files: Files, detector: DetectorName = None, top_k: TopK = 5
) -> VerdictList:
    """Uses a detector of the service."""
    return await _predicted(request, engine, engine.detector(detector), files, top_k)


@router.post("/features", summary="Classify features")
async def features(request: Request, engine: TheEngine, asked: FeaturesRequest) -> VerdictList:
    """Rows of unit features from the detector's own model."""
    _check_count("features", asked.features, engine.limits.rows)
    predictor = engine.detector(asked.detector)
    work = engine.predict_features(predictor, asked.features, asked.top_k)
    return _answer(predictor, await while_connected(request, work, engine.limits.seconds))


@router.post("/classify", summary="Classify images with your own class names")
async def classify(
    request: Request, engine: TheEngine, predictor: ByClasses, files: Files, top_k: TopK = 5
) -> VerdictList:
    """The threshold comes from the class names and guarantees nothing. With `score` there is no threshold and no
    verdict.
    """
    return await _predicted(request, engine, predictor, files, top_k)


@router.post("/thresholds", summary="Set a threshold and apply it to scores")
async def thresholds(
    engine: TheEngine,
    predictor: ByEither,
    known: KnownScores,
    scores: Annotated[
        Numbers, Form(default_factory=list, description="JSON list of scores to compare with the threshold.")
    ],
    keep: Keep = 0.95,
    rank: Annotated[
        int | None, Form(description="Rank of the known score to use as threshold, instead of `keep`.")
    ] = None,
) -> Thresholds:
    """For a detector with a single threshold, or for class names and scores of known images."""
    _check_count("scores", scores, engine.limits.rows)
    if predictor.name is None:
        found = _calibrated(engine, predictor, known, keep).require_calibration()
    elif predictor.one_threshold is None:
        raise InputError(f"detector: {predictor.name!r} has no single threshold, so it cannot be changed.")
    else:
        found = predictor.one_threshold
    if rank is not None:
        found = at_rank(found, rank)
    values = np.array(scores, np.float64)
    assert found.threshold is not None
    return Thresholds(
        threshold=found.threshold,
        rank=found.rank,
        keep=found.guarantee.keep,
        images=len(found.scores),
        guarantee=str(found.guarantee),
        p_values=[None if math.isnan(value) else value for value in found.p_values(values).tolist()],
        is_ood=found.rejects(values).tolist(),
    )


@router.post(
    "/calibrate",
    summary="Make a detector and download it as a zip",
    response_class=Response,
    responses={200: {"content": {"application/zip": {}}, "description": "The folder of a detector."}},
)
async def calibrate(
    request: Request,
    engine: TheEngine,
    classes: ClassNames,
    known: KnownScores,
    files: Annotated[list[UploadFile] | None, File(description="Known images.")] = None,
    keep: Keep = 0.95,
    template: Template = None,
    score: ScoreName = None,
) -> Response:
    """Calibrates on known images, or on their scores, and returns a folder for `Detector.load`.

    More images are allowed than in other requests. If they do not fit into one request, send `known` instead.
    """
    if files:
        items = [ImageItem(f"{i}: {name}", data) for i, (name, data) in enumerate(await _read(files))]
        work = engine.run_in_background(_calibrate, engine, split_names(classes), template, score, items, keep)
        detector, notes = await while_connected(request, work, engine.limits.seconds)
    else:
        predictor = await class_list(request, engine, classes, template, score)
        detector, notes = _calibrated(engine, predictor, known, keep), []
    about = {
        "threshold": detector.threshold,
        "images": len(detector.calibration_scores),
        "score": detector.score.spec,
        "guarantee": guarantee_of(detector),
        "warnings": notes,
    }
    headers = {"Content-Disposition": 'attachment; filename="detector.zip"', "X-Deltaenergy": json.dumps(about)}
    zipped = await engine.run_in_background(_zip, detector)
    return Response(zipped, media_type="application/zip", headers=headers)


@router.post("/explain", summary="Explain a verdict with a heatmap")
async def explain(
    request: Request,
    engine: TheEngine,
    predictor: ByEither,
    files: Annotated[list[UploadFile], File(min_length=1, max_length=1, description="One image.")],
    method: Annotated[
        str, Form(max_length=100, description="auto, value-path, rollout, grad-cam or occlusion.")
    ] = "auto",
    target: Annotated[str, Form(max_length=1000, description="class, score, or a class name.")] = "class",
) -> Explained:
    """Uses a detector of the service, or your own class names."""
    ((name, data),) = await _read(files)
    work = engine.with_pixels(predictor, data, lambda pixels: explain_pixels(predictor, name, pixels, method, target))
    explained: Explained = await while_connected(request, work, engine.limits.seconds)
    return explained


@router.get("/settings", summary="Settings of this service")
async def settings(engine: TheEngine) -> ServiceSettings:
    """Scores for class names, the default score, limits and sample photos."""
    return ServiceSettings(
        own_classes=engine.model is not None,
        scores=await asyncio.to_thread(scores_without_images),
        default_score=DEFAULT_SCORE,
        files=engine.limits.files,
        body_mb=engine.limits.body_mb,
        samples=[Sample(name=item.id, label=item.label) for item in _samples()],
    )


@router.get(
    "/samples/{number}",
    summary="A sample photo",
    response_class=Response,
    responses={200: {"content": {"image/jpeg": {}}, "description": "A photo."}},
)
async def sample(number: int) -> Response:
    """A sample photo, as on the page."""
    data = await asyncio.to_thread(_sample, number) if 0 <= number < len(_samples()) else None
    if data is None:
        raise HTTPException(404, "There is no such sample.")
    return Response(data, media_type="image/jpeg")


@operation.get("/metrics", summary="Counters for Prometheus", response_class=PlainTextResponse)
async def metrics(engine: TheEngine) -> PlainTextResponse:
    """In Prometheus's text format."""
    return PlainTextResponse(engine.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


async def _predicted(
    request: Request, engine: Engine, predictor: Predictor, files: Sequence[UploadFile], top_k: int
) -> VerdictList:
    if len(files) > engine.limits.files:
        raise HTTPException(413, f"files: there are {len(files):,} images; the limit is {engine.limits.files}.")
    work = engine.predict(predictor, await _read(files), top_k)
    answers = await while_connected(request, work, engine.limits.seconds)
    if all(answer.error is not None for answer in answers):
        unread = [{"path": answer.path, "error": answer.error} for answer in answers]
        raise HTTPException(422, {"error": "files: no image could be read.", "detail": unread})  # type: ignore[arg-type]
    return _answer(predictor, answers)


async def _read(files: Sequence[UploadFile]) -> list[tuple[str, bytes]]:
    return [((file.filename or str(i))[:LONGEST_NAME], await file.read()) for i, file in enumerate(files)]


def _answer(predictor: Predictor, answers: list[ImageAnswer]) -> VerdictList:
    return VerdictList(
        detector=predictor.name,
        version=predictor.version,
        score=predictor.scorer.spec,
        threshold=None if predictor.detector is None else predictor.detector.threshold,
        guarantee=predictor.guarantee,
        images=answers,
    )


def _check_count(name: str, values: Sequence[Any], most: int) -> None:
    if len(values) > most:
        raise HTTPException(413, f"{name} has {len(values):,} rows; the limit is {most:,}.")


def split_names(texts: Sequence[str]) -> list[str]:
    """Class names between commas or line ends. Unlike on the command line, a name is never a file."""
    names = ",".join(texts).replace("\n", ",").split(",")
    return [name.strip() for name in names if name.strip()]


def _calibrated(engine: Engine, predictor: Predictor, known: Sequence[float], keep: float) -> Detector:
    if not known:
        raise InputError("files and known are both missing: send known images, or their scores.")
    _check_count("known", known, engine.limits.rows)
    return predictor.calibrated(known, keep)


def _calibrate(
    engine: Engine,
    classes: Sequence[str],
    template: str | None,
    score: str | None,
    items: Sequence[ImageItem],
    keep: float,
) -> tuple[Detector, list[str]]:
    """A detector calibrated on known images, and warnings about it."""
    chosen = make_score(score or DEFAULT_SCORE)
    fitted = chosen.needs_fit and Need.TEXTS not in chosen.needs
    predictor = engine.class_list(classes, template, "mcm" if fitted else chosen.spec)
    detector = Detector(predictor.classifier, chosen, state=None if fitted else predictor.scorer.state)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        detector.calibrate(items, keep, batch_size=engine.limits.batch)
    return detector, [str(one.message) for one in heard if issubclass(one.category, UserWarning)]


def _zip(detector: Detector) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        detector.save(folder)
        data = io.BytesIO()
        with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(Path(folder).iterdir()):
                archive.write(path, f"detector/{path.name}")
    return data.getvalue()


def explain_pixels(predictor: Predictor, name: str, pixels: Pixels, method: str, target: str) -> Explained:
    """Encode and explain one image; in the background, since occlusion takes long."""
    by = predictor.detector or Detector(predictor.classifier, predictor.scorer.score, state=predictor.scorer.state)
    (one,) = Explainer(by, method, target).explain_batch(encode(predictor, [(name, pixels)]))
    buffer = io.BytesIO()
    one.overlay().save(buffer, "PNG")
    return Explained(
        id=name,
        label=one.label,
        verdict=None if one.verdict is None else one.verdict.verdict,
        method=one.method,
        target=one.target,
        value=one.value if math.isfinite(one.value) else None,
        heatmap=[[float(cell) for cell in row] for row in one.heatmap],
        overlay="data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii"),
        alternative=one.in_words,
    )


@functools.cache
def _samples() -> tuple[ImageItem, ...]:
    """Sample photos, if the packages with them are installed."""
    from deltaenergy.demo import sample_photographs

    try:
        return tuple(sample_photographs())
    except InputError:
        return ()


@functools.lru_cache(32)
def _sample(number: int) -> bytes | None:
    """A sample as JPEG, small enough for a page."""
    try:
        image = load_rgb(_samples()[number])
    except UnreadableImage:
        return None
    image.thumbnail((SAMPLE_SIDE, SAMPLE_SIDE), Image.Resampling.LANCZOS)
    data = io.BytesIO()
    image.save(data, "JPEG", quality=88)
    return data.getvalue()


@functools.cache
def scores_without_images() -> list[str]:
    found = []
    for name in list_scores():
        with contextlib.suppress(InputError):
            found.append(without_images(name).spec)
    return found


@functools.cache
def page_text(name: str) -> str:
    """A page as one file that needs nothing else, in the colours of the reports."""
    style = resource("deltaenergy.report").joinpath("style.css").read_text(encoding="utf-8")
    text = resource("deltaenergy.serve").joinpath(name).read_text(encoding="utf-8")
    return text.replace("/* report style */", style, 1)


def page_policy(text: str) -> str:
    """Only the scripts and styles of the page itself run, and no other host is contacted."""

    def hashes(tag: str) -> str:
        found = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digests = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in found]
        return " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"

    return (
        f"default-src 'none'; script-src {hashes('script')}; style-src {hashes('style')}; connect-src 'self'; "
        "img-src 'self' blob: data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def create_app(engine: Engine, keys: Keys | None = None, cors: tuple[str, ...] = ()) -> ASGIApp:
    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await engine.close()

    app = _Application(
        title="deltaenergy",
        version=__version__,
        description=ABOUT,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        responses={status: {"model": Problem} for status in (400, 401, 404, 408, 413, 422, 429, 504)},
    )
    app.state.engine, app.state.keys = engine, keys
    # Only for the description: the guard checks keys before a body is read.
    key = [Security(HTTPBearer(auto_error=False)), Security(APIKeyHeader(name="X-API-Key", auto_error=False))]
    for routes in (router, v2.router, operation):
        app.include_router(routes, dependencies=key)
    app.include_router(v2.health)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(RequestValidationError, _on_fields)
    app.add_exception_handler(DeltaEnergyError, _on_error)

    pages = {"/": page_text("page.html"), "/docs": page_text("docs.html")}
    for path, text in pages.items():
        app.add_route(path, functools.partial(_page, text), include_in_schema=False)
    inner: ASGIApp = app
    if cors:
        from starlette.middleware.cors import CORSMiddleware

        inner = CORSMiddleware(app, allow_origins=list(cors), allow_methods=["*"], allow_headers=["*"])
    policies = {path: page_policy(text) for path, text in pages.items()}
    return Guard(inner, engine.limits, engine.metrics, keys, policies)


async def _page(text: str, _: Request) -> HTMLResponse:
    return HTMLResponse(text)


class _Application(FastAPI):
    def openapi(self) -> dict[str, Any]:
        """The generated description; without keys, sending one is optional."""
        made = self.openapi_schema is not None
        described = super().openapi()
        if not made and self.state.keys is None:
            for operation in (one for path in described["paths"].values() for one in path.values()):
                if "security" in operation:
                    operation["security"].append({})
        return described


async def _on_http(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    told = error.detail if isinstance(error.detail, dict) else {"error": str(error.detail)}
    return JSONResponse(told, error.status_code, headers=error.headers)


async def _on_fields(_: Request, error: Exception) -> JSONResponse:
    """Where and what is wrong, without the values that were sent."""
    assert isinstance(error, RequestValidationError)
    found = []
    for one in error.errors()[:20]:
        # A body that is not JSON has the position of its first wrong character.
        inside = [str(part) for part in one["loc"][1:] if one["type"] != "json_invalid" or isinstance(part, str)]
        found.append({"field": ".".join(inside) or str(one["loc"][0]), "error": one["msg"]})
    words = "; ".join(f"{one['field']}: {one['error']}" for one in found[:3])
    return JSONResponse({"error": f"The request has wrong fields. {words}.", "detail": found}, 422)


async def _on_error(_: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"error": str(error)}, 422)
