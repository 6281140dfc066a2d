"""Measures the dense part on a GPU: graphs beside eager operators, several sessions beside one, the time of a batch.

It contains no lookups.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from benchmarks.gpu.bench import SESSIONS, Bench, latency_us
from benchmarks.gpu.device import PRECISIONS
from benchmarks.gpu.world import DenseRuns
from benchmarks.measure import Contestant, per_second, together
from serving.gpu.device_model import DeviceModel
from storage.checkpoint import DenseGraph
from storage.checkpoint.program import TORCH_LOCK

# Targets of the ratio of graphs to eager operators, by batch size.
GRAPH_TARGETS = {64: 3.0, 512: 2.0, 2048: 1.3}
FOUR_OVER_ONE = 2.0
P50_US, P99_OVER_P50 = 100.0, 1.5
# The precisions in which sessions are compared: the usual one, and the fastest.
_SESSION_PRECISIONS = ("fp32", "bf16")
_ITEM = {"fp32": 4, "tf32": 4, "bf16": 2}


@contextmanager
def dense_runs(
    bench: Bench, precision: str, batches: Sequence[int], *, graphs: bool = True, count: int = 1
) -> Iterator[list[list[DenseRuns]]]:
    """Yields, for each batch size, the dense parts of `count` sessions over one copy of the weights."""
    graph = bench.world.graph(precision)
    model = bench.world.device_model(bench.gpu, precision, batches, graphs=graphs)
    with _closing(model) as opened:
        made: list[list[DenseRuns]] = []
        for batch in batches:
            made.append([])
            for number in range(count):
                made[-1].append(DenseRuns(bench.gpu, model, graph, batch, seed=number))
                opened.append(made[-1][-1])
        yield made


@contextmanager
def _closing(model: DeviceModel) -> Iterator[list[DenseRuns]]:
    """Yields a list, and closes what was put into it, then the model."""
    opened: list[DenseRuns] = []
    try:
        yield opened
    finally:
        for each in opened:
            each.close()
        opened.clear()
        model.close()
        gc.collect()


@contextmanager
def inputs_there(bench: Bench) -> Iterator[None]:
    """Skips copies to the GPU while the context is open: it computes on the inputs of the last batch."""
    bench.gpu.driver.leaves_out_copies = True
    try:
        yield
    finally:
        bench.gpu.driver.leaves_out_copies = False


def graphs(bench: Bench) -> None:
    """Compares CUDA graphs with the same operators launched one by one, from launch to results on the host."""
    limits, sizes = bench.limits, bench.sizes
    piece_s = bench.seconds(0.06, 0.02)
    for precision in PRECISIONS:
        with (
            dense_runs(bench, precision, sizes.batches) as captured,
            dense_runs(bench, precision, sizes.batches, graphs=False) as eager,
        ):
            worst = max(each[0].check(precision) for each in (*captured, *eager))
            for batch, (one,), (other,) in zip(sizes.batches, captured, eager, strict=True):
                with inputs_there(bench):
                    contestants = {
                        "ours": latency_us(one.launch, piece_s),
                        "eager": latency_us(other.launch, piece_s),
                    }
                    samples = bench.interleave(contestants, max_s=4.0)
                by_bytes = sizes.moved_bytes(batch, _ITEM[precision]) / limits.copy * 1e6
                by_flops = sizes.flops(batch) / limits.flops[precision] * 1e6
                samples.add("floor", always(max(by_bytes, by_flops)))
                what = f"graph, {precision}, batch {batch}, launch to result"
                target = GRAPH_TARGETS.get(batch)
                bench.compare(what, samples, "eager", unit="us", target=target, less_is_better=True)
                bench.compare(what, samples, "floor", unit="us", less_is_better=True)
                bench.remark(f"floor of {precision}, batch {batch}: bytes {by_bytes:.1f} us, FLOPs {by_flops:.1f} us")
                bench.run.settle(samples)
        bench.remark(f"{precision}: scores differ by at most {worst:.2g} from the processor's")


def sessions(bench: Bench) -> None:
    """Measures threads with a session each over one copy of the weights: copies in, graphs, copies out.

    The inputs lie in staging.
    """
    batch = bench.sizes.batch
    bus = bench.limits.to_gpu / bench.sizes.row_bytes()
    for precision in _SESSION_PRECISIONS:
        with dense_runs(bench, precision, [batch], count=max(SESSIONS)) as ((*sessions,),):
            rates = {f"{count} sessions": rate_of(bench, sessions[:count]) for count in SESSIONS}
            samples = bench.interleave(rates, max_s=12.0)
            with inputs_there(bench):
                alone = bench.interleave(
                    {f"{count} sessions": rate_of(bench, sessions[:count], copies=False) for count in (1, 4)}, max_s=4.0
                )
        samples.add("the bus", always(bus))
        what = f"{precision}, batch {batch}"
        for count in SESSIONS[1:]:
            bench.compare(
                f"{count} sessions, {what}, copies and graphs",
                samples,
                "1 sessions",
                ours=f"{count} sessions",
                unit="samples/s",
                target=FOUR_OVER_ONE if count == 4 else None,
            )
        bench.compare(f"4 sessions, {what}, copies and graphs", samples, "the bus", ours="4 sessions", unit="samples/s")
        bench.compare(f"4 sessions, {what}, graphs alone", alone, "1 sessions", ours="4 sessions", unit="samples/s")
        bench.run.settle(samples)


def always(value: float) -> Callable[[Mapping[str, float]], float]:
    """Returns a function that gives the same figure in every repeat."""
    return lambda figures: value


def rate_of(bench: Bench, sessions: Sequence[DenseRuns], *, copies: bool = True) -> Contestant:
    """Measures samples a second of these sessions, each on a thread of its own. copies: include copies to the GPU."""
    works = [each.whole if copies else each.launch for each in sessions]
    piece_s = bench.seconds(0.3, 0.1)
    return together([entered(each, work, piece_s) for each, work in zip(sessions, works, strict=True)])


def entered(session: DenseRuns, work: Callable[[], None], piece_s: float) -> Contestant:
    """Measures samples a second of one session, on the calling thread."""
    measured = per_second(lambda number: work(), session.rows, piece_s=piece_s)

    def run(turn: int) -> float:
        session.enter_thread()
        return measured(turn)

    return run


def latency(bench: Bench) -> None:
    """Measures one idle session, batch after batch: from launch to results, and from packed inputs to results."""
    batch = bench.sizes.batch
    for precision in PRECISIONS:
        with dense_runs(bench, precision, [batch]) as ((session,),):
            what = f"{precision}, batch {batch}, one idle session"
            with inputs_there(bench):
                p50s, p99s = _percentiles(bench, session.launch)
            _latency_rows(bench, f"launch to result, {what}", p50s, p99s, judged=True)
            p50s, p99s = _percentiles(bench, session.whole)
            _latency_rows(bench, f"packed inputs to result, {what}", p50s, p99s, judged=False)
            bench.remark(_where_time_goes(bench, session, what))


def _percentiles(bench: Bench, work: Callable[[], None]) -> tuple[list[float], list[float]]:
    """Returns medians and 99th percentiles in microseconds: of 5,000 calls or more in all, 1,000 in each repeat."""
    calls = bench.times(1250, 1000, 20)
    p50s, p99s = [], []
    for repeat in range(bench.times(5, 5, 2) + 1):
        took = np.empty(calls)
        for number in range(calls):
            began = time.perf_counter_ns()
            work()
            took[number] = time.perf_counter_ns() - began
        if repeat:
            p50s.append(float(np.percentile(took, 50)) / 1000)
            p99s.append(float(np.percentile(took, 99)) / 1000)
    return p50s, p99s


def _latency_rows(bench: Bench, what: str, p50s: list[float], p99s: list[float], *, judged: bool) -> None:
    bound = [P50_US] * len(p50s)
    one, other = (1.0, 1 / P99_OVER_P50) if judged else (None, None)
    bench.pairs(f"{what}: p50", p50s, bound, "bound", unit="us", target=one, less_is_better=True)
    bench.pairs(f"{what}: p99", p99s, p50s, "p50", unit="us", target=other, less_is_better=True)


def _where_time_goes(bench: Bench, session: DenseRuns, what: str) -> str:
    """Returns the times of a batch by the GPU's events, in words.

    These are the copy in, and the graph, which ends with the copy of the results.
    """
    driver = bench.gpu.driver
    calls = bench.times(500, 200, 10)
    driver.read_times()
    driver.is_timing = True
    try:
        for _ in range(calls):
            session.whole()
    finally:
        driver.is_timing = False
    times = driver.read_times()
    words = [f"{name} {np.median(each):.1f} us" for name, each in times.items()]
    bus_us = bench.sizes.row_bytes() * session.rows / bench.limits.to_gpu * 1e6
    return (
        f"by CUDA events, {what}: {', '.join(words)} (the results' copy is the graph's last node); "
        f"the bus needs {bus_us:.1f} us for the inputs"
    )


def compiler(bench: Bench) -> None:
    """Measures the same graph with kernels that torch's compiler writes, captured like the others."""
    if bench.is_simulated:
        bench.remark("runner compile: left out, it needs a GPU")
        return
    from serving.gpu.runners import RUNNERS

    sizes = bench.sizes
    for precision in ("bf16", "fp32"):
        graph = bench.world.graph(precision)
        model = bench.world.device_model(bench.gpu, precision, sizes.batches, label=f"{precision} compiled")
        with _closing(model) as opened:
            began = time.monotonic()
            with TORCH_LOCK:  # the compiler is not thread-safe
                model.use("compile", RUNNERS["compile"](model.module))
                opened += _each_batch(bench, model, graph)
            bench.remark(f"runner compile, {precision}: ready after {time.monotonic() - began:.0f} s")
            with dense_runs(bench, precision, sizes.batches) as captured:
                for batch, one, (other,) in zip(sizes.batches, opened, captured, strict=True):
                    one.check(precision)
                    with inputs_there(bench):
                        contestants = {
                            "ours": latency_us(one.launch, bench.seconds(0.06, 0.02)),
                            "runner eager": latency_us(other.launch, bench.seconds(0.06, 0.02)),
                        }
                        samples = bench.interleave(contestants, max_s=3.0)
                    bench.compare(
                        f"graph of runner compile, {precision}, batch {batch}, launch to result",
                        samples,
                        "runner eager",
                        unit="us",
                        less_is_better=True,
                    )
                    bench.run.settle(samples)


def _each_batch(bench: Bench, model: DeviceModel, graph: DenseGraph) -> list[DenseRuns]:
    return [DenseRuns(bench.gpu, model, graph, batch) for batch in bench.sizes.batches]
