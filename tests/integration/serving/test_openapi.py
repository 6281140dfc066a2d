"""The OpenAPI document: it has every route and none besides, and real answers are what it says."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest

from serving import Server
from serving.http.route import inference_route
from serving.http.routes import TABLE

Document = dict[str, Any]
RANKER = {
    "inputs": [
        {"name": "item", "shape": [1, 1], "datatype": "INT64", "data": [3]},
        {"name": "user", "shape": [1, 1], "datatype": "INT64", "data": [[1]]},
        {"name": "price", "shape": [1, 2], "datatype": "FP32", "data": [[0.5, 1]]},
    ]
}
INSTANCE = {"user": 1, "item": 3, "price": [0.5, 1], "tags": None, "history": [1]}
MODEL, REPOSITORY = "/v2/models/{name}", "/v2/repository/models/{name}/"


@pytest.fixture(scope="module")
def document(server: Server) -> Document:
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=20)
    try:
        connection.request("GET", "/openapi.json")
        answer = connection.getresponse()
        assert (answer.status, answer.getheader("content-type")) == (200, "application/json")
        found: Document = json.loads(answer.read())
    finally:
        connection.close()
    return found


@pytest.fixture
def connection(server: Server) -> Iterator[http.client.HTTPConnection]:
    made = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=20)
    yield made
    made.close()


def described(document: Document) -> set[tuple[str, str]]:
    return {(method.upper(), path) for path, entry in document["paths"].items() for method in entry}


def is_inference(method: str, path: str) -> bool:
    return inference_route(method, re.sub(r"\{\w+\}", "1", path)) is not None


def test_it_has_every_operation_but_other_spellings(document: Document) -> None:
    hidden = {("GET", "/v2/"), ("GET", "/metrics"), ("POST", REPOSITORY + "{verb}")}
    operations = {(operation.method, operation.path) for operation in TABLE.operations}
    assert hidden < operations
    assert described(document) == operations - hidden


def test_what_it_describes_is_answered(document: Document, connection: http.client.HTTPConnection) -> None:
    """Sends a method that no path has: each answer names the methods of the document, and HEAD where there is GET."""
    for path, entries in document["paths"].items():
        connection.request("PATCH", re.sub(r"{\w+}", "1", path))
        answer = connection.getresponse()
        assert (answer.status, json.loads(answer.read()).keys()) == (405, {"error"})
        allowed = set(str(answer.getheader("allow")).split(", "))
        assert {method.upper() for method in entries} <= allowed
        assert ("HEAD" in allowed) is ("GET" in allowed)


def test_it_has_every_way_to_infer(document: Document) -> None:
    ways = {f"{MODEL}/infer", MODEL + "/versions/{version}/infer", "/v1/models/{name}:predict"}
    assert {entry for entry in described(document) if is_inference(*entry)} == {("POST", way) for way in ways}


def test_keys_that_the_protocol_does_not_have_are_no_fault_of_a_request(document: Document) -> None:
    schemas = document["components"]["schemas"]
    for name in ("InferRequest", "InferInput", "RequestedOutput"):
        assert schemas[name]["additionalProperties"] is True
    assert schemas["InferResponse"]["additionalProperties"] is False


def test_it_holds_together(document: Document) -> None:
    text = json.dumps(document)
    for place in set(re.findall(r'"\$ref": "#/([^"]+)"', text)):
        found: Any = document
        for part in place.split("/"):
            found = found[part]
    operations = [entry for path in document["paths"].values() for entry in path.values()]
    names = [entry["operationId"] for entry in operations]
    assert len(names) == len(set(names))
    for path, entries in document["paths"].items():
        for entry in entries.values():
            given = {parameter["name"] for parameter in entry["parameters"] if parameter["in"] == "path"}
            assert given == set(re.findall(r"\{(\w+)\}", path))
    for schema in document["components"]["schemas"].values():
        jsonschema_rs.meta.validate({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema})


def test_health_needs_nobody_to_be_known_and_calls_do(document: Document) -> None:
    paths = document["paths"]
    assert paths["/v2/health/live"]["get"]["security"] == []
    assert "401" not in paths["/v2/health/live"]["get"]["responses"]
    assert {"401", "403", "429"} <= paths[REPOSITORY + "rollback"]["post"]["responses"].keys()


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/v2", None, 200),
        ("GET", "/v2/health/ready", None, 200),
        ("GET", "/v2/models/stats", None, 200),
        ("GET", MODEL, None, 200),
        ("GET", MODEL + "/versions/{version}", None, 200),
        ("GET", MODEL + "/config", None, 200),
        ("GET", MODEL + "/stats", None, 200),
        ("GET", MODEL + "/trace/setting", None, 200),
        ("GET", "/v2/logging", None, 200),
        ("GET", "/v2/systemsharedmemory/status", None, 200),
        ("GET", "/v2/cudasharedmemory/status", None, 200),
        ("GET", "/v1/models", None, 200),
        ("GET", "/v1/models/{name}", None, 200),
        ("POST", "/v2/repository/index", {"ready": True}, 200),
        ("GET", REPOSITORY + "snapshots", None, 200),
        ("GET", REPOSITORY + "sessions", None, 200),
        ("POST", MODEL + "/infer", RANKER, 200),
        ("POST", MODEL + "/infer", {**RANKER, "id": "x", "outputs": [{"name": "score"}]}, 200),
        ("POST", MODEL + "/infer", {"inputs": []}, 400),
        ("POST", "/v1/models/{name}:predict", {"instances": [INSTANCE]}, 200),
        ("POST", "/v1/models/{name}:predict", {"inputs": {key: [value] for key, value in INSTANCE.items()}}, 200),
        ("POST", "/v1/models/{name}:predict", {}, 400),
    ],
)
def test_real_answers_are_as_described(
    document: Document, connection: http.client.HTTPConnection, method: str, path: str, body: Any, status: int
) -> None:
    entry = document["paths"][path][method.lower()]
    content = None if body is None else json.dumps(body).encode()
    connection.request(method, path.replace("{name}", "ranker").replace("{version}", "1"), content)
    answer = connection.getresponse()
    text = answer.read()
    assert answer.status == status, text
    if body is not None and status == 200:
        check(document, entry["requestBody"]["content"]["application/json"]["schema"], body)
    said = entry["responses"][str(status)]
    if "$ref" in said:
        said = document["components"]["responses"][str(status)]
    if "content" not in said:
        assert text == b""
        return
    assert answer.getheader("content-type") in said["content"]
    check(document, said["content"]["application/json"]["schema"], json.loads(text))


def check(document: Document, schema: Document, value: Any) -> None:
    jsonschema_rs.validator_for({**schema, "components": document["components"]}).validate(value)
