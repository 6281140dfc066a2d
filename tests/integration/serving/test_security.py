"""Tests which role is allowed which request of a running server, on every route and every method."""

from __future__ import annotations

import http.client
import json
import logging
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from serving import Server
from serving.grpc.control import SERVICE as DESCRIPTOR
from serving.http.routes import TABLE
from serving.security.own_token import own_token_path, read_own_token
from tests.integration.serving.guarded import bearer, call, lines_of, status, write_access
from tests.integration.serving.http_calls import ask, until

StatusCode = grpc.StatusCode
INFER = "/v2/models/ranker/infer"
# The wide tokens that may make each call; the narrow ones may too where the call is about the model `ranker`.
ALL = {"caller", "viewer", "operator"}
READERS = {"viewer", "operator"}


@pytest.fixture(scope="module")
def access(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_access(tmp_path_factory.mktemp("access") / "access.yaml")


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("audit") / "audit.jsonl"


@pytest.fixture(scope="module")
def guarded(
    version_dir: Path,
    tmp_path_factory: pytest.TempPathFactory,
    start_server: Callable[..., Server],
    access: Path,
    audit: Path,
) -> Iterator[Server]:
    """Starts a server with an access file over the model `ranker`, for tests that change nothing of it."""
    place = tmp_path_factory.mktemp("guarded")
    shutil.copytree(version_dir.parent, place / "models" / "ranker")
    running = start_server(place / "models", place / "store", access_file=access, audit_log=audit)
    yield running
    running.stop()


def routes() -> list[tuple[str, str]]:
    """Returns every method and path of the port, with parameters left in braces, and some that do not exist."""
    # A replica that wakes another one has a word of its own, see test_a_look_tells_nothing_without_its_word.
    left_out = ("/metrics", "/v2/repository/models/{name}/look")
    found = [(each.method, each.path) for each in TABLE.operations if each.path not in left_out]
    return sorted([*found, ("GET", "/nothing/here"), ("DELETE", "/v2/models/{name}")])


def wanted(method: str, path: str) -> tuple[set[str], str]:
    """Returns which tokens are allowed a request and what it is about.

    Applies rules of its own, not the table of the server.
    """
    about = "model" if "{name}" in path else "server"
    if path.startswith("/v2/health"):
        return set(), "anybody"
    if path in ("/v2", "/v2/", "/openapi.json", "/nothing/here") or method == "DELETE":
        return (ALL if path in ("/v2", "/v2/") else READERS), "anything"
    if "sharedmemory" in path:
        return {"caller"}, "server"
    if method == "POST" and (path.endswith(("/infer", ":predict"))):
        return {"caller"}, about
    if path.endswith(("/explain", "/sample")):
        return set(), about  # it takes two roles, and no token here has both; see test_explain
    if method == "POST" and ("/repository/models/" in path or path.endswith(("/setting", "/logging", "/timeline"))):
        return {"operator"}, about
    if path == "/v2/options" or (method == "POST" and path.endswith("/feedback")):
        return {"operator"}, about  # no token here has the role feedback alone
    if path.endswith(("{name}", "{version}", "/ready", "/config")):
        return ALL, about
    return READERS, about


def filled(path: str, model: str) -> str:
    return re.sub(r"{[^}]*}", "1", path.replace("{name}", model).replace("{verb}", "pause"))


@pytest.mark.parametrize(("method", "path"), routes())
def test_every_role_on_every_route(guarded: Server, method: str, path: str) -> None:
    roles, about = wanted(method, path)
    # Allowed requests use a model that does not exist, because they would take effect.
    for model in ("ranker", "nope"):
        for token in ("caller", "viewer", "operator", "elsewhere", "gone", "unknown", None):
            if model == "ranker" and method == "POST" and token == "operator":
                continue
            got = ask(guarded.http_port, method, filled(path, model), None, bearer(token))
            if about == "anybody" or token in roles or (token == "elsewhere" and about == "anything"):
                assert got.status not in (401, 403), (token, got)
            elif token in ("gone", "unknown", None):
                assert got.status == 401, (token, got)
                assert got.headers["www-authenticate"] == "Bearer"
            else:
                assert got.status == 403, (token, got)
            if got.status in (401, 403):
                assert set(got.json) == {"error"}


def test_a_look_tells_nothing_without_its_word(guarded: Server) -> None:
    answers = {
        (got.status, str(got.json))
        for model in ("ranker", "nope")
        for token in ("operator", "gone", None)
        for got in [ask(guarded.http_port, "POST", f"/v2/repository/models/{model}/look", {"wake": "x"}, bearer(token))]
    }
    assert answers == {(404, "{'error': 'this server has no fleet'}")}


@pytest.mark.parametrize(("method", "path"), routes())
def test_a_token_of_one_model_is_for_nothing_else(guarded: Server, method: str, path: str) -> None:
    roles, about = wanted(method, path)
    for role in ("caller", "viewer", "operator"):
        token = f"narrow-{role}"
        of_other = status(guarded.http_port, method, filled(path, "other"), token)
        if about == "anybody":
            assert of_other == 200
        elif about == "anything":
            assert (of_other == 403) is (role not in roles)
        else:
            assert of_other == 403
        if about == "model" and role in roles and role != "operator":
            assert status(guarded.http_port, method, filled(path, "ranker"), token) not in (401, 403)
            assert status(guarded.http_port, method, filled(path, "ranker.item"), token) not in (401, 403)
            if role == "caller":
                assert status(guarded.http_port, method, filled(path, "ranker2"), token) not in (401, 403)


MESSAGES: dict[str, Any] = {
    "ModelStatistics": service_pb2.ModelStatisticsRequest(),
    "TraceSetting": service_pb2.TraceSettingRequest(),
}
GRPC_ROLES: dict[str, set[str]] = {
    "ServerLive": set(),
    "ServerReady": set(),
    "ServerMetadata": ALL,
    "ModelReady": ALL,
    "ModelMetadata": ALL,
    "ModelConfig": ALL,
    "ModelStatistics": READERS,
    "ModelInfer": {"caller"},
    "ModelStreamInfer": {"caller"},
    "RepositoryIndex": READERS,
    "RepositoryModelLoad": {"operator"},
    "RepositoryModelUnload": {"operator"},
    "TraceSetting": READERS,
    "LogSettings": READERS,
    **{
        f"{kind}SharedMemory{verb}": {"caller"}
        for kind in ("System", "Cuda")
        for verb in ("Status", "Register", "Unregister")
    },
}
REFUSED = (StatusCode.UNAUTHENTICATED, StatusCode.PERMISSION_DENIED)


def message_for(method: str, model: str) -> bytes:
    """Encodes a message about a model, where the method takes one."""
    from google.protobuf.message_factory import GetMessageClass

    message = GetMessageClass(DESCRIPTOR.methods_by_name[method].input_type)()
    for name in ("name", "model_name"):
        if name in message.DESCRIPTOR.fields_by_name and "SharedMemory" not in method:
            setattr(message, name, model)
    return bytes(message.SerializeToString())


@pytest.mark.parametrize("method", [method.name for method in DESCRIPTOR.methods])
def test_every_role_on_every_method(guarded: Server, method: str) -> None:
    address, roles = f"127.0.0.1:{guarded.grpc_port}", GRPC_ROLES[method]
    for token in ("caller", "viewer", "operator", "elsewhere", "gone", "unknown", None):
        code, _ = call(address, method, message_for(method, "nope"), token)
        if not roles or token in roles:
            assert code not in REFUSED, token
        elif token in ("gone", "unknown", None):
            assert code is StatusCode.UNAUTHENTICATED, token
        elif token != "elsewhere":
            assert code is StatusCode.PERMISSION_DENIED, token


@pytest.mark.parametrize(
    ("method", "token", "is_refused"),
    [
        ("ModelInfer", "narrow-caller", False),
        ("ModelConfig", "narrow-caller", False),
        ("ModelReady", "narrow-viewer", False),
        ("ModelStatistics", "narrow-viewer", False),
        ("ModelStatistics", "narrow-caller", True),
        ("RepositoryIndex", "narrow-viewer", True),
        ("RepositoryModelLoad", "narrow-operator", False),
        ("RepositoryModelUnload", "narrow-caller", True),
        ("SystemSharedMemoryStatus", "narrow-caller", True),
        ("ServerMetadata", "narrow-caller", False),
    ],
)
def test_a_token_of_one_model_over_grpc(guarded: Server, method: str, token: str, is_refused: bool) -> None:
    address = f"127.0.0.1:{guarded.grpc_port}"
    if "Unload" not in method:
        assert (call(address, method, message_for(method, "ranker"), token)[0] in REFUSED) is is_refused
    named = "Model" in method
    assert (call(address, method, message_for(method, "other"), token)[0] in REFUSED) is (named or is_refused)
    if method == "ModelStatistics" and token == "narrow-viewer":
        code, text = call(address, method, message_for(method, ""), token)
        assert (code, "ask for one of ranker" in text) == (StatusCode.PERMISSION_DENIED, True)


def test_settings_over_grpc_are_an_operators(guarded: Server) -> None:
    address = f"127.0.0.1:{guarded.grpc_port}"
    trace = service_pb2.TraceSettingRequest()
    trace.settings["trace_level"].value.append("OFF")
    log = service_pb2.LogSettingsRequest()
    log.settings["log_info"].bool_param = True
    for method, message in (("TraceSetting", trace), ("LogSettings", log)):
        assert call(address, method, message, "viewer")[0] is StatusCode.PERMISSION_DENIED
        assert call(address, method, message, "operator")[0] not in REFUSED


def test_methods_that_there_are_not_are_reported_to_nobody(guarded: Server) -> None:
    address = f"127.0.0.1:{guarded.grpc_port}"
    for path in ("/inference.GRPCInferenceService/Nothing", "/grpc.health.v1.Health/Nothing", "/x/ModelInfer"):
        assert call(address, path)[0] is StatusCode.UNAUTHENTICATED
        assert call(address, path, token="caller")[0] is StatusCode.PERMISSION_DENIED
        assert call(address, path, token="viewer")[0] is StatusCode.UNIMPLEMENTED


def test_a_stream_checks_each_message(guarded: Server) -> None:
    request = service_pb2.ModelInferRequest(model_name="other", id="7")
    with grpc.insecure_channel(f"127.0.0.1:{guarded.grpc_port}") as channel:
        stream = channel.stream_stream(
            "/inference.GRPCInferenceService/ModelStreamInfer",
            request_serializer=service_pb2.ModelInferRequest.SerializeToString,
            response_deserializer=service_pb2.ModelStreamInferResponse.FromString,
        )
        metadata = [("authorization", "Bearer narrow-caller")]
        (answer,) = stream(iter([request]), timeout=30, metadata=metadata)
    assert "may ask for the models rank* only" in answer.error_message


def test_the_metrics_page_is_for_readers_of_all(guarded: Server) -> None:
    port = guarded.metrics_port
    assert status(port, "GET", "/metrics") == 401
    assert status(port, "GET", "/metrics", "caller") == 403
    assert status(port, "GET", "/metrics", "narrow-viewer") == 403
    assert status(port, "GET", "/metrics", "viewer") == 200
    assert status(port, "GET", "/") == 401
    assert status(port, "GET", "/", "viewer") == 404


def test_a_refusal_comes_before_the_body_and_ends_no_connection(guarded: Server) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", guarded.http_port, timeout=30)
    try:
        connection.putrequest("POST", INFER)
        connection.putheader("Content-Length", str(1 << 20))
        connection.endheaders()
        answer = connection.getresponse()  # Nothing of the body was sent.
        assert answer.status == 401
        answer.read()
        connection.send(bytes(1 << 20))
        connection.request("GET", "/v2/health/live")
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (200, b'{"live":true}')
        connection.request("GET", "/v2", headers=bearer("viewer"))
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200
        connection.request("GET", "/v2")  # A connection belongs to no caller.
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 401
    finally:
        connection.close()


def test_a_large_message_is_refused_before_it_is_read(guarded: Server) -> None:
    """Asserts that the message never reaches the decoder: the bytes are not a valid message."""
    address = f"127.0.0.1:{guarded.grpc_port}"
    assert call(address, "ModelInfer", b"\xff" * (8 << 20))[0] is StatusCode.UNAUTHENTICATED


def test_two_credentials_are_none(guarded: Server) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", guarded.http_port, timeout=30)
    try:
        connection.putrequest("GET", "/v2")
        connection.putheader("Authorization", "Bearer unknown")
        connection.putheader("Authorization", "Bearer viewer")
        connection.endheaders()
        answer = connection.getresponse()
        assert (answer.status, "came twice" in json.loads(answer.read())["error"]) == (400, True)
    finally:
        connection.close()


def test_tritons_clients_work_with_a_token(guarded: Server) -> None:
    headers = bearer("narrow-caller")
    over_http = triton_http.InferenceServerClient(f"127.0.0.1:{guarded.http_port}")
    over_grpc = triton_grpc.InferenceServerClient(f"127.0.0.1:{guarded.grpc_port}")
    grpc_headers = {key.lower(): value for key, value in headers.items()}
    try:
        for client, given in ((over_http, headers), (over_grpc, grpc_headers)):
            assert client.is_server_live()
            assert client.is_model_ready("ranker", headers=given)
            with pytest.raises(InferenceServerException):
                client.get_model_metadata("ranker")
            with pytest.raises(InferenceServerException):
                client.load_model("ranker", headers=given)
    finally:
        over_http.close()
        over_grpc.close()


@pytest.mark.parametrize(
    "name", ["..%2fother", "%2e%2e", "..%2f..%2fother", "ranker%2f..%2f..%2fother", "%00", "a%0ab"]
)
@pytest.mark.parametrize("verb", ["load", "unload", "rollback"])
def test_a_path_leads_nowhere_else(guarded: Server, tmp_path: Path, name: str, verb: str) -> None:
    """Tries a token of one model and a token of all models."""
    for token, codes in (("narrow-operator", (400, 403, 404)), ("operator", (400, 404))):
        got = status(guarded.http_port, "POST", f"/v2/repository/models/{name}/{verb}", token, {})
        assert got in codes
    for path in (f"/v2/models/{name}/infer", f"/v2/models/ranker/versions/{name}/infer"):
        assert status(guarded.http_port, "POST", path, "caller", {}) in (400, 403, 404)
    assert status(guarded.http_port, "POST", f"/v2/models/{name}/infer", "narrow-caller", {}) in (400, 403, 404)


@pytest.mark.parametrize("name", ["../other", "..", ".", "/etc", "ranker/../other", "ranker\0", "ranker/1"])
def test_a_name_over_grpc_leads_nowhere_else(guarded: Server, name: str) -> None:
    address = f"127.0.0.1:{guarded.grpc_port}"
    for method in ("RepositoryModelLoad", "RepositoryModelUnload", "ModelInfer", "ModelConfig"):
        token = "caller" if method.startswith("Model") else "operator"
        assert call(address, method, message_for(method, name), token)[0] is StatusCode.NOT_FOUND
        assert call(address, method, message_for(method, name), f"narrow-{token}")[0] in (
            *REFUSED,
            StatusCode.NOT_FOUND,
        )


def test_control_leaves_a_line_and_refusals_do(guarded: Server, audit: Path) -> None:
    before = len(lines_of(audit))
    port, address = guarded.http_port, f"127.0.0.1:{guarded.grpc_port}"
    until(lambda: status(port, "POST", "/v2/repository/models/ranker/pause", "operator", {}) == 200)
    assert status(port, "POST", "/v2/repository/models/ranker/resume", "narrow-operator", {}) == 200
    assert status(port, "POST", "/v2/repository/models/ranker/rollback", "operator", {"to": "9.9"}) == 404
    call(address, "RepositoryModelLoad", message_for("RepositoryModelLoad", "nope"), "operator")
    assert status(port, "GET", "/v2/repository/models/ranker/snapshots", "operator") == 200
    lines = lines_of(audit)[before:]
    found = [(x["principal"], x["transport"], x["call"], x["model"], x["outcome"]) for x in lines]
    assert found == [
        ("operator", "http", "pause", "ranker", 200),
        ("narrow-operator", "http", "resume", "ranker", 200),
        ("operator", "http", "rollback", "ranker", 404),
        ("operator", "grpc", "load", "nope", "NotFound"),
    ]
    assert lines[2]["arguments"] == {"to": "9.9"}
    assert {line["address"] for line in lines} == {"127.0.0.1"}


def test_what_is_refused_leaves_a_line(version_dir: Path, tmp_path: Path, start_server: Callable[..., Server]) -> None:
    audit = tmp_path / "audit"
    access = write_access(tmp_path / "access.yaml")
    with start_server(version_dir.parent.parent, tmp_path / "store", access_file=access, audit_log=audit) as server:
        path = "/v2/repository/models/ranker/unload"
        assert [status(server.http_port, "POST", path, token) for token in (None, "unknown", "caller")] == [
            401,
            401,
            403,
        ]
        call(f"127.0.0.1:{server.grpc_port}", "RepositoryModelUnload", token="viewer")
    found = [(line["principal"], line["call"], line["outcome"]) for line in lines_of(audit)]
    assert found == [
        ("anonymous", "unload", "Unauthenticated"),
        ("", "unload", "Unauthenticated"),
        ("caller", "unload", "Forbidden"),
        ("", "unload", "Forbidden"),
    ]


def test_tokens_are_nowhere_in_the_log(
    version_dir: Path, tmp_path: Path, start_server: Callable[..., Server], caplog: pytest.LogCaptureFixture
) -> None:
    access = write_access(tmp_path / "access.yaml", [{"name": "visible-name", "roles": ["admin"]}])
    with (
        caplog.at_level(logging.DEBUG),
        start_server(version_dir.parent.parent, tmp_path / "store", access_file=access) as server,
    ):
        own = read_own_token(server.http_port)
        for token in ("never-to-be-seen", own):
            status(server.http_port, "POST", "/v2/repository/models/ranker/pause", token, {})
            call(f"127.0.0.1:{server.grpc_port}", "RepositoryModelLoad", token=token)
    assert own
    assert "own-token" in caplog.text
    for secret in ("never-to-be-seen", own):
        assert secret not in caplog.text


@pytest.mark.slow
def test_a_token_that_is_taken_back_is_refused(
    version_dir: Path, tmp_path: Path, start_server: Callable[..., Server], caplog: pytest.LogCaptureFixture
) -> None:
    access = write_access(tmp_path / "access.yaml", [{"name": "first", "roles": ["read"]}])
    with start_server(version_dir.parent.parent, tmp_path / "store", access_file=access) as server:
        port = server.http_port
        assert (status(port, "GET", "/v2", "first"), status(port, "GET", "/v2", "second")) == (200, 401)
        write_access(access, [{"name": "second", "roles": ["read"]}])
        until(lambda: status(port, "GET", "/v2", "second") == 200)
        assert status(port, "GET", "/v2", "first") == 401
        assert call(f"127.0.0.1:{server.grpc_port}", "ServerMetadata", token="first")[0] is StatusCode.UNAUTHENTICATED
        access.write_text("tokens: [")
        until(lambda: status(port, "GET", "/v2", "second") == 200 and "goes on" in caplog.text)
        assert status(port, "GET", "/v2", "second") == 200


@pytest.mark.slow
def test_without_an_access_file_control_needs_the_own_token(
    version_dir: Path, tmp_path: Path, start_server: Callable[..., Server], caplog: pytest.LogCaptureFixture
) -> None:
    with start_server(version_dir.parent.parent, tmp_path / "store", open_admin=False) as server:
        port, address = server.http_port, f"127.0.0.1:{server.grpc_port}"
        path = "/v2/repository/models/ranker"
        own = read_own_token(port)
        assert status(port, "GET", f"{path}/snapshots") == 200
        assert status(port, "POST", "/v2/repository/index") == 200
        assert status(server.metrics_port, "GET", "/metrics") == 200
        assert call(address, "RepositoryIndex")[0] is StatusCode.OK
        for token in (None, "wrong"):
            got = ask(port, "POST", f"{path}/pause", {}, bearer(token))
            assert (got.status, "own token" in got.json["error"]) == (401, True)
            assert call(address, "RepositoryModelLoad", token=token)[0] is StatusCode.UNAUTHENTICATED
        assert status(port, "POST", f"{path}/resume", own, {}) == 200
        assert call(address, "RepositoryModelLoad", message_for("RepositoryModelLoad", "ranker"), own)[0] is (
            StatusCode.OK
        )
        assert status(port, "POST", INFER, "wrong", {}) == 400  # It has no meaning here.
        assert own_token_path(port).exists()
    assert not own_token_path(port).exists()
