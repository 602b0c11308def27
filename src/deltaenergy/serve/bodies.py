"""Requests as they come in: files of a form, or JSON with base64; read within the limits, or refused by name."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from deltaenergy.serve.limits import Limits

Model = TypeVar("Model", bound=BaseModel)
Value = TypeVar("Value")
LONGEST_NAME = 1000


class Refused(Exception):
    """A request that is not done, with the status that says why."""

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None, detail: Any = None) -> None:
        super().__init__(message)
        self.status, self.message, self.headers, self.detail = status, message, headers or {}, detail


@dataclass
class Form:
    """Files and fields of a multipart form."""

    files: list[tuple[str, bytes]] = field(default_factory=list)
    fields: dict[str, list[str]] = field(default_factory=dict)

    def one(self, name: str) -> str | None:
        """The last value of a field."""
        return self.fields[name][-1] if name in self.fields else None


def is_form(request: Request) -> bool:
    """Whether the body is a multipart form."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower() == "multipart/form-data"


async def read_form(request: Request, limits: Limits) -> Form:
    """The form, its files in memory."""
    found = Form()
    try:
        form = await request.form(max_files=limits.files, max_fields=1000, max_part_size=1 << 20)
    except HTTPException as error:
        too_many = "Too many files" in str(error.detail)
        raise Refused(413 if too_many else 400, f"The form cannot be read: {error.detail}") from None
    try:
        for name, value in form.multi_items():
            if isinstance(value, UploadFile):
                shown = (value.filename or str(len(found.files)))[:LONGEST_NAME]
                found.files.append((shown, await value.read()))
            else:
                found.fields.setdefault(name, []).append(value)
    finally:
        await form.close()
    return found


async def read_json(request: Request, kind: type[Model]) -> Model:
    """The body as JSON of a certain kind; what is wrong with it is told field by field."""
    body = await request.body()
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise Refused(400, "The body is neither a multipart form nor JSON.") from None
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise Refused(422, "The request has wrong fields.", detail=field_errors(error)) from None


def field_errors(error: ValidationError | RequestValidationError) -> list[dict[str, str]]:
    """Where and what, without the values that were sent."""
    return [{"field": ".".join(map(str, one["loc"])), "error": one["msg"]} for one in error.errors()[:20]]


def decode_base64(data: str, where: str) -> bytes:
    """The bytes of a field; a data URL's prefix may stand before them."""
    if data.startswith("data:"):
        data = data.partition(",")[2]
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise Refused(422, f"{where} is not base64.") from None


def split_names(text: str) -> list[str]:
    """Class names between commas or line ends. Unlike the command line's, a name here never stands for a file."""
    return [name.strip() for name in text.replace("\n", ",").split(",") if name.strip()]


async def while_connected(request: Request, work: Awaitable[Value], seconds: float) -> Value:
    """The result of `work`, unless the client goes away or the time is over: then it is given up."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_until_gone(request.receive))
    try:
        await asyncio.wait({task, gone}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if gone.done():
            raise ClientDisconnect
        raise Refused(504, f"There was no answer within {seconds:g} seconds. Send fewer images, or try again later.")
    finally:
        for one in (task, gone):
            one.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _until_gone(receive: Callable[[], Awaitable[Any]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
