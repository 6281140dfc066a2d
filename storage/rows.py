"""Encodes the float32 values of rows for storage. Every tier moves encoded rows as opaque bytes.

    fp32   D float32
    fp16   D IEEE half precision
    bf16   D bfloat16
    int8   a float32 scale, then D int8 q: value = scale * q, scale = the row's largest magnitude / 127

Little-endian, rounded to the nearest (ties to even), then zeros up to a multiple of 4 bytes. n rows, D values of a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from storage.specs import TableSpec, encoded_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

# The values of one piece in which rows are encoded and checked, so that the extra memory is bounded for any table.
_CHUNK_VALUES = 1 << 20


@dataclass(frozen=True)
class RowCodec:
    """Encodes and decodes the rows of one table. Raises ConfigError for an unknown row type or a dim out of range."""

    row_type: str
    dim: int

    def __post_init__(self) -> None:
        TableSpec("table", self.dim, self.row_type)

    @property
    def row_bytes(self) -> int:
        """The bytes of an encoded row."""
        return encoded_bytes(self.row_type, self.dim)

    def encode(self, rows: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Encodes rows (n, D) to (n, row_bytes); for fp32 a view.

        For int8, raises ValueError for a value that is not finite.
        """
        rows = np.ascontiguousarray(rows, np.float32)
        if self.row_type == "fp32":
            return rows.reshape(-1).view(np.uint8).reshape(len(rows), self.row_bytes)
        from storage._table import encode_rows

        return encode_rows(self.row_type, rows)

    def decode(self, encoded: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Decodes encoded rows (n, row_bytes) to (n, D); for fp32 a view."""
        encoded = np.ascontiguousarray(encoded)
        if self.row_type == "fp32":
            return encoded.reshape(-1).view(np.float32).reshape(len(encoded), self.dim)
        from storage._table import decode_rows

        return decode_rows(self.row_type, self.dim, encoded)

    def pieces(self, rows: int) -> Iterator[slice]:
        """Yields slices that cover so many rows, each of bounded size."""
        step = max(1, _CHUNK_VALUES // self.dim)
        return (slice(start, min(start + step, rows)) for start in range(0, rows, step))

    def first_not_finite(self, encoded: NDArray[np.uint8]) -> int | None:
        """Returns the index of the first row that decodes to NaN or infinity; None when none does."""
        from storage._table import first_not_finite

        for piece in self.pieces(len(encoded)):
            if (bad := first_not_finite(self.decode(encoded[piece]))) is not None:
                return int(piece.start) + bad
        return None

    def first_unusual(self, encoded: NDArray[np.uint8]) -> int | None:
        """Returns the index of the first row that `encode` never gives, or None.

        Such a row has padding that is not zero, or a scale that does not fit its values.
        """
        if self.row_type == "fp32":
            return None
        for piece in self.pieces(len(encoded)):
            usual = (self.encode(self.decode(encoded[piece])) == encoded[piece]).all(axis=1)
            if not usual.all():
                return int(piece.start + np.argmin(usual))
        return None


@dataclass(frozen=True)
class Rounding:
    """The accuracy that encoding loses: absolute errors over all values of the rows."""

    #: The largest absolute error.
    largest: float
    #: The mean absolute error.
    mean: float

    @classmethod
    def of(cls, codec: RowCodec, rows: NDArray[np.float32], encoded: NDArray[np.uint8]) -> Rounding:
        """Compares rows (n, D) with their encoded form."""
        if codec.row_type == "fp32" or rows.size == 0:
            return cls(0.0, 0.0)
        largest, total = 0.0, 0.0
        for piece in codec.pieces(len(rows)):
            errors = np.abs(codec.decode(encoded[piece]).astype(np.float64) - rows[piece])
            largest = max(largest, float(errors.max()))
            total += float(errors.sum())
        return cls(largest, total / rows.size)
