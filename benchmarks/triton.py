"""Claims: a DLRM behind Emberline and behind Triton, on the same cores, under the same load generator.

Triton runs the model in its Python backend as plain torch, its 26 tables in one tensor; the best of several settings is
used for it and for ours. Both run all the time; perf_analyzer queries one and then the other, in a closed loop. Answers
are compared before anything is timed, and must be equal within rounding.

    python -m benchmarks.peers.triton_environment      # Triton and perf_analyzer, once
    python -m benchmarks.triton                        # about twenty minutes
    python -m benchmarks.triton --quick
"""

from __future__ import annotations

import contextlib
import json
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import geometric_mean

import numpy as np

from benchmarks.catalog import Run
from benchmarks.command import script
from benchmarks.dlrm_world import DlrmWorld
from benchmarks.measure import Contestant
from benchmarks.paced_load import PacedLoad, save_bodies
from benchmarks.peers import PeerMissingError
from benchmarks.peers.perf_analyzer import Figures, run_perf_analyzer, save_input_data
from benchmarks.peers.triton import TritonServer, TritonSettings
from benchmarks.peers.triton_environment import TRITON
from benchmarks.processes import family
from loadtest.bodies import binary_body, json_body
from loadtest.rows import Tensor
from tests.support.server_process import ServerProcess

BATCHES = (1, 64, 512)
LOADED, LIGHT = 32, (8, 1)  # concurrency
CALM = 100  # requests a second
TARGETS = {
    "http": {1: 1.0, 64: 1.2, 512: 1.1},
    "grpc": {1: 0.4, 64: 1.0, 512: 1.1},
}
TRITON_SETTINGS = [
    TritonSettings(instances, threads, delay) for instances, threads in ((1, 1), (1, 2), (2, 1)) for delay in (0, 200)
]
OUR_SETTINGS = ((0, 1), (0, 2), (1, 1), (1, 2), (2, 1))  # front ends, sessions
_MAX_S = 60.0


def measure(run: Run) -> None:
    """Measures every cell of the table."""
    weights = run.work / "weights.safetensors"
    world = DlrmWorld(run.work / "models", weights)
    data = run.work / "requests.json"
    save_input_data(data, world.request(2048))
    probe = world.request(300)
    load = _Load(run, data)
    try:
        with _triton(run, weights, TRITON_SETTINGS[0]) as (port, _), _emberline(run, (0, 1)) as (own, _):
            np.testing.assert_allclose(scores(own, probe), scores(port, probe), atol=1e-6)
    except PeerMissingError as error:
        run.report.remark(f"left out: {error}")
        return
    settings = _best_triton(run, weights, load)
    ours = _best_of_ours(run, load)
    run.report.remark(
        f"Triton {TRITON}, best of {len(TRITON_SETTINGS)} settings: {settings}; ours, best of {len(OUR_SETTINGS)}: "
        f"{ours[0]} front end(s), {ours[1]} session(s)"
    )
    run.report.remark("load: perf_analyzer 2.50 in a process of its own on the same cores, closed loop")
    with _emberline(run, ours) as (port, _):
        _agreement(run, world, data, port)
    with _triton(run, weights, settings) as peer, _emberline(run, ours) as own:
        np.testing.assert_allclose(scores(own[0], probe), scores(peer[0], probe), atol=1e-6)
        for concurrency in (LOADED,) if run.quick else (LOADED, *LIGHT):
            for protocol in ("http", "grpc"):
                for batch in BATCHES:
                    if run.report.rows and run.is_late(f"{protocol}, batch {batch}, concurrency {concurrency}"):
                        return
                    _cell(run, load, protocol, batch, concurrency, peer, own)


def _agreement(run: Run, world: DlrmWorld, data: Path, port: int) -> None:
    """Compares the latency that perf_analyzer measures on a calm server with that of our own generator."""
    saved, result = run.work / "bodies.npz", run.work / "records.npy"
    save_bodies(saved, [binary_body(world.request(64)) for _ in range(20)])
    ours, theirs = [], []
    for _ in range(3 if run.quick else run.repeats):
        load = PacedLoad(port, "dlrm", CALM, saved, result).start()
        time.sleep(3.0)
        records = load.stop()
        ours.append(float(np.median(records["ms"][len(records) // 4 :])))
        figures = run_perf_analyzer(port, "http", "dlrm", data, batch=64, concurrency=0, seconds=3.0, rate=CALM)
        theirs.append(figures.p50_ms)
    run.report.pairs(
        f"median latency of {CALM} requests/s, batch 64: our own generator", ours, theirs, "perf_analyzer", unit="ms"
    )


def _cell(
    run: Run, load: _Load, protocol: str, batch: int, concurrency: int, peer: tuple[int, int], own: tuple[int, int]
) -> None:
    place = ("http", "grpc").index(protocol)
    latencies: dict[str, list[float]] = {"triton": [], "ours": []}

    def contestant(name: str, port: int) -> Contestant:
        def measured(turn: int) -> float:
            figures = load(port, protocol, batch, concurrency)
            latencies[name].append(figures.p99_ms)
            return figures.requests

        return measured

    samples = run.interleave(
        {"triton": contestant("triton", peer[place]), "ours": contestant("ours", own[place])}, max_s=_MAX_S
    )
    what = f"{protocol}, batch {batch}, concurrency {concurrency}"
    target = TARGETS[protocol][batch] if concurrency == LOADED else None
    run.report.compare(what, samples, "triton", unit="requests/s", target=target)
    kept = [index for index, disturbed in enumerate(samples.disturbed) if not (samples.is_clean and disturbed)]
    # The first turn warms up and is not in the samples.
    ours, theirs = ([latencies[name][1:][index] for index in kept] for name in ("ours", "triton"))
    run.report.pairs(
        f"{what}: p99", ours, theirs, "triton", unit="ms", target=1.0 if target else None, less_is_better=True
    )
    run.settle(samples)


class _Load:
    """Measures a server once."""

    def __init__(self, run: Run, data: Path) -> None:
        self._data = data
        self.seconds = 0.9 if run.quick else 3.0

    def __call__(self, port: int, protocol: str, batch: int, concurrency: int) -> Figures:
        return run_perf_analyzer(
            port, protocol, "dlrm", self._data, batch=batch, concurrency=concurrency, seconds=self.seconds
        )


def _best_triton(run: Run, weights: Path, load: _Load) -> TritonSettings:
    """Returns the setting with the best geometric mean over batches, over HTTP under load."""

    def of(settings: TritonSettings) -> float:
        with _triton(run, weights, settings) as (port, _):
            return geometric_mean([load(port, "http", batch, LOADED).requests for batch in BATCHES])

    return TRITON_SETTINGS[0] if run.quick else max(TRITON_SETTINGS, key=of)


def _best_of_ours(run: Run, load: _Load) -> tuple[int, int]:
    """Returns our best number of front ends and sessions, by the same measure."""

    def of(settings: tuple[int, int]) -> float:
        with _emberline(run, settings) as (port, _):
            return geometric_mean([load(port, "http", batch, LOADED).requests for batch in BATCHES])

    return (1, 1) if run.quick else max(OUR_SETTINGS, key=of)


@contextlib.contextmanager
def _triton(run: Run, weights: Path, settings: TritonSettings) -> Iterator[tuple[int, int]]:
    """Starts a Triton server; yields its ports for HTTP and gRPC. Its instances are processes that it starts."""
    with TritonServer(run.work, weights, settings) as server, run.counted(*family(server.process.pid)):
        yield server.http_port, server.grpc_port


@contextlib.contextmanager
def _emberline(run: Run, settings: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Starts one of our servers; yields its ports for HTTP and gRPC. settings: front ends, sessions."""
    frontends, sessions = settings
    config = run.work / "models" / "dlrm" / "config.pbtxt"
    groups = f"instance_group [{{ kind: KIND_CPU count: {sessions} }}]\n"
    config.write_text(f'backend: "emberline"\ndynamic_batching {{ }}\n{groups}')
    server = ServerProcess(run.work / "models", run.work / "store", run.work / "serve.log", frontends=frontends)
    with server, run.counted(*family(server.process.pid)):
        yield server.http_port, server.grpc_port


def scores(port: int, rows: Sequence[Tensor]) -> np.ndarray:
    """Returns the scores of some rows, by JSON, which both servers accept alike."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v2/models/dlrm/infer", data=json_body(rows))
    with urllib.request.urlopen(request, timeout=30) as answer:
        return np.array(json.load(answer)["outputs"][0]["data"], np.float32)


if __name__ == "__main__":
    script("triton")
