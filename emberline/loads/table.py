"""Prints the figures of a load test as text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from loadtest.runner import KindRun
from loadtest.search import Found

# Every line fits 80 columns: a name that is wider has a line of its own.
_NAME = 16


def head() -> str:
    """Returns the names of the columns. Latencies are in milliseconds."""
    times = ("p50 ms", "p90", "p99", "p99.9", "max")
    return f"{'users':<{_NAME}} {'requests':>11} {'failed':>7} {'req/s':>7} " + " ".join(f"{each:>6}" for each in times)


def rows(name: str, figures: Mapping[str, Any]) -> Iterator[str]:
    """Yields the line of the table, and one before it for a long name."""
    if len(name) > _NAME:
        yield name
        name = ""
    times = (figures[key] for key in ("p50_ms", "p90_ms", "p99_ms", "p99_9_ms", "max_ms"))
    yield (
        f"{name:<{_NAME}} {figures['requests']:>11,} {figures['failures']:>7,} {figures['requests_per_second']:>7,.0f} "
        + " ".join(f"{_milliseconds(each):>6}" for each in times)
    )


def _milliseconds(value: float) -> str:
    if not math.isfinite(value):
        return "-"
    return f"{value:.{2 if value < 99.995 else 1 if value < 999.95 else 0}f}"


def lines(run: KindRun) -> Iterator[str]:
    """Yields the lines of one kind of users: each phase, all of them, and what there is to say."""
    if run.found is None and len(run.records) > 1:
        for record in run.records:
            yield from rows(f"  {record.phase.title}", record.figures())
    if run.records:
        yield from rows(run.kind, run.figures())
    if run.found is not None:
        yield from found_lines(run.found)
    errors: dict[str, int] = {}
    for record in run.judged():
        for text, count in record.counts().errors.items():
            errors[text] = errors.get(text, 0) + count
    for text, count in sorted(errors.items(), key=lambda each: -each[1]):
        yield f"  {count:,} failed: {text}"
    for note in run.notes():
        yield f"  note: {note}"


def found_lines(found: Found) -> Iterator[str]:
    """Yields what a search found."""
    if found.rate is None:
        yield f"  no rate was found whose p99 stays under {found.bound_ms:g} ms: {found.why or 'it was interrupted'}"
        return
    held = f" over {found.held_s:.0f} s" if found.held_s else ""
    error = "" if math.isnan(found.p99_error_ms) else f" (±{found.p99_error_ms:.2f})"
    yield (
        f"  {found.rate:,.0f}/s is the highest rate whose p99 stayed under {found.bound_ms:g} ms: it was "
        f"{found.p99_ms:.2f} ms{error}{held}, after {len(found.steps)} measurements"
    )
    if found.is_steady is False:
        yield "  note: the p99 comes and goes; another time it may be over the bound"
