"""Callers that Python has let in are answered natively, and no longer than the access file lets them in."""

from __future__ import annotations

import contextlib
import datetime
import json
import queue
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.grpc import service_pb2

from serving import Server
from serving.grpc.native_server import HAS_NATIVE_GRPC
from serving.security.own_token import read_own_token
from tests.integration.serving.conftest import Published
from tests.integration.serving.guarded import TOKENS, bearer, write_access
from tests.integration.serving.http_calls import until
from tests.integration.serving.native_clients import PATH, Client, body_of, tensors
from tests.integration.serving.test_native_grpc import STREAM, bytes_of, call, own_channel

StatusCode = grpc.StatusCode
with_native_grpc = pytest.mark.skipif(not HAS_NATIVE_GRPC, reason="native code was built without nghttp2")


@dataclass
class Guarded:
    """A server with an access file and an access log."""

    server: Server
    access: Path
    log: Path
    closing: contextlib.ExitStack
    counted: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0), (0, 0)])

    def client(self) -> Client:
        """Returns a client with a connection of its own, which is closed at the end."""
        made = Client(self.server.http_port)
        self.closing.callback(made.connection.close)
        return made

    def answered(self, transport: int = 0) -> tuple[int, int]:
        """Returns how many requests native code has answered, and passed on, since the last look.

        Python has let go of the connections by then.
        """
        time.sleep(0.05)
        native = (self.server.native, self.server.native_grpc)[transport]
        assert native is not None
        found, before = native.counts or (0, 0), self.counted[transport]
        self.counted[transport] = found
        return found[0] - before[0], found[1] - before[1]

    def principals(self, count: int) -> list[str]:
        """Waits for so many lines in the access log, and returns who asked in the last ones."""
        until(lambda: self.log.read_bytes().count(b"\n") >= count)
        return [json.loads(line).get("principal", "") for line in self.log.read_text().splitlines()[-count:]]


@pytest.fixture
def guard(version_dir: Path, tmp_path: Path, start_server: Callable[..., Server]) -> Iterator[Callable[..., Guarded]]:
    """Starts a server over the models `ranker` and `other`, with an access file of these entries."""
    for name in ("ranker", "other"):
        config = shutil.copytree(version_dir.parent, tmp_path / "models" / name) / "config.pbtxt"
        config.write_text(config.read_text().replace('"ranker"', f'"{name}"', 1))

    def made(tokens: list[dict[str, Any]] = TOKENS, max_inflight_bytes: int = 1 << 28, **rest: Any) -> Guarded:
        access = write_access(tmp_path / "access.yaml", tokens, **rest)
        log = tmp_path / "access.log"
        server = start_server(
            tmp_path / "models",
            tmp_path / "store",
            access_file=access,
            access_log=log,
            log_format="json",
            max_inflight_bytes=max_inflight_bytes,
            max_body_bytes=min(max_inflight_bytes, 1 << 26),
        )
        started.callback(server.stop)
        return Guarded(server, access, log, started)

    with contextlib.ExitStack() as started:
        yield made


def test_a_token_is_checked_once_and_answered_natively_from_then_on(
    guard: Callable[..., Guarded], published: Published
) -> None:
    guarded = guard()
    client, form = guarded.client(), body_of(tensors(published, 3))
    first = client.post(*form, bearer("narrow-caller"))
    assert (first.status, guarded.answered()) == (200, (0, 1))
    for _ in range(3):
        assert client.post(*form, bearer("narrow-caller")) == first
    assert guarded.answered() == (3, 0)
    for token in ("viewer", "elsewhere", "gone", "nobody", None):
        status = guarded.client().post(*form, bearer(token)).status
        assert status == (403 if token in ("viewer", "elsewhere") else 401)
    other = "/v2/models/other/infer"
    assert client.post(*form, bearer("narrow-caller"), other).status == 403
    assert client.post(*form, bearer("elsewhere"), other).status == 200
    assert guarded.answered()[0] == 0
    client = guarded.client()
    assert client.post(*form, bearer("elsewhere"), other).status == 200
    assert client.post(*form, bearer("narrow-caller")) == first
    assert guarded.answered() == (2, 0)
    own = read_own_token(guarded.server.http_port)
    assert [client.post(*form, bearer(own)).status for _ in range(2)] == [200, 200]
    asked = {"narrow-caller": 6, "elsewhere": 3, "own-token": 2, "viewer": 1, "anonymous": 1, "": 2}
    assert Counter(guarded.principals(15)) == asked


@with_native_grpc
def test_calls_and_streams_with_a_token_are_answered_natively(
    guard: Callable[..., Guarded], published: Published
) -> None:
    guarded, data = guard(), bytes_of(tensors(published, 3))

    def token(name: str | None) -> tuple[tuple[str, str], ...]:
        return tuple((key.lower(), value) for key, value in bearer(name).items())

    with own_channel(guarded.server) as channel:
        first = call(channel, data, token("caller"))
        assert (first[0], guarded.answered(1)) == (StatusCode.OK, (0, 1))
        assert [call(channel, data, token("caller")) for _ in range(3)] == [first] * 3
        assert guarded.answered(1) == (3, 0)
        for name, code in (
            ("viewer", StatusCode.PERMISSION_DENIED),
            ("elsewhere", StatusCode.PERMISSION_DENIED),
            ("gone", StatusCode.UNAUTHENTICATED),
            ("nobody", StatusCode.UNAUTHENTICATED),
            (None, StatusCode.UNAUTHENTICATED),
        ):
            assert call(channel, data, token(name))[0] is code
        assert guarded.answered(1) == (0, 5)
        stream = channel.stream_stream(STREAM)
        assert len(list(stream(iter([data] * 4), metadata=token("caller"), timeout=30))) == 4
        assert guarded.answered(1) == (4, 0)
        with pytest.raises(grpc.RpcError) as refused:
            list(stream(iter([data]), metadata=token("nobody"), timeout=30))
        assert refused.value.code() is StatusCode.UNAUTHENTICATED
    assert Counter(guarded.principals(14)) == {"caller": 8, "viewer": 1, "elsewhere": 1, "anonymous": 1, "": 3}


def test_a_token_that_is_taken_back_is_refused_on_connections_that_are_open(
    guard: Callable[..., Guarded], published: Published
) -> None:
    guarded = guard([{"name": name, "roles": ["predict"]} for name in ("first", "second")])
    client, form = guarded.client(), body_of(tensors(published, 3))
    data, metadata = bytes_of(tensors(published, 3)), (("authorization", "Bearer first"),)
    with own_channel(guarded.server) as channel:
        for expected in ((0, 1), (1, 0), (1, 0)):
            assert client.post(*form, bearer("first")).status == 200
            assert call(channel, data, metadata)[0] is StatusCode.OK
            assert guarded.answered() == expected
        write_access(guarded.access, [{"name": "second", "roles": ["predict"]}])
        # Nobody else calls: the server looks by itself.
        until(lambda: client.post(*form, bearer("first")).status == 401, 5)
        until(lambda: call(channel, data, metadata)[0] is StatusCode.UNAUTHENTICATED, 5)
        assert client.post(*form, bearer("second")).status == 200
        guarded.access.write_text("tokens: [")
        time.sleep(2.5)
        assert [client.post(*form, bearer(name)).status for name in ("first", "second", "second")] == [401, 200, 200]
        write_access(guarded.access, [{"name": "second", "roles": ["predict"], "models": ["other"]}])
        until(lambda: client.post(*form, bearer("second")).status == 403, 5)


def test_a_rate_is_counted_over_both_paths_and_transports(guard: Callable[..., Guarded], published: Published) -> None:
    guarded = guard([{"name": "often", "roles": ["predict"], "requests_per_second": 50}])
    form, data = body_of(tensors(published, 1)), bytes_of(tensors(published, 1))
    metadata = (("authorization", "Bearer often"),)
    until(lambda: guarded.client().post(*form, bearer("often")).status == 200)

    def over_http(_: int) -> int:
        client, granted = guarded.client(), 0
        while time.monotonic() < end:
            granted += client.post(*form, bearer("often")).status == 200
        return granted

    def over_grpc(_: int) -> int:
        granted = 0
        with own_channel(guarded.server) as channel:
            while time.monotonic() < end:
                granted += call(channel, data, metadata)[0] is StatusCode.OK
        return granted

    began = time.monotonic()
    end = began + 4.0
    with ThreadPoolExecutor(4) as threads:
        granted = sum(threads.map(lambda number: (over_http, over_grpc)[number % 2](number), range(4)))
    took = time.monotonic() - began
    assert 50 * 3 < granted <= 50 + 50 * took + 1
    assert guarded.answered()[0] > 20
    time.sleep(1.1)
    client = guarded.client()
    replies = [client.post(*form, bearer("often")) for _ in range(120)]
    refused = [reply for reply in replies if reply.status != 200]
    assert refused
    assert {(reply.status, reply.headers["retry-after"]) for reply in refused} == {(429, "1")}


def test_anonymous_callers_are_let_in_where_the_file_says_so(
    guard: Callable[..., Guarded], published: Published
) -> None:
    guarded = guard(TOKENS, anonymous={"roles": ["predict"], "models": ["ranker"]})
    client, form = guarded.client(), body_of(tensors(published, 3))
    assert (client.post(*form).status, guarded.answered()) == (200, (0, 1))
    assert [client.post(*form).status for _ in range(3)] == [200] * 3
    assert guarded.answered() == (3, 0)
    assert client.post(*form, {"Authorization": "Bearer wrong"}).status == 401
    assert client.post(*form, path="/v2/models/other/infer").status == 401
    assert guarded.client().post(*form).status == 200
    assert guarded.answered()[0] == 1


def test_callers_without_a_token_are_counted_by_their_address(
    version_dir: Path, tmp_path: Path, start_server: Callable[..., Server], published: Published
) -> None:
    with (
        start_server(version_dir.parent.parent, tmp_path / "store", max_requests_per_second=40.0) as server,
        contextlib.ExitStack() as closing,
    ):
        guarded = Guarded(server, tmp_path, tmp_path, closing)
        form, data = body_of(tensors(published, 1)), bytes_of(tensors(published, 1))
        own = read_own_token(server.http_port)
        client, channel = guarded.client(), closing.enter_context(own_channel(server))
        began = time.monotonic()
        statuses = []
        for number in range(40):
            statuses.append(client.post(*form, {"Authorization": "Basic eDp5"} if number % 2 else {}).status)
            statuses.append(200 if call(channel, data)[0] is StatusCode.OK else 429)
        took = time.monotonic() - began
        assert set(statuses) == {200, 429}
        assert 40 <= statuses.count(200) <= 40 + 40 * took + 1
        # The own token is somebody else.
        assert [client.post(*form, bearer(own)).status for _ in range(3)] == [200] * 3
        assert guarded.answered()[0] >= 10


def test_an_expired_token_is_refused_also_where_it_was_let_in(
    guard: Callable[..., Guarded], published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    today = datetime.datetime.now(datetime.UTC).date()
    guarded = guard([{"name": "short", "roles": ["predict"], "expires": today.isoformat()}])
    client, form = guarded.client(), body_of(tensors(published, 3))
    for expected in ((0, 1), (1, 0)):
        assert client.post(*form, bearer("short")).status == 200
        assert guarded.answered() == expected
    write_access(guarded.access, [{"name": "short", "roles": ["predict"], "expires": "2020-01-01"}])
    until(lambda: client.post(*form, bearer("short")).status == 401, 5)


@with_native_grpc
def test_tritons_clients_are_answered_natively_with_a_token(
    guard: Callable[..., Guarded], published: Published
) -> None:
    guarded = guard()
    for transport, module in enumerate((triton_http, triton_grpc)):
        port = (guarded.server.http_port, guarded.server.grpc_port)[transport]
        client = module.InferenceServerClient(f"127.0.0.1:{port}")
        inputs = []
        for name, value in tensors(published, 5).items():
            inputs.append(module.InferInput(name, value.shape, {"int64": "INT64", "float32": "FP32"}[value.dtype.name]))
            inputs[-1].set_data_from_numpy(value)
        headers = {key.lower(): value for key, value in bearer("caller").items()}
        client.infer("ranker", inputs, headers=headers)
        guarded.answered(transport)
        for _ in range(3):
            client.infer("ranker", inputs, headers=headers)
        assert guarded.answered(transport) == (3, 0)
        client.close()


def test_a_connection_of_many_callers_is_answered_natively(guard: Callable[..., Guarded], published: Published) -> None:
    """Such a connection is a proxy's. After a refusal it stays with Python until somebody is let in."""
    names = [f"caller-{number}" for number in range(8)]
    guarded = guard([{"name": name, "roles": ["predict"]} for name in names])
    client, form = guarded.client(), body_of(tensors(published, 3))
    for name in names:
        assert client.post(*form, bearer(name)).status == 200
        guarded.answered()
    assert [client.post(*form, bearer(name)).status for name in names * 3] == [200] * 24
    assert guarded.answered() == (24, 0)
    assert [client.post(*form, bearer("nobody")).status for _ in range(5)] == [401] * 5
    assert guarded.answered() == (0, 1)
    assert (client.post(*form, bearer(names[0])).status, guarded.answered()) == (200, (0, 0))
    assert (client.post(*form, bearer(names[0])).status, guarded.answered()) == (200, (1, 0))


@with_native_grpc
def test_a_stream_goes_on_when_its_token_was_taken_back_and_given_again(
    guard: Callable[..., Guarded], published: Published
) -> None:
    tokens = [{"name": "mine", "roles": ["predict"]}]
    guarded, data = guard(tokens), bytes_of(tensors(published, 3), id="17")
    metadata = (("authorization", "Bearer mine"),)
    asked: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    def answer() -> service_pb2.ModelStreamInferResponse:
        asked.put(data)
        return service_pb2.ModelStreamInferResponse.FromString(next(answers))

    with own_channel(guarded.server) as channel:
        # Any call of the token lets its streams be read natively.
        assert call(channel, b"", metadata, "/inference.GRPCInferenceService/ServerMetadata")[0] is StatusCode.OK
        stream = channel.stream_stream(STREAM)
        answers = stream(iter(asked.get, None), metadata=metadata, timeout=60)
        for expected in ((0, 1), (1, 0)):
            assert answer().error_message == ""
            assert guarded.answered(1)[0] == expected[0]
        write_access(guarded.access, [{"name": "other", "roles": ["predict"]}])
        until(lambda: "not one of this server's" in answer().error_message, 5)
        refused = answer()
        assert refused.infer_response.id == "17"
        write_access(guarded.access, [{"name": "mine", "roles": ["read"]}])
        until(lambda: answer().error_message == "'mine' does not have the role predict", 5)
        write_access(guarded.access, tokens)
        until(lambda: answer().error_message == "", 5)
        guarded.answered(1)
        assert (answer().error_message, guarded.answered(1)) == ("", (1, 0))
        asked.put(None)
        assert list(answers) == []


@with_native_grpc
def test_metadata_may_begin_and_end_with_spaces(guard: Callable[..., Guarded], published: Published) -> None:
    guarded, data = guard(), bytes_of(tensors(published, 3))
    with own_channel(guarded.server) as channel:
        for token, beside in (("Bearer caller", " x "), ("Bearer caller ", "x"), ("Bearer caller", "x ")):
            assert call(channel, data, (("authorization", token), ("x-note", beside)))[0] is StatusCode.OK
        assert call(channel, data, (("authorization", " "),))[0] is StatusCode.UNAUTHENTICATED


def test_a_caller_over_its_rate_is_refused_before_its_body(guard: Callable[..., Guarded], published: Published) -> None:
    guarded = guard([{"name": "slow", "roles": ["predict"], "requests_per_second": 0.05}])
    assert guarded.client().post(*body_of(tensors(published, 1)), bearer("slow")).status == 200
    connection = guarded.client().connection
    connection.putrequest("POST", PATH)
    connection.putheader("Authorization", "Bearer slow")
    connection.putheader("Content-Length", "30000000")
    connection.endheaders()
    assert connection.getresponse().status == 429


def test_the_access_log_names_callers_whose_bodies_found_no_room(
    guard: Callable[..., Guarded], published: Published
) -> None:
    guarded = guard(max_inflight_bytes=1 << 20)
    body, _ = body_of(tensors(published, 1))
    assert guarded.client().post(*body_of(tensors(published, 1)), bearer("caller")).status == 200
    connections = [guarded.client().connection for _ in range(2)]
    for connection in connections:
        connection.putrequest("POST", PATH)
        connection.putheader("Authorization", "Bearer caller")
        connection.putheader("Content-Length", str(800_000))
        connection.endheaders()
        connection.send(body + b" " * 700_000)
        time.sleep(0.2)
    assert connections[1].getresponse().status == 503
    assert guarded.principals(2) == ["caller", "caller"]
    refused = json.loads(guarded.log.read_text().splitlines()[-1])
    assert (refused["status"], refused["model"]) == (503, "ranker")
