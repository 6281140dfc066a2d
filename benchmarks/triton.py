"""Claims: a DLRM behind Emberline and behind Triton, on the same cores, under the same load generators.

Triton runs the model in its Python backend as plain torch, its 26 tables in one tensor; the best of several settings is
used for it and for ours. Both run all the time and are asked in turn: by wrk over HTTP, by h2load over gRPC, which take
little of the cores, and by perf_analyzer. Processor time is that of all processes of a server, from /proc. Answers are
compared before anything is timed, and must be equal within rounding; a run fails at the first answer that is not good.
The server beside itself follows: one user with many items, overload, two sessions (see `benchmarks.engine`).

    python -m benchmarks.peers.triton_environment      # Triton and perf_analyzer, once
    apt-get install wrk nghttp2-client                 # wrk and h2load, once
    python -m benchmarks.triton                        # about 25 minutes
    python -m benchmarks.triton --only http,grpc
    python -m benchmarks.triton --quick
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from statistics import geometric_mean
from typing import TypeVar

from benchmarks.catalog import Run
from benchmarks.command import script
from benchmarks.dlrm_requests import BATCHES, MODEL, Requests, compare_answers
from benchmarks.dlrm_world import DlrmWorld
from benchmarks.engine import under_load
from benchmarks.generators import program
from benchmarks.peers import PeerMissingError
from benchmarks.peers.triton import TritonServer, TritonSettings
from benchmarks.peers.triton_environment import TRITON, perf_analyzer
from benchmarks.processes import family, running_ns
from benchmarks.served_load import Served, Turns, in_turns, serve

PARTS = ("http", "grpc", "alone", "idle", "perf_analyzer", "user", "overload", "sessions")
BESIDE_TRITON = PARTS[:5]
PROTOCOLS = ("http", "grpc")
LOADED, LIGHT = 32, (8, 1)  # concurrency
# How many times as much Triton needs or takes, at least. Of its processor time: 0.4, 0.6 and 0.75.
CPU = {1: 1 / 0.4, 64: 1 / 0.6, 512: 1 / 0.75}
REQUESTS = {"http": {1: 1.3, 64: 1.3, 512: 1.25}, "grpc": {1: 1.3, 64: 1.3, 512: 1.3}}
PERF_ANALYZER, P99 = 1.0, 1.0
IDLE_PERCENT, IDLE_S = 0.5, 3.0
# The median latency of one row at concurrency 1, in milliseconds: benchmarks/results/2026-11-25-triton-before.txt.
EARLIER_P50_MS = {"http": 1.23, "grpc": 1.59}
TRITON_SETTINGS = [
    TritonSettings(instances, threads, delay) for instances, threads in ((2, 1), (1, 1), (1, 2)) for delay in (0, 200)
]
OUR_SETTINGS = (1, 2)  # sessions
# A setting is chosen for its processor time among those whose requests/s are within this of the most.
_NEAR_MOST = 0.9

Settings = TypeVar("Settings", TritonSettings, int)
# Starts both servers: "ours" and "triton".
Both = Callable[[], AbstractContextManager[dict[str, Served]]]


def measure(run: Run) -> None:
    """Measures every part that is wanted; the longest comes last."""
    both = None
    if any(run.wants(part) for part in BESIDE_TRITON):
        try:
            for name, package in (("wrk", "wrk"), ("h2load", "nghttp2-client")):
                program(name, package)
            perf_analyzer()
            requests, both = prepare(run)
            beside_triton(run, requests, both)
        except PeerMissingError as error:
            run.report.remark(f"left out: {error}")
    under_load(run)
    if both is not None and run.wants("perf_analyzer"):
        with both() as servers:
            _by_perf_analyzer(run, requests, servers)


def prepare(run: Run) -> tuple[Requests, Both]:
    """Compares the answers of both servers and finds the best setting of each."""
    weights = run.work / "weights.safetensors"
    requests = Requests(run, DlrmWorld(run.work / "models", weights))
    serve_triton, serve_ours = partial(_triton, run, weights), partial(_emberline, run)
    settings = _best(run, f"Triton {TRITON}", TRITON_SETTINGS, serve_triton, requests)
    ours = _best(run, "Emberline, sessions", OUR_SETTINGS, serve_ours, requests)

    @contextlib.contextmanager
    def both() -> Iterator[dict[str, Served]]:
        with serve_triton(settings) as peer, serve_ours(ours) as own:
            compare_answers(requests.probe, own, peer)
            yield {"ours": own, "triton": peer}

    return requests, both


def beside_triton(run: Run, requests: Requests, both: Both) -> None:
    """Measures both servers under wrk and h2load, and idle."""
    with both() as servers:
        for protocol in PROTOCOLS:
            if run.wants(protocol):
                _loaded(run, requests, protocol, servers)
        if run.wants("alone"):
            _alone(run, requests, servers)
        if run.wants("idle"):
            _idle(run, servers["ours"], servers["triton"])


def _loaded(run: Run, requests: Requests, protocol: str, servers: dict[str, Served]) -> None:
    """Measures each batch at concurrency 32."""
    for batch in BATCHES:
        what = f"{protocol}, batch {batch}"
        if run.is_late(what):
            return
        turns = in_turns(
            run, {name: partial(requests.load, each, protocol, batch, LOADED) for name, each in servers.items()}
        )
        turns.report(
            run, f"{what}: server CPU", lambda load: load.cpu_us, unit="us", target=CPU[batch], less_is_better=True
        )
        turns.report(run, what, lambda load: load.figures.requests, unit="requests/s", target=REQUESTS[protocol][batch])
        turns.report(run, f"{what}: p50", lambda load: load.figures.p50_ms, unit="ms", less_is_better=True)
        turns.report(run, f"{what}: p99", lambda load: load.figures.p99_ms, unit="ms", target=P99, less_is_better=True)
        _others(run, what, turns)


def _alone(run: Run, requests: Requests, servers: dict[str, Served]) -> None:
    """Measures one client that sends one row after the other."""
    for protocol in PROTOCOLS:
        what = f"{protocol}, batch 1, concurrency 1"
        if run.is_late(what):
            return
        turns = in_turns(run, {name: partial(requests.load, each, protocol, 1, 1) for name, each in servers.items()})
        turns.report(run, f"{what}: p50", lambda load: load.figures.p50_ms, unit="ms", less_is_better=True)
        turns.report(run, f"{what}: server CPU", lambda load: load.cpu_us, unit="us", less_is_better=True)
        p50 = [load.figures.p50_ms for load in turns.loads["ours"]]
        earlier = [EARLIER_P50_MS[protocol]] * len(p50)
        run.report.pairs(f"{what}: p50", p50, earlier, "2026-11-25", unit="ms", less_is_better=True)
        _others(run, what, turns)


def _by_perf_analyzer(run: Run, requests: Requests, servers: dict[str, Served]) -> None:
    """Measures every cell with the load generator of the Triton project."""
    for concurrency in (LOADED,) if run.quick else (LOADED, *LIGHT):
        for protocol in PROTOCOLS:
            for batch in BATCHES:
                what = f"perf_analyzer, {protocol}, batch {batch}, concurrency {concurrency}"
                if run.is_late(what):
                    return
                load = partial(requests.load_of_perf_analyzer, protocol=protocol, batch=batch, concurrency=concurrency)
                try:
                    turns = in_turns(run, {name: partial(load, each) for name, each in servers.items()})
                except PeerMissingError as error:  # on a busy machine it may find no stable measurement
                    run.report.remark(f"left out: {what}: {error}")
                    continue
                turns.report(run, what, lambda load: load.figures.requests, unit="requests/s", target=PERF_ANALYZER)
                _others(run, what, turns)


def _idle(run: Run, own: Served, peer: Served) -> None:
    """Measures both servers while nothing is asked, after the load."""
    percents: dict[str, list[float]] = {"ours": [], "triton": []}
    time.sleep(1.0)
    for _ in range(2 if run.quick else run.repeats):
        pids = {"ours": family(own.pid), "triton": family(peer.pid)}
        before = {name: sum(map(running_ns, each)) for name, each in pids.items()}
        began = time.perf_counter_ns()
        time.sleep(IDLE_S)
        took = time.perf_counter_ns() - began
        for name, each in pids.items():
            percents[name].append(100 * (sum(map(running_ns, each)) - before[name]) / took)
    bounds = [IDLE_PERCENT] * len(percents["ours"])
    what = "idle after load, of one core"
    run.report.pairs(what, percents["ours"], bounds, "bound", unit="%", target=1.0, less_is_better=True)
    run.report.pairs(what, percents["ours"], percents["triton"], "triton", unit="%", less_is_better=True)


def _others(run: Run, what: str, turns: Turns) -> None:
    run.report.remark(f"{what}: cores that others used: {turns.others()}")
    turns.settle()


def _best(
    run: Run,
    name: str,
    settings: Sequence[Settings],
    serve: Callable[[Settings], AbstractContextManager[Served]],
    requests: Requests,
) -> Settings:
    """Returns the setting with the least processor time a request among those with nearly the most requests/s.

    Both are geometric means over protocols and batches under load.
    """
    if run.quick:
        return settings[0]
    seconds, requests.seconds = requests.seconds, 1
    found: list[tuple[Settings, float, float]] = []
    for each in settings:
        with serve(each) as served:
            loads = [requests.load(served, protocol, batch, LOADED) for protocol in PROTOCOLS for batch in BATCHES]
        rate, cpu_us = (
            geometric_mean(values)
            for values in ([load.figures.requests for load in loads], [load.cpu_us for load in loads])
        )
        found.append((each, rate, cpu_us))
    requests.seconds = seconds
    most = max(rate for _, rate, _ in found)
    best = min((each for each in found if each[1] >= _NEAR_MOST * most), key=lambda each: each[2])[0]
    tried = "; ".join(f"{each}: {rate:,.0f} requests/s, {cpu_us:,.0f} us" for each, rate, cpu_us in found)
    run.report.remark(f"{name}: {best}, of (geometric means of all cells) {tried}")
    return best


@contextlib.contextmanager
def _triton(run: Run, weights: Path, settings: TritonSettings) -> Iterator[Served]:
    """Starts a Triton server. Its instances are processes that it starts."""
    with TritonServer(run.work, weights, settings) as server, run.counted(*family(server.process.pid)):
        yield Served(server.http_port, server.grpc_port, server.process.pid, MODEL)


@contextlib.contextmanager
def _emberline(run: Run, sessions: int) -> Iterator[Served]:
    """Starts one of our servers."""
    config = run.work / "models" / MODEL / "config.pbtxt"
    groups = f"instance_group [{{ kind: KIND_CPU count: {sessions} }}]\n"
    config.write_text(f'backend: "emberline"\ndynamic_batching {{ }}\n{groups}')
    with serve(run, run.work / "models", run.work / "store", MODEL) as served:
        yield served


if __name__ == "__main__":
    script("triton")
