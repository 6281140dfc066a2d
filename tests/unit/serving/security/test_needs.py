"""Every operation and every method declares what it needs; strangers learn nothing of one without an entry."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tritonclient.grpc import service_pb2

from serving.grpc.control import EXPLAIN, SERVICE
from serving.grpc.needs import GRPC_NEEDS
from serving.http.operations import Operation
from serving.http.route import inference_route
from serving.http.routes import TABLE, http_need
from serving.security.needs import (
    ABOUT_MODEL,
    INFER,
    LOOK_AT_MODEL,
    LOOK_AT_SERVER,
    MODEL,
    OPEN,
    REGIONS,
    SERVER,
    UNKNOWN,
)
from serving.security.principals import ADMIN, READ

OPERATIONS = sorted(TABLE.operations, key=lambda each: (each.path, each.method))


def test_every_method_is_in_the_table() -> None:
    assert {EXPLAIN, *(method.name for method in SERVICE.methods)} == set(GRPC_NEEDS)


def test_an_operation_stands_in_the_table_once() -> None:
    keys = [(each.method, re.sub(r"{\w+}", "{}", each.path)) for each in OPERATIONS]
    assert len(keys) == len(set(keys)) > 40


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.id)
def test_a_path_finds_its_own_entry(operation: Operation) -> None:
    """Fills the path in with any names, also with those of other routes."""
    for name in ("ranker", "versions", "infer", "a b", "ü", "..", "status"):
        filled = re.sub(r"{[^}]*}", name, operation.path)
        found, values = TABLE.find(operation.method, filled)
        assert found is operation
        assert values == dict.fromkeys(re.findall(r"{([^}]*)}", operation.path), name)
        need, model, call = http_need(operation.method, filled)
        assert need == operation.need
        if need.about == MODEL:
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
    control = {each.path for each in OPERATIONS if each.need.is_control}
    verbs = ["load", "unload", "rollback", "resume", "pause", "pin", "canary", "shadow", "budget", "sessions", "allow"]
    assert control == {
        *(f"/v2/repository/models/{{name}}/{verb}" for verb in (*verbs, "{verb}")),
        "/v2/trace/setting",
        "/v2/models/{name}/trace/setting",
        "/v2/trace/timeline",
        "/v2/logging",
        "/v2/options",  # they name files and addresses of the machine
    }
    assert {name for name, entry in GRPC_NEEDS.items() if entry.may_control} == {
        "RepositoryModelLoad",
        "RepositoryModelUnload",
        "TraceSetting",
        "LogSettings",
    }
    # A replica of the fleet proves who it is by a word that lies in the object store.
    look = "/v2/repository/models/{name}/look"
    assert {each.path for each in OPERATIONS if each.need is OPEN} == {"/v2/health/live", "/v2/health/ready", look}
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
