"""Measures lookups in which every id hits, over a replica that the GPU made, for `gpu_lookup`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import cast

from benchmarks.gpu.bench import Bench, latency_us
from benchmarks.gpu.dense import always
from benchmarks.gpu.events import Launch, Timed, forget, largest
from benchmarks.gpu.limits import PlainKernels, embedding_bag, fbgemm, index_select
from benchmarks.gpu.replica import GpuRows, Lookups, Shape, fitting_rows
from benchmarks.measure import Contestant, Samples
from serving.gpu.driver import Graph

ROWS, QUICK_ROWS, TOY_ROWS = 100_000_000, 10_000_000, 3_000
IDS, TOY_IDS = 1 << 20, 512
BAG, TOY_BAG = 64, 16
SMALL_IDS = 4096
# Launches in one graph, so that the interpreter is not what is measured.
IN_A_GRAPH = 50
WIDE, NARROW, TINY = Shape(128, "fp32"), Shape(32, "fp16"), Shape(16, "fp16")
# Targets, as shares of what the GPU reaches by row numbers.
OF_GATHER = {WIDE: 0.80, NARROW: 0.45}
OF_POOLED = 0.65
# FBGEMM on an H100, 10 tables, 1.05 M keys, d128 fp32, Zipf(1.05): the best published figure.
BEST_PUBLIC = 2.29e9
TINY_RATE = 4e9
OVER_TORCH, OVER_FBGEMM = 2.0, 1.0
SMALL_US = 15.0
SKEWS = {"uniform": "uniform", "zipf": "Zipf(1.05)"}
GIDS = 1e-9
# Enough batches that none finds its rows in the GPU's caches: eight of them touch 64 MB of ids alone.
_BATCHES = 8


def gather(bench: Bench) -> None:
    """Measures gathers: rows of a million ids, decoded and written out."""
    plain = PlainKernels(bench.gpu)
    for shape, target in OF_GATHER.items():
        _gather(bench, plain, shape, target)


def pool(bench: Bench) -> None:
    """Measures pooling: sums of bags of a million ids in all."""
    plain = PlainKernels(bench.gpu)
    for shape in (WIDE, TINY):
        for skew in SKEWS:
            _pool(bench, plain, shape, skew)


# Each takes one kind of batches, so that its GPU memory is freed before the next.


def _gather(bench: Bench, plain: PlainKernels, shape: Shape, target: float) -> None:
    rows = _rows(bench, shape)
    lookups = _lookups(bench, rows, "uniform", None)
    timed = {
        "ours": _timed(bench, lookups, lookups.launch),
        "plain kernel": _timed(bench, lookups, plain.launch(lookups)),
        "torch index_select": _timed(bench, lookups, index_select(lookups)),
    }
    samples = _race(bench, lookups, timed, limits=("plain kernel", "torch index_select"))
    what = f"{lookups.ids:,} uniform ids of {rows.index.rows:,} rows, {shape}, written out"
    against = (("limit", target, "by row numbers"), ("torch index_select", None, "given row numbers"))
    for other, judged, note in against:
        bench.compare(what, samples, other, unit="G ids/s", scale=GIDS, target=judged, note=note)
    _times(bench, what, timed["ours"])
    bench.run.settle(samples)


def _pool(bench: Bench, plain: PlainKernels, shape: Shape, skew: str) -> None:
    rows = _rows(bench, shape)
    lookups = _lookups(bench, rows, skew, bench.times(BAG, BAG, TOY_BAG))
    timed = {
        "ours": _timed(bench, lookups, lookups.launch),
        "plain kernel": _timed(bench, lookups, plain.launch(lookups)),
        "torch EmbeddingBag": _timed(bench, lookups, embedding_bag(lookups), calls=10),
    }
    peer = _fbgemm(bench, lookups)
    if peer is not None:
        timed["FBGEMM"] = _timed(bench, lookups, peer)
    limits = ("plain kernel", *(["FBGEMM"] if peer is not None else []))
    samples = _race(bench, lookups, timed, limits=limits)
    what = f"{lookups.bags:,} bags of {lookups.length} ids, {SKEWS[skew]}, {rows.index.rows:,} rows, {shape}, summed"
    is_wide = shape == WIDE
    samples.add("bound", always(BEST_PUBLIC if is_wide else TINY_RATE))
    against = [
        ("limit", OF_POOLED, "by row numbers"),
        ("bound", 1.0, "FBGEMM's best public figure, H100" if is_wide else ""),
        ("torch EmbeddingBag", OVER_TORCH, "given row numbers"),
        *([("FBGEMM", OVER_FBGEMM, "given row numbers")] if peer is not None else []),
    ]
    for other, target, note in against:
        judged = target if is_wide or other == "bound" else None
        bench.compare(what, samples, other, unit="G ids/s", scale=GIDS, target=judged, note=note)
    _times(bench, what, timed["ours"])
    bench.run.settle(samples)


def across(bench: Bench) -> None:
    """Looks up rows as those of another GPU, beside the same as its own: the cost of the search, without a link."""
    if bench.is_simulated:
        bench.remark("rows of another GPU: left out, it needs a GPU")
        return
    rows = _rows(bench, WIDE)
    length = bench.times(BAG, BAG, TOY_BAG)
    lookups = _lookups(bench, rows, "uniform", length)
    other = _lookups(bench, rows, "uniform", length, across=True)
    timed = {"ours": _timed(bench, other, other.launch), "own": _timed(bench, lookups, lookups.launch)}
    samples = _race(bench, lookups, timed, limits=("own",))
    what = f"{lookups.bags:,} bags of {length} ids, uniform, {rows.index.rows:,} rows, {WIDE}, summed, as another GPU's"
    bench.compare(what, samples, "own", unit="G ids/s", scale=GIDS, note="the same GPU's memory: no link")
    bench.run.settle(samples)


def small(bench: Bench) -> None:
    """Measures a few thousand ids in a captured graph: by the GPU's clock, and from the launch until the host knows.

    By the GPU's clock many lookups are one graph, each of other ids: with one graph each, they would be launched no
    faster than the interpreter can, which takes about as long as the lookup.
    """
    rows = _rows(bench, WIDE)
    driver = bench.gpu.driver
    ids = bench.times(SMALL_IDS, SMALL_IDS, 64)
    count = bench.times(IN_A_GRAPH, IN_A_GRAPH, 3)
    lookups = Lookups(rows, count, ids, skew="uniform")
    lookups.check()
    many = _captured(bench, lookups, lookups.launch_counted, count)
    one = _captured(bench, lookups, lookups.launch_counted, 1)
    timed = _timed(bench, lookups, partial(_launch, bench, many, lookups))
    done = driver.new_event(busy_wait=True)

    def whole() -> None:
        driver.launch(one, lookups.stream)
        driver.record(done, lookups.stream)
        driver.synchronize(done)

    contestants: Mapping[str, Contestant] = {
        "ours": partial(_each, timed, count),
        "host": latency_us(whole, bench.seconds(0.06, 0.02)),
    }
    samples = bench.interleave(contestants, max_s=6.0)
    samples.add("bound", always(SMALL_US))
    what = f"{ids:,} ids, {WIDE}, all hit"
    inside = f"{what}, one of {count} in a graph, on the GPU"
    for ours, name, target in (
        ("ours", inside, 1.0),
        ("host", f"{what}, one graph, launch until the host knows", None),
    ):
        bench.compare(name, samples, "bound", ours=ours, target=target, unit="us", less_is_better=True)
    _times(bench, f"{what}, {count} in a graph", timed)
    bench.run.settle(samples)


def _captured(bench: Bench, lookups: Lookups, launch: Launch, count: int) -> Graph:
    """Captures a graph of `count` launches, of a batch each. Kernels are loaded before, once, outside of it."""
    driver = bench.gpu.driver
    lookups.launch_counted(0)
    launch(0)
    done = driver.new_event()
    driver.record(done, lookups.stream)
    driver.synchronize(done)

    def work() -> None:
        for number in range(count):
            launch(number)

    return driver.capture(work, driver.new_pool(), lookups.stream, name="lookup")


def _launch(bench: Bench, graph: Graph, lookups: Lookups, number: int) -> None:
    bench.gpu.driver.launch(graph, lookups.stream)


def _each(timed: Timed, count: int, turn: int) -> float:
    """Returns the microseconds of one of the launches in a graph."""
    return timed.run(turn) / count


def _rows(bench: Bench, shape: Shape) -> GpuRows:
    """Returns the rows of a shape; the GPU holds one shape at a time. All share one index, made for the widest."""
    kept = cast(GpuRows | None, bench.kept.get("rows"))
    if kept is not None and kept.shape == shape:
        return kept
    index = None if kept is None else kept.index
    bench.kept.pop("rows", None)
    del kept
    forget()
    wanted = bench.settings.rows or bench.times(ROWS, QUICK_ROWS, TOY_ROWS)
    count = fitting_rows(wanted, bench.gpu.driver.memory().free, WIDE.row_bytes) if index is None else index.rows
    rows = GpuRows.make(bench.gpu, shape, count, index)
    bench.kept["rows"] = rows
    made = rows.index
    share = 100 * float(made.has_place.sum()) / made.rows
    bench.remark(
        f"the index: {made.rows:,} rows in {len(made.buckets):,} buckets, {share:.2f} % have a place, "
        f"{100 * made.in_second:.0f} % of these in their second bucket"
    )
    if count < wanted:
        bench.remark(f"{count:,} rows instead of {wanted:,}: more of {WIDE} do not fit into this GPU's memory")
    return rows


def _lookups(bench: Bench, rows: GpuRows, skew: str, length: int | None, *, across: bool = False) -> Lookups:
    """Returns lookups whose first batch was checked."""
    forget()
    ids = bench.times(IDS, IDS, TOY_IDS)
    batches = bench.times(_BATCHES, _BATCHES, 2)
    lookups = Lookups(rows, batches, ids, skew=skew, length=length, across=across)
    lookups.check()
    return lookups


def _timed(bench: Bench, lookups: Lookups, launch: Launch, calls: int = 40) -> Timed:
    times = bench.times(calls, calls // 2, 3)
    return Timed(bench.gpu.driver, lookups.stream, launch, times=times, run_up=max(1, times // 4))


def _race(bench: Bench, lookups: Lookups, timed: Mapping[str, Timed], *, limits: tuple[str, ...]) -> Samples:
    """Measures ids a second of each; "limit" is the fastest of those given row numbers."""
    contestants = {name: each.per_second(lookups.ids) for name, each in timed.items()}
    samples = bench.interleave(contestants, max_s=8.0)
    samples.add("limit", largest(limits))
    return samples


def _times(bench: Bench, what: str, timed: Timed) -> None:
    p50, p99 = timed.percentile(50), timed.percentile(99)
    bench.remark(f"{what}: by CUDA events {p50:.1f} us, p99 {p99:.1f} us, {len(timed.us)} launches")


def _fbgemm(bench: Bench, lookups: Lookups) -> Launch | None:
    """Returns FBGEMM's launch; None where there is no FBGEMM for a GPU."""
    if bench.is_simulated:
        bench.remark("FBGEMM: left out, it needs a GPU")
        return None
    try:
        launch, rows = fbgemm(lookups, bench.gpu.driver.memory().free)
    except (ImportError, AttributeError, RuntimeError) as error:
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        bench.remark(f"FBGEMM: left out, it is not installed for this GPU: {why}")
        return None
    if rows <= lookups.rows.index.rows:
        bench.remark(f"FBGEMM: {rows:,} rows, which is what is left of the GPU's memory beside ours")
    return launch
