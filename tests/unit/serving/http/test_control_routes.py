"""The table on FastAPI: every operation is mounted, a request meets what the gate saw, and errors are answers."""

from __future__ import annotations

import asyncio
import json
import re
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.routing import Match, Route

from serving.errors import UnknownModel
from serving.http.control import LocalHttpControl, control_app
from serving.http.messages import HttpRequest, HttpResponse
from serving.http.operations import Operation
from serving.http.routes import TABLE
from serving.http.unknown_models import unknown_model

MOUNTED = [each for each in TABLE.operations if each.handler]
# Also what stands in paths, where another operation could take it for its own.
NAMES = sorted({part for each in TABLE.operations for part in each.path.split("/") if part and "{" not in part})


class Repository:
    """Stands in for the control of a server.

    It knows one model; a request for all of them meets a fault, and one for any other is refused.
    """

    @property
    def names(self) -> list[str]:
        raise RuntimeError("a secret")

    def get(self, name: str, version: str) -> Any:
        if name == "known":
            return SimpleNamespace(proto={"version": version})
        raise UnknownModel.of(name, ["known"])


def routes() -> list[Route]:
    found = [route for route in control_app(Repository()).routes if isinstance(route, Route)]  # type: ignore[arg-type]
    assert len(found) == len(MOUNTED) > 40
    return found


def ask(method: str, path: str, body: bytes = b"") -> HttpResponse:
    async def answer() -> HttpResponse:
        control = LocalHttpControl(Repository())  # type: ignore[arg-type]
        return await control(HttpRequest(method, path, b"", {}, body))

    return asyncio.run(answer())


ROUTES = routes()


def test_every_operation_with_a_handler_is_mounted() -> None:
    mounted = [(method, route.path) for route in ROUTES for method in route.methods or ()]
    assert sorted(mounted) == sorted((each.method, each.path) for each in MOUNTED)


@pytest.mark.parametrize("operation", MOUNTED, ids=lambda each: each.id)
def test_the_application_picks_what_the_gate_picks(operation: Operation) -> None:
    """Otherwise, a request would be admitted by one role and answered by another operation."""
    for name in [*NAMES, "a b", "ü", "..", "%2F", "a?b", "a:b", ":predict"]:
        path = re.sub(r"{\w+}", name, operation.path)
        scope = {"type": "http", "method": operation.method, "path": path, "root_path": ""}
        matches = [(route, *route.matches(scope)) for route in ROUTES]
        route, said = next((route, said) for route, match, said in matches if match == Match.FULL)
        found, values = TABLE.find(operation.method, path)
        assert found is not None
        assert (route.name, said["path_params"]) == (found.id, values)


def test_a_handler_gets_the_names_of_its_path() -> None:
    said = ask("GET", "/v2/models/known/versions/7/config")
    assert (said.status, said.content) == (200, b'{"version":"7"}')
    assert said.headers == [(b"content-type", b"application/json")]


def test_a_refusal_carries_the_known_models_to_the_gate() -> None:
    said = ask("GET", "/v2/models/another/config")
    error = unknown_model(said)
    assert said.status == 404
    assert error is not None
    assert list(error.known) == ["known"]


def test_a_fault_is_an_answer_that_does_not_tell_it() -> None:
    said = ask("GET", "/v1/models")
    assert said.status == 500
    assert "secret" not in json.loads(said.content)["error"]
    assert said.headers == [(b"content-type", b"application/json")]


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PATCH", "/v2/health/live", "GET, HEAD"),
        ("HEAD", "/v2/logging", "GET, HEAD, POST"),
        ("GET", "/v2/repository/models/known/load", "POST"),
        ("GET", "/v2/models/a?b/infer", "POST"),
        ("GET", "/v1/models/known:predict", "POST"),
        ("DELETE", "/v1/models/known:predict", "POST"),
    ],
)
def test_a_wrong_method_is_reported_the_right_ones(method: str, path: str, allowed: str) -> None:
    said = ask(method, path)
    assert said.status == 405
    assert json.loads(said.content) == {"error": f"{method} is not allowed here; send {allowed.replace(', ', ' or ')}"}
    assert said.headers == [(b"content-type", b"application/json"), (b"allow", allowed.encode())]


@pytest.mark.parametrize("path", ["", "/", "/v2/nothing", "/v2/models/a/ready/", "/metrics", "/docs", "/redoc"])
def test_an_unknown_path_is_not_found(path: str) -> None:
    said = ask("GET", path)
    assert (said.status, said.content) == (404, b'{"error":"Not Found"}')
