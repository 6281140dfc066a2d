"""Reads single rows of a table whose files hold float32 rows one behind the other.

A part of a file at a time is mapped, and what is asked of it is copied out. So rows in any order cost one copy, and no
file of sorted parts, as long as the files fit into the page cache. D values of a row.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from storage.errors import InvalidInput, ReadError
from storage.importing.files import RawArray

# What is mapped at once: it counts as memory of the process while it is.
WINDOW_BYTES = 64 << 20
# Their numbers are sorted as uint16, which is many times faster than wider ones.
_MOST_WINDOWS = 1 << 16


@dataclass(frozen=True)
class _Window:
    path: Path
    # The first byte, and the rows behind it.
    start: int
    rows: int


class RowFiles:
    """The rows of a table by their places, which count them from the first row of the first file on."""

    def __init__(self, arrays: Sequence[RawArray], window_bytes: int = WINDOW_BYTES) -> None:
        self.dim = arrays[0].width
        self.window_bytes = window_bytes
        self.rows = sum(array.rows for array in arrays)
        self._files = [array.path for array in arrays]
        self._file_starts = np.cumsum([0, *(array.rows for array in arrays)])
        step = max(1, window_bytes // arrays[0].row_bytes)
        self._windows = [
            _Window(array.path, array.offset + first * array.row_bytes, min(step, array.rows - first))
            for array in arrays
            for first in range(0, array.rows, step)
        ]
        self._starts = np.cumsum([0, *(window.rows for window in self._windows)])

    @classmethod
    def of(cls, arrays: Sequence[object]) -> RowFiles | None:
        """Returns the rows of arrays; None for other arrays than float32 rows that lie in files as they are, and for
        more files than can be mapped one after the other.
        """
        raw = [array for array in arrays if isinstance(array, RawArray)]
        fits = all(array.dtype == "float32" and array.width and not array.offset % 4 for array in raw)
        if not raw or len(raw) != len(arrays) or not fits:
            return None
        found = cls(raw)
        return found if len(found._windows) <= _MOST_WINDOWS else None

    @property
    def size_bytes(self) -> int:
        """Bytes of all rows."""
        return self.rows * self.dim * 4

    def file_of(self, place: int) -> Path:
        """Returns the file in which a row lies."""
        return self._files[int(np.searchsorted(self._file_starts, place, "right")) - 1]

    def gather(self, places: np.ndarray, out: np.ndarray) -> int | None:
        """Copies the rows at `places` (n,) int64 into `out` (n, D) float32.

        Returns the index of one that holds NaN or infinity, None without one. Raises InvalidInput for a file that ends
        before, ReadError for one that cannot be read.
        """
        from storage._table import move_rows

        windows = (np.searchsorted(self._starts, places, "right") - 1).astype(np.uint16)
        order = np.argsort(windows, kind="stable")
        ends = np.cumsum(np.bincount(windows, minlength=len(self._windows)))
        start = 0
        for number, end in enumerate(ends.tolist()):
            if end > start:
                targets = order[start:end]
                mapped = _Mapped(self._windows[number], self.dim)
                try:
                    bad = move_rows(mapped.rows, places[targets] - self._starts[number], out, targets)
                finally:
                    mapped.close()
                if bad is not None:
                    return int(targets[bad])
            start = end
        return None


class _Mapped:
    """A window in memory. rows: (n, D) float32."""

    def __init__(self, window: _Window, dim: int) -> None:
        before = window.start % mmap.ALLOCATIONGRANULARITY
        values = window.rows * dim
        try:
            with window.path.open("rb") as file:
                self._map = mmap.mmap(
                    file.fileno(), before + 4 * values, access=mmap.ACCESS_READ, offset=window.start - before
                )
        except ValueError:
            raise InvalidInput(f"{window.path}: it has become shorter while it was read") from None
        except OSError as error:
            raise ReadError(f"{window.path}: {error.strerror or error}") from error
        self.rows = np.frombuffer(self._map, np.float32, values, before).reshape(window.rows, dim)

    def close(self) -> None:
        """Unmaps it; `rows` may not be used any more."""
        del self.rows
        self._map.close()
