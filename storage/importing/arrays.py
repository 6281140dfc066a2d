"""Makes a table of two arrays, one of ids and one of rows, wherever they lie."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from storage.errors import InvalidInput
from storage.importing.options import ImportOptions
from storage.importing.row_files import RowFiles
from storage.importing.source import Block, FileTable, as_ids, as_rows, check_dim, pieces
from storage.initializers import ABSENT_ZEROS, AbsentRows


class Array(Protocol):
    """An array that is read in parts."""

    @property
    def rows(self) -> int:
        """Number of rows."""

    @property
    def width(self) -> int:
        """Values of a row; 0 for an array (n,)."""

    def read(self, part: slice) -> np.ndarray:
        """Returns some rows."""


@dataclass(frozen=True)
class Part:
    """One file of a table: ids and rows of equal length, and how often ids were used."""

    file: str
    ids: Array
    rows: Array
    counts: Array | None = None


def table_of_parts(
    name: str,
    parts: list[Part],
    options: ImportOptions,
    *,
    source: str = "",
    left_out: tuple[str, ...] = (),
    dim: int | None = None,
    absent: AbsentRows | None = None,
) -> FileTable:
    """Returns a table made of parts. Raises InvalidInput for parts that do not fit together.

    source: what the files call it, where that is another name. dim, absent: what the files say elsewhere, None where
    they say nothing.
    """
    wanted = options.dim(name) or dim or parts[0].rows.width
    if wanted < 1:
        raise InvalidInput(f"table {name!r}: the rows in {parts[0].file} are [n], expected [n, dim]", field="dim")
    check_dim(wanted, what=f"table {name!r}, {parts[0].file}")
    for part in parts:
        if part.rows.width != wanted:
            raise InvalidInput(
                f"table {name!r}: the rows in {part.file} have {part.rows.width} values, expected {wanted}", field="dim"
            )
        for what, array in (("rows", part.rows), ("counts", part.counts)):
            if array is not None and array.rows != part.ids.rows:
                raise InvalidInput(
                    f"table {name!r}: {part.file} has {part.ids.rows:,} ids and {array.rows:,} {what}; a file is cut "
                    "off, or they do not belong together"
                )

    def blocks() -> Iterator[Block]:
        for part in parts:
            what = f"table {name!r}, {part.file}"
            for piece in pieces(part.ids.rows, wanted):
                ids = as_ids(part.ids.read(piece), what=what)
                rows = as_rows(part.rows.read(piece), wanted, what=what)
                counts = None if part.counts is None else as_counts(part.counts.read(piece), what=what)
                yield Block(ids, rows, part.file, counts)

    def ids() -> Iterator[np.ndarray]:
        for part in parts:
            for piece in pieces(part.ids.rows, 2):
                yield as_ids(part.ids.read(piece), what=f"table {name!r}, {part.file}")

    rows = sum(part.ids.rows for part in parts)
    counted = any(part.counts is not None for part in parts)
    return FileTable(
        name,
        wanted,
        blocks,
        ids,
        rows,
        source=source,
        absent=options.absent(name, absent or ABSENT_ZEROS),
        says_absent=absent is not None or options.default(name) is not None,
        left_out=left_out,
        row_files=None if counted else RowFiles.of([part.rows for part in parts]),
    )


def as_counts(values: np.ndarray, *, what: str) -> np.ndarray:
    """Returns use counts (n,) as uint32, those beyond as the largest. what: table and file. Raises InvalidInput."""
    if values.ndim != 1 or values.dtype.kind not in "iuf":
        raise InvalidInput(f"{what}: counts are {values.dtype} {list(values.shape)}, expected numbers [n]")
    if len(wrong := np.flatnonzero(~(values >= 0))):
        raise InvalidInput(f"{what}: a count is {values[wrong[0]]}, expected 0 or more", field="count")
    # In float32 the bound would be rounded to one that uint32 cannot hold.
    whole = values.astype(np.float64) if values.dtype.kind == "f" else values
    counts: np.ndarray = np.minimum(whole, 2**32 - 1).astype(np.uint32)
    return counts
