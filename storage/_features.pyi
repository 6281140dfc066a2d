"""The C++ feature engine; storage.features is its Python side."""

from collections.abc import Sequence

import numpy
import numpy.typing

import storage.features.columns

class Batch:
    """The results of a run. All arrays lie in its memory and keep it alive."""

    @property
    def rows(self) -> int: ...
    def dense(self) -> list[numpy.typing.NDArray[numpy.float32]]:
        """Returns the dense groups, (rows, width) each."""

    def ids(
        self,
    ) -> list[
        tuple[
            numpy.typing.NDArray[numpy.int64],
            numpy.typing.NDArray[numpy.int64],
            numpy.typing.NDArray[numpy.float32] | None,
        ]
    ]:
        """
        Returns (values, offsets, weights or None) of each feature. Features may share offsets.
        """

class BlockLayout:
    """The columns of requests that are one block of bytes each."""

    def __init__(self, columns: Sequence[tuple[int, int, int]], inputs: int) -> None:
        """
        columns: (input, dtype, width) in the order of the blocks. inputs: the number of those of the program.
        """

class Program:
    """An immutable program; any number of threads may run it."""

    def run(self, requests: list[tuple[list[storage.features.columns.Column | None], int]]) -> Batch:
        """
        Runs the program over all rows of requests. Each has a column or None for each input, and its number of
        rows; all have the same inputs in the same forms.
        """

    def run_arrow(
        self, rows: tuple[object, object], places: list[int | storage.features.columns.Column | None]
    ) -> Batch:
        """
        Runs the program over a RecordBatch of pyarrow, given as the capsules of its __arrow_c_array__. places: for
        each input the number of its column in it, or a column that was made of it, or None.
        """

    def run_blocks(
        self, layout: BlockLayout, blocks: list[numpy.typing.NDArray[numpy.uint8]], batches: Sequence[int]
    ) -> Batch:
        """Runs the program over all rows of requests that are one block each."""

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
    def floor_divide(self, divisor: int) -> None: ...
    def modulo(self, divisor: int) -> None: ...
    def add(self, amounts: Sequence[int]) -> None: ...
    def multiply(self, factor: int) -> None: ...
    def replace(self, low: int, high: int, outside: bool, by: int) -> None: ...
    def integer(self) -> None: ...
    def vocabulary(self, values: list[bytes | int], unknown: int | None) -> None: ...
    def bucketise(self, boundaries: Sequence[float]) -> None: ...
    def log(self) -> None: ...
    def clip(self, min: float, max: float) -> None: ...
    def affine(self, scale: float, shift: float) -> None: ...
    def standardise(self, mean: float, deviation: float) -> None: ...
    def part_of_week(self, per_second: int, shift: int, period: int, part: int) -> None: ...
    def is_null(self) -> None: ...
    def fill_ints(self, value: int) -> None: ...
    def fill_floats(self, value: float) -> None: ...
    def fill_bytes(self, value: bytes) -> None: ...
    def split(self, delimiter: bytes, max: int) -> None: ...
    def slice(self, start: int, stop: int) -> None: ...
    def truncate(self, length: int, keep_last: bool) -> None: ...
    def pad_ints(self, length: int, value: int) -> None: ...
    def pad_floats(self, length: int, value: float) -> None: ...
    def pad_bytes(self, length: int, value: bytes) -> None: ...
    def build(self, group_widths: Sequence[int]) -> Program: ...

def split_wire_bytes(
    data: numpy.typing.NDArray[numpy.uint8], count: int, field: str = ""
) -> tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.int64]]:
    """
    Splits KServe's length-prefixed BYTES, uint8 (m,), into starts (count,), ends (count,) int64.
    """
