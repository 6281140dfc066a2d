"""Defers Ctrl-C during training until the step is done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


@contextmanager
def noticed_interrupts(stop: threading.Event, signals: Sequence[signal.Signals] = (signal.SIGINT,)) -> Iterator[None]:
    """Makes the first Ctrl-C set `stop`; the second acts as usual. Python allows this in the main thread only.

    signals: those that count as Ctrl-C.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in signals}

    def on_interrupt(number: int, frame: Any) -> None:
        stop.set()
        signal.signal(number, before[signal.Signals(number)])

    for each in signals:
        signal.signal(each, on_interrupt)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
