"""Reads the raw parts of files: arrays that lie in them as they are, in blocks and without mapping all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from storage.errors import InvalidInput, NotFound, ReadError

# BF16 has no numpy type: its two bytes are the upper half of a float32.
BFLOAT16 = "bfloat16"
_DTYPES = {"float32": "<f4", "float16": "<f2", "float64": "<f8", "int64": "<i8", "int32": "<i4", "uint64": "<u8"}


@dataclass(frozen=True)
class RawArray:
    """An array (n, width) that lies in a file as it is. width: 0 for an array (n,)."""

    path: Path
    dtype: str
    width: int
    rows: int
    offset: int = 0

    @classmethod
    def of_file(cls, path: Path, dtype: str, width: int = 0) -> RawArray:
        """Takes a whole file. Raises NotFound, and InvalidInput for a size that is no number of rows."""
        row_bytes = item_bytes(dtype) * max(1, width)
        size = file_size(path)
        if size % row_bytes:
            raise InvalidInput(
                f"{path}: {size} bytes are no whole number of rows of {row_bytes} bytes ({max(1, width)} x {dtype}); "
                "it is cut off, or the dim or the dtype is another"
            )
        return cls(path, dtype, width, size // row_bytes)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return item_bytes(self.dtype) * max(1, self.width)

    def read(self, part: slice) -> np.ndarray:
        """Returns rows of it; bfloat16 as float32. Raises InvalidInput for a file that ends before."""
        count = part.stop - part.start
        dtype = np.dtype("<u2" if self.dtype == BFLOAT16 else _DTYPES[self.dtype])
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset + part.start * self.row_bytes)
                values = np.fromfile(file, dtype, count * max(1, self.width))
        except OSError as error:
            raise ReadError(f"{self.path}: {error.strerror or error}") from error
        if len(values) != count * max(1, self.width):
            raise InvalidInput(f"{self.path}: it ends before its row {part.stop}; it is cut off")
        if self.dtype == BFLOAT16:
            values = (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return values.reshape(count, self.width) if self.width else values

    def all_of(self, step: int = 1 << 20) -> Iterator[np.ndarray]:
        """Yields all rows, `step` at a time."""
        for start in range(0, self.rows, step):
            yield self.read(slice(start, min(start + step, self.rows)))


def item_bytes(dtype: str) -> int:
    """Returns the bytes of a value. Raises InvalidInput for a dtype that is not known."""
    if dtype == BFLOAT16:
        return 2
    if dtype not in _DTYPES:
        raise InvalidInput(f"dtype is {dtype!r}, expected one of {', '.join([*_DTYPES, BFLOAT16])}", field="dtype")
    return np.dtype(_DTYPES[dtype]).itemsize


def file_size(path: Path) -> int:
    """Returns the bytes of a file. Raises NotFound when there is none."""
    if not path.is_file():
        raise NotFound(f"{path}: there is no such file")
    return path.stat().st_size


def files_of(path: Path, suffixes: Sequence[str], *, what: str) -> list[Path]:
    """Returns a file itself, or the files of a folder with one of the suffixes, by name.

    what: what they are called, for the message. Raises NotFound when there is none.
    """
    if path.is_file():
        return [path]
    found = sorted(each for each in path.glob("*") if each.is_file() and each.name.endswith(tuple(suffixes)))
    if not found:
        where = "there is no such file or folder" if not path.exists() else f"no {what} ({', '.join(suffixes)}) in it"
        raise NotFound(f"{path}: {where}")
    return found
