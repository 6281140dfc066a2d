"""The whole way of a request in process, lookups and all, beside what bounds it; and new weights under that load."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.gpu_bench import SESSIONS, Bench
from benchmarks.gpu_dense import always, dense_runs, rate_of
from benchmarks.gpu_served import Served, callers
from benchmarks.gpu_world import DenseRuns
from benchmarks.measure import Contestant, per_second, together
from serving.engine.requests import InferenceResult
from serving.engine.snapshot import Snapshot
from serving.gpu.staged_lookup import StagedLookup
from storage.features import Column, FeatureBatch
from storage.tiers.tiered import LookupResult

_PRECISION = "bf16"
_POOL = 48
_DELTA_SESSIONS, _DELTA_EVERY_S = 4, 0.25


def end_to_end(bench: Bench) -> None:
    """Samples a second and times of requests, by sessions, and which bound holds them."""
    batch = bench.sizes.batch
    served = _served(bench)
    requests = served.requests(bench.times(_POOL, 16, 4), batch)
    _check(served, requests[0], batch)
    bus = bench.limits.to_card / bench.sizes.row_bytes()
    for count in SESSIONS if not bench.settings.quick else (1, 4):
        served.model.resize(count)
        served.model.group.wait_warm()
        _one_count(bench, served, requests, count, bus)


def _one_count(bench: Bench, served: Served, requests: Sequence[Mapping[str, Column]], count: int, bus: float) -> None:
    batch = bench.sizes.batch
    batches = [served.model.parts.features(columns, batch) for columns in requests]
    seen: list[np.ndarray] = []
    with dense_runs(bench, _PRECISION, [batch], count=count) as (lanes,):
        alone = [LookupAlone(served, lane, batches) for lane in lanes]

        def whole(turn: int) -> float:
            with callers(served, count, requests) as load:
                load.window(bench.seconds(0.3, 0.1))
                rate, us = load.window(bench.seconds(1.0, 0.4), least=5)
            if turn:
                seen.append(us)
            return rate * batch

        contestants: dict[str, Contestant] = {
            "ours": whole,
            "lookups": together([each.contestant(bench.seconds(0.3, 0.15)) for each in alone]),
            "dense": rate_of(bench, lanes),
        }
        samples = bench.interleave(contestants, max_s=15.0)
    samples.add("bus", always(bus))
    bounds = {name: float(np.median(samples.values(name))) for name in ("lookups", "dense", "bus")}
    least = min(bounds, key=lambda name: bounds[name])
    what = f"end to end, {count} sessions, {_PRECISION}, batch {batch}"
    bench.compare(what, samples, least, unit="samples/s", note="the least of the bounds")
    p50s, p99s = ([float(np.percentile(us, q)) / 1000 for us in seen] for q in (50, 99))
    bench.pairs(f"{what}, a request: p99", p99s, p50s, "p50", unit="ms", less_is_better=True)
    words = ", ".join(f"{name} {rate:,.0f}" for name, rate in bounds.items())
    reached = float(np.median(samples.values("ours"))) / bounds[least]
    holds = f"{least} hold it" if reached > 0.8 else "none of these: queue, threads and the interpreter"
    bench.remark(f"{what}: bounds in samples/s: {words}; {holds} ({reached:.2f} of the least)")
    bench.run.settle(samples)


class LookupAlone:
    """What a session looks up, into the same pinned memory, without the card."""

    def __init__(self, served: Served, lane: DenseRuns, batches: Sequence[FeatureBatch]) -> None:
        published = served.world.published
        graph = published.manifest.graph
        self._lookup = StagedLookup(published.spec, served.store, graph, range(len(graph.inputs)))
        self._views = lane.lane.begin(lane.rows)
        self._batches, self._rows = batches, lane.rows

    def run(self, number: int) -> LookupResult:
        """One batch."""
        return self._lookup.run(self._batches[number % len(self._batches)], None, 0, self._views)

    def contestant(self, piece_s: float) -> Contestant:
        """Samples a second."""
        return per_second(self.run, self._rows, piece_s=piece_s)


def new_weights(bench: Bench) -> None:
    """Dense weights of a delta, brought to the card and served under load; what batches beside them take."""
    batch = bench.sizes.batch
    sessions = 2 if bench.is_simulated else _DELTA_SESSIONS
    served = _served(bench)
    served.model.resize(sessions)
    served.model.group.wait_warm()
    requests = served.requests(bench.times(_POOL, 16, 4), batch)
    device = next(iter(served.model.parts.devices.models.values()))
    watch = FirstAnswer()
    steps = iter(range(1, 1 << 30))
    with callers(served, sessions, requests, hear=watch.hear) as load:

        def deltas(seconds: float, least: int) -> list[tuple[float, float, float]]:
            """Weights every quarter of a second; milliseconds to the card, to the switch, to the first answer."""
            took: list[tuple[float, float, float]] = []
            ends = time.monotonic() + seconds
            while time.monotonic() < ends or len(took) < least:
                number = next(steps)
                began = time.perf_counter()
                graph = served.world.other_weights(served.graph, number % 50)
                snapshot = served.snapshot(graph, number)
                with device.banks.pinned(graph) as bank:
                    bench.card.driver.synchronize(bank.ready)
                there = time.perf_counter()
                answered = watch.expect(snapshot)
                served.model.line.switch(snapshot)
                switched = time.perf_counter()
                answered.wait(30.0)
                took.append(tuple((at - began) * 1000 for at in (there, switched, watch.at)))  # type: ignore[arg-type]
                time.sleep(min(_DELTA_EVERY_S, seconds))
            return took

        bench.card.driver.enter_thread()
        deltas(0.0, 4)  # every bank has been used then
        captures = bench.card.driver.counts["capture"]
        quiet, beside, times = [], [], []
        for _ in range(bench.repeats):
            quiet.append(float(np.percentile(load.window(bench.seconds(1.5, 0.6), least=20)[1], 99)) / 1000)
            start = time.perf_counter()
            times += deltas(bench.seconds(1.5, 0.6), 2)
            beside.append(float(np.percentile(load.answered.within(start, time.perf_counter()), 99)) / 1000)
        captured = bench.card.driver.counts["capture"] - captures
    mib = device.banks.layout.bytes / 2**20
    bus_ms = device.banks.layout.bytes / bench.limits.to_card * 1000
    what = f"new weights, {mib:.1f} MiB, beside {sessions} sessions"
    served_ms = [each[2] for each in times]
    bench.pairs(
        f"{what}: call to first answer", served_ms, [bus_ms] * len(times), "the bus", unit="ms", less_is_better=True
    )
    bench.pairs(f"{what}: p99 of a request", beside, quiet, "without", unit="ms", less_is_better=True)
    bench.pairs(
        f"{what}: graphs captured", [captured], [0], "none", unit="graphs", target=1.0, counts=True, less_is_better=True
    )
    there, switched = (float(np.median([each[place] for each in times])) for place in (0, 1))
    bench.remark(f"{what}, {len(times)} times: on the card after {there:.1f} ms, switched after {switched:.1f} ms")


class FirstAnswer:
    """Hears of the first answer of a snapshot. at: when it came."""

    def __init__(self) -> None:
        self.at = 0.0
        self._expected: Snapshot | None = None
        self._came = threading.Event()

    def expect(self, snapshot: Snapshot) -> threading.Event:
        """Set when an answer of this snapshot comes."""
        self._came.clear()
        self._expected = snapshot
        return self._came

    def hear(self, columns: Mapping[str, Column], result: InferenceResult) -> None:
        """Each answer."""
        if result.snapshot is self._expected:
            self.at = time.perf_counter()
            self._expected = None
            self._came.set()


def _served(bench: Bench) -> Served:
    """One model for both parts: its tables are large."""
    served: Served | None = bench.kept.get("served")
    if served is None:
        served = Served(bench, _PRECISION, bench.sizes.batch)
        bench.kept["served"] = served
        bench.at_end(served.close)
        bench.remark(
            f"26 tables of {served.rows:,} rows of {bench.sizes.dim} values as {bench.sizes.row_type}, "
            f"{26 * served.rows * served.row_bytes / 2**30:.1f} GiB in DRAM, filled in {served.fill_s:.0f} s; "
            "ids by Zipf(1.05)"
        )
    return served


def _check(served: Served, columns: Mapping[str, Column], batch: int) -> None:
    """Raises AssertionError unless a request's scores are the processor's."""
    parts = served.model.parts
    features = parts.features(columns, batch)
    expected = parts.score_once(features, served.first, parts.processor)[0]
    counts = parts.processor.score([features], served.first).counts
    if counts.absent or counts.unresolved:
        raise AssertionError(f"rows that are there were not found: {counts}")
    got = parts.score_once(features, served.first, served.model.parts.devices.first() or parts.processor)[0]
    differs = float(np.abs(got - expected).max())
    if not differs <= 0.03:
        raise AssertionError(f"scores differ by {differs:.3g} from the processor's")
