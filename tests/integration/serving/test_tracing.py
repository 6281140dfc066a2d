"""Traced requests reach an OpenTelemetry receiver that is not ours, as parts of their callers' traces."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from oteltest.sink import GrpcSink, HttpSink
from oteltest.sink.handler import RequestHandler

from serving import Server, ServerConfig
from serving.observing.trace_export import exporter_for
from storage.errors import ConfigError
from tests.integration.serving.conftest import Published
from tests.integration.serving.http_calls import ask, until
from tests.integration.serving.native_clients import BY_PYTHON, Client, body_of, tensors
from tests.integration.serving.test_native_grpc import BY_PYTHON as CALL_BY_PYTHON
from tests.integration.serving.test_native_grpc import bytes_of, call, own_channel
from tests.support.server_process import free_ports

SPAN = "b7ad6b7169203331"
BOTH = pytest.mark.parametrize("by_python", [False, True], ids=["native", "python"])


class Received(RequestHandler):  # type: ignore[misc]
    """Keeps the spans that a receiver gets."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spans: list[Any] = []
        self.resources: list[dict[str, str]] = []

    def handle_trace(self, request: Any, headers: Any) -> None:
        with self._lock:
            for entry in request.resource_spans:
                self.resources.append({each.key: each.value.string_value for each in entry.resource.attributes})
                for scope in entry.scope_spans:
                    self._spans += scope.spans

    def handle_metrics(self, request: Any, headers: Any) -> None:
        raise AssertionError

    def handle_logs(self, request: Any, headers: Any) -> None:
        raise AssertionError

    def of_request(self, name: str) -> dict[str, Any]:
        """Waits for the spans of the request with this id, and returns them by name."""

        def found() -> dict[str, Any]:
            with self._lock:
                traces = {span.trace_id for span in self._spans if attributes(span).get("emberline.request.id") == name}
                return {span.name: span for span in self._spans if span.trace_id in traces}

        until(found)
        return found()

    @property
    def count(self) -> int:
        """Returns how many spans of requests there are."""
        with self._lock:
            return sum("emberline.model" in attributes(span) for span in self._spans)


def parent_of(name: str, flags: str = "01") -> tuple[str, str]:
    """Returns a trace of this name, and the traceparent of a caller in it."""
    trace = hashlib.md5(name.encode()).hexdigest()
    return trace, f"00-{trace}-{SPAN}-{flags}"


def attributes(span: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


@pytest.fixture(scope="module", params=["http", "grpc"])
def receiver(request: pytest.FixtureRequest) -> Iterator[tuple[str, Received]]:
    received, (port,) = Received(), free_ports(1)
    logger = logging.getLogger("oteltest")
    if request.param == "http":
        sink: Any = HttpSink(received, logger, port=port)
    else:
        sink = GrpcSink(received, logger, port=port)
    sink.start()
    yield f"{request.param}://127.0.0.1:{port}", received
    sink.stop()


@pytest.fixture(scope="module")
def traced(
    receiver: tuple[str, Received],
    version_dir: Path,
    tmp_path_factory: pytest.TempPathFactory,
    start_server: Callable[..., Server],
) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("traced")
    options = {"trace_otlp": receiver[0], "trace_sampling": 0.0, "access_log": folder / "access.log"}
    server = start_server(version_dir.parent.parent, folder / "store", **options, log_format="json")
    yield server
    server.stop()


@BOTH
def test_a_traced_request_has_spans_of_its_stages(
    traced: Server, receiver: tuple[str, Received], published: Published, by_python: bool
) -> None:
    name = f"http-{by_python}"
    trace, parent = parent_of(name)
    client = Client(traced.http_port)
    headers = {"traceparent": parent, **(BY_PYTHON if by_python else {})}
    assert client.post(*body_of(tensors(published, 4), id=name), headers).status == 200
    client.connection.close()
    spans = receiver[1].of_request(name)
    whole = spans["POST infer"]
    assert (whole.trace_id.hex(), whole.parent_span_id.hex()) == (trace, SPAN)
    assert whole.kind == whole.SPAN_KIND_SERVER
    told = attributes(whole)
    assert told["emberline.model"] == "ranker"
    assert told["emberline.snapshot"] == "1.0"
    assert told["emberline.rows"] == 4
    assert told["http.response.status_code"] == 200
    below = {
        "front end": whole,
        "queue": whole,
        "batch": whole,
        "batch join": spans["batch"],
        "features": spans["batch"],
        "lookup": spans["batch"],
        "graph": spans["batch"],
        "encode": whole,
    }
    assert set(spans) == {"POST infer", *below}
    for child, above in below.items():
        assert spans[child].parent_span_id == above.span_id, child
        assert above.start_time_unix_nano <= spans[child].start_time_unix_nano, child
        assert spans[child].end_time_unix_nano <= above.end_time_unix_nano, child
    ids = attributes(spans["lookup"])
    assert ids["emberline.ids.dram"] + ids["emberline.ids.absent"] > 0
    assert receiver[1].resources[0]["service.name"] == "emberline"
    lines = [json.loads(line) for line in (traced.config.access_log or Path()).read_text().splitlines()]
    assert [line["trace_id"] for line in lines if line.get("id") == name] == [trace]


@BOTH
def test_a_traced_call_has_the_same_spans(
    traced: Server, receiver: tuple[str, Received], published: Published, by_python: bool
) -> None:
    name = f"grpc-{by_python}"
    trace, parent = parent_of(name)
    metadata = (("traceparent", parent), *(CALL_BY_PYTHON if by_python else ()))
    with own_channel(traced) as channel:
        assert call(channel, bytes_of(tensors(published, 2), id=name), metadata)[0] is grpc.StatusCode.OK
    spans = receiver[1].of_request(name)
    whole = spans["inference.GRPCInferenceService/ModelInfer"]
    assert (whole.trace_id.hex(), whole.parent_span_id.hex()) == (trace, SPAN)
    assert {"queue", "batch", "features", "lookup", "graph", "encode"} <= set(spans)
    assert attributes(whole)["rpc.response.status_code"] == "0"


def test_refused_requests_have_a_span_and_probes_and_others_have_none(
    traced: Server, receiver: tuple[str, Received], published: Published
) -> None:
    received = receiver[1]
    before = received.count
    parent = {"traceparent": parent_of("refused")[1]}
    assert ask(traced.http_port, "GET", "/v2/health/ready", None, parent).status == 200
    assert ask(traced.http_port, "GET", "/v2/models/ranker", None, parent).status == 200
    urllib.request.urlopen(f"http://127.0.0.1:{traced.metrics_port}/metrics", timeout=30).close()
    client = Client(traced.http_port)
    assert client.post(*body_of(tensors(published, 1)), {"traceparent": parent_of("left out", "00")[1]}).status == 200
    assert client.post(*body_of(tensors(published, 1))).status == 200
    client.connection.close()
    headers = {"X-Request-Id": "refused", **parent}
    assert ask(traced.http_port, "POST", "/v2/models/nobody/infer", {}, headers).status == 404
    (span,) = received.of_request("refused").values()
    assert attributes(span)["http.response.status_code"] == 404
    until(lambda: traced.repository.observation.counts.exported == received.count)
    assert received.count == before + 1


def test_requests_are_drawn_after_a_change_of_the_rate_and_name_the_bucket_of_their_time(
    traced: Server, receiver: tuple[str, Received], published: Published
) -> None:
    said = ask(traced.http_port, "POST", "/v2/trace/setting", {"trace_rate": "1"})
    assert (said.status, said.json["trace_rate"], said.json["trace_level"]) == (200, "1", ["TIMESTAMPS"])
    client = Client(traced.http_port)
    assert client.post(*body_of(tensors(published, 1), id="drawn")).status == 200
    client.connection.close()
    whole = receiver[1].of_request("drawn")["POST infer"]
    assert whole.parent_span_id == b""
    ask(traced.http_port, "POST", "/v2/trace/setting", {"trace_level": ["OFF"]})
    request = urllib.request.Request(
        f"http://127.0.0.1:{traced.metrics_port}/metrics", headers={"Accept": "application/openmetrics-text"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        page = answer.read().decode()
    exemplars = re.findall(r'emberline_request_seconds_bucket\{[^}]*\} \d+\.\d # \{trace_id="(\w+)"\}', page)
    assert whole.trace_id.hex() in exemplars
    assert float(re.findall(r"^emberline_traces_sent_total (\S+)", page, re.MULTILINE)[0]) > 0
    ask(traced.http_port, "POST", "/v2/trace/setting", {"trace_level": None, "trace_rate": None})


def test_without_a_collector_requests_are_answered_and_traces_are_dropped_and_counted(
    version_dir: Path, tmp_path: Path, start_server: Callable[..., Server], published: Published
) -> None:
    (port,) = free_ports(1)
    options = {"trace_otlp": f"http://127.0.0.1:{port}", "trace_sampling": 1.0}
    server = start_server(version_dir.parent.parent, tmp_path / "store", **options)
    try:
        client = Client(server.http_port)
        for _ in range(5):
            assert client.post(*body_of(tensors(published, 1))).status == 200
        client.connection.close()
        until(lambda: server.repository.observation.counts.dropped_traces == 5)
    finally:
        server.stop()


@pytest.mark.parametrize("url", ["127.0.0.1:4317", "ftp://a:1", "http://", "http://user:geheim@a:4318", "grpc://a:1/x"])
def test_a_wrong_collector_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(ValueError, match=r"OTLP over HTTP"):
        ServerConfig(model_repository=tmp_path, trace_otlp=url)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigError, match=r"pip install 'emberline\[tracing\]'"):
        exporter_for("http://127.0.0.1:4318")


def test_a_timeline_is_recorded_by_operators(traced: Server, published: Published, tmp_path: Path) -> None:
    stop = threading.Event()

    def send() -> None:
        client = Client(traced.http_port)
        while not stop.is_set():
            assert client.post(*body_of(tensors(published, 1))).status == 200
        client.connection.close()

    thread = threading.Thread(target=send)
    thread.start()
    try:
        content = ask(traced.http_port, "POST", "/v2/trace/timeline", {"seconds": 0.5}).json
    finally:
        stop.set()
        thread.join()
    names = [event["args"]["name"] for event in content["traceEvents"] if event["name"] == "thread_name"]
    assert names[:2] == ["front end http", "front end grpc"]
    assert any(name.startswith("ranker/1#") for name in names)
    assert content["otherData"]["requests"] > 10
    assert content["otherData"]["is_whole"]
    slices = {event["name"] for event in content["traceEvents"] if event["ph"] == "X"}
    assert {"batch", "features", "lookup", "graph", "encode", "read"} <= slices
    for wrong in ({}, {"seconds": 0}, {"seconds": 61}, {"seconds": "5"}, {"seconds": True}, {"seconds": 1, "more": 2}):
        assert ask(traced.http_port, "POST", "/v2/trace/timeline", wrong).status == 400
