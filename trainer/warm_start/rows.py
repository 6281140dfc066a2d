"""Moves the rows of a source's table into a table of another dim or optimizer, piece by piece.

N ids, D dim, S optimizer values.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from trainer.embedding import EmbeddingTable, SparseRule
from trainer.embedding.whole_table import owned
from trainer.warm_start.source import Piece, SourceTable

Rows = NDArray[np.float32]
#: Returns optimizer values (N, S) for rows (N, D) that have none.
SlotsFor = Callable[[EmbeddingTable, Rows], Rows]


def slot_widths(rule: SparseRule, dim: int) -> tuple[int, ...]:
    """Returns the widths of the parts of a row's optimizer values, in order: storage/native/training/optimizer.h."""
    match rule:
        case "sgd":
            return ()
        case "momentum" | "adagrad":
            return (dim,)
        case "rowwise_adagrad":
            return (1,)
        case "adagrad_decay" | "rowwise_adam":
            return (dim, 1)
        case _:
            return (dim, dim)


def take_rows(source: SourceTable, table: EmbeddingTable, slots_for: SlotsFor) -> int:
    """Puts every row of the source into an empty table and returns their number.

    Of a row of another dim the leading values are kept, and values that are new are those that the id's first row has.
    Counts are kept, and optimizer values if the rule is the same. One of several ranks takes the rows of its own ids.
    """
    total = 0
    for piece in source.pieces():
        rows = resized_rows(piece, table)
        slots = slots_for(table, rows)
        if piece.slots is not None and source.optimizer == table.optimizer:
            _keep_slots(piece.slots, source.dim, slots, table)
        total += len(piece.ids)
        mine = owned(table, piece.ids)
        number = len(piece.ids[mine])
        stamps, ticks = (np.full(number, value, np.uint32) for value in (table.stamp, table.tick))
        table.restore(piece.ids[mine], rows[mine], slots[mine], piece.counts[mine], stamps, ticks)
    if table.admit_after > 1:
        for ids, counts in source.counts():
            mine = owned(table, ids)
            table.restore_counts(ids[mine], counts[mine])
    if source.optimizer == table.optimizer:
        table.set_steps(source.steps)
    return total


def resized_rows(piece: Piece, table: EmbeddingTable) -> Rows:
    """Returns the rows (N, D) that a table of its dim has for the rows of a piece."""
    dim = piece.rows.shape[1]
    if dim == table.dim:
        return piece.rows
    if dim > table.dim:
        return np.ascontiguousarray(piece.rows[:, : table.dim])
    rows = table.first_rows(piece.ids)
    rows[:, :dim] = piece.rows
    return rows


def _keep_slots(before: Rows, dim: int, slots: Rows, table: EmbeddingTable) -> None:
    old = new = 0
    for width, other in zip(slot_widths(table.optimizer, dim), slot_widths(table.optimizer, table.dim), strict=True):
        kept = min(width, other)
        slots[:, new : new + kept] = before[:, old : old + kept]
        old, new = old + width, new + other
