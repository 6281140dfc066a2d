"""The last real requests of a model, for the live guard: raw columns, never scores, bounded in rows and bytes.

Recording is sampled by time, and runs after the answer has gone: a request itself pays one comparison.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from storage.features import BytesValues, Column

# A request gives at most its first rows, so that a few large ones do not stand for all traffic.
ROWS_PER_REQUEST = 16
MAX_ROWS = 2048
MAX_BYTES = 8 << 20
MAX_REQUEST_BYTES = 64 << 10
_INTERVAL_NS = 10_000_000
_NEVER = 2**63


@dataclass(frozen=True)
class RecentRequest:
    """A copy of one request's columns. size_bytes: of their arrays."""

    columns: Mapping[str, Column]
    batch: int
    size_bytes: int


class RecentRequests:
    """Any thread. max_requests 0: nothing is kept. interval_ns: at most one request is recorded in this time."""

    def __init__(self, max_requests: int, *, interval_ns: int = _INTERVAL_NS) -> None:
        self._max_requests = max_requests
        self._interval_ns = interval_ns
        self._lock = threading.Lock()
        self._kept: deque[RecentRequest] = deque()
        self._rows = 0
        self._bytes = 0
        self._next_ns = 0 if max_requests else _NEVER

    def wants(self, now_ns: int) -> bool:
        """Whether a request that arrived at this `time.monotonic_ns` is to be recorded."""
        return now_ns >= self._next_ns

    def record(self, columns: Mapping[str, Column], batch: int) -> None:
        """Copies a request that was answered, so that its own memory can go. Large ones are left out."""
        with self._lock:
            now_ns = time.monotonic_ns()
            if now_ns < self._next_ns:
                return
            self._next_ns = now_ns + self._interval_ns
        rows = min(batch, ROWS_PER_REQUEST)
        # A user-side column of one row stands for all rows of its request.
        parts = {name: column.slice(0, rows) if column.rows == batch else column for name, column in columns.items()}
        size = sum(_size(column) for column in parts.values())
        if size > MAX_REQUEST_BYTES:
            return
        request = RecentRequest({name: _copied(column) for name, column in parts.items()}, rows, size)
        with self._lock:
            self._kept.append(request)
            self._rows += rows
            self._bytes += size
            while len(self._kept) > self._max_requests or self._rows > MAX_ROWS or self._bytes > MAX_BYTES:
                oldest = self._kept.popleft()
                self._rows -= oldest.batch
                self._bytes -= oldest.size_bytes

    def requests(self) -> list[RecentRequest]:
        """What is kept, oldest first."""
        with self._lock:
            return list(self._kept)


def _size(column: Column) -> int:
    values = column.values
    if isinstance(values, BytesValues):
        size = values.starts.nbytes + values.ends.nbytes + int((values.ends - values.starts).sum())
    else:
        size = values.nbytes
    return size + sum(array.nbytes for array in (column.offsets, column.valid) if array is not None)


def _copied(column: Column) -> Column:
    values = column.values
    return Column(
        column.dtype,
        column.rows,
        column.width,
        _copied_strings(values) if isinstance(values, BytesValues) else values.copy(),
        None if column.offsets is None else column.offsets.copy(),
        None if column.valid is None else column.valid.copy(),
    )


def _copied_strings(values: BytesValues) -> BytesValues:
    data = np.frombuffer(b"".join(values.tolist()), np.uint8)
    ends = np.cumsum(values.ends - values.starts, dtype=np.int64)
    return BytesValues(data, ends - (values.ends - values.starts), ends)
