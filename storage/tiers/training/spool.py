"""Grows arrays at their end: in memory while they are small, in an unnamed file when they are not.

The rows of a table that is larger than memory must not be collected in memory. The caller gets a mapped file as an
ordinary array, whose pages the system may drop.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from storage.tiers.ssd.disk_errors import disk_errors

MEMORY_BYTES = 8 << 20


class Spool:
    """Collects one array, (n, *tail) of a dtype. Raises StoreError when the disk is full.

    folder: of the file, made with it. memory_bytes: a larger array goes to the file.
    """

    def __init__(
        self,
        dtype: Any,
        tail: tuple[int, ...] = (),
        *,
        folder: Path,
        memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        self._dtype = np.dtype(dtype)
        self._tail = tail
        self._folder = folder
        self._memory_bytes = memory_bytes
        self._parts: list[np.ndarray] = []
        self._held = 0
        self._file: Any = None
        self._count = 0

    def append(self, part: np.ndarray) -> None:
        """Adds entries (k, *tail); they are copied."""
        part = np.array(part, self._dtype, order="C")
        self._count += len(part)
        self._parts.append(part)
        self._held += part.nbytes
        if self._held > self._memory_bytes:
            self._flush()

    def array(self) -> np.ndarray:
        """Returns the whole array, writable. The spool is empty afterwards."""
        if self._file is None:
            whole = np.concatenate([np.empty((0, *self._tail), self._dtype), *self._parts])
        else:
            self._flush()
            shape = (self._count, *self._tail)
            whole = np.asarray(np.memmap(self._file, dtype=self._dtype, mode="r+", shape=shape))
            self._file.close()  # the mapping keeps it
        self._parts, self._held, self._count, self._file = [], 0, 0, None
        return whole

    def _flush(self) -> None:
        with disk_errors(f"writing rows to a file in {self._folder}"):
            if self._file is None:
                self._folder.mkdir(parents=True, exist_ok=True)
                self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115  closed by array(), or with the spool
            for part in self._parts:
                self._file.write(part.data)
            self._file.flush()
        self._parts, self._held = [], 0
