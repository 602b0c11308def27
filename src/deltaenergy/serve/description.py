"""The parts of the API's description that cannot be read off its functions: bodies that they read by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

_REF = "#/components/schemas/{model}"


def json_body(model: type[BaseModel]) -> dict[str, Any]:
    """For `openapi_extra`: a body of JSON."""
    return _body({"application/json": {"schema": {"$ref": _REF.format(model=model.__name__)}}})


def form_body(required: Sequence[str], /, **fields: str) -> dict[str, Any]:
    """For `openapi_extra`: a form with files, and with texts that are told what they are."""
    texts = {name: {"type": "string", "description": text} for name, text in fields.items()}
    files = {"type": "array", "items": {"type": "string", "format": "binary"}, "minItems": 1}
    schema = {"type": "object", "properties": {"files": files, **texts}, "required": ["files", *required]}
    return _body({"multipart/form-data": {"schema": schema}})


def form_or_json(model: type[BaseModel], required: Sequence[str] = (), /, **fields: str) -> dict[str, Any]:
    """For `openapi_extra`: a form with files, or JSON."""
    kinds = [body["requestBody"]["content"] for body in (form_body(required, **fields), json_body(model))]
    return _body({**kinds[0], **kinds[1]})


def _body(content: dict[str, Any]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": content}}


def describe(app: FastAPI, models: Sequence[type[BaseModel]]) -> None:
    """Add the schemas that such bodies refer to."""
    plain = app.openapi
    _, found = models_json_schema([(model, "validation") for model in models], ref_template=_REF)

    def openapi() -> dict[str, Any]:
        schema = plain()
        schema.setdefault("components", {}).setdefault("schemas", {}).update(found["$defs"])
        return schema

    app.openapi = openapi  # type: ignore[method-assign]
