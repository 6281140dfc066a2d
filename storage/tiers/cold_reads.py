"""Rows that DRAM does not have, read from SSD for many tables in one call, and what becomes of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from storage.errors import StoreError

if TYPE_CHECKING:
    from storage.tiers.overlays import Overlay

ABSENT, FOUND, UNRESOLVED = 0, 1, 2


@dataclass(frozen=True)
class Wanted:
    """Distinct ids (n,) of a table, by its index. overlay: whose spilled rows they are; None: the base."""

    table: int
    ids: np.ndarray
    overlay: Overlay | None = None


# Ids of one read. A cold row is one random read of the disk, so misses are shared out over the I/O threads as soon as
# that saves more than a hand-over costs; the upper bound keeps one large request from holding a thread for long.
_READ_IDS_MIN = 16
_READ_IDS_MAX = 1024

Answer = tuple[np.ndarray, np.ndarray]


class ColdReads:
    """Reads of one store. Several threads at once; what is under way at one time is bounded."""

    def __init__(
        self, find: Callable[[Wanted], Answer], row_bytes: Sequence[int], *, threads: int, pending: int
    ) -> None:
        """find: rows and found flags of a part, on one of `threads` threads. row_bytes: of each table."""
        self._row_bytes = tuple(row_bytes)
        self._find = find
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="emberline-ssd")
        self._pending = threading.BoundedSemaphore(pending)

    def read(self, wanted: Sequence[Wanted], timeout_s: float | None) -> list[Answer]:
        """Encoded rows and states (n,) for each; what has not come after timeout_s (None: waits) is UNRESOLVED."""
        parts: list[tuple[int, np.ndarray, Wanted]] = []
        for index, each in enumerate(wanted):
            order = np.argsort(each.ids)  # neighbours share blocks
            share = min(_READ_IDS_MAX, max(_READ_IDS_MIN, -(-len(order) // self._threads)))
            for start in range(0, len(order), share):
                where = order[start : start + share]
                parts.append((index, where, Wanted(each.table, each.ids[where], each.overlay)))
        if timeout_s is None and len(parts) == 1:
            found = [(parts[0], self._find(parts[0][2]))]  # nothing to overlap: no hand-over
        else:
            found = self._all(parts, timeout_s)
        states = [np.full(len(each.ids), UNRESOLVED, np.uint8) for each in wanted]
        rows = [np.zeros((len(each.ids), self._row_bytes[each.table]), np.uint8) for each in wanted]
        for (index, where, _), (values, hits) in found:
            rows[index][where] = values
            states[index][where] = hits
        return list(zip(rows, states, strict=True))

    def close(self) -> None:
        """Ends the threads when they have done what they are at."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _all(
        self, parts: Sequence[tuple[int, np.ndarray, Wanted]], timeout_s: float | None
    ) -> list[tuple[tuple[int, np.ndarray, Wanted], Answer]]:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        futures: list[tuple[tuple[int, np.ndarray, Wanted], Future[Answer]]] = []
        for part in parts:
            # Reads that nobody waits for any more may still be under way; their number is bounded here.
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not self._pending.acquire(timeout=left):
                break
            try:
                future = self._pool.submit(self._find, part[2])
            except RuntimeError as error:
                self._pending.release()
                raise StoreError("the store is closed") from error
            future.add_done_callback(lambda _: self._pending.release())
            futures.append((part, future))
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        done, _ = wait([future for _, future in futures], timeout=left)
        for _, future in futures:
            if future not in done:
                future.cancel()
        return [(part, future.result()) for part, future in futures if future in done]
