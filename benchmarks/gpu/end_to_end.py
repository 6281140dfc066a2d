"""Measures whole requests in process, lookups included, beside what bounds them; and new weights under that load.

This is done three times: with the rows in DRAM, with all of them in the GPU's memory, and with a tenth of them there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.dlrm_towers import DENSE, SPARSE
from benchmarks.gpu.bench import SESSIONS, Bench
from benchmarks.gpu.dense import always, dense_runs, rate_of
from benchmarks.gpu.served import Served, callers
from benchmarks.gpu.world import DenseRuns
from benchmarks.measure import Contestant, per_second, together
from serving.engine.requests import InferenceResult
from serving.gpu.staged_lookup import StagedLookup
from serving.pipeline.snapshot import Snapshot
from storage.features import Column, FeatureBatch
from storage.tiers.tiered import LookupResult

# The share of the rows in the GPU's memory.
TENTH = 0.1
PLACES = {0.0: "rows in DRAM", 1.0: "rows in HBM", TENTH: "a tenth in HBM"}
_PRECISION = "bf16"
_POOL = 48
_DELTA_SESSIONS, _DELTA_EVERY_S = 4, 0.25


# The least share of ids that must hit in the GPU's memory when every row is there.
_LEAST_HITS = 0.99


def on_host(bench: Bench) -> None:
    """Measures samples a second, request times and the limiting bound by number of sessions; rows come from DRAM."""
    _end_to_end(bench, 0.0)


def in_hbm(bench: Bench) -> None:
    """Measures the same with every row in the GPU's memory."""
    _end_to_end(bench, 1.0)


def tenth_in_hbm(bench: Bench) -> None:
    """Measures the same with a tenth of the rows in the GPU's memory, and the others in DRAM."""
    _end_to_end(bench, TENTH)


def _end_to_end(bench: Bench, hbm_share: float) -> None:
    batch = bench.sizes.batch
    served = _served(bench, hbm_share)
    requests = served.requests(bench.times(_POOL, 16, 4), batch)
    _check(served, requests[0], batch)
    bus = bench.limits.to_gpu / (8 * SPARSE + 4 * DENSE if hbm_share else bench.sizes.row_bytes())
    for count in SESSIONS if not bench.settings.quick else (1, 4):
        served.model.resize(count)
        served.model.group.wait_warm()
        _one_count(bench, served, requests, count, bus, PLACES[hbm_share])


def _one_count(
    bench: Bench, served: Served, requests: Sequence[Mapping[str, Column]], count: int, bus: float, place: str
) -> None:
    batch = bench.sizes.batch
    batches = [served.model.parts.features(columns, batch) for columns in requests]
    seen: list[np.ndarray] = []
    asked = served.asked()
    with dense_runs(bench, _PRECISION, [batch], count=count) as (sessions,):
        alone = [LookupAlone(served, session, batches) for session in sessions]

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
            "dense": rate_of(bench, sessions),
        }
        samples = bench.interleave(contestants, max_s=15.0)
    samples.add("bus", always(bus))
    # With all rows in the GPU's memory the host looks nothing up; with a tenth, one row in some.
    limits = ("lookups", "dense", "bus") if place == PLACES[0.0] else ("dense", "bus")
    bounds = {name: float(np.median(samples.values(name))) for name in limits}
    least = min(bounds, key=lambda name: bounds[name])
    what = f"end to end, {place}, {count} sessions, {_PRECISION}, batch {batch}"
    bench.compare(what, samples, least, unit="samples/s", note="the least of the bounds")
    p50s, p99s = ([float(np.percentile(us, q)) / 1000 for us in seen] for q in (50, 99))
    bench.pairs(f"{what}, a request: p99", p99s, p50s, "p50", unit="ms", less_is_better=True)
    words = ", ".join(f"{name} {rate:,.0f}" for name, rate in bounds.items())
    reached = float(np.median(samples.values("ours"))) / bounds[least]
    holds = f"{least} hold it" if reached > 0.8 else "none of these: queue, threads and the interpreter"
    bench.remark(f"{what}: bounds in samples/s: {words}; {holds} ({reached:.2f} of the least)")
    _hits(bench, served, asked, what, place)
    bench.run.settle(samples)


def _hits(bench: Bench, served: Served, before: tuple[int, int], what: str, place: str) -> None:
    """Reports how many ids hit on the GPU. Raises AssertionError if that contradicts the placement."""
    lookups, misses = (now - then for now, then in zip(served.asked(), before, strict=True))
    if place == PLACES[0.0]:
        if lookups:
            raise AssertionError(f"{lookups} ids were looked up on a GPU that is to have no rows")
        return
    hits = 1 - misses / max(1, lookups)
    bench.remark(f"{what}: {lookups:,} ids were looked up on the GPU, {100 * hits:.2f} % of them were there")
    if not lookups or (place == PLACES[1.0] and hits < _LEAST_HITS):
        raise AssertionError(f"{lookups} ids were looked up, {misses} were missed: the figures are of something else")


class LookupAlone:
    """Runs a session's lookups alone, into the same pinned memory, without the GPU."""

    def __init__(self, served: Served, session: DenseRuns, batches: Sequence[FeatureBatch]) -> None:
        published = served.world.published
        graph = published.manifest.graph
        self._lookup = StagedLookup(published.spec, served.store, graph, range(len(graph.inputs)))
        self._views = session.session.begin(session.rows)
        self._batches, self._rows = batches, session.rows

    def run(self, number: int) -> LookupResult:
        """Looks up one batch."""
        return self._lookup.run(self._batches[number % len(self._batches)], None, 0, self._views)

    def contestant(self, piece_s: float) -> Contestant:
        """Measures samples a second."""
        return per_second(self.run, self._rows, piece_s=piece_s)


def new_weights(bench: Bench) -> None:
    """Copies a delta's dense weights to the GPU and serves them under load; reports the time of concurrent batches."""
    batch = bench.sizes.batch
    sessions = 2 if bench.is_simulated else _DELTA_SESSIONS
    served = _served(bench, 1.0)
    served.model.resize(sessions)
    served.model.group.wait_warm()
    requests = served.requests(bench.times(_POOL, 16, 4), batch)
    device = next(iter(served.model.parts.devices.models.values()))
    watch = FirstAnswer()
    steps = iter(range(1, 1 << 30))
    with callers(served, sessions, requests, hear=watch.hear) as load:

        def deltas(seconds: float, least: int) -> list[tuple[float, float, float]]:
            """Loads new weights every quarter of a second.

            Returns the milliseconds until they were on the GPU, until the switch, and until the first answer.
            """
            took: list[tuple[float, float, float]] = []
            ends = time.monotonic() + seconds
            while time.monotonic() < ends or len(took) < least:
                number = next(steps)
                began = time.perf_counter()
                graph = served.world.other_weights(served.graph, number % 50)
                snapshot = served.snapshot(graph, number)
                with device.weight_slots.pinned(graph) as weight_slot:
                    bench.gpu.driver.synchronize(weight_slot.ready)
                there = time.perf_counter()
                answered = watch.expect(snapshot)
                served.model.history.switch(snapshot)
                switched = time.perf_counter()
                answered.wait(30.0)
                took.append(tuple((at - began) * 1000 for at in (there, switched, watch.at)))  # type: ignore[arg-type]
                time.sleep(min(_DELTA_EVERY_S, seconds))
            return took

        bench.gpu.driver.enter_thread()
        deltas(0.0, 4)  # every weight slot has been used by now
        captures = bench.gpu.driver.counts["capture"]
        quiet, beside, times = [], [], []
        for _ in range(bench.repeats):
            quiet.append(float(np.percentile(load.window(bench.seconds(1.5, 0.6), least=20)[1], 99)) / 1000)
            start = time.perf_counter()
            times += deltas(bench.seconds(1.5, 0.6), 2)
            beside.append(float(np.percentile(load.answered.within(start, time.perf_counter()), 99)) / 1000)
        captured = bench.gpu.driver.counts["capture"] - captures
    mib = device.weight_slots.layout.bytes / 2**20
    bus_ms = device.weight_slots.layout.bytes / bench.limits.to_gpu * 1000
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
    bench.remark(f"{what}, {len(times)} times: on the GPU after {there:.1f} ms, switched after {switched:.1f} ms")


class FirstAnswer:
    """Records the first answer of a snapshot. at: when it came."""

    def __init__(self) -> None:
        self.at = 0.0
        self._expected: Snapshot | None = None
        self._came = threading.Event()

    def expect(self, snapshot: Snapshot) -> threading.Event:
        """Returns an event that is set when an answer of this snapshot comes."""
        self._came.clear()
        self._expected = snapshot
        return self._came

    def hear(self, columns: Mapping[str, Column], result: InferenceResult) -> None:
        """Receives each answer."""
        if result.snapshot is self._expected:
            self.at = time.perf_counter()
            self._expected = None
            self._came.set()


def _served(bench: Bench, hbm_share: float) -> Served:
    """Returns the one model that all parts share, because its tables are large."""
    served: Served | None = bench.kept.get("served")
    if served is not None:
        served.place(hbm_share)
        return served
    served = Served(bench, _PRECISION, bench.sizes.batch, hbm_share=hbm_share)
    bench.kept["served"] = served
    bench.at_end(served.close)
    bench.remark(
        f"26 tables of {served.rows:,} rows of {bench.sizes.dim} values as {bench.sizes.row_type}, "
        f"{26 * served.rows * served.row_bytes / 2**30:.1f} GiB in DRAM, filled in {served.fill_s:.0f} s; "
        "ids by Zipf(1.05)"
    )
    return served


def _check(served: Served, columns: Mapping[str, Column], batch: int) -> None:
    """Raises AssertionError unless a request's scores equal those computed by the processor."""
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
