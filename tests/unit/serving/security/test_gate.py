"""Tests the gate: role, scope and rate, and which caller gets which refusal."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tritonclient.grpc import service_pb2

from serving.config import ServerConfig
from serving.errors import Forbidden, RateLimited, Unauthenticated
from serving.grpc.gate import GrpcGate, address_of, authorization_of
from serving.http.gate import admit
from serving.http.messages import HttpRequest, error_response
from serving.security.gate import Gate
from serving.security.needs import ABOUT_MODEL, INFER, KNOWN, LOOK_AT_SERVER, MODEL, OPEN, UNKNOWN, Need
from serving.security.principals import ADMIN, Connection
from serving.security.tokens import digest_of
from storage.errors import InvalidInput

LOAD = Need(ADMIN, MODEL, "load")
HERE = Connection("192.0.2.7")


def gate(tmp_path: Path, content: dict[str, Any] | None = None, **options: Any) -> Gate:
    if content is not None:
        options["access_file"] = tmp_path / "access.yaml"
        options["access_file"].write_text(yaml.safe_dump(content))
        options["access_file"].chmod(0o600)
    return Gate(ServerConfig(model_repository=tmp_path, **options), digest_of("own"))


def token(name: str, *roles: str, **rest: Any) -> dict[str, Any]:
    return {"name": name, "sha256": digest_of(name), "roles": list(roles), **rest}


def ask(gate: Gate, need: Need, model: str = "", name: str = "", caller: Connection = HERE) -> Any:
    return gate.admit(need, model, f"Bearer {name}".encode() if name else None, caller, "http", need.call or "x")


ACCESS = {
    "tokens": [
        token("web", "predict", models=["ranker"]),
        token("board", "read"),
        token("ops", "admin", models=["ranker"]),
        token("all", "predict", "admin"),
    ]
}


@pytest.mark.parametrize(
    ("need", "model", "let_in", "forbidden"),
    [
        (OPEN, "", ["", "nobody", "web", "board", "ops"], []),
        (KNOWN, "", ["web", "board", "ops", "all", "own"], []),
        (INFER, "ranker", ["web", "all", "own"], ["board", "ops"]),
        (INFER, "ranker.item", ["web", "all", "own"], ["board", "ops"]),
        (INFER, "other", ["all", "own"], ["web", "board", "ops"]),
        (ABOUT_MODEL, "ranker", ["web", "board", "ops", "all", "own"], []),
        (ABOUT_MODEL, "other", ["board", "all", "own"], ["web", "ops"]),
        (LOOK_AT_SERVER, "", ["board", "all", "own"], ["web", "ops"]),
        (LOAD, "ranker", ["ops", "all", "own"], ["web", "board"]),
        (LOAD, "other", ["all", "own"], ["web", "board", "ops"]),
        (UNKNOWN, "", ["board", "ops", "all", "own"], ["web"]),
    ],
)
def test_with_an_access_file(tmp_path: Path, need: Need, model: str, let_in: list[str], forbidden: list[str]) -> None:
    made = gate(tmp_path, ACCESS)
    for name in let_in:
        ask(made, need, model, name)
    for name in forbidden:
        with pytest.raises(Forbidden, match=repr(name)):
            ask(made, need, model, name)
    for name in ("", "nobody"):
        if name not in let_in:
            with pytest.raises(Unauthenticated):
                ask(made, need, model, name)


def test_without_one_all_but_control_is_free(tmp_path: Path) -> None:
    made = gate(tmp_path)
    assert made.is_open
    for need in (OPEN, KNOWN, INFER, ABOUT_MODEL, LOOK_AT_SERVER, UNKNOWN):
        assert ask(made, need, "m") is None
        assert ask(made, need, "m", "whatever") is None
    for name in ("", "wrong"):
        with pytest.raises(Unauthenticated, match="own token"):
            ask(made, LOAD, "m", name)
    assert ask(made, LOAD, "m", "own").principal == "own-token"
    free = gate(tmp_path, open_admin=True)
    assert ask(free, LOAD, "m").principal == "anonymous"


def test_a_scope_is_kept_whether_or_not_the_model_exists(tmp_path: Path) -> None:
    made = gate(tmp_path, ACCESS)
    texts = set()
    for model in ("exists", "does-not", "../ranker", "ranker/../exists", "RANKER", ""):
        with pytest.raises(Forbidden) as refused:
            ask(made, INFER, model, "web")
        texts.add(str(refused.value).replace(repr(model), "?"))
    assert len(texts) == 1
    with pytest.raises(Forbidden, match="ask for one of ranker"):
        ask(made, LOOK_AT_SERVER, "", "ops")


def test_the_anonymous_have_what_the_file_gives_them(tmp_path: Path) -> None:
    made = gate(tmp_path, {"anonymous": {"roles": ["predict"], "models": ["open"]}})
    ask(made, INFER, "open")
    for need, model in ((INFER, "closed"), (LOOK_AT_SERVER, ""), (LOAD, "open")):
        with pytest.raises(Unauthenticated):
            ask(made, need, model)


def test_a_certificate_counts_only_where_one_is_asked_for(tmp_path: Path) -> None:
    content = {"certificates": [{"common_name": "job", "roles": ["predict"]}]}
    job = Connection("192.0.2.7", "job")
    with pytest.raises(Unauthenticated):
        ask(gate(tmp_path, content), INFER, "m", caller=job)
    made = gate(tmp_path, content, tls_certificate=tmp_path / "c", tls_client_ca=tmp_path / "ca")
    ask(made, INFER, "m", caller=job)
    with pytest.raises(Unauthenticated):
        ask(made, INFER, "m", "unknown", caller=job)
    with pytest.raises(Unauthenticated):
        ask(made, INFER, "m", caller=Connection("192.0.2.7", "stranger"))
    made.begin(INFER, None)  # The certificate is not known yet.
    with pytest.raises(Unauthenticated):
        made.begin(INFER, b"Bearer unknown")


def test_a_call_is_refused_before_its_message_where_that_can_be_known(tmp_path: Path) -> None:
    made = gate(tmp_path, ACCESS)
    made.begin(OPEN, None)
    made.begin(INFER, b"Bearer web")
    for shown, error in ((None, Unauthenticated), (b"Bearer x", Unauthenticated), (b"Bearer board", Forbidden)):
        with pytest.raises(error):
            made.begin(INFER, shown)


def test_rates_are_by_name_or_address_and_the_files_own_bound_counts_first(tmp_path: Path) -> None:
    content = {
        "tokens": [token("fast", "predict", requests_per_second=1000), token("slow", "predict")],
        "anonymous": {"roles": ["predict"]},
    }
    made = gate(tmp_path, content, max_requests_per_second=0.01)
    for _ in range(500):
        ask(made, INFER, "m", "fast")
    elsewhere = Connection("192.0.2.8")
    ask(made, INFER, "m", "slow")
    ask(made, INFER, "m")
    ask(made, INFER, "m", caller=elsewhere)
    for name, caller in (("slow", elsewhere), ("", HERE), ("", elsewhere)):
        with pytest.raises(RateLimited):
            ask(made, INFER, "m", name, caller)
    ask(made, OPEN)
    ask(made, INFER, "m", caller=Connection("2001:db8::1"))
    with pytest.raises(RateLimited):
        ask(made, INFER, "m", caller=Connection("2001:db8::2"))


def test_a_rate_counts_without_an_access_file_too(tmp_path: Path) -> None:
    made = gate(tmp_path, max_requests_per_second=0.01)
    ask(made, INFER, "m")
    with pytest.raises(RateLimited):
        ask(made, INFER, "m")


def test_refused_control_is_written_down_and_nothing_secret_with_it(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    made = gate(tmp_path, ACCESS, audit_log=path)
    for name in ("", "secret-and-wrong", "board"):
        with pytest.raises((Unauthenticated, Forbidden)):
            ask(made, LOAD, "ranker", name)
    with pytest.raises(Forbidden):
        ask(made, INFER, "ranker", "board")
    admission = ask(made, LOAD, "ranker", "ops")
    made.done(admission, {}, 200)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["outcome"] for line in lines] == ["Unauthenticated", "Unauthenticated", "Forbidden", 200]
    assert [line["principal"] for line in lines] == ["anonymous", "", "board", "ops"]
    assert {line["address"] for line in lines} == {"192.0.2.7"}
    assert "secret-and-wrong" not in path.read_text()


@pytest.mark.parametrize(
    "path", ["/v2/models/stats\n", "/v2/models/m/trace/setting\n", "/v2\x00", "/v2/models/\u2028/ready"]
)
def test_a_path_that_a_router_may_read_otherwise_is_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(InvalidInput):
        admit(gate(tmp_path), HttpRequest("POST", path, b"", {}))


FOREIGN: list[dict[bytes, bytes]] = [
    {b"sec-fetch-site": b"cross-site"},
    {b"sec-fetch-site": b"same-site"},
    {b"origin": b"https://evil.example"},
    {b"origin": b"http://127.0.0.1:3000"},
    {b"origin": b"null"},
]
OWN: list[dict[bytes, bytes]] = [
    {},
    {b"sec-fetch-site": b"same-origin", b"origin": b"http://127.0.0.1:8000"},
    {b"sec-fetch-site": b"none"},
]
CONTROLLING = ["/v2/repository/models/m/unload", "/v2/logging", "/v2/systemsharedmemory/region/r/register"]


@pytest.mark.parametrize("path", CONTROLLING)
@pytest.mark.parametrize("headers", FOREIGN)
def test_a_web_page_may_not_control_the_server_of_who_looks_at_it(
    tmp_path: Path, path: str, headers: dict[bytes, bytes]
) -> None:
    audit = tmp_path / "audit"
    made = gate(tmp_path, open_admin=True, audit_log=audit)
    with pytest.raises(Forbidden, match="web page"):
        admit(made, HttpRequest("POST", path, b"", {b"host": b"127.0.0.1:8000", **headers}))
    outcomes = [json.loads(line)["outcome"] for line in audit.read_text().splitlines()]
    assert outcomes == ([] if "sharedmemory" in path else ["Forbidden"])


@pytest.mark.parametrize("headers", OWN)
def test_other_clients_and_the_servers_own_origin_control_it(tmp_path: Path, headers: dict[bytes, bytes]) -> None:
    for path in CONTROLLING:
        admit(gate(tmp_path, open_admin=True), HttpRequest("POST", path, b"", {b"host": b"127.0.0.1:8000", **headers}))


def test_a_web_page_may_look(tmp_path: Path) -> None:
    for method, path in (("GET", "/v2/systemsharedmemory/status"), ("POST", "/v2/repository/index")):
        admit(gate(tmp_path), HttpRequest(method, path, b"", {b"host": b"x", **FOREIGN[0]}))


class Call:
    """Stands in for the call of a gRPC client."""

    def peer(self) -> str:
        return "ipv4:192.0.2.7:5000"

    def invocation_metadata(self) -> list[tuple[str, str]]:
        return []


def test_a_large_message_is_not_printed_for_the_audit_log(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    made = GrpcGate(gate(tmp_path, open_admin=True, audit_log=path))

    async def done() -> bytes:
        return b""

    for text in ("short", "x" * 5000):
        message = service_pb2.RepositoryModelLoadRequest(model_name=text)
        admission = made.admit("RepositoryModelLoad", message, Call())
        assert admission is not None
        asyncio.run(made.audited(admission, message, done))
    assert [json.loads(line)["arguments"] for line in path.read_text().splitlines()] == [
        'model_name: "short"',
        f"{message.ByteSize()} bytes",
    ]


def test_a_token_goes_no_further_than_the_gate(tmp_path: Path) -> None:
    request = HttpRequest("GET", "/v2", b"", {b"authorization": b"Bearer board", b"host": b"x"})
    admit(gate(tmp_path, ACCESS), request)
    assert request.headers == {b"host": b"x"}


def test_refusals_say_over_http_what_to_do() -> None:
    found = error_response(Unauthenticated("who?"))
    assert (found.status, (b"www-authenticate", b"Bearer") in found.headers, found.closes) == (401, True, False)
    found = error_response(RateLimited("slowly", retry_after_s=7))
    assert (found.status, (b"retry-after", b"7") in found.headers) == (429, True)
    assert error_response(Forbidden("no")).status == 403


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:127.0.0.1:5000", "127.0.0.1"),
        ("ipv6:%5B::1%5D:5000", "::1"),
        ("ipv6:[2001:db8::1]:5000", "2001:db8::1"),
        ("unix:/tmp/x", ""),
        ("", ""),
    ],
)
def test_the_address_of_a_grpc_peer(peer: str, address: str) -> None:
    assert address_of(peer) == address


def test_the_authorization_of_a_grpc_call() -> None:
    assert authorization_of(None) is None
    assert authorization_of([("user-agent", "x")]) is None
    assert authorization_of([("authorization", "Bearer a"), ("x", "y")]) == b"Bearer a"
    assert authorization_of([("authorization", "Bearer \xfc")]) == b"Bearer \xfc"
    with pytest.raises(Unauthenticated, match="more than one"):
        authorization_of([("authorization", "Bearer a"), ("authorization", "Bearer b")])


class Recorder:
    """Takes the place of the native list of callers."""

    def __init__(self) -> None:
        self.let_in_as: list[tuple[Any, ...]] = []

    def let_in(self, *arguments: Any) -> None:
        self.let_in_as.append(arguments)


def recorded(gate: Gate) -> list[tuple[Any, ...]]:
    recorder = Recorder()
    gate.callers = recorder  # type: ignore[assignment]
    gate.natively = lambda name: name == "ranker"
    return recorder.let_in_as


def test_who_may_predict_is_let_in_and_for_models_that_are_served_natively(tmp_path: Path) -> None:
    guarded = gate(tmp_path, ACCESS, max_requests_per_second=1000.0)
    found = recorded(guarded)
    forever = float("inf")
    ask(guarded, INFER, "ranker", "web")
    # Whatever a caller writes behind its model is no name to remember.
    ask(guarded, INFER, "ranker." + "x" * 10_000, "web")
    ask(guarded, KNOWN, "", "all")
    ask(guarded, LOOK_AT_SERVER, "", "board")
    for name in ("board", "nobody", ""):
        with pytest.raises((Forbidden, Unauthenticated)):
            ask(guarded, INFER, "ranker", name)
    assert found == [
        (b"Bearer web", "ranker", "web", 1000.0, False, forever),
        (b"Bearer web", "", "web", 1000.0, False, forever),
        (b"Bearer all", "", "all", 1000.0, False, forever),
    ]


def test_callers_without_a_token_are_let_in_by_their_address(tmp_path: Path) -> None:
    open_one = gate(tmp_path, max_requests_per_second=10.0)
    found = recorded(open_one)
    ask(open_one, INFER, "ranker")
    ask(open_one, INFER, "ranker", "of a proxy")
    ask(open_one, INFER, "ranker", "own")
    assert [entry[:5] for entry in found] == [
        (b"", "ranker", "anonymous", 10.0, True),
        (b"", "ranker", "anonymous", 10.0, True),
        (b"Bearer own", "ranker", "own-token", 10.0, False),
    ]


def test_a_certificate_lets_nobody_else_in(tmp_path: Path) -> None:
    content = {"certificates": [{"common_name": "scorer", "roles": ["predict"]}]}
    guarded = gate(tmp_path, content, tls_certificate=tmp_path / "c", tls_client_ca=tmp_path / "ca")
    found = recorded(guarded)
    ask(guarded, INFER, "ranker", caller=Connection("192.0.2.7", "scorer"))
    assert found == []


def test_nobody_is_let_in_where_nothing_is_answered_natively(tmp_path: Path) -> None:
    guarded = gate(tmp_path, ACCESS)
    found = recorded(guarded)
    guarded.natively = None
    ask(guarded, INFER, "ranker", "web")
    assert found == []
