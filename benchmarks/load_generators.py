"""Claim: the tail that `emberline loadtest` measures in an open loop is within 10% of that of wrk2.

A DLRM is asked over HTTP by locust's users in an open loop and, at the same time and each at half of the rate, by
another generator. The same moments of the same server are measured by both, so what disturbs one disturbs the other:
one after the other, a generator differs from itself by a factor of 2 to 4 on a machine of two cores. How far two of
ours differ so is measured, too. wrk2 counts latency from when a request was due, as we do; h2load and perf_analyzer
count it from the sending, which leaves out how long a request that is sent late has waited. So the target is about
wrk2, and the others are written down. The rate is a share of what wrk gets from the server in a closed loop.

    apt-get install wrk nghttp2-client                 # wrk and h2load, once
    python -m benchmarks.peers.triton_environment      # perf_analyzer, once; wrk2 is built from its source
    python -m benchmarks.load_generators               # about twenty-five minutes
    python -m benchmarks.load_generators --quick
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.catalog import Run
from benchmarks.command import script
from benchmarks.dlrm_requests import MODEL, SAMPLES
from benchmarks.dlrm_world import DlrmWorld
from benchmarks.gauge import QUIET_CORES
from benchmarks.generators import Figures
from benchmarks.generators.perf_analyzer import run_perf_analyzer, save_input_data
from benchmarks.generators.wrk import run_wrk, save_script
from benchmarks.measure import median
from benchmarks.peers import PeerMissingError
from benchmarks.peers.triton_environment import perf_analyzer
from benchmarks.served_load import Served, measure_load, serve
from loadtest.bodies import binary_body
from loadtest.compiled import CompiledDriver
from loadtest.drivers import LocustDrivers
from loadtest.phases import Phase
from loadtest.prepared import encode
from loadtest.records import PhaseRecord
from loadtest.runner import Drivers
from loadtest.target import Target

KIND = "http_binary"
BODIES = 256
CONNECTIONS = 16
SECONDS, QUICK_SECONDS = 45, 16
#: Shares of the most that the server answers, by batch. wrk2 waits by timers of whole milliseconds, so where an answer
#: takes one or two, its latencies are larger by a good part.
SETTINGS: Mapping[int, Sequence[float]] = {64: (0.25, 0.5), 256: (0.5,)}
QUICK_SETTINGS: Mapping[int, Sequence[float]] = {256: (0.5,)}
WITHIN = 1.1
QUICK_S = 180.0
# wrk2 measures nothing in its first ten seconds, in which it calibrates itself; ours are left out, too.
_RUN_UP_S = 10
#: The name of a second generator of ours, which shows how far one differs from itself.
SELF = "itself"

Contestant = Callable[[], Figures]


@dataclass
class Pairs:
    """Holds what ours and another generator measured at the same time, and the cores that others used meanwhile."""

    ours: list[Figures] = field(default_factory=list)
    theirs: list[Figures] = field(default_factory=list)
    others: list[float] = field(default_factory=list)

    def ratios(self) -> list[float]:
        """Returns our p99 over theirs."""
        return [mine.p99_ms / other.p99_ms for mine, other in zip(self.ours, self.theirs, strict=True)]


def measure(run: Run) -> None:
    """Measures each batch at each share of the most that the server answers."""
    world = DlrmWorld(run.work / "models", run.work / "weights.safetensors")
    with serve(run, run.work / "models", run.work / "store", MODEL) as served:
        for batch, shares in (QUICK_SETTINGS if run.quick else SETTINGS).items():
            _measure_batch(run, served, world, batch, shares)


def _measure_batch(run: Run, served: Served, world: DlrmWorld, batch: int, shares: Sequence[float]) -> None:
    folder = run.work / f"batch-{batch}"
    requests = [world.request(batch) for _ in range(BODIES)]
    prepared = encode(KIND, MODEL, [requests])
    for name in ("ours", SELF):
        (folder / name).mkdir(parents=True)
        prepared.save(folder / name / "requests")
    data = folder / "requests.json"
    save_input_data(data, world.request(SAMPLES))
    wrk = save_script(folder / "wrk.lua", [binary_body(tensors) for tensors in requests[:16]])
    most = run_wrk(served.http_port, MODEL, wrk, connections=CONNECTIONS, seconds=1 if run.quick else 5).requests
    target = Target(f"http://127.0.0.1:{served.http_port}", f"127.0.0.1:{served.grpc_port}", MODEL)
    with ExitStack() as running:
        ours = {}
        for name in ("ours", SELF):
            ours[name] = LocustDrivers(KIND, target, folder / name / "requests", users=CONNECTIONS, processes=1)
            running.enter_context(ours[name])
            running.enter_context(run.counted(*ours[name].pids))
        for share in shares:
            half = round(most * share / 2)
            others = {SELF: _contestant(run, ours[SELF], half)}
            for name in ("wrk2", "h2load"):
                if shutil.which(name) is None:
                    run.report.remark(f"left out: no program {name}")
                    continue
                files = folder / f"{name}-{half}"
                files.mkdir()
                driver = CompiledDriver(name, KIND, target, prepared, files, connections=CONNECTIONS, threads=1)
                others[name] = _contestant(run, driver, half)
            try:
                perf_analyzer()
                others["perf_analyzer"] = partial(_by_perf_analyzer, run, served, data, batch, half)
            except PeerMissingError as error:
                run.report.remark(f"left out: perf_analyzer: {error}")
            mine = _contestant(run, ours["ours"], half)
            _compare(run, served, mine, others, f"{2 * half}/s, {share:.0%} of the most, batch {batch}")


def _compare(run: Run, served: Served, mine: Contestant, others: Mapping[str, Contestant], what: str) -> None:
    """Measures each of the others beside ours, in turns."""
    pairs = {name: Pairs() for name in others}
    try:
        for turn in range(2 if run.quick else run.repeats):
            if run.is_late(f"{what}: turn {turn + 1}"):
                break
            for name, other in others.items():
                _pair(run, served, mine, other, pairs[name])
    finally:
        for name, found in pairs.items():
            _report(run, name, found, what)


def _pair(run: Run, served: Served, mine: Contestant, other: Contestant, found: Pairs) -> None:
    measured: list[Figures] = []

    def both(_: Served) -> Figures:
        with ThreadPoolExecutor(1) as beside:
            asked = beside.submit(other)
            measured.append(mine())
            measured.append(asked.result())
        answers = sum(each.answers for each in measured)
        return Figures(answers, sum(each.requests for each in measured), measured[0].p50_ms, measured[0].p99_ms)

    load = measure_load(run, served, both, 8 * CONNECTIONS)
    found.ours.append(measured[0])
    found.theirs.append(measured[1])
    found.others.append(load.others_cores)


def _contestant(run: Run, driver: Drivers, rate: int) -> Contestant:
    seconds = float(QUICK_SECONDS if run.quick else SECONDS)

    def generator() -> Figures:
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


def _by_perf_analyzer(run: Run, served: Served, data: Path, batch: int, rate: int) -> Figures:
    seconds = QUICK_SECONDS / 2 if run.quick else SECONDS - _RUN_UP_S
    return run_perf_analyzer(
        served.http_port, "http", MODEL, data, batch=batch, concurrency=CONNECTIONS, seconds=seconds, rate=rate
    )


def _report(run: Run, name: str, pairs: Pairs, what: str) -> None:
    if not pairs.ours:
        return
    for quantile, target in (("p99", 1 / WITHIN if name == "wrk2" else None), ("p50", None)):
        run.report.pairs(
            f"{quantile} of an open loop, half of {what}",
            [getattr(each, f"{quantile}_ms") for each in pairs.ours],
            [getattr(each, f"{quantile}_ms") for each in pairs.theirs],
            name,
            unit="ms",
            target=target,
            less_is_better=True,
            disturbed=median(pairs.others) > QUIET_CORES,
        )
    ratios = pairs.ratios()
    run.report.remark(
        f"{what}: our p99 over that of {name}: {median(ratios):.3f} ({min(ratios):.2f}..{max(ratios):.2f}); cores that "
        f"others used {median(pairs.others):.2f} ({min(pairs.others):.2f}..{max(pairs.others):.2f})"
    )


if __name__ == "__main__":
    script("load_generators")
