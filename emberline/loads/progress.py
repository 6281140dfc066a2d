"""Shows on a terminal how far a load test is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.text import Text

from loadtest.records import PhaseRecord
from loadtest.runner import Show

# Seconds that the line looks back.
_LATEST_S = 3


@contextmanager
def progress(kind: str, *, quiet: bool) -> Iterator[Show]:
    """Shows one line on standard error, if it is a terminal, while the context is open."""
    console = Console(stderr=True, highlight=False)
    if quiet or not console.is_terminal:
        yield lambda title, record: None
        return
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        yield lambda title, record: live.update(Text(line(kind, title, record), overflow="ellipsis", no_wrap=True))


def line(kind: str, title: str, record: PhaseRecord) -> str:
    """Returns what is shown of a phase that runs."""
    passed = max(0.0, min(time.monotonic() - record.began, record.phase.seconds))
    (counts, seconds), whole = record.latest(_LATEST_S), record.phase.seconds
    p99 = f"p99 {counts.latency.quantile(0.99):.2f} ms" if counts.latency.total else "no answer yet"
    text = f"{kind}  {title}  {passed:.0f} of {whole:.0f} s  {counts.answered / seconds:,.0f} answers/s  {p99}"
    return f"{text}  {counts.failed:,} failed" if counts.failed else text
