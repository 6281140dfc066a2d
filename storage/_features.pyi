"""The C++ feature engine; storage.features is its Python side."""

from collections.abc import Sequence
from typing import Any

import numpy
import numpy.typing

class BoundColumn:
    """A raw column; borrows its arrays and keeps them alive."""

    def __init__(
        self,
        dtype: int,
        rows: int,
        width: int,
        values: numpy.typing.NDArray[Any],
        starts: numpy.typing.NDArray[numpy.int64] | None,
        ends: numpy.typing.NDArray[numpy.int64] | None,
        offsets: numpy.typing.NDArray[numpy.int64] | None,
        valid: numpy.typing.NDArray[numpy.uint8] | None,
    ) -> None: ...

class Program:
    """An immutable program; any number of threads may run it."""

    def run(
        self, columns: list[BoundColumn | None], batch: int
    ) -> tuple[
        list[numpy.typing.NDArray[numpy.float32]],
        list[
            tuple[
                numpy.typing.NDArray[numpy.int64],
                numpy.typing.NDArray[numpy.int64],
                numpy.typing.NDArray[numpy.float32] | None,
            ]
        ],
    ]:
        """
        Runs the program over one BoundColumn or None for each input.

        Returns ([dense (batch, width)], [(values, offsets, weights or None)]).
        """

class Builder:
    """
    Collects inputs and features; transforms belong to the feature added last.
    """

    def __init__(self) -> None: ...
    def add_input(
        self,
        name: str,
        dtype: int,
        is_list: bool,
        width: int,
        max_length: int,
        user_side: bool,
        missing_is_null: bool,
        empty_is_null: bool,
        default: list[bytes | int | float] | None,
    ) -> None: ...
    def add_ids_feature(self, name: str, inputs: Sequence[int], cut: int, weights: int | None = None) -> None: ...
    def add_dense_feature(self, name: str, inputs: Sequence[int], group: int, column: int, width: int) -> None: ...
    def cross(self, seed: int, buckets: int, max: int) -> None: ...
    def hash(self, seed: int, salt: str, buckets: int) -> None: ...
    def vocabulary(self, values: list[bytes | int], unknown: int | None) -> None: ...
    def bucketise(self, boundaries: Sequence[float]) -> None: ...
    def log(self) -> None: ...
    def clip(self, min: float, max: float) -> None: ...
    def affine(self, scale: float, shift: float) -> None: ...
    def slice(self, start: int, stop: int) -> None: ...
    def truncate(self, length: int, keep_last: bool) -> None: ...
    def pad_ints(self, length: int, value: int) -> None: ...
    def pad_floats(self, length: int, value: float) -> None: ...
    def pad_bytes(self, length: int, value: bytes) -> None: ...
    def build(self, group_widths: Sequence[int]) -> Program: ...

def gather_columns(
    parts: Sequence[numpy.typing.NDArray[numpy.uint8]],
    batches: Sequence[int],
    row_bytes: Sequence[int],
    outputs: Sequence[numpy.typing.NDArray[numpy.uint8]],
) -> None:
    """
    Gathers each column of all requests into outputs; the columns of a request lie one behind the other. All uint8.
    """

def split_wire_bytes(
    data: numpy.typing.NDArray[numpy.uint8], count: int, field: str = ""
) -> tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.int64]]:
    """
    Splits KServe's length-prefixed BYTES, uint8 (m,), into starts (count,), ends (count,) int64.
    """
