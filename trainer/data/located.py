"""Names the file and the row of the first row at fault, when a batch cannot be made of its rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from storage.errors import InvalidInput
from trainer.data.stream import RowStream

_Result = TypeVar("_Result")


def located(work: Callable[[Any], _Result], stream: RowStream, epoch: int) -> Callable[[tuple[int, Any]], _Result]:
    """Returns `work` for tables of an epoch of `stream` with the numbers of their first batches.

    Its errors name the file and the row.
    """

    def named(entry: tuple[int, Any]) -> _Result:
        number, table = entry
        try:
            return work(table)
        except InvalidInput as error:
            row, alone = first_at_fault(work, table)
            if row is None:
                raise
            raise InvalidInput(f"{stream.place_of(epoch, number, row)}: {alone or error}", field=error.field) from error

    return named


def first_at_fault(work: Callable[[Any], object], table: Any) -> tuple[int | None, InvalidInput | None]:
    """Returns the first row that `work` does not take, and what it says of this row alone; None when it takes each."""
    low, high = 0, table.num_rows  # `work` takes the first `low` rows, and not the first `high`
    while high - low > 1:
        middle = (low + high) // 2
        if _error(work, table.slice(low, middle - low)) is None:
            low = middle
        else:
            high = middle
    alone = _error(work, table.slice(low, 1)) if table.num_rows else None
    return (None, None) if alone is None else (low, alone)


def _error(work: Callable[[Any], object], table: Any) -> InvalidInput | None:
    try:
        work(table)
    except InvalidInput as error:
        return error
    return None
