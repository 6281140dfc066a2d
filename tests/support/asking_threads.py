"""Threads that ask a server from the beginning of `with` until its end."""

from __future__ import annotations

import threading
from typing import Self


class AskingThreads:
    """Starts the threads of `_threads` when it is entered; they end when `_stop` is set, as it is in the end."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
