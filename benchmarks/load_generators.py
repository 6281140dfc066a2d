"""Claim: the tail that `emberline loadtest` measures in an open loop is within 10% of that of wrk2.

A DLRM is asked at the same rate over HTTP by locust's users in an open loop and by generators in C. wrk2 counts latency
from when a request was due, as we do; h2load and perf_analyzer count it from the sending, which leaves out how long a
request that is sent late has waited. So the target is about wrk2, and the other two are written down. All generators
are asked in turn; the server runs all the time. The rate is a share of what wrk gets from it in a closed loop.

    apt-get install wrk nghttp2-client                 # wrk and h2load, once
    python -m benchmarks.peers.triton_environment      # perf_analyzer, once; wrk2 is built from its source
    python -m benchmarks.load_generators               # about twenty-five minutes
    python -m benchmarks.load_generators --quick
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks.catalog import Run
from benchmarks.command import script
from benchmarks.dlrm_requests import MODEL, SAMPLES
from benchmarks.dlrm_world import DlrmWorld
from benchmarks.generators import Figures
from benchmarks.generators.perf_analyzer import run_perf_analyzer, save_input_data
from benchmarks.generators.wrk import run_wrk, save_script
from benchmarks.measure import median
from benchmarks.peers import PeerMissingError
from benchmarks.peers.triton_environment import perf_analyzer
from benchmarks.served_load import Served, Turns, in_turns, measure_load, serve
from loadtest.bodies import binary_body
from loadtest.compiled import CompiledDriver
from loadtest.drivers import LocustDrivers
from loadtest.phases import Phase
from loadtest.prepared import Prepared, encode
from loadtest.records import PhaseRecord
from loadtest.runner import Drivers
from loadtest.target import Target

KIND = "http_binary"
BATCH, BODIES = 64, 256
CONNECTIONS = 32
# wrk2 measures nothing in its first ten seconds, in which it calibrates itself.
SECONDS, QUICK_SECONDS = 25.0, 13.0
SHARES, QUICK_SHARES = (0.25, 0.5), (0.25,)
WITHIN = 1.1
QUICK_S = 180.0
# Seconds at the begin that are left out of our own figures.
_RUN_UP_S = 2

Contestant = Callable[[Served], Figures]


def measure(run: Run) -> None:
    """Measures each share of the most that the server answers."""
    world = DlrmWorld(run.work / "models", run.work / "weights.safetensors")
    requests = [world.request(BATCH) for _ in range(BODIES)]
    prepared = encode(KIND, MODEL, [requests])
    prepared.save(run.work / "requests")
    save_input_data(run.work / "requests.json", world.request(SAMPLES))
    wrk = save_script(run.work / "wrk.lua", [binary_body(tensors) for tensors in requests[:16]])
    with serve(run, run.work / "models", run.work / "store", MODEL) as served, ExitStack() as running:
        most = run_wrk(served.http_port, MODEL, wrk, connections=CONNECTIONS, seconds=1 if run.quick else 5).requests
        target = Target(f"http://127.0.0.1:{served.http_port}", f"127.0.0.1:{served.grpc_port}", MODEL)
        drivers = LocustDrivers(KIND, target, run.work / "requests", users=CONNECTIONS, processes=1)
        running.enter_context(drivers)
        for share in QUICK_SHARES if run.quick else SHARES:
            rate = round(most * share)
            contestants = {"ours": _contestant(run, drivers, rate), **_others(run, target, prepared, rate)}
            turns = in_turns(
                run,
                {
                    name: partial(measure_load, run, served, contestant, 4 * CONNECTIONS)
                    for name, contestant in contestants.items()
                },
            )
            _report(run, turns, rate, share)
            turns.settle()


def _others(run: Run, target: Target, prepared: Prepared, rate: int) -> dict[str, Contestant]:
    """Returns the generators that are there."""
    found: dict[str, Contestant] = {}
    for name in ("wrk2", "h2load"):
        if shutil.which(name) is None:
            run.report.remark(f"left out: no program {name}")
            continue
        folder = run.work / f"{name}-{rate}"
        folder.mkdir()
        driver = CompiledDriver(name, KIND, target, prepared, folder, connections=CONNECTIONS, threads=1)
        found[name] = _contestant(run, driver, rate)
    try:
        perf_analyzer()
    except PeerMissingError as error:
        run.report.remark(f"left out: perf_analyzer: {error}")
        return found
    found["perf_analyzer"] = partial(_by_perf_analyzer, run, run.work / "requests.json", rate)
    return found


def _contestant(run: Run, driver: Drivers, rate: int) -> Contestant:
    seconds = QUICK_SECONDS if run.quick else SECONDS

    def generator(_: Served) -> Figures:
        record = driver.run(Phase(seconds, (rate, rate)), seed=None, drain_s=10.0, watch=lambda _: False)
        if record.interrupted:
            raise KeyboardInterrupt
        if record.broken:
            raise RuntimeError(record.broken)
        for note in record.generator_notes():
            run.report.remark(f"ours: {note}")
        return _figures(record)

    return generator


def _figures(record: PhaseRecord) -> Figures:
    whole = record.counts()
    counts = record.counts(_RUN_UP_S) if len(record.seconds) > _RUN_UP_S else whole
    answers = whole.latency.total - whole.unanswered
    return Figures(answers, answers / record.lasted, counts.latency.quantile(0.5), counts.latency.quantile(0.99))


def _by_perf_analyzer(run: Run, data: Path, rate: int, served: Served) -> Figures:
    seconds = 3.0 if run.quick else SECONDS
    return run_perf_analyzer(
        served.http_port, "http", MODEL, data, batch=BATCH, concurrency=CONNECTIONS, seconds=seconds, rate=rate
    )


def _report(run: Run, turns: Turns, rate: int, share: float) -> None:
    what = f"{rate}/s, {share:.0%} of the most, batch {BATCH}"
    for name in turns.loads:
        if name == "ours" or not turns.loads[name]:
            continue
        for quantile, target in (("p99", 1 / WITHIN if name == "wrk2" else None), ("p50", None)):
            turns.report(
                run,
                f"{quantile} of an open loop, {what}",
                lambda load, quantile=quantile: getattr(load.figures, f"{quantile}_ms"),  # type: ignore[misc]
                unit="ms",
                against=name,
                target=target,
                less_is_better=True,
            )
        run.report.remark(f"{what}: our p99 over that of {name}: {_ratios(turns, name)}")
    run.report.remark(f"{what}: cores that others used: {turns.others()}")


def _ratios(turns: Turns, name: str) -> str:
    ours, theirs = ([load.figures.p99_ms for load in turns.loads[each]] for each in ("ours", name))
    ratios: Sequence[float] = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    return f"{median(ratios):.3f} ({min(ratios):.2f}..{max(ratios):.2f})"


if __name__ == "__main__":
    script("load_generators")
