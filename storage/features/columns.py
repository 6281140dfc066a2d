"""A column is one raw input of a request or of a training batch, as flat arrays that the C++ engine reads in place.

B rows; W width of a fixed input; L padded length of a list; n elements; m bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from storage.errors import InvalidInput
from storage.features.dtypes import DTYPES, NUMPY_DTYPES

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class BytesValues:
    """Holds n byte strings in one buffer: data[starts[i]:ends[i]]. data: uint8 (m,); starts, ends: int64 (n,)."""

    data: Array
    starts: Array
    ends: Array

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> bytes:
        return bytes(self.data[self.starts[index] : self.ends[index]])

    def tolist(self) -> list[bytes]:
        """Returns the strings as Python bytes."""
        buffer = self.data.tobytes()
        return [buffer[start:end] for start, end in zip(self.starts.tolist(), self.ends.tolist(), strict=True)]

    def take(self, index: Array | slice) -> BytesValues:
        """Returns the elements at `index` (a mask, positions or a slice), over the same data."""
        starts, ends = self.starts[index], self.ends[index]
        return BytesValues(self.data, np.ascontiguousarray(starts), np.ascontiguousarray(ends))


Values = Array | BytesValues


@dataclass(frozen=True, slots=True)
class Column:
    """One raw input. Its arrays are borrowed, C-contiguous and one-dimensional; they must not change while it is used.

    A fixed column has rows * width values, offsets None, and valid (rows * width,). A list column has values jagged by
    offsets int64 (rows + 1,), width 1, and valid (rows,). valid is uint8 or bool, 0 for null; None means no nulls.
    Raises InvalidInput for arrays of another dtype or rank; the engine checks lengths and offsets.
    """

    dtype: str
    rows: int
    width: int
    values: Values
    offsets: Array | None = None
    valid: Array | None = None

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise InvalidInput(f"column: unknown dtype {self.dtype!r}, expected one of {', '.join(DTYPES)}")
        if isinstance(self.values, BytesValues):
            if self.dtype != "BYTES":
                raise InvalidInput(f"column: BytesValues given, but the dtype is {self.dtype}")
            _check_array("data", self.values.data, np.uint8)
            _check_array("starts", self.values.starts, np.int64)
            _check_array("ends", self.values.ends, np.int64)
        elif self.dtype == "BYTES":
            raise InvalidInput("column: dtype BYTES needs BytesValues, got an array; see column_from_numpy")
        else:
            _check_array("values", self.values, NUMPY_DTYPES[self.dtype])
        if self.offsets is not None:
            _check_array("offsets", self.offsets, np.int64)
        if self.valid is not None:
            _check_array("valid", self.valid, np.uint8, np.bool_)

    @property
    def is_list(self) -> bool:
        """True when each row has a length of its own."""
        return self.offsets is not None

    @staticmethod
    def wire_bytes(buffer: Any, count: int, *, name: str = "") -> BytesValues:
        """Splits KServe's binary form of BYTES: `count` elements, each a little-endian uint32 length and its bytes.

        The buffer is borrowed. Raises InvalidInput when it does not hold exactly `count` elements.
        """
        from storage._features import split_wire_bytes

        data = np.frombuffer(buffer, dtype=np.uint8)
        starts, ends = split_wire_bytes(data, count, name)
        return BytesValues(data, starts, ends)

    def slice(self, start: int, stop: int) -> Column:
        """Returns the rows from `start` to before `stop`, over the same values where they allow it."""
        if not 0 <= start <= stop <= self.rows:
            raise InvalidInput(f"column: the rows {start} to {stop} do not lie in {self.rows}")
        if self.offsets is None:
            places = slice(start * self.width, stop * self.width)
            return Column(
                self.dtype,
                stop - start,
                self.width,
                self.values.take(places) if isinstance(self.values, BytesValues) else self.values[places],
                None,
                None if self.valid is None else self.valid[places],
            )
        offsets = self.offsets[start : stop + 1]
        places = slice(int(offsets[0]), int(offsets[-1]))
        values = self.values.take(places) if isinstance(self.values, BytesValues) else self.values[places]
        valid = None if self.valid is None else self.valid[start:stop]
        return Column(self.dtype, stop - start, 1, values, offsets - offsets[0], valid)


def _check_array(what: str, array: Any, *dtypes: Any) -> None:
    if not isinstance(array, np.ndarray):
        raise InvalidInput(f"column: {what} must be a numpy array, got {type(array).__name__}")
    if array.dtype not in dtypes:
        expected = " or ".join(str(np.dtype(dtype)) for dtype in dtypes)
        raise InvalidInput(f"column: {what} is {array.dtype}, expected {expected}")
    if array.ndim != 1 or not array.flags.c_contiguous:
        raise InvalidInput(f"column: {what} must be one-dimensional and C-contiguous, got shape {array.shape}")
