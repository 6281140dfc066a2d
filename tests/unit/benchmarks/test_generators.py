"""wrk and h2load report what a server answered, and refuse figures of a server whose answers are not good."""

from __future__ import annotations

import http.server
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from benchmarks.generators import BadAnswersError
from benchmarks.generators.h2load import answer_bytes, run_h2load, save_message
from benchmarks.generators.wrk import run_wrk, save_script

needs_wrk = pytest.mark.skipif(shutil.which("wrk") is None, reason="wrk is not installed")
needs_h2load = pytest.mark.skipif(shutil.which("h2load") is None, reason="h2load is not installed")
BODIES = [(b"{}first", 2), (b"{}second one", 2)]


@contextmanager
def http_server(bad_every: int) -> Iterator[tuple[int, list[bytes]]]:
    """Yields the port of a server and the bodies that it got; each `bad_every`-th answer is 503, 0: none."""
    bodies: list[bytes] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            assert self.headers["Inference-Header-Content-Length"] == "2"
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(503 if bad_every and len(bodies) % bad_every == 0 else 200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, format: str, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port, bodies
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def grpc_server(bad_every: int) -> Iterator[tuple[int, list[str]]]:
    """Yields the port of a server and the models that it was asked for; each `bad_every`-th answer is an error."""
    models: list[str] = []

    class Service(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
        def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802
            models.append(request.model_name)
            if bad_every and len(models) % bad_every == 0:
                context.abort(grpc.StatusCode.UNAVAILABLE, "full")
            return service_pb2.ModelInferResponse(model_name=request.model_name)

    server = grpc.server(ThreadPoolExecutor(2))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Service(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield port, models
    finally:
        server.stop(None).wait()


@needs_wrk
def test_wrk_sends_the_bodies_in_turn_and_counts_answers(tmp_path: Path) -> None:
    script = save_script(tmp_path / "load.lua", BODIES)
    with http_server(0) as (port, bodies):
        figures = run_wrk(port, "model", script, connections=2, seconds=1)
    assert {body for body, _ in BODIES} == set(bodies)
    assert 0 <= len(bodies) - figures.answers <= 2
    assert figures.requests == pytest.approx(figures.answers, rel=0.2)
    assert 0 < figures.p50_ms <= figures.p99_ms


@needs_wrk
def test_wrk_refuses_figures_with_one_bad_answer(tmp_path: Path) -> None:
    script = save_script(tmp_path / "load.lua", BODIES)
    with http_server(10) as (port, _), pytest.raises(BadAnswersError, match="were not 2xx"):
        run_wrk(port, "model", script, connections=2, seconds=1)


@needs_h2load
def test_h2load_counts_messages(tmp_path: Path) -> None:
    request = service_pb2.ModelInferRequest(model_name="model")
    message = save_message(tmp_path / "body.bin", request.SerializeToString())
    with grpc_server(0) as (port, models):
        size = answer_bytes(port, message)
        figures = run_h2load(port, message, connections=2, seconds=1, expected_bytes=size)
    assert size == 5 + service_pb2.ModelInferResponse(model_name="model").ByteSize()
    assert set(models) == {"model"}
    assert 0 <= len(models) - 1 - figures.answers <= 2
    assert 0 < figures.p50_ms <= figures.p99_ms


@needs_h2load
def test_h2load_sees_errors_that_have_status_200(tmp_path: Path) -> None:
    request = service_pb2.ModelInferRequest(model_name="model")
    message = save_message(tmp_path / "body.bin", request.SerializeToString())
    with grpc_server(20) as (port, _):
        size = answer_bytes(port, message)
        with pytest.raises(BadAnswersError, match="messages"):
            run_h2load(port, message, connections=2, seconds=1, expected_bytes=size)
    with grpc_server(1) as (port, _), pytest.raises(BadAnswersError, match="without a message"):
        answer_bytes(port, message)
