"""The Open Inference Protocol (v2), for clients of KServe and Triton."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from deltaenergy import __version__
from deltaenergy.errors import InputError
from deltaenergy.serve.engine import Engine, TheEngine
from deltaenergy.serve.guard import while_connected

TAG = "Open Inference Protocol"
router = APIRouter(prefix="/v2", tags=[TAG])
# Needs no key.
health = APIRouter(prefix="/v2/health", tags=[TAG])
# Name and type of each output, which is the field of an `ImageAnswer`.
OUTPUTS: dict[str, str] = {
    "label": "BYTES",
    "confidence": "FP64",
    "score": "FP64",
    "p_value": "FP64",
    "is_ood": "BOOL",
    "error": "BYTES",
}


class Tensor(BaseModel):
    """An input or output."""

    name: str
    shape: list[int]
    datatype: str
    data: list[Any]


class InferRequest(BaseModel):
    """One input: `image` (BYTES, base64) or `features` (FP32)."""

    id: str | None = None
    inputs: list[Tensor] = Field(min_length=1, max_length=1)
    outputs: list[dict[str, Any]] | None = None


class InferResponse(BaseModel):
    """One value per image in each output; an unreadable image has a text in `error`."""

    model_name: str
    model_version: str | None
    id: str | None = None
    outputs: list[Tensor]


@health.get("/live", summary="Whether the process answers")
async def live() -> dict[str, bool]:
    """Always true."""
    return {"live": True}


@health.get("/ready", summary="Whether models are loaded")
async def ready() -> dict[str, bool]:
    """Models are loaded before the service listens."""
    return {"ready": True}


@router.get("", summary="The server")
async def server() -> dict[str, Any]:
    """Name, version, extensions."""
    return {"name": "deltaenergy", "version": __version__, "extensions": []}


@router.get("/models/{name}", summary="A detector as a model")
async def model(engine: TheEngine, name: str) -> dict[str, Any]:
    """Its inputs and outputs."""
    predictor = engine.detector(name)
    inputs: list[dict[str, Any]] = [{"name": "image", "datatype": "BYTES", "shape": [-1]}]
    if predictor.takes_features:
        inputs.append({"name": "features", "datatype": "FP32", "shape": [-1, predictor.classifier.model.feature_dim]})
    return {
        "name": name,
        "versions": [predictor.version],
        "platform": "deltaenergy",
        "inputs": inputs,
        "outputs": [{"name": key, "datatype": kind, "shape": [-1]} for key, kind in OUTPUTS.items()],
    }


@router.get("/models/{name}/ready", summary="Whether a detector is loaded")
async def model_ready(engine: TheEngine, name: str) -> dict[str, Any]:
    """200 if the detector is loaded, else 404."""
    return {"name": engine.detector(name).name, "ready": True}


@router.post("/models/{name}/infer", summary="Verdicts as tensors")
async def infer(request: Request, engine: TheEngine, name: str, asked: InferRequest) -> InferResponse:
    """`image`: base64 texts; `features`: rows of unit features."""
    predictor, (given,) = engine.detector(name), asked.inputs
    wanted = [str(output.get("name")) for output in asked.outputs or []] or list(OUTPUTS)
    unknown = next((output for output in wanted if output not in OUTPUTS), None)
    if unknown is not None:
        raise InputError(f"outputs: there is no {unknown[:40]!r}. There are: {', '.join(OUTPUTS)}.")
    if given.name == "image":
        work = engine.predict(predictor, _images(given, engine), 1)
    elif given.name == "features":
        work = engine.predict_features(predictor, _features(given, engine), 1)
    else:
        raise InputError("inputs: there must be one, named image or features.")
    answers = await while_connected(request, work, engine.limits.seconds)
    shape = [len(answers)]
    outputs = [
        Tensor(name=key, shape=shape, datatype=OUTPUTS[key], data=[getattr(answer, key) for answer in answers])
        for key in wanted
    ]
    return InferResponse(model_name=name, model_version=predictor.version, id=asked.id, outputs=outputs)


def _images(given: Tensor, engine: Engine) -> list[tuple[str, bytes]]:
    if given.datatype != "BYTES" or given.shape != [len(given.data)] or not given.data:
        raise InputError("inputs: image must have datatype BYTES and shape [N], with N base64 texts as data.")
    if len(given.data) > engine.limits.files:
        most = f"the limit is {engine.limits.files}"
        raise HTTPException(413, f"inputs: image has {len(given.data):,} images; {most}.")
    return [(str(i), _from_base64(text, i)) for i, text in enumerate(given.data)]


def _from_base64(text: Any, position: int) -> bytes:
    """The bytes of an image; the prefix of a data URL may precede them."""
    try:
        return base64.b64decode(text.partition(",")[2] if text.startswith("data:") else text, validate=True)
    except (AttributeError, binascii.Error, ValueError):
        raise InputError(f"inputs: image {position} is not base64.") from None


def _features(given: Tensor, engine: Engine) -> list[list[float]]:
    """Rows, from nested lists or from one flat list."""
    right = given.datatype in {"FP32", "FP64"} and len(given.shape) == 2 and min(given.shape) >= 1
    if not right or given.shape[0] > engine.limits.rows:
        most = f"N from 1 to {engine.limits.rows}"
        raise InputError(f"inputs: features must have datatype FP32 and shape [N, D], with {most}.")
    rows, width = given.shape
    flat = given.data
    if flat and isinstance(flat[0], list):
        flat = [value for row in flat if isinstance(row, list) for value in row]
    if len(flat) != rows * width or not all(type(value) in (int, float) for value in flat):
        raise InputError(f"inputs: features must have {rows} × {width} numbers.")
    return [[float(value) for value in flat[i * width : (i + 1) * width]] for i in range(rows)]
