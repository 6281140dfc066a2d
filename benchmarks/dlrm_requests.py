"""Sends the requests of the DLRM to a server: for each load generator, and for a comparison of answers."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from benchmarks.catalog import Run
from benchmarks.dlrm_world import DlrmWorld
from benchmarks.generators import Figures
from benchmarks.generators.h2load import answer_bytes, run_h2load, save_message
from benchmarks.generators.perf_analyzer import run_perf_analyzer, save_input_data
from benchmarks.generators.wrk import run_wrk, save_script
from benchmarks.served_load import Load, Served, measure_load
from loadtest.bodies import binary_body, grpc_request, json_body
from loadtest.rows import Tensor

MODEL = "dlrm"
BATCHES = (1, 64, 512)
BODIES = 16  # that wrk sends in turn
SAMPLES = 64  # rows that perf_analyzer makes bodies of; with thousands it prepares them for a minute


class Requests:
    """The requests of each batch, saved for each load generator."""

    def __init__(self, run: Run, world: DlrmWorld) -> None:
        self._run = run
        self.seconds = 1 if run.quick else 2
        self.probe = world.request(300)
        self._data = run.work / "requests.json"
        save_input_data(self._data, world.request(SAMPLES))
        self._scripts: dict[int, Path] = {}
        self._messages: dict[int, Path] = {}
        self._answer_bytes: dict[tuple[int, int], int] = {}
        for batch in BATCHES:
            bodies = [binary_body(world.request(batch)) for _ in range(BODIES)]
            self._scripts[batch] = save_script(run.work / f"http-{batch}.lua", bodies)
            message = grpc_request(MODEL, world.request(batch)).SerializeToString()
            self._messages[batch] = save_message(run.work / f"grpc-{batch}.bin", message)

    def load(self, served: Served, protocol: str, batch: int, concurrency: int) -> Load:
        """Measures a server under wrk or h2load for `seconds`."""
        generator = partial(self._http if protocol == "http" else self._grpc, batch, concurrency)
        return measure_load(self._run, served, generator, concurrency)

    def load_of_perf_analyzer(self, served: Served, protocol: str, batch: int, concurrency: int) -> Load:
        """Measures a server under perf_analyzer."""
        port = served.http_port if protocol == "http" else served.grpc_port
        seconds = 0.9 if self._run.quick else 1.5

        def generator(_: Served) -> Figures:
            return run_perf_analyzer(
                port, protocol, MODEL, self._data, batch=batch, concurrency=concurrency, seconds=seconds
            )

        return measure_load(self._run, served, generator, concurrency)

    def _http(self, batch: int, concurrency: int, served: Served) -> Figures:
        return run_wrk(served.http_port, MODEL, self._scripts[batch], connections=concurrency, seconds=self.seconds)

    def _grpc(self, batch: int, concurrency: int, served: Served) -> Figures:
        message, key = self._messages[batch], (served.pid, batch)
        if key not in self._answer_bytes:
            self._answer_bytes[key] = answer_bytes(served.grpc_port, message)
        expected = self._answer_bytes[key]
        return run_h2load(
            served.grpc_port, message, connections=concurrency, seconds=self.seconds, expected_bytes=expected
        )


def compare_answers(rows: Sequence[Tensor], own: Served, peer: Served) -> None:
    """Raises AssertionError unless both servers give the same scores, in every form that is timed."""
    expected = _scores(peer.http_port, json_body(rows), {})
    body, header = binary_body(rows)
    for served in (own, peer):
        binary = _scores(served.http_port, body, {"Inference-Header-Content-Length": str(header)})
        for scores in (_scores(served.http_port, json_body(rows), {}), binary, _scores_over_grpc(served, rows)):
            np.testing.assert_allclose(scores, expected, atol=1e-6)


def _scores(port: int, body: bytes, headers: dict[str, str]) -> np.ndarray:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v2/models/{MODEL}/infer", data=body, headers=headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        content, header = answer.read(), answer.headers["Inference-Header-Content-Length"]
    if header is not None:  # the one output, as bytes behind the JSON
        return np.frombuffer(content[int(header) :], "<f4")
    return np.array(json.loads(content)["outputs"][0]["data"], np.float32)


def _scores_over_grpc(served: Served, rows: Sequence[Tensor]) -> np.ndarray:
    with grpc.insecure_channel(f"127.0.0.1:{served.grpc_port}") as channel:
        answer: service_pb2.ModelInferResponse = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(
            grpc_request(MODEL, rows), timeout=30
        )
    return np.frombuffer(answer.raw_output_contents[0], "<f4")
