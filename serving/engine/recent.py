"""Keeps the last real requests of a model for the live guard: raw columns, never scores, bounded in rows and bytes.

Every request is kept until the bounds are reached, so that the guard has its rows soon after the start; from then on
requests are sampled by time. Recording runs after the answer was sent, so it costs the request one comparison. The
features that the session made of a request are kept beside its columns, so that a replay of the same version need not
make them.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from serving.pipeline.user_side import take_rows
from storage.features import BytesValues, Column, FeatureBatch, FeatureEngine

# At most the first rows of a request are kept, so that a few large ones do not stand for all traffic.
ROWS_PER_REQUEST = 16
MAX_ROWS = 1024
MAX_BYTES = 8 << 20
MAX_REQUEST_BYTES = 64 << 10
_INTERVAL_NS = 20_000_000
_NEVER = 2**63


@dataclass(frozen=True)
class RecentRequest:
    """Is a copy of one request's columns, with the features that were made of them."""

    columns: Mapping[str, Column]
    batch: int
    #: The size of all arrays together.
    size_bytes: int
    #: The features that `engine` made of the columns, or None.
    features: FeatureBatch | None = None
    engine: FeatureEngine | None = None

    def features_of(self, engine: FeatureEngine) -> FeatureBatch:
        """Returns the features that `engine` makes of the columns. Raises InvalidInput if they do not fit its spec."""
        if self.features is not None and self.engine is engine:
            return self.features
        return engine.run(self.columns, self.batch)


class RecentRequests:
    """Keeps a bounded sample of a model's last requests. Thread-safe.

    max_requests: 0 keeps none. interval_ns: once full, it records at most one request in this time.
    """

    def __init__(self, max_requests: int, *, interval_ns: int = _INTERVAL_NS) -> None:
        self._max_requests = max_requests
        self._interval_ns = interval_ns
        self._lock = threading.Lock()
        self._kept: deque[RecentRequest] = deque()
        self._rows = 0
        self._bytes = 0
        self._is_full = False
        self._next_ns = 0 if max_requests else _NEVER

    def wants(self, now_ns: int) -> bool:
        """Returns whether a request that arrived at `now_ns` (`time.monotonic_ns`) is to be recorded."""
        return now_ns >= self._next_ns

    def record(
        self,
        columns: Mapping[str, Column],
        batch: int,
        features: FeatureBatch | None = None,
        engine: FeatureEngine | None = None,
        first_row: int = 0,
    ) -> None:
        """Records a copy of a request that was answered, so that its own memory can be freed. Omits large requests.

        features: those that `engine` made, with this request's rows from `first_row` on; arrays that hold this request
        alone are kept without a copy.
        """
        with self._lock:
            now_ns = time.monotonic_ns()
            if now_ns < self._next_ns:
                return
            if self._is_full:
                self._next_ns = now_ns + self._interval_ns
        rows = min(batch, ROWS_PER_REQUEST)
        parts = rows_of(columns, batch, 0, rows)
        if features is not None and features.batch != rows:
            features = take_rows(features, np.arange(first_row, first_row + rows))
        size = columns_bytes(parts) + _features_size(features)
        if size > MAX_REQUEST_BYTES:
            # The next ones are likely to be as large.
            self._next_ns = now_ns + self._interval_ns
            return
        request = RecentRequest(copied(parts), rows, size, features, engine)
        with self._lock:
            self._kept.append(request)
            self._rows += rows
            self._bytes += size
            while len(self._kept) > self._max_requests or self._rows > MAX_ROWS or self._bytes > MAX_BYTES:
                oldest = self._kept.popleft()
                self._rows -= oldest.batch
                self._bytes -= oldest.size_bytes
                self._is_full = True

    def requests(self) -> list[RecentRequest]:
        """Returns the kept requests, oldest first."""
        with self._lock:
            return list(self._kept)


def rows_of(columns: Mapping[str, Column], batch: int, start: int, stop: int) -> dict[str, Column]:
    """Returns some rows of a request over the same memory. batch: the rows that it has."""
    # A user-side column of one row stands for all rows of its request.
    return {name: column.slice(start, stop) if column.rows == batch else column for name, column in columns.items()}


def columns_bytes(columns: Mapping[str, Column]) -> int:
    """Returns the size of all arrays together."""
    return sum(_size(column) for column in columns.values())


def copied(columns: Mapping[str, Column]) -> dict[str, Column]:
    """Returns the same columns in memory of their own."""
    return {name: _copied(column) for name, column in columns.items()}


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


def _features_size(features: FeatureBatch | None) -> int:
    if features is None:
        return 0
    bags = sum(entry.values.nbytes + entry.offsets.nbytes for entry in features.ids.values())
    bags += sum(entry.weights.nbytes for entry in features.ids.values() if entry.weights is not None)
    return bags + sum(values.nbytes for values in features.dense.values())
