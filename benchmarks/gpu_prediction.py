"""What `gpu_sessions` should find on an H200, by bytes, operations and launches: written down before any card ran it.

    python -m benchmarks.gpu_prediction                      # the tables of docs/gpu-figures.md
    python -m benchmarks.gpu_prediction --svg FILE           # two sessions, as they should overlap

The assumptions are the constants below; everything else follows from the model's sizes. Where a figure of a card
differs, one of them is wrong, and that is what the table is for.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.dlrm_towers import SPARSE
from benchmarks.gpu_dense import FOUR_OVER_ONE, GRAPH_TARGETS, P50_US, P99_OVER_P50
from benchmarks.gpu_row_prediction import row_table
from benchmarks.gpu_trace import IDLE_PERCENT
from benchmarks.gpu_world import FULL
from benchmarks.timeline import Span, svg

# PCIe 5 x16 carries 63 GB/s, of which pinned copies reach some 55.
BUS = 55e9
# An H200's memory: 4.8 TB/s, of which a copy reaches five sixths.
MEMORY = 4.0e12
# Products of such sizes reach no more of a card's 67, 495 and 989 TFLOP/s.
FLOPS = {"fp32": 35e12, "tf32": 150e12, "bf16": 200e12}
ITEM = {"fp32": 4, "tf32": 4, "bf16": 2}
# A kernel in a graph, small as they are: to begin and to end.
NODE_US = 2.5
# Kernels of a batch: unpack, 8 layers, 7 ReLU, 4 that put tensors together, products of pairs, sigmoid, result.
# With bf16 there are 5 more that round, or that compute what is read both rounded and not.
KERNELS = {"fp32": 23, "tf32": 23, "bf16": 28}
# What the host takes: an operator from Python, and what a batch costs beside them; a launch and the wait for its end.
OPERATOR_US, EAGER_US, CALL_US = 8.0, 25.0, 15.0
# Of the interpreter, which one thread has at a time: a request end to end.
INTERPRETER_US = 250.0
# One thread's lookups, in bytes read (a line of the index and a row) and written (fp32, and the line fetched first).
LOOKUP_BYTES_S = 12e9
_LOOKUP_BYTES = 64 + 2 * FULL.dim + 2 * 4 * FULL.dim


def copy_us(batch: int) -> float:
    """The packed inputs over the bus."""
    return batch * FULL.row_bytes() / BUS * 1e6


def card_us(precision: str, batch: int) -> float:
    """The graph's kernels, one after the other."""
    products = FULL.flops(batch) / FLOPS[precision] * 1e6
    moved = FULL.moved_bytes(batch, ITEM[precision]) / MEMORY * 1e6
    return KERNELS[precision] * NODE_US + products + moved


def graph_us(precision: str, batch: int) -> float:
    """From launch to result with a CUDA graph."""
    return card_us(precision, batch) + CALL_US


def eager_us(precision: str, batch: int) -> float:
    """The same, operator by operator: the host or the card holds it up."""
    return max(KERNELS[precision] * OPERATOR_US + EAGER_US, card_us(precision, batch)) + CALL_US


def session_rate(precision: str, sessions: int, batch: int) -> float:
    """Samples a second of copies and graphs: one after the other in a session, one bus for all."""
    alone = batch / (copy_us(batch) + graph_us(precision, batch)) * 1e6
    return min(sessions * alone, batch / copy_us(batch) * 1e6)


def lookup_us(batch: int) -> float:
    """Of one thread."""
    return batch * SPARSE * _LOOKUP_BYTES / LOOKUP_BYTES_S * 1e6


def whole_rate(sessions: int, batch: int) -> tuple[float, str]:
    """Samples a second end to end, bf16, and what holds them."""
    alone = lookup_us(batch) + copy_us(batch) + graph_us("bf16", batch) + INTERPRETER_US
    bounds = {
        "the sessions": sessions * batch / alone * 1e6,
        "the bus": batch / copy_us(batch) * 1e6,
        "the interpreter": batch / INTERPRETER_US * 1e6,
    }
    least = min(bounds, key=lambda name: bounds[name])
    return bounds[least], least


@dataclass(frozen=True)
class Line:
    """One row of the table."""

    figure: str
    target: str
    predicted: str
    by: str


def lines() -> list[Line]:
    """Every figure that has a target, and those beside them."""
    found: list[Line] = []
    batch = FULL.batch
    for precision in FLOPS:
        for size, target in GRAPH_TARGETS.items():
            graph, eager = graph_us(precision, size), eager_us(precision, size)
            held = "host" if eager - CALL_US > card_us(precision, size) else "card"
            found.append(
                Line(
                    f"graph over eager, {precision}, batch {size}",
                    f">= {target:g}x",
                    f"{eager / graph:.1f}x",
                    f"{graph:.0f} us ({KERNELS[precision]} x {NODE_US} us, products "
                    f"{FULL.flops(size) / FLOPS[precision] * 1e6:.0f} us) beside {eager:.0f} us, held by the {held}",
                )
            )
    for precision in ("fp32", "bf16"):
        one, four = session_rate(precision, 1, batch), session_rate(precision, 4, batch)
        found.append(
            Line(
                f"4 sessions over 1, {precision}, copies and graphs",
                f">= {FOUR_OVER_ONE:g}x",
                f"{four / one:.1f}x",
                f"{four / 1e6:.1f} M samples/s, by the bus: {batch} x {FULL.row_bytes():,} B at {BUS / 1e9:.0f} GB/s "
                f"is {copy_us(batch):.0f} us, a batch alone {copy_us(batch) + graph_us(precision, batch):.0f} us",
            )
        )
    found += [
        Line(
            f"launch to result, {precision}: p50",
            f"<= {P50_US:.0f} us",
            f"{graph_us(precision, batch):.0f} us",
            f"as above; with the copy of the inputs {graph_us(precision, batch) + copy_us(batch):.0f} us",
        )
        for precision in FLOPS
    ]
    found.append(Line("launch to result: p99 over p50", f"<= {P99_OVER_P50:g}x", "1.2x", "nothing waits, a core each"))
    found.append(
        Line(
            "idle gaps, 4 sessions",
            f"<= {IDLE_PERCENT:.0f} %",
            "2 %",
            "the bus is never free: copies follow each other",
        )
    )
    for sessions in (1, 2, 4, 8):
        rate, least = whole_rate(sessions, batch)
        found.append(
            Line(
                f"end to end, bf16, {sessions} sessions",
                "",
                f"{rate / 1e6:.2f} M samples/s",
                f"{least}; a batch: lookups {lookup_us(batch):.0f} us, copy {copy_us(batch):.0f} us, graph "
                f"{graph_us('bf16', batch):.0f} us, interpreter {INTERPRETER_US:.0f} us",
            )
        )
    weights = FULL.weights * 2
    found += [
        Line(
            "new weights: call to first answer",
            "",
            "5 ms",
            f"rounding and packing {FULL.weights / 1e6:.1f} M numbers 3 ms, {weights / 2**20:.1f} MiB over the bus "
            f"{weights / BUS * 1e3:.2f} ms, the batch that is under way 2 ms",
        ),
        Line("new weights: p99 beside over p99 without", "", "1.1x", "one copy beside others, no capture, no wait"),
        Line("new weights: graphs captured", "0", "0", "three banks, captured at the start; also so in the simulation"),
        Line(
            "soak: device and pinned memory",
            "flat",
            "flat",
            "all of it is there from the start; also in the simulation",
        ),
        Line("soak: wrong scores", "0", "0", "also so in the simulation"),
    ]
    return found


def table() -> str:
    """As Markdown, with a column for what a card says."""
    rows = ["| figure | target | predicted | by | measured |", "|---|---|---|---|---|"]
    rows += [f"| {each.figure} | {each.target} | {each.predicted} | {each.by} | |" for each in lines()]
    return "\n".join(rows)


def predicted_spans(sessions: int = 2, batches: int = 4) -> list[Span]:
    """Sessions beside each other: lookups on their threads, copies on one bus, graphs on one card."""
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
    """The script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw two sessions")
    options = parser.parse_args(arguments)
    if options.svg is not None:
        if not options.svg.absolute().parent.is_dir():
            parser.error(f"--svg {options.svg}: no folder {options.svg.parent}")
        title = f"Predicted, not measured: two sessions on an H200, DLRM with 26 tables, batch {FULL.batch}, bf16"
        options.svg.write_text(svg(predicted_spans(), title), encoding="utf-8")
    print(table())
    print()
    print(row_table())


if __name__ == "__main__":
    main()
