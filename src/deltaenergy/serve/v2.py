"""The Open Inference Protocol (v2), as KServe, Triton and their clients speak it."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from deltaenergy import __version__
from deltaenergy.serve.schemas import ImageAnswer
from deltaenergy.serve.bodies import Refused, decode_base64, read_json, while_connected
from deltaenergy.serve.description import json_body
from deltaenergy.serve.engine import Engine
from deltaenergy.serve.targets import Target

router = APIRouter(prefix="/v2", tags=["Open Inference Protocol"])
# Name and type of each output, and where it comes from.
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
    inputs: list[Tensor] = Field(min_length=1)
    outputs: list[dict[str, Any]] | None = None


class InferResponse(BaseModel):
    """One value per image in each output; an image that could not be read has a text in `error`."""

    model_name: str
    model_version: str | None
    id: str | None = None
    outputs: list[Tensor]


@router.get("/health/live", summary="Whether the process answers")
async def live() -> dict[str, bool]:
    """Always true, if it comes at all."""
    return {"live": True}


@router.get("/health/ready", summary="Whether models are loaded")
async def ready() -> dict[str, bool]:
    """Models are loaded before the service listens."""
    return {"ready": True}


@router.get("", summary="The server")
async def server() -> dict[str, Any]:
    """Name, version, extensions."""
    return {"name": "deltaenergy", "version": __version__, "extensions": []}


@router.get("/models/{name}", summary="A detector as a model")
async def model(request: Request, name: str) -> dict[str, Any]:
    """Its inputs and outputs."""
    target = _target(request, name)
    width = target.classifier.model.feature_dim
    inputs = [{"name": "image", "datatype": "BYTES", "shape": [-1]}]
    if target.takes_features:
        inputs.append({"name": "features", "datatype": "FP32", "shape": [-1, width]})
    return {
        "name": name,
        "versions": [target.version],
        "platform": "deltaenergy",
        "inputs": inputs,
        "outputs": [{"name": key, "datatype": kind, "shape": [-1]} for key, kind in OUTPUTS.items()],
    }


@router.get("/models/{name}/ready", summary="Whether a detector is there")
async def model_ready(request: Request, name: str) -> dict[str, Any]:
    """It is loaded, or it is not known."""
    return {"name": _target(request, name).name, "ready": True}


@router.post("/models/{name}/infer", summary="Verdicts as tensors", openapi_extra=json_body(InferRequest))
async def infer(request: Request, name: str) -> InferResponse:
    """`image`: base64 texts; `features`: rows of unit features."""
    engine: Engine = request.app.state.engine
    target = _target(request, name)
    asked = await read_json(request, InferRequest)
    if len(asked.inputs) != 1 or asked.inputs[0].name not in {"image", "features"}:
        raise Refused(422, "There must be one input, named image or features.")
    given = asked.inputs[0]
    wanted = _wanted(asked)
    if given.name == "image":
        answers = await while_connected(request, engine.judge(target, _images(given, engine), 1), engine.limits.seconds)
    else:
        rows = _features(given, engine)
        answers = await while_connected(request, engine.judge_features(target, rows, 1), engine.limits.seconds)
    return InferResponse(
        model_name=name,
        model_version=target.version,
        id=asked.id,
        outputs=[_output(key, answers) for key in wanted],
    )


def _wanted(asked: InferRequest) -> list[str]:
    if asked.outputs is None:
        return list(OUTPUTS)
    names = [str(output.get("name")) for output in asked.outputs]
    unknown = next((name for name in names if name not in OUTPUTS), None)
    if unknown is not None:
        raise Refused(422, f"There is no output {unknown[:40]!r}. There are: {', '.join(OUTPUTS)}.")
    return names


def _images(given: Tensor, engine: Engine) -> list[tuple[str, bytes]]:
    if given.datatype != "BYTES" or given.shape != [len(given.data)] or not given.data:
        raise Refused(422, "image must be of datatype BYTES and shape [N], with N base64 texts as data.")
    if len(given.data) > engine.limits.files:
        raise Refused(413, f"There are {len(given.data):,} images, and {engine.limits.files} are the most.")
    if not all(isinstance(text, str) for text in given.data):
        raise Refused(422, "image must hold base64 texts.")
    return [(str(i), decode_base64(text, f"image {i}")) for i, text in enumerate(given.data)]


def _features(given: Tensor, engine: Engine) -> list[list[float]]:
    """Rows, from nested lists or from one flat list."""
    right = given.datatype in {"FP32", "FP64"} and len(given.shape) == 2 and min(given.shape) >= 1
    if not right or given.shape[0] > engine.limits.rows:
        raise Refused(
            422, f"features must be of datatype FP32 and shape [N, D], with N from 1 to {engine.limits.rows}."
        )
    rows, width = given.shape
    flat = given.data
    if flat and isinstance(flat[0], list):
        flat = [value for row in flat if isinstance(row, list) for value in row]
    if len(flat) != rows * width or not all(type(value) in (int, float) for value in flat):
        raise Refused(422, f"features must hold {rows} × {width} numbers.")
    return [[float(value) for value in flat[i * width : (i + 1) * width]] for i in range(rows)]


def _output(name: str, answers: list[ImageAnswer]) -> Tensor:
    return Tensor(
        name=name, shape=[len(answers)], datatype=OUTPUTS[name], data=[getattr(answer, name) for answer in answers]
    )


def _target(request: Request, name: str) -> Target:
    engine: Engine = request.app.state.engine
    try:
        return engine.detector(name)
    except KeyError as error:
        raise Refused(404, str(error.args[0])) from None
