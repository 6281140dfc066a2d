"""The access log has one line for each request however it ended, and no log has secrets."""

from __future__ import annotations

import base64
import json
import logging
import socket
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from serving import Server
from serving.engine.endpoint import Endpoint
from serving.observing.logs import ConsoleFormatter, JsonFormatter
from serving.security.tokens import new_token
from tests.integration.serving.conftest import Published
from tests.integration.serving.guarded import write_access
from tests.integration.serving.http_calls import ask, until
from tests.integration.serving.native_clients import BY_PYTHON, PATH, Client, body_of, tensors
from tests.integration.serving.test_native_grpc import BY_PYTHON as CALL_BY_PYTHON
from tests.integration.serving.test_native_grpc import STREAM, bytes_of, call, own_channel

BOTH = pytest.mark.parametrize("by_python", [False, True], ids=["native", "python"])


class Observed:
    """A server with an access log, whose lines are read as they come."""

    def __init__(self, server: Server, log: Path) -> None:
        self.server = server
        self._log = log
        self._read = 0

    def lines(self, count: int) -> list[dict[str, Any]]:
        """Waits for so many new lines, and returns them."""
        until(lambda: self._log.read_bytes().count(b"\n") >= self._read + count)
        lines = [json.loads(line) for line in self._log.read_text().splitlines()[self._read :]]
        self._read += len(lines)
        assert len(lines) == count, lines
        return lines


@pytest.fixture(scope="module")
def observed(
    version_dir: Path, tmp_path_factory: pytest.TempPathFactory, start_server: Callable[..., Server]
) -> Iterator[Observed]:
    folder = tmp_path_factory.mktemp("observed")
    log = folder / "access.log"
    server = start_server(
        version_dir.parent.parent, folder / "store", access_log=log, log_format="json", slow_request_ms=0.001
    )
    yield Observed(server, log)
    server.stop()


@BOTH
def test_an_answered_request_has_a_line_with_its_stages(
    observed: Observed, published: Published, by_python: bool
) -> None:
    client = Client(observed.server.http_port)
    headers = {"X-Request-Id": "edge-1", **(BY_PYTHON if by_python else {})}
    reply = client.post(*body_of(tensors(published, 5), id="page"), headers)
    client.connection.close()
    assert reply.status == 200
    (line,) = observed.lines(1)
    expected = {
        "transport": "http",
        "address": "127.0.0.1",
        "call": "infer",
        "model": "ranker",
        "version": "1",
        "snapshot": "1.0",
        "id": "page",
        "x_request_id": "edge-1",
        "status": 200,
        "rows": 5,
        "batch_rows": 5,
    }
    assert {name: line[name] for name in expected} == expected
    assert line["principal"] == "anonymous"
    assert line["request_bytes"] > len(body_of(tensors(published, 5), id="page")[0])
    assert line["response_bytes"] >= len(reply.content)
    times = [f"{stage}_ms" for stage in ("queue", "join", "features", "lookup", "graph", "encode")]
    assert all(line[name] >= 0 for name in times)
    assert sum(line[name] for name in times) <= line["ms"] + 0.01


@BOTH
def test_calls_and_requests_of_streams_have_lines(observed: Observed, published: Published, by_python: bool) -> None:
    metadata = (("x-request-id", "edge-2"), *(CALL_BY_PYTHON if by_python else ()))
    with own_channel(observed.server) as channel:
        assert call(channel, bytes_of(tensors(published, 2)), metadata)[0] is grpc.StatusCode.OK
        sent = [bytes_of(tensors(published, 1), id="a"), service_pb2.ModelInferRequest(model_name="nobody", id="b")]
        messages = [each if isinstance(each, bytes) else each.SerializeToString() for each in sent]
        assert len(list(channel.stream_stream(STREAM)(iter(messages), metadata=metadata, timeout=30))) == 2
    one, *stream = observed.lines(3)
    assert (one["transport"], one["call"], one["model"], one["status"], one["rows"]) == (
        "grpc",
        "infer",
        "ranker",
        0,
        2,
    )
    assert one["id"] == "edge-2"
    assert sorted((line["id"], line["x_request_id"], line["status"]) for line in stream) == [
        ("a", "edge-2", 0),
        ("b", "edge-2", 5),
    ]


def test_wrong_unknown_and_control_requests_have_lines_and_probes_have_none(
    observed: Observed, published: Published
) -> None:
    port = observed.server.http_port
    assert ask(port, "POST", PATH, {"inputs": []}).status == 400
    assert ask(port, "POST", "/v2/models/nobody/infer", {"inputs": []}).status == 404
    assert ask(port, "GET", "/v2/health/ready").status == 200
    assert ask(port, "GET", "/v2/models/ranker?token=geheim").status == 200
    urllib.request.urlopen(f"http://127.0.0.1:{observed.server.metrics_port}/metrics", timeout=30).close()
    wrong, unknown, control = observed.lines(3)
    assert (wrong["status"], wrong["model"]) == (400, "ranker")
    assert wrong["error"] == "input 'user' (INT64) is missing from the request to model 'ranker'"
    assert (unknown["status"], unknown["model"]) == (404, "nobody")
    assert (control["status"], control["call"]) == (200, "GET /v2/models/ranker")


@BOTH
def test_a_request_that_is_too_late_or_given_up_has_a_line(
    observed: Observed, published: Published, by_python: bool
) -> None:
    model = observed.server.repository.get("ranker")
    assert isinstance(model, Endpoint)
    late = body_of(tensors(published, 1), parameters={"binary_data_output": True, "timeout": 60_000})
    headers = BY_PYTHON if by_python else {}
    client, other = Client(observed.server.http_port), Client(observed.server.http_port)
    for queue in model.group._queues:
        queue.native.pause()
    try:
        assert client.post(*late, headers).status == 504
        body, length = body_of(tensors(published, 1))
        lengths = {"Inference-Header-Content-Length": str(length)}
        other.connection.request("POST", PATH, body, {**lengths, **headers})
        until(lambda: model.group.queued == 1)
        other.connection.close()
        until(lambda: model.group.queued == 0)
    finally:
        client.connection.close()
        for queue in model.group._queues:
            queue.native.resume()
    expired, left = observed.lines(2)
    assert (expired["status"], expired["error"]) == (504, "request timeout expired in the queue")
    # The deadline counts from the head of a request, and this from its end.
    assert expired["ms"] >= 30
    assert left["status"] == 499


def test_slow_requests_are_logged_with_their_stages(
    observed: Observed, published: Published, caplog: pytest.LogCaptureFixture
) -> None:
    client = Client(observed.server.http_port)
    # Ten lines a second are written, and all requests before were slow: this one is the first of its second.
    time.sleep(1.05 - time.monotonic() % 1)
    with caplog.at_level(logging.WARNING, "emberline.slow"):
        assert client.post(*body_of(tensors(published, 3), id="slow-1")).status == 200
        until(lambda: any("slow-1" in record.getMessage() for record in caplog.records))
    client.connection.close()
    (record,) = [each for each in caplog.records if "slow-1" in each.getMessage()]
    said = json.loads(JsonFormatter().format(record))
    assert (said["level"], said["logger"], said["id"], said["rows"]) == ("warning", "emberline.slow", "slow-1", 3)
    assert said["session"].startswith("ranker/1#")
    assert {"queue_ms", "features_ms", "lookup_ms", "graph_ms", "ms"} <= said.keys()
    observed.lines(1)


def test_many_requests_have_a_line_each(observed: Observed, published: Published) -> None:
    client = Client(observed.server.http_port)
    sent = [str(number) for number in range(300)]
    form = tensors(published, 1)
    for number in sent:
        assert client.post(*body_of(form, id=number)).status == 200
    client.connection.close()
    assert [line["id"] for line in observed.lines(300)] == sent
    assert observed.server.repository.observation.counts.dropped_lines == 0


def test_no_log_has_a_secret(
    version_dir: Path,
    tmp_path: Path,
    published: Published,
    start_server: Callable[..., Server],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Sends secrets where clients may put them, with everything logged at debug, and looks for them everywhere."""
    access, log, audit = write_access(tmp_path / "access.yaml"), tmp_path / "access.log", tmp_path / "audit.log"
    good, planted = "geheim-operator", [new_token(), "geheim-basic", "geheim-query", "geheim-cookie", "geheim-key"]
    token, basic, query, cookie, key = planted
    with caplog.at_level(logging.DEBUG):
        server = start_server(
            version_dir.parent.parent,
            tmp_path / "store",
            access_file=access,
            access_log=log,
            audit_log=audit,
            log_format="json",
            slow_request_ms=0.001,
        )
        try:
            for authorization in (f"Bearer {token}", "Basic " + base64.b64encode(f"a:{basic}".encode()).decode()):
                headers = {"Authorization": authorization, "Cookie": f"session={cookie}", "X-Api-Key": key}
                for method, path in (
                    ("POST", PATH),
                    ("GET", f"/v2/models/ranker?token={query}"),
                    ("POST", f"/v2/repository/models/ranker/unload?token={query}"),
                    ("GET", f"http://user:{query}@127.0.0.1/v2/models/ranker"),
                ):
                    body = b"{}" if method == "POST" else None
                    assert ask(server.http_port, method, path, body, headers).status in (400, 401, 403, 404)
            with own_channel(server) as channel:
                metadata = (("authorization", f"Bearer {token}"), ("cookie", cookie), ("x-api-key", key))
                assert call(channel, bytes_of(tensors(published, 1)), metadata)[0] is grpc.StatusCode.UNAUTHENTICATED
            until(lambda: log.exists() and log.read_bytes().count(b"\n") >= 9)
        finally:
            server.stop()
    secrets = [*planted, good, base64.b64encode(f"a:{basic}".encode()).decode()]
    for formatter in (JsonFormatter(), ConsoleFormatter()):
        text = "\n".join(map(formatter.format, caplog.records))
        assert not [secret for secret in secrets if secret in text]
    for file in (log, audit):
        text = file.read_text() if file.exists() else ""
        assert not [secret for secret in secrets if secret in text]
    assert np.all([json.loads(line)["status"] for line in log.read_text().splitlines()])


def test_what_is_no_request_has_a_line_with_the_address_of_its_sender(observed: Observed) -> None:
    with socket.create_connection(("127.0.0.1", observed.server.http_port), timeout=30) as client:
        client.sendall(b"GET /v2 HTTP/1.1\r\nHost: x\r\nContent-Length: many\r\n\r\n")
        assert client.recv(4096).startswith(b"HTTP/1.1 400 ")
    (line,) = observed.lines(1)
    assert (line["address"], line["status"]) == ("127.0.0.1", 400)


def test_a_request_that_finds_no_room_has_a_line(
    version_dir: Path, tmp_path: Path, start_server: Callable[..., Server], published: Published
) -> None:
    log = tmp_path / "access.log"
    server = start_server(
        version_dir.parent.parent, tmp_path / "store", access_log=log, log_format="json", max_inflight_bytes=4096
    )
    try:
        observed = Observed(server, log)
        values = tensors(published, 400)
        assert Client(server.http_port).post(*body_of(values)).status == 503
        (line,) = observed.lines(1)
        assert (line["transport"], line["status"]) == ("http", 503)
        if server.native_grpc is None:
            return
        with own_channel(server) as channel:
            code, text, _ = call(channel, bytes_of(values), (("x-request-id", "edge-2"),))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        (line,) = observed.lines(1)
        expected = {"transport": "grpc", "status": 8, "id": "edge-2", "address": "127.0.0.1", "error": text}
        assert {name: line[name] for name in expected} == expected
    finally:
        server.stop()
