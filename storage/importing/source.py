"""The tables of other systems' files, as every kind of file yields them. n rows, D values of a row."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from storage.errors import InvalidInput
from storage.importing.row_files import RowFiles
from storage.initializers import ABSENT_ZEROS, AbsentRows, Initializer
from storage.specs import MAX_DIM

# Rows that a kind reads at once: enough that the calls cost nothing, little beside the memory of a sort.
BLOCK_BYTES = 8 << 20


@dataclass(frozen=True)
class Block:
    """Some rows of a table, of one file."""

    #: (n,) int64, in any order.
    ids: np.ndarray
    #: (n, D) float32.
    rows: np.ndarray
    #: The file, for messages.
    file: str
    #: (n,) uint32, how often each id was used; None where the file does not say.
    counts: np.ndarray | None = None
    #: (n,) int64: of rows of one id, that of the largest step is taken. None where an id has only one row.
    steps: np.ndarray | None = None
    #: (n,) bool: ids that have no row any more from their step on.
    removed: np.ndarray | None = None


@dataclass(frozen=True)
class FileTable:
    """One table of the files."""

    name: str
    dim: int
    #: Yields all its rows, in any order; called more than once.
    blocks: Callable[[], Iterator[Block]]
    #: Yields the ids alone, those of the blocks in their order; called more than once.
    ids: Callable[[], Iterator[np.ndarray]]
    #: Number of rows in the files, an id that comes several times counted as often.
    rows: int
    #: Whether blocks may say that ids were removed.
    removes: bool = False
    #: What ids without a row read as.
    absent: AbsentRows = ABSENT_ZEROS
    #: Whether the files or an option say so; otherwise it is zeros because nothing says anything.
    says_absent: bool = False
    #: What the files hold that is not imported, for people.
    left_out: tuple[str, ...] = ()
    #: The rows alone, in the order of the blocks, where any of them can be read by itself and blocks have nothing else.
    row_files: RowFiles | None = None
    #: What the files call it, where that is another name.
    source: str = ""


def tables_by_name(tables: Iterable[FileTable]) -> dict[str, FileTable]:
    """Returns tables by name. Raises InvalidInput for two of one name, of which one would be lost."""
    found: dict[str, FileTable] = {}
    for table in tables:
        if table.name in found:
            raise InvalidInput(f"two tables would be called {table.name!r}; import one after the other", field="table")
        found[table.name] = table
    return found


def check_dim(dim: int, *, what: str) -> None:
    """Raises InvalidInput for a number of values that no row can have. what: table and file, for the message."""
    if not 1 <= dim <= MAX_DIM:
        raise InvalidInput(f"{what}: rows of {dim:,} values, expected 1 to {MAX_DIM:,}", field="dim")


def rows_at_once(dim: int) -> int:
    """Returns how many rows of D float32 make a block."""
    return max(1, BLOCK_BYTES // (4 * dim))


def pieces(rows: int, dim: int) -> Iterator[slice]:
    """Yields slices that cover so many rows, a block each."""
    step = rows_at_once(dim)
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def default_vector(values: np.ndarray | list[float] | float, *, what: str) -> AbsentRows:
    """Returns the absent rows for a default vector. what: its table and file, for the message.

    Raises InvalidInput for a vector whose values differ, which no table of ours can have, and for NaN or infinity.
    """
    array = np.atleast_1d(np.asarray(values, np.float64))
    if not np.all(np.isfinite(array)):
        raise InvalidInput(f"{what}: the default vector holds NaN or infinity", field="default")
    if len(np.unique(array)) > 1:
        raise InvalidInput(
            f"{what}: the values of the default vector differ ({array.min():g} to {array.max():g}), and ids without a "
            f"row read as one value in all places. --default {array.mean():.6g}, their mean, or another value sets it; "
            "or give the vector to an id of its own, and send that for ids without a row",
            field="default",
        )
    return AbsentRows.of(Initializer("constant", float(array[0])))


def table_name(text: str) -> str:
    """Returns a name that a table can have, made of what a file calls it."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", text).lstrip("-")[:64] or "table"


def as_rows(values: np.ndarray, dim: int, *, what: str) -> np.ndarray:
    """Returns rows (n, D) as float32. what: table and file, for the message.

    Raises InvalidInput for another dim or a dtype that holds no rows.
    """
    if values.ndim != 2 or values.shape[1] != dim:
        raise InvalidInput(f"{what}: rows of shape {list(values.shape)}, expected [n, {dim}]", field="dim")
    if values.dtype.kind != "f":
        raise InvalidInput(f"{what}: rows of {values.dtype}, expected float32, float16, bfloat16 or float64")
    with np.errstate(over="ignore"):  # what is too large for float32 becomes infinity, which is refused by its id
        return np.ascontiguousarray(values, np.float32)


def as_ids(values: np.ndarray, *, what: str) -> np.ndarray:
    """Returns ids (n,) as int64; a uint64 keeps its bits. what: table and file. Raises InvalidInput."""
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise InvalidInput(f"{what}: ids are {values.dtype} {list(values.shape)}, expected integers [n]")
    return np.ascontiguousarray(values).view(np.int64) if values.dtype == np.uint64 else values.astype(np.int64)
