"""The web application: routes, errors as JSON, and a guard around all of it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Scope

from deltaenergy import __version__
from deltaenergy.errors import DeltaEnergyError
from deltaenergy.serve import explained, pages, v1, v2
from deltaenergy.serve.schemas import ClassifyRequest, Problem, VerdictRequest
from deltaenergy.serve.bodies import Refused, field_errors
from deltaenergy.serve.description import describe
from deltaenergy.serve.engine import Busy, Engine
from deltaenergy.serve.guard import Guard, TooLarge, TooSlow, too_large
from deltaenergy.serve.keys import Keys

ABOUT = """Say which of your classes an image is, and whether it is any of them at all.

Scores: larger = more like the known classes. `is_ood` is true for *none of these*. Each image has its own answer, or
its own `error`; the status is 422 if no image of a request could be judged. 429 means that the service is busy: try
again after `Retry-After` seconds."""


def create_app(engine: Engine, keys: Keys | None = None, cors: tuple[str, ...] = ()) -> ASGIApp:
    """The application around an engine whose models are loaded."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await engine.close()

    app = FastAPI(
        title="deltaenergy",
        version=__version__,
        description=ABOUT,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        responses={status: {"model": Problem} for status in (400, 401, 404, 408, 413, 422, 429, 504)},
    )
    app.state.engine = engine
    app.include_router(v1.router)
    app.include_router(explained.router)
    app.include_router(v2.router)
    _errors(app)
    describe(app, [VerdictRequest, ClassifyRequest, explained.ExplainRequest, v2.InferRequest])

    @app.get("/", include_in_schema=False)
    async def page() -> HTMLResponse:
        return HTMLResponse(pages.page())

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(pages.docs())

    @app.get("/metrics", tags=["operation"], summary="Counters for Prometheus", response_class=PlainTextResponse)
    async def metrics() -> PlainTextResponse:
        return PlainTextResponse(engine.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    inner: ASGIApp = app
    if cors:
        from starlette.middleware.cors import CORSMiddleware

        inner = CORSMiddleware(app, allow_origins=list(cors), allow_methods=["*"], allow_headers=["*"])
    policies = {"/": pages.policy(pages.page()), "/docs": pages.policy(pages.docs())}
    return Guard(inner, engine.limits, engine.metrics, keys, policies, _route_of)


def _route_of(scope: Scope) -> str:
    """The path of the route that a request was given to; one word for all that match none."""
    return str(getattr(scope.get("route"), "path", "other"))


def _problem(status: int, message: str, headers: Mapping[str, str] | None = None, detail: Any = None) -> JSONResponse:
    problem = Problem(error=message, detail=detail).model_dump(exclude_none=True)
    return JSONResponse(problem, status, headers=dict(headers or {}))


def _errors(app: FastAPI) -> None:
    @app.exception_handler(Refused)
    async def refused(_: Request, error: Refused) -> JSONResponse:
        return _problem(error.status, error.message, error.headers, error.detail)

    limits, close = app.state.engine.limits, {"Connection": "close"}

    @app.exception_handler(TooLarge)
    async def large(_: Request, error: TooLarge) -> JSONResponse:
        return _problem(413, too_large(limits), close)

    @app.exception_handler(TooSlow)
    async def slow(_: Request, error: TooSlow) -> JSONResponse:
        return _problem(408, f"The body did not come within {limits.seconds:g} seconds.", close)

    @app.exception_handler(Busy)
    async def busy(_: Request, error: Busy) -> JSONResponse:
        return _problem(429, "The service is busy with other images. Try again shortly.", {"Retry-After": "1"})

    @app.exception_handler(DeltaEnergyError)
    async def wrong(_: Request, error: DeltaEnergyError) -> JSONResponse:
        return _problem(422, str(error))

    @app.exception_handler(RequestValidationError)
    async def fields(_: Request, error: RequestValidationError) -> JSONResponse:
        return _problem(422, "The request has wrong fields.", detail=field_errors(error))

    @app.exception_handler(HTTPException)
    async def http(_: Request, error: HTTPException) -> JSONResponse:
        return _problem(error.status_code, str(error.detail), error.headers)

    @app.exception_handler(ClientDisconnect)
    async def gone(_: Request, error: ClientDisconnect) -> Response:
        # Nobody reads it.
        return Response(status_code=499)
