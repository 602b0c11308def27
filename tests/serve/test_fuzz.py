"""Whatever is sent, the answer is JSON and its status is not 5xx."""

from __future__ import annotations

import base64
import json
from typing import Any
from urllib.parse import quote

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.sampling import examples
from tests.serve.conftest import PICTURES

RIGHT = base64.b64encode(PICTURES[0]).decode()
LEAVES = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=20) | st.just(RIGHT)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
FIELDS = ["detector", "images", "features", "top_k", "classes", "template", "score", "inputs", "outputs", "id"]
TENSOR = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["image", "features", "x"]),
        "shape": st.lists(st.integers(-3, 600), max_size=3),
        "datatype": st.sampled_from(["BYTES", "FP32", "INT8"]),
        "data": st.lists(LEAVES, max_size=3),
    }
)
BODIES = st.one_of(
    VALUES,
    st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=6),
    st.fixed_dictionaries(
        {
            "detector": st.just("colours"),
            "images": st.lists(st.fixed_dictionaries({"data": st.text(max_size=9)}), max_size=3),
        },
        optional={"top_k": VALUES, "features": VALUES},
    ),
    st.fixed_dictionaries(
        {"classes": VALUES, "images": st.just([{"data": RIGHT}])}, optional={"score": VALUES, "template": VALUES}
    ),
    st.fixed_dictionaries({"inputs": st.lists(TENSOR, max_size=2)}, optional={"outputs": VALUES}),
)
ROUTES = st.sampled_from(
    ["/v1/verdicts", "/v1/classify", "/v1/calibrate", "/v2/models/colours/infer", "/v2/models/%00/infer"]
)
FEW = settings(max_examples=examples(80), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def check(answer: Any) -> None:
    assert answer.status_code < 500, answer.text
    assert answer.status_code == 200 or "error" in answer.json()


@FEW
@given(route=ROUTES, body=BODIES)
def test_json(client: Any, route: str, body: Any) -> None:
    text = json.dumps(body).encode()
    check(client.post(route, content=text, headers={"content-type": "application/json"}))


@FEW
@given(
    route=ROUTES,
    body=st.binary(max_size=200),
    kind=st.sampled_from(["application/json", "multipart/form-data; boundary=x", "text/plain", "multipart/form-data"]),
)
def test_bytes(client: Any, route: str, body: bytes, kind: str) -> None:
    check(client.post(route, content=body, headers={"content-type": kind}))


@FEW
@given(
    route=st.sampled_from(["/v1/verdicts", "/v1/classify", "/v1/calibrate"]),
    fields=st.dictionaries(
        st.sampled_from(["detector", "classes", "top_k", "score", "keep", "template"]), st.text(max_size=12), max_size=5
    ),
    data=st.lists(st.binary(max_size=60) | st.just(PICTURES[0]) | st.just(PICTURES[1][:100]), max_size=3),
    name=st.text(max_size=10),
)
def test_forms(client: Any, route: str, fields: dict[str, str], data: list[bytes], name: str) -> None:
    check(client.post(route, data=fields, files=[("files", (name, one)) for one in data]))


@FEW
@given(path=st.text(max_size=30), method=st.sampled_from(["GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD"]))
def test_paths(client: Any, path: str, method: str) -> None:
    answer = client.request(method, "/" + quote(path.encode("utf-8", "replace")))
    assert answer.status_code < 500
