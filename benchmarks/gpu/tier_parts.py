"""Measures lookups over a store with a GPU, for `gpu_tiers`: the cost of misses, and of a delta under load."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import NamedTuple

import numpy as np

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.dense import always
from benchmarks.gpu.tier_session import TierSession
from benchmarks.gpu.tier_world import Array, TierWorld
from benchmarks.measure import Contestant, per_second, together
from storage.features import Jagged
from storage.specs import LookupSpec

# NVE on a GB200, 256 GB on the host, a tenth on the GPU, d128 fp32, Zipf(1.05), batch 256 x 1024: the ids a second.
NVE_RATE = 432e6
# Upper limit of the table's bytes: more takes too long to fill.
MISS_BYTES = 64e9
MISS_DIM, MISS_BAGS, MISS_LENGTH = 128, 256, 1024
MISS_THREADS = (4, 8)
DELTA_DIM, DELTA_BAGS, DELTA_LENGTH = 64, 512, 26
DELTA_ROWS, DELTA_TABLE = 1_000_000, 20_000_000
DELTA_THREADS = 4
VISIBLE_MS, P99_BESIDE = 20.0, 1.2
MIDS = 1e-6
_POOL = 24
_TOLERANCE = 1e-5
_ANSWER_S = 30.0


def misses(bench: Bench) -> None:
    """Measures lookups with a tenth of the rows on the GPU."""
    bags, length = bench.times(MISS_BAGS, MISS_BAGS, 8), bench.times(MISS_LENGTH, MISS_LENGTH, 32)
    wanted = bench.settings.rows or bench.times(int(MISS_BYTES) // (4 * MISS_DIM), 4_000_000, 4000)
    with TierWorld(bench, "tenth", MISS_DIM, wanted, gpu_share=0.1, popularity="zipf") as world:
        _remark(bench, world)
        rng = np.random.default_rng(5)
        pool = [world.ids(rng, bags * length) for _ in range(bench.times(_POOL, _POOL, 3))]
        counts = MISS_THREADS if not bench.is_simulated else (2,)
        sessions = world.sessions(max(counts), bags, length)
        check(world, sessions[0], pool[0])
        host = [_host_rate(bench, world, pool, bags, length, session) for session in sessions[: counts[0]]]
        for ids in pool:  # warms up the policy and the allocators with all of it
            sessions[0].run(ids)
        before = world.tier.stats().tables[0]
        contestants = {
            f"{count} sessions": together([_rate(bench, session, pool) for session in sessions[:count]])
            for count in counts
        }
        samples = bench.interleave({**contestants, "DRAM alone": together(host)}, max_s=40.0)
        after = world.tier.stats().tables[0]
        for session in sessions:
            session.close()
        what = f"{world.capacity:,} of {world.rows:,} rows on the GPU, d{MISS_DIM} fp32, Zipf(1.05), {bags} x {length}"
        samples.add("bound", always(NVE_RATE))
        for count in counts:
            name = f"{count} sessions"
            judged = 1.0 if count == counts[-1] else None
            for against, target, note in (
                ("bound", judged, "NVE, GB200"),
                ("DRAM alone", None, f"{counts[0]} threads"),
            ):
                bench.compare(
                    f"{what}, {name}",
                    samples,
                    against,
                    target=target,
                    ours=name,
                    unit="M ids/s",
                    scale=MIDS,
                    note=note,
                )
        asked = max(1, after.lookups - before.lookups)
        hit = 100.0 * (1 - (after.misses - before.misses) / asked)
        assert world.popularity is not None
        static = 100.0 * world.popularity.best_static(world.capacity)
        bench.pairs(f"{what}: hit rate on the GPU", [hit], [static], "best static choice", unit="%")
        bench.run.settle(samples)


def delta(bench: Bench) -> None:
    """Measures a delta while sessions look up: until its rows are found, concurrent lookup times, and who stops."""
    rows = bench.times(DELTA_ROWS, 100_000, 100)
    table = bench.settings.rows or bench.times(DELTA_TABLE, 2_000_000, 2000)
    bags, length = bench.times(DELTA_BAGS, DELTA_BAGS, 8), DELTA_LENGTH
    with TierWorld(bench, "delta", DELTA_DIM, table, gpu_share=1.0, popularity="zipf", spare=2 * rows) as world:
        _remark(bench, world)
        rows = min(rows, world.rows)
        rng = np.random.default_rng(6)
        pool = [world.ids(rng, bags * length) for _ in range(_POOL)]
        sessions = world.sessions(DELTA_THREADS + 1, bags, length)
        check(world, sessions[-1], pool[0])
        visible: list[float] = []
        prepared: list[float] = []
        quiet: list[float] = []
        beside: list[float] = []
        hosted = longest = 0.0
        with Load(sessions[:DELTA_THREADS], pool) as load:
            load.wait_answers()
            for step in range(bench.repeats + 1):
                start = time.perf_counter()
                time.sleep(bench.seconds(1.0, 0.4))
                load.wait_answers()  # on a busy machine a moment may pass without one
                calm = load.within(start, time.perf_counter())
                changed = world.delta(rows, step + 1)
                number = world.store.stage(changed, spill=False)
                staged = time.perf_counter()
                world.store.prepare(1 << number)
                ready = time.perf_counter()
                seen = load.switch(1 << number)
                during = load.within(staged, seen)
                _check_delta(sessions[-1], changed.ids, step + 1, 1 << number)
                world.store.prepare(0)
                load.switch(0)
                load.wait_answers()
                world.store.discard(number)
                if step == 0:
                    continue  # memory is touched for the first time
                visible.append((seen - staged) * 1000)
                prepared.append((ready - staged) * 1000)
                quiet.append(float(np.percentile([each.us for each in calm], 99)))
                beside.append(float(np.percentile([each.us for each in during] or [0.0], 99)))
                hosted += sum(each.from_host for each in during)
                longest = max([longest, *(each.us for each in during)])
        for session in sessions:
            session.close()
    what = f"delta of {rows:,} rows x {4 * DELTA_DIM} B, {world.rows:,} rows on the GPU, {DELTA_THREADS} streams"
    rows_of = (
        ("staged until found", visible, [VISIBLE_MS] * len(visible), "bound", "ms", 1.0),
        ("p99 of a lookup", beside, quiet, "without", "us", 1 / P99_BESIDE),
        ("lookups that the GPU could not answer", [hosted], [0.0], "none", "batches", 1.0),
    )
    for name, ours, other, against, unit, target in rows_of:
        counts = unit == "batches"
        bench.pairs(
            f"{what}: {name}", ours, other, against, unit=unit, target=target, counts=counts, less_is_better=True
        )
    bench.remark(
        f"{what}: on the GPU after {np.median(prepared):.1f} ms; the longest lookup meanwhile {longest / 1000:.2f} ms"
    )


class Answered(NamedTuple):
    """One lookup."""

    #: By time.perf_counter().
    ended: float
    #: Microseconds that it took.
    us: float
    mask: int
    from_host: bool


class Load:
    """Sessions that look up without a pause, each on a thread of its own. A context manager."""

    def __init__(self, sessions: Sequence[TierSession], pool: Sequence[Array]) -> None:
        self._sessions, self._pool = sessions, pool
        self._mask = 0
        self._stopping = False
        self._answered: list[list[Answered]] = [[] for _ in sessions]
        self._failures: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(len(sessions))]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._stopping = True
        for thread in self._threads:
            thread.join()
        if self._failures and error is None:
            raise self._failures[0]

    def switch(self, mask: int) -> float:
        """Makes every later lookup use this mask; waits until each session has answered one.

        Returns when the first of these ended.
        """
        at = [len(each) for each in self._answered]
        self._mask = mask

        def first_of(session: int) -> float | None:
            return next((each.ended for each in self._answered[session][at[session] :] if each.mask == mask), None)

        return min(self._wait(first_of))

    def wait_answers(self) -> None:
        """Waits until every session has begun and ended at least one more lookup."""
        at = [len(each) + 1 for each in self._answered]
        self._wait(lambda session: 0.0 if len(self._answered[session]) > at[session] else None)

    def within(self, start: float, end: float) -> list[Answered]:
        """Returns the lookups that ended in a window."""
        return [each for session in self._answered for each in list(session) if start <= each.ended <= end]

    def _wait(self, look: Callable[[int], float | None]) -> list[float]:
        """Waits until `look` finds something for every session; returns what it found."""
        ends = time.monotonic() + _ANSWER_S
        while time.monotonic() < ends:
            if self._failures:
                raise self._failures[0]
            found = [each for each in map(look, range(len(self._sessions))) if each is not None]
            if len(found) == len(self._sessions):
                return found
            time.sleep(0.001)
        raise TimeoutError(f"a session ended no lookup within {_ANSWER_S:.0f} s")

    def _run(self, number: int) -> None:
        session, told = self._sessions[number], self._answered[number]
        try:
            session.enter_thread()
            turn = number
            while not self._stopping:
                mask = self._mask
                began = time.perf_counter()
                answer = session.run(self._pool[turn % len(self._pool)], mask)
                ended = time.perf_counter()
                told.append(Answered(ended, (ended - began) * 1e6, mask, answer.from_host))
                turn += 1
        except BaseException as error:
            self._failures.append(error)


def check(world: TierWorld, session: TierSession, ids: Array) -> None:
    """Raises AssertionError unless a batch has the sums that the host computes."""
    session.enter_thread()
    answer = session.run(ids)
    got = session.sums.copy()
    offsets = np.arange(0, session.ids + 1, session.length, dtype=np.int64)
    plan = world.store.plan([LookupSpec("bags", world.store.tables[0].name, "sum")])
    found = plan.lookup(session.bags, [Jagged(ids, offsets)])
    if answer.from_host:
        raise AssertionError("the GPU does not answer: its figures would be the host's")
    # Relative to the sum of magnitudes; cuda/missed_rows.cuh explains why.
    if found.counts.absent or not np.allclose(got, found.outputs[0], rtol=0, atol=_TOLERANCE * session.length):
        raise AssertionError("a lookup gave other sums than the host: the figures would mean nothing")


def _check_delta(session: TierSession, ids: Array, step: int, mask: int) -> None:
    session.enter_thread()
    asked = np.resize(ids, session.ids)
    answer = session.run(asked, mask)
    if answer.from_host or answer.misses or not (session.sums == float(step * session.length)).all():
        raise AssertionError(
            f"rows of the delta are not those of the GPU: {answer.misses} of {session.ids} were missed, "
            f"first sum {session.sums[0, 0]}, expected {step * session.length}"
        )


def _rate(bench: Bench, session: TierSession, pool: Sequence[Array]) -> Contestant:
    measured = per_second(
        lambda number: session.run(pool[number % len(pool)]), session.ids, piece_s=bench.seconds(1.0, 0.3)
    )

    def run(turn: int) -> float:
        session.enter_thread()
        return measured(turn)

    return run


def _host_rate(
    bench: Bench, world: TierWorld, pool: Sequence[Array], bags: int, length: int, session: TierSession
) -> Contestant:
    """Measures the same sums by the host, into the same memory."""
    plan = world.store.plan([LookupSpec("bags", world.store.tables[0].name, "sum")])
    offsets = np.arange(0, bags * length + 1, length, dtype=np.int64)
    into = plan.arrays(bags, [session.sums])

    def work(number: int) -> None:
        plan.lookup(bags, [Jagged(pool[number % len(pool)], offsets)], into=into)

    return per_second(work, bags * length, piece_s=bench.seconds(1.0, 0.3))


def _remark(bench: Bench, world: TierWorld) -> None:
    stats = world.tier.stats()
    bench.remark(
        f"{world.rows:,} rows of {4 * world.dim} B in DRAM, {stats.rows:,} of them on the GPU "
        f"({stats.device_bytes / 2**30:.1f} GiB there, its index {stats.host_bytes / 2**30:.2f} GiB on the host), "
        f"filled in {world.fill_s:.0f} s{'' if world.is_filled else ', not to the end'}"
    )
