"""Prediction, not measured: the figures that `gpu_sessions` should find on an H200, by bytes, operations and launches.

    python -m benchmarks.gpu.prediction_sessions --svg FILE           # two sessions, as they should overlap

Written before any GPU ran it, from benchmarks/gpu/prediction_assumptions.py and the model's sizes;
`python -m benchmarks.gpu.figures` writes the page.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.dlrm_towers import DENSE, SPARSE
from benchmarks.gpu.dense import FOUR_OVER_ONE, GRAPH_TARGETS, P50_US, P99_OVER_P50
from benchmarks.gpu.end_to_end import PLACES
from benchmarks.gpu.measured import Found, Line
from benchmarks.gpu.prediction_assumptions import (
    BUCKET_BYTES,
    BUS,
    CALL_US,
    COPY,
    EAGER_US,
    FLOPS,
    H200,
    INTERPRETER_US,
    ITEM,
    KERNELS,
    LOOKUP_BYTES_S,
    MISS_US,
    NODE_US,
    OPERATOR_US,
    PACK_US,
    POLICY_POINT,
)
from benchmarks.gpu.prediction_rows import hottest, lookup, small_us
from benchmarks.gpu.replica import Shape
from benchmarks.gpu.trace import IDLE_PERCENT
from benchmarks.gpu.world import FULL
from benchmarks.timeline import Span, svg

# A bucket and a row are read; the row is written as fp32, and the cache line that it is written to is fetched first.
_LOOKUP_BYTES = BUCKET_BYTES + 2 * FULL.dim + 2 * 4 * FULL.dim
# With rows in the GPU's memory, ids and dense values cross the bus instead.
_ID_BYTES = 8 * SPARSE + 4 * DENSE


def copy_us(batch: int) -> float:
    """Predicts the microseconds in which the packed inputs cross the bus."""
    return batch * FULL.row_bytes() / BUS * 1e6


def gpu_us(precision: str, batch: int) -> float:
    """Predicts the microseconds of the graph's kernels, one after the other."""
    products = FULL.flops(batch) / FLOPS[precision] * 1e6
    moved = FULL.moved_bytes(batch, ITEM[precision]) / COPY * 1e6
    return KERNELS[precision] * NODE_US + products + moved


def graph_us(precision: str, batch: int) -> float:
    """Predicts the microseconds from launch to result with a CUDA graph."""
    return gpu_us(precision, batch) + CALL_US


def eager_us(precision: str, batch: int) -> float:
    """Predicts the same for eager operators: the host or the GPU is the bottleneck."""
    return max(KERNELS[precision] * OPERATOR_US + EAGER_US, gpu_us(precision, batch)) + CALL_US


def session_rate(precision: str, sessions: int, batch: int) -> float:
    """Predicts samples a second of copies and graphs: one after the other in a session, one bus for all."""
    alone = batch / (copy_us(batch) + graph_us(precision, batch)) * 1e6
    return min(sessions * alone, batch / copy_us(batch) * 1e6)


def lookup_us(batch: int) -> float:
    """Predicts the microseconds of one thread's lookups for a batch."""
    return batch * SPARSE * _LOOKUP_BYTES / LOOKUP_BYTES_S * 1e6


@dataclass(frozen=True)
class Whole:
    """The costs of a whole batch."""

    #: Microseconds of a session, without the interpreter.
    us: float
    #: Microseconds of the interpreter, which one session holds at a time.
    interpreter_us: float
    #: Microseconds of the bus.
    bus_us: float
    #: The bottleneck of one session, in words.
    by: str

    def rate(self, sessions: int, batch: int) -> tuple[float, str]:
        """Returns samples a second, and what limits them."""
        bounds = {
            "the sessions": sessions * batch / (self.us + self.interpreter_us) * 1e6,
            "the bus": batch / self.bus_us * 1e6,
            "the interpreter": batch / self.interpreter_us * 1e6,
        }
        least = min(bounds, key=lambda name: bounds[name])
        return bounds[least], least


def whole(hbm_share: float, batch: int) -> Whole:
    """Predicts a batch end to end, in bf16, with this share of the rows in the GPU's memory."""
    graph = graph_us("bf16", batch)
    if not hbm_share:
        copy, found = copy_us(batch), lookup_us(batch)
        by = f"lookups {found:.0f} us, copy {copy:.0f} us, graph {graph:.0f} us, interpreter {INTERPRETER_US:.0f} us"
        return Whole(found + copy + graph, INTERPRETER_US, copy, by)
    shape, ids = Shape(FULL.dim, "fp16"), SPARSE * batch
    missed = 0.0 if hbm_share == 1.0 else 1 - hottest(hbm_share * FULL.table_rows, FULL.table_rows) + POLICY_POINT
    copy = batch * (_ID_BYTES + SPARSE * missed * (4 * FULL.dim + 16)) / BUS * 1e6
    late = ids * missed * MISS_US + (CALL_US + 2 * NODE_US if missed else 0.0)
    search = max(small_us(shape), ids / lookup(H200, shape, 4 * FULL.dim).ids * 1e6)
    interpreter = INTERPRETER_US + PACK_US
    by = f"copy {copy:.0f} us, search and rows {search:.0f} us, graph {graph:.0f} us, interpreter {interpreter:.0f} us"
    by += f", {100 * missed:.0f} % missed {late:.0f} us" if missed else ""
    return Whole(copy + search + graph + late, interpreter, copy, by)


def lines() -> list[Line]:
    """Returns every figure that has a target, and related ones without."""
    return [*_graphs(), *_sessions(), *_whole(), *_weights(), *_soak()]


def _line(figure: str, target: str, predicted: str, by: str, found: Found) -> Line:
    return Line(figure, target, (predicted,), by, found)


def _graphs() -> list[Line]:
    found = []
    for precision in FLOPS:
        for size, target in GRAPH_TARGETS.items():
            graph, eager = graph_us(precision, size), eager_us(precision, size)
            held = "host" if eager - CALL_US > gpu_us(precision, size) else "GPU"
            by = (
                f"{graph:.0f} us ({KERNELS[precision]} x {NODE_US} us, products "
                f"{FULL.flops(size) / FLOPS[precision] * 1e6:.0f} us) beside {eager:.0f} us, held by the {held}"
            )
            name, row = f"graph over eager, {precision}, batch {size}", f"graph, {precision}, batch {size}"
            place = Found(f"{row}, launch to result", "eager")
            found.append(_line(name, f">= {target:g}x", f"{eager / graph:.1f}x", by, place))
    return found


def _sessions() -> list[Line]:
    found, batch = [], FULL.batch
    for precision in ("fp32", "bf16"):
        one, four = session_rate(precision, 1, batch), session_rate(precision, 4, batch)
        by = (
            f"{four / 1e6:.1f} M samples/s, by the bus: {batch} x {FULL.row_bytes():,} B at {BUS / 1e9:.0f} GB/s "
            f"is {copy_us(batch):.0f} us, a batch alone {copy_us(batch) + graph_us(precision, batch):.0f} us"
        )
        name, target = f"4 sessions over 1, {precision}, copies and graphs", f">= {FOUR_OVER_ONE:g}x"
        place = Found(f"4 sessions, {precision}, batch {batch}, copies and graphs", "1 sessions")
        found.append(_line(name, target, f"{four / one:.1f}x", by, place))
    for precision in FLOPS:
        us = graph_us(precision, batch)
        by = f"as above; with the copy of the inputs {us + copy_us(batch):.0f} us"
        place = Found(f"launch to result, {precision}, batch {batch}, one idle session: p50", "", "ours")
        found.append(_line(f"launch to result, {precision}: p50", f"<= {P50_US:.0f} us", f"{us:.0f} us", by, place))
    place = Found(f"launch to result, bf16, batch {batch}, one idle session: p99", "p50")
    target = f">= {1 / P99_OVER_P50:.2f}x"
    found.append(_line("launch to result: p50 over p99", target, "0.83x", "nothing waits, a core each", place))
    place = Found(f"idle gaps of the GPU, 4 sessions, bf16, batch {batch}", "", "ours")
    by = "the bus is never free: copies follow each other"
    found.append(_line("idle gaps, 4 sessions", f"<= {IDLE_PERCENT:.0f} %", "2 %", by, place))
    return found


def _whole() -> list[Line]:
    found, batch = [], FULL.batch
    for share, place in PLACES.items():
        batches = whole(share, batch)
        for sessions in (1, 2, 4, 8):
            rate, least = batches.rate(sessions, batch)
            row = Found(f"end to end, {place}, {sessions} sessions, bf16, batch {batch}", "", "ours")
            name, by = f"end to end, {place}, bf16, {sessions} sessions", f"{least}; a batch: {batches.by}"
            found.append(_line(name, "", f"{rate / 1e6:.2f} M samples/s", by, row))
    return found


def _weights() -> list[Line]:
    size = FULL.weights * 2
    return [
        _line(
            "new weights: call to first answer",
            "",
            "5 ms",
            f"rounding and packing {FULL.weights / 1e6:.1f} M numbers 3 ms, {size / 2**20:.1f} MiB over the bus "
            f"{size / BUS * 1e3:.2f} ms, the batch that is under way 2 ms",
            Found("new weights, .* call to first answer", "", "ours"),
        ),
        _line(
            "new weights: p99 without over p99 beside",
            "",
            "0.9x",
            "one copy beside others, no capture, no wait",
            Found("new weights, .* p99 of a request", "without"),
        ),
        _line(
            "new weights: graphs captured",
            "0",
            "0",
            "three weight slots, captured at the start; also so in the simulation",
            Found("new weights, .* graphs captured", "", "ours"),
        ),
    ]


def _soak() -> list[Line]:
    return [
        _line(
            "soak: device memory, first quarter and 1 % over the last",
            ">= 1x",
            "1.0x",
            "all of it is there from the start; also in the simulation",
            Found("soak of .* device memory, last quarter"),
        ),
        _line(
            "soak: wrong scores", "0", "0", "also so in the simulation", Found("soak of .* wrong scores", "", "ours")
        ),
    ]


def predicted_spans(sessions: int = 2, batches: int = 4) -> list[Span]:
    """Predicts how sessions overlap: lookups on their threads, copies on one bus, graphs on one GPU."""
    batch = FULL.batch
    spans: list[Span] = []
    free = [lookup_us(batch) * number / sessions for number in range(sessions)]
    bus = 0.0
    for turn in range(batches * sessions):
        number = turn % sessions
        row, start = f"session {number}", free[number]
        looked_up = start + lookup_us(batch)
        begins = max(looked_up, bus)
        bus = begins + copy_us(batch)
        ends = bus + graph_us("bf16", batch)
        spans.append(Span(row, "lookups of 26 features, on the session's thread", "lookup", start, looked_up))
        spans.append(Span(row, "copy of the packed inputs", "copy in", begins, bus))
        spans.append(Span(row, "graph: unpack, compute, copy of the results", "graph", bus, ends))
        free[number] = ends
    return spans


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--svg", type=Path, metavar="FILE", required=True, help="draw two sessions")
    options = parser.parse_args(arguments)
    if not options.svg.absolute().parent.is_dir():
        parser.error(f"--svg {options.svg}: no folder {options.svg.parent}")
    title = f"Prediction, not measured: two sessions on an H200, DLRM with 26 tables, batch {FULL.batch}, bf16"
    options.svg.write_text(svg(predicted_spans(), title), encoding="utf-8")


if __name__ == "__main__":
    main()
