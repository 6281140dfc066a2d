"""Prints the figures of a load test as text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from loadtest.runner import KindRun
from loadtest.search import Found

_NAMES = ("requests", "failed", "req/s", "p50 ms", "p90 ms", "p99 ms", "p99.9 ms", "max ms")


def head() -> str:
    """Returns the names of the columns."""
    requests, failed, rate, *times = _NAMES
    return f"{'users':<24} {requests:>9} {failed:>7} {rate:>9} " + " ".join(f"{name:>8}" for name in times)


def row(name: str, figures: Mapping[str, Any]) -> str:
    """Returns a line of the table."""
    times = (figures[key] for key in ("p50_ms", "p90_ms", "p99_ms", "p99_9_ms", "max_ms"))
    return (
        f"{name:<24} {figures['requests']:>9,} {figures['failures']:>7,} {figures['requests_per_second']:>9,.0f} "
        + " ".join(f"{value:>8.2f}" if math.isfinite(value) else f"{'-':>8}" for value in times)
    )


def lines(run: KindRun) -> Iterator[str]:
    """Yields the lines of one kind of users: each phase, all of them, and what there is to say."""
    if run.found is None and len(run.records) > 1:
        for record in run.records:
            yield row(f"  {record.phase.title}", record.figures())
    if run.records:
        yield row(run.kind, run.figures())
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
    yield (
        f"  {found.rate:,.0f}/s is the highest rate whose p99 stayed under {found.bound_ms:g} ms: it was "
        f"{found.p99_ms:.2f} ms, after {len(found.steps)} measurements"
    )
    if found.held_s:
        yield (
            f"  held for {found.held_s:.0f} s: p99 {found.held_p99_ms:.2f} ms, {found.difference:+.1%} beside what the "
            "search said"
        )
