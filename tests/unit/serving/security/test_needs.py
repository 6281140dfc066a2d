"""Every route and every method has an entry in the table of needs, and what has none is not told to strangers."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.routing import Route
from tritonclient.grpc import service_pb2

from serving.grpc.control import SERVICE
from serving.http.control import control_app
from serving.http.route import inference_route
from serving.security.needs import (
    ABOUT_MODEL,
    GRPC_NEEDS,
    HTTP_NEEDS,
    INFER,
    LOOK_AT_MODEL,
    LOOK_AT_SERVER,
    MODEL,
    OPEN,
    REGIONS,
    SERVER,
    UNKNOWN,
    http_need,
)
from serving.security.principals import ADMIN, READ

LISTED = {(method, path) for method, path, _ in HTTP_NEEDS}


def routes() -> list[tuple[str, str]]:
    """Method and path of every control route of the application."""
    app = control_app(SimpleNamespace(regions=None))  # type: ignore[arg-type]
    assert all(type(route).__mro__[-2] is not object and isinstance(route, Route) for route in app.routes)
    return sorted((method, route.path) for route in app.routes for method in route.methods)  # type: ignore[attr-defined]


def test_every_route_is_in_the_table() -> None:
    assert len(routes()) > 20
    missing = [route for route in routes() if route not in LISTED]
    assert not missing, f"say in serving/security/needs.py which role these need: {missing}"


def test_every_method_is_in_the_table() -> None:
    assert {method.name for method in SERVICE.methods} == set(GRPC_NEEDS)


@pytest.mark.parametrize(("method", "path"), routes())
def test_a_path_finds_its_own_entry(method: str, path: str) -> None:
    """Filled in with any names, also with those of other routes."""
    (want,) = [need for each, listed, need in HTTP_NEEDS if (each, listed) == (method, path)]
    for name in ("ranker", "versions", "infer", "a b", "ü", "..", "status"):
        filled = re.sub(r"{[^}]*}", name, path)
        need, model, call = http_need(method, filled)
        assert need == want
        if want.about == MODEL:
            assert model == name
        assert call


@pytest.mark.parametrize(
    "path", ["/v2/models/m/infer", "/v2/models/m/versions/3/infer", "/v1/models/m:predict", "/v1/models/:predict"]
)
def test_the_table_and_the_way_of_inference_agree(path: str) -> None:
    route = inference_route("POST", path)
    assert route is not None
    assert http_need("POST", path) == (INFER, route.name, "infer")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/"),
        ("GET", ""),
        ("GET", "//v2/health/live"),
        ("GET", "/v2/health/live/"),
        ("GET", "/V2/health/live"),
        ("POST", "/v2/health/live"),
        ("HEAD", "/v2/health/live"),
        ("GET", "/v2/models//ready"),
        ("GET", "/v2/repository/models/m/load"),
        ("DELETE", "/v2/models/m"),
        ("OPTIONS", "*"),
        ("CONNECT", "host:1"),
    ],
)
def test_all_else_is_reported_to_readers_only(method: str, path: str) -> None:
    assert http_need(method, path)[0] == UNKNOWN


def test_what_controls_needs_an_operator_and_nothing_else_does() -> None:
    control = {path for method, path, need in HTTP_NEEDS if need.is_control}
    assert control == {
        "/v2/repository/models/{name}/{verb}",
        "/v2/trace/setting",
        "/v2/models/{name}/trace/setting",
        "/v2/logging",
    }
    assert {name for name, entry in GRPC_NEEDS.items() if entry.may_control} == {
        "RepositoryModelLoad",
        "RepositoryModelUnload",
        "TraceSetting",
        "LogSettings",
    }
    assert {path for _, path, need in HTTP_NEEDS if need is OPEN} == {"/v2/health/live", "/v2/health/ready"}
    assert {name for name, entry in GRPC_NEEDS.items() if entry.need is OPEN} == {"ServerLive", "ServerReady"}


@pytest.mark.parametrize(
    ("method", "message", "roles", "about", "model"),
    [
        ("ModelConfig", service_pb2.ModelConfigRequest(name="m"), ABOUT_MODEL.roles, MODEL, "m"),
        ("ModelStatistics", service_pb2.ModelStatisticsRequest(name="m"), LOOK_AT_MODEL.roles, MODEL, "m"),
        ("ModelStatistics", service_pb2.ModelStatisticsRequest(), LOOK_AT_SERVER.roles, SERVER, ""),
        ("ModelStatistics", service_pb2.ModelStatisticsRequest(version="1"), LOOK_AT_SERVER.roles, SERVER, ""),
        ("RepositoryModelUnload", service_pb2.RepositoryModelUnloadRequest(model_name="m"), ADMIN, MODEL, "m"),
        ("RepositoryModelLoad", service_pb2.RepositoryModelLoadRequest(), ADMIN, MODEL, ""),
        ("TraceSetting", service_pb2.TraceSettingRequest(), READ, SERVER, ""),
        ("TraceSetting", service_pb2.TraceSettingRequest(model_name="m"), READ, MODEL, "m"),
        ("SystemSharedMemoryStatus", service_pb2.SystemSharedMemoryStatusRequest(), REGIONS.roles, SERVER, ""),
    ],
)
def test_a_message_says_what_it_is_about(method: str, message: Any, roles: int, about: str, model: str) -> None:
    need, found = GRPC_NEEDS[method].of(message)
    assert (need.roles, need.about, found) == (roles, about, model)


def test_settings_that_come_with_a_message_are_control() -> None:
    message = service_pb2.TraceSettingRequest(model_name="m")
    message.settings["trace_level"].value.append("OFF")
    need, model = GRPC_NEEDS["TraceSetting"].of(message)
    assert (need.is_control, need.about, model) == (True, MODEL, "m")
    message.model_name = ""
    assert GRPC_NEEDS["TraceSetting"].of(message)[0].about == SERVER
    log = service_pb2.LogSettingsRequest()
    assert not GRPC_NEEDS["LogSettings"].of(log)[0].is_control
    log.settings["log_info"].bool_param = True
    assert GRPC_NEEDS["LogSettings"].of(log)[0].is_control
