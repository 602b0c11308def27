"""The API does what its description says, whatever is sent: schemathesis makes requests from it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from deltaenergy.serve.guard import OPEN_PATHS, Keys
from tests.serve.conftest import make_client
from tests.serve.process import Service

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
SETTINGS = settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@pytest.fixture
def service(detectors: Any, tmp_path: Path) -> Iterator[Service]:
    detectors["colours"].save(tmp_path)
    running = Service({"colours": tmp_path})
    yield running
    running.process.kill()
    running.process.wait()


def test_every_answer_is_described(service: Service) -> None:
    from schemathesis.specs.openapi.checks import positive_data_acceptance

    schema = schemathesis.openapi.from_url(f"http://127.0.0.1:{service.port}/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    assert "POST /v1/verdicts" in {operation.label for operation in operations}
    for operation in operations:

        @SETTINGS
        @given(case=operation.as_strategy())
        def ask(case: Any) -> None:
            # What a schema cannot say, such as that base64 must be a picture, is refused though the schema allows it.
            case.call_and_validate(excluded_checks=[positive_data_acceptance])

        ask()


def references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [found for inner in value.values() for found in references(inner)]
    return [found for inner in value for found in references(inner)] if isinstance(value, list) else []


def test_what_the_description_refers_to_is_in_it(client: Any) -> None:
    found = client.get("/openapi.json").json()
    named = {one.removeprefix("#/components/schemas/") for one in references(found)}
    assert named and named <= set(found["components"]["schemas"])


def test_a_wrong_path_is_a_problem_like_any_other(client: Any) -> None:
    answer = client.get("/v1/samples/x")
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["field"] == "number"


def test_the_key_is_named_and_required_where_it_is(detectors: Any, lite: Any, client: Any) -> None:
    with make_client(detectors, lite, keys=Keys(["right-key-of-some-length"])) as locked:
        found = locked.get("/openapi.json").json()
        schemes = found["components"]["securitySchemes"]
        assert {(one["type"], one.get("scheme"), one.get("name")) for one in schemes.values()} == {
            ("http", "bearer", None),
            ("apiKey", None, "X-API-Key"),
        }
        either = [{name: []} for name in schemes]
        for path, routes in found["paths"].items():
            for method, route in routes.items():
                assert route.get("security", []) == ([] if path in OPEN_PATHS else either), path
                refused = locked.request(method, path).status_code == 401
                assert refused == (path not in OPEN_PATHS), path
    # Without keys nothing is required.
    optional = client.get("/openapi.json").json()["paths"]["/v1/verdicts"]["post"]["security"]
    assert optional == [*either, {}]
