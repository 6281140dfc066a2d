"""Moves rows that requests read from SSD into DRAM, on a background thread and within bounds."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Promotion:
    """The result of one read of a table from SSD, offered to DRAM."""

    #: The `generation` of the `DramCache` from before the read.
    generation: int
    #: The table's index in the store.
    table: int
    #: The ids (n,) that were found.
    ids: np.ndarray
    #: The encoded rows (n, row_bytes) of `ids`.
    rows: np.ndarray
    #: The ids (m,) that have no row.
    absent: np.ndarray


class Promoter:
    """Installs promotions from a bounded queue on a thread of its own.

    A full queue drops the offer: a lost promotion only costs time.
    """

    def __init__(self, install: Callable[[Promotion], None], *, depth: int) -> None:
        self._install = install
        self._queue: queue.Queue[Promotion | None] = queue.Queue(maxsize=depth)
        self.dropped = 0
        self._thread = threading.Thread(target=self._run, name="emberline-promoter", daemon=True)
        self._thread.start()

    def offer(self, promotion: Promotion) -> bool:
        """Queues a promotion, or drops it when the queue is full. Never waits."""
        try:
            self._queue.put_nowait(promotion)
        except queue.Full:
            self.dropped += 1
            return False
        return True

    def drain(self) -> None:
        """Waits until everything offered so far is installed."""
        self._queue.join()

    def close(self) -> None:
        """Installs what is queued and ends the thread."""
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()

    def _run(self) -> None:
        while True:
            promotion = self._queue.get()
            try:
                if promotion is None:
                    return
                self._install(promotion)
            except Exception:
                # The rows are on SSD, and the request that read them has its answer already.
                _log.exception("promoting rows failed")
            finally:
                self._queue.task_done()
