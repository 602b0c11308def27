"""`/v1/explain`: where in a picture it stands what speaks for its class, or what moves its score."""

from __future__ import annotations

import base64
import io
import math

import torch
from fastapi import APIRouter, Request
from pydantic import BaseModel, Field, ValidationError

from deltaenergy.data.items import ImageItem
from deltaenergy.detector.detector import Detector
from deltaenergy.explanation import Explainer
from deltaenergy.models.encoding import EncodedBatch
from deltaenergy.serve.schemas import SentImage
from deltaenergy.serve.bodies import (
    Refused,
    decode_base64,
    field_errors,
    is_form,
    read_form,
    read_json,
    split_names,
    while_connected,
)
from deltaenergy.serve.description import form_or_json
from deltaenergy.serve.engine import Engine, Pixels
from deltaenergy.serve.targets import Target

router = APIRouter(prefix="/v1", tags=["verdicts"])


class ExplainRequest(BaseModel):
    """One picture, and a detector or class names of your own."""

    image: SentImage
    detector: str | None = Field(default=None, description="Its name; may be left out if there is one alone.")
    classes: list[str] | str | None = Field(default=None, description="Names of your own, in place of a detector.")
    score: str | None = Field(default=None, max_length=500, description="With `classes`: a score.")
    template: str | None = Field(default=None, max_length=500)
    method: str = Field(default="auto", max_length=100, description="auto, value-path, rollout, grad-cam, occlusion.")
    target: str = Field(default="class", max_length=1000, description="class, score, or the name of a class.")


class Explained(BaseModel):
    """A map over the picture."""

    id: str
    label: str
    verdict: str | None = None
    method: str
    target: str = Field(description="`score`, or the class whose similarity is explained.")
    value: float | None = Field(description="The score, or the similarity of that class. Null if it is not a number.")
    heatmap: list[list[float]] = Field(description="Rows of cells; larger = speaks more for the target.")
    overlay: str = Field(description="The map over the picture in grey, a PNG as a data URL.")
    alternative: str = Field(description="What the overlay shows, in words.")


_FIELDS = tuple(name for name in ExplainRequest.model_fields if name != "image")


@router.post(
    "/explain",
    summary="Where in a picture it stands what decided",
    openapi_extra=form_or_json(
        ExplainRequest,
        detector="Its name; or `classes`.",
        classes="Names of your own, separated by commas.",
        score="With `classes`: a score that needs no calibration images.",
        template="Such as: a photo of a {}.",
        method="auto, value-path, rollout, grad-cam or occlusion.",
        target="class, score, or the name of a class.",
    ),
)
async def explain(request: Request) -> Explained:
    """A form with one file and the fields of `ExplainRequest`, or JSON."""
    engine: Engine = request.app.state.engine
    if is_form(request):
        form = await read_form(request, engine.limits)
        if len(form.files) != 1:
            raise Refused(422, f"Send one picture to be explained, not {len(form.files)}.")
        (name, data), fields = form.files[0], {key: form.one(key) for key in _FIELDS if form.one(key)}
        try:
            asked = ExplainRequest.model_validate({**fields, "image": {"data": ""}})
        except ValidationError as error:
            raise Refused(422, "The request has wrong fields.", detail=field_errors(error)) from None
    else:
        asked = await read_json(request, ExplainRequest)
        name, data = asked.image.id or "0", decode_base64(asked.image.data, "image.data")
    target = await _target(engine, asked)
    work = engine.with_pixels(target, data, lambda pixels: explain_pixels(target, name, pixels, asked))
    return await while_connected(request, work, engine.limits.seconds)


async def _target(engine: Engine, asked: ExplainRequest) -> Target:
    if asked.classes is not None:
        names = split_names(asked.classes) if isinstance(asked.classes, str) else asked.classes
        found: Target = await engine.aside(engine.class_list, names, asked.template, asked.score)
        return found
    try:
        return engine.detector(asked.detector)
    except KeyError as error:
        raise Refused(404, str(error.args[0])) from None


def explain_pixels(target: Target, name: str, pixels: Pixels, asked: ExplainRequest) -> Explained:
    """Encode, judge and explain one picture; beside the batches, since covering parts takes its time."""
    judge = target.detector or Detector(target.classifier, target.scorer.score, state=target.scorer.state)
    explainer = Explainer(judge, asked.method, asked.target)
    model = target.model
    assert model is not None
    batch = torch.from_numpy(pixels)[None].to(model.device)
    patches: torch.Tensor | None
    with torch.inference_mode():
        features, patches = (
            model.image_and_patch_features(batch) if target.patches else (model.image_features(batch), None)
        )
    (one,) = explainer.explain_batch(EncodedBatch([ImageItem(name, b"")], batch, features, patches, []))
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
