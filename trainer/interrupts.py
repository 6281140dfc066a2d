"""Defers Ctrl-C and SIGTERM during training until the step is done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def noticed_interrupts(stop: threading.Event) -> Iterator[None]:
    """Makes the first Ctrl-C, or SIGTERM, set `stop`; the second acts as usual. Python allows this in the main thread
    only.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def on_interrupt(number: int, frame: Any) -> None:
        stop.set()
        signal.signal(number, before[signal.Signals(number)])

    for each in _SIGNALS:
        signal.signal(each, on_interrupt)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
