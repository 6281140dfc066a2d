"""Specifies tables and lookups for every tier, the trainer and the server."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

from storage.errors import ConfigError
from storage.initializers import ABSENT_ZEROS, AbsentRows

# The native code numbers them in this order.
POOLINGS = ("sum", "mean", "none", "weighted")
RowType = Literal["fp32", "fp16", "bf16", "int8"]
ROW_TYPES: tuple[RowType, ...] = get_args(RowType)
# The largest finite value of each row type.
_LARGEST = {
    "fp32": 3.4028234663852886e38,
    "fp16": 65504.0,
    "bf16": 3.3895313892515355e38,
    "int8": 3.4028234663852886e38,
}
MAX_DIM = 4096
MAX_LENGTH = 1 << 20

# A model's name becomes a folder of the repository and a part of an address.
_MODEL_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
# A table's name becomes part of a file name in the published version.
_TABLE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")


def check_model_name(name: str, *, field: str = "name") -> str:
    """Returns the name. Raises ConfigError for one that would not be a plain folder of a repository."""
    if not _MODEL_NAME.fullmatch(name):
        raise ConfigError(
            f"model name {name!r}: expected 1 to 128 letters, digits, '_', '.' or '-', the last two not first",
            field=field,
        )
    return name


def check_row_type(row_type: str, *, what: str = "rows", field: str = "row_type") -> RowType:
    """Returns the row type. Raises ConfigError for an unknown one. what: the rows' owner, for the message."""
    for known in ROW_TYPES:
        if row_type == known:
            return known
    raise ConfigError(f"{what}: row_type is {row_type!r}, expected one of {', '.join(ROW_TYPES)}", field=field)


def encoded_bytes(row_type: str, dim: int) -> int:
    """Returns the bytes of a stored row: its values, for int8 a float32 scale too, rounded up to a multiple of 4."""
    size = {"fp32": 4 * dim, "fp16": 2 * dim, "bf16": 2 * dim, "int8": 4 + dim}[check_row_type(row_type)]
    return -(-size // 4) * 4


def check_absent(absent: AbsentRows, row_type: str, *, what: str, field: str) -> None:
    """Raises ConfigError for absent rows with values that a row type cannot hold. what: the owner, for the message."""
    if absent.initializer.largest > _LARGEST[check_row_type(row_type)]:
        raise ConfigError(
            f"{what}: absent rows are {absent}, whose values reach {absent.initializer.largest:g}; {row_type} holds "
            f"{_LARGEST[row_type]:g} at most",
            field=field,
        )


@dataclass(frozen=True)
class TableSpec:
    """One embedding table: `rows` rows of `dim` values, stored as `row_type` says (storage.rows).

    absent: what ids without a row read as, rounded as rows are; a delta's table says nothing of it. Raises ConfigError
    for a name, size or row type that cannot be stored.
    """

    name: str
    dim: int
    row_type: str = "fp32"
    rows: int = 0
    absent: AbsentRows = ABSENT_ZEROS

    def __post_init__(self) -> None:
        if not _TABLE_NAME.fullmatch(self.name):
            raise ConfigError(
                f"table name {self.name!r}: expected 1 to 64 letters, digits, '_' or '-' (not first); rename the table",
                field="tables.name",
            )
        if not 1 <= self.dim <= MAX_DIM:
            raise ConfigError(
                f"table {self.name!r}: dim is {self.dim}, expected 1 to {MAX_DIM}", field=f"tables.{self.name}.dim"
            )
        check_row_type(self.row_type, what=f"table {self.name!r}", field=f"tables.{self.name}.row_type")
        if self.rows < 0:
            raise ConfigError(f"table {self.name!r}: rows is {self.rows}, expected 0 or more", field="tables.rows")
        check_absent(self.absent, self.row_type, what=f"table {self.name!r}", field=f"tables.{self.name}.absent")

    @property
    def row_bytes(self) -> int:
        """The bytes of one row as it is stored."""
        return encoded_bytes(self.row_type, self.dim)


@dataclass(frozen=True)
class LookupLevel:
    """A level of a chain of fallbacks: where an id without a row reads another row.

    feature: the feature of the same lookup whose id is looked up; "" looks up id 0, the mean. parallel: id i of a bag
    of the level stands for id i; without it, the one id of a bag for all.
    """

    feature: str
    table: str
    parallel: bool = False

    @property
    def name(self) -> str:
        """The feature's name, or `mean`."""
        return self.feature or "mean"


@dataclass(frozen=True)
class LookupSpec:
    """One ids feature of a model: its table, and how the rows of a bag become its tensor."""

    feature: str
    table: str
    #: "sum", "mean" or "weighted" (the sum of weight * row) gives (B, dim); "none" gives (B, length, dim), bags padded
    #: or cut to `length`.
    pooling: str = "sum"
    length: int = 0
    #: What ids without a row read as; None: what the table says.
    absent: AbsentRows | None = None
    #: The rows that ids without one read instead, the first level that has one first.
    fallback: tuple[LookupLevel, ...] = ()

    def __post_init__(self) -> None:
        if self.pooling not in POOLINGS:
            raise ConfigError(
                f"feature {self.feature!r}: pooling is {self.pooling!r}, expected one of {', '.join(POOLINGS)}",
                field=f"features.{self.feature}.pooling",
            )
        if self.pooling == "none" and not 1 <= self.length <= MAX_LENGTH:
            raise ConfigError(
                f"feature {self.feature!r}: pooling none needs a length from 1 to {MAX_LENGTH}, got {self.length}",
                field=f"features.{self.feature}.length",
            )
