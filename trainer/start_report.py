"""The report of a warm start: what was taken, widened or cut, what is new, and what is gone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

#: taken: as it was. widened: some values are new. cut: some values of the source are gone. reshaped: both.
Change = Literal["taken", "widened", "cut", "reshaped", "new", "gone"]


@dataclass(frozen=True)
class TableStart:
    """The outcome for one table."""

    name: str
    change: Change
    #: Rows that were taken; of a table that is gone, those that were left.
    rows: int
    dim: int
    #: The name and the dim in the source; "" and 0 for a new table.
    source: str = ""
    source_dim: int = 0
    #: True if the optimizer values of the rows were taken too.
    optimizer: bool = False


@dataclass(frozen=True)
class WeightStart:
    """The outcome for one dense weight."""

    name: str
    change: Change
    shape: tuple[int, ...]
    #: Values that were taken.
    values: int = 0
    source: str = ""
    source_shape: tuple[int, ...] = ()
    #: True if the values of the dense optimizer were taken too.
    optimizer: bool = False


@dataclass(frozen=True)
class StartReport:
    """The outcome for all tables and weights of a model."""

    source: str
    tables: list[TableStart]
    weights: list[WeightStart]
    #: What else is to be known, one sentence each.
    notes: list[str]

    def text(self) -> str:
        """The report as a table of plain text."""
        tables = [
            (
                f"table {entry.name}",
                entry.change,
                f"{entry.rows:,} rows" if entry.change != "new" else "",
                _sizes("dim ", entry.dim, entry.source_dim, entry.change),
                _more(entry.name, entry.source, entry.optimizer),
            )
            for entry in self.tables
        ]
        weights = [
            (
                f"weight {entry.name}",
                entry.change,
                f"{entry.values:,} values" if entry.change not in ("new", "gone") else "",
                _sizes("", list(entry.shape), list(entry.source_shape), entry.change),
                _more(entry.name, entry.source, entry.optimizer),
            )
            for entry in self.weights
        ]
        return "\n".join([f"starts from {self.source}", *_grid([*tables, *weights]), *self.notes])

    def to_json_value(self) -> dict[str, Any]:
        """The report as JSON values."""
        return asdict(self)

    @classmethod
    def from_json_value(cls, value: dict[str, Any]) -> Self:
        """Reads what `to_json_value` gave. Raises KeyError or TypeError for anything else."""
        weights = [
            WeightStart(**{**entry, "shape": tuple(entry["shape"]), "source_shape": tuple(entry["source_shape"])})
            for entry in value["weights"]
        ]
        return cls(**{**value, "tables": [TableStart(**entry) for entry in value["tables"]], "weights": weights})


def _sizes(unit: str, now: object, before: object, change: Change) -> str:
    if change == "gone":
        return f"{unit}{before}"
    return f"{unit}{now}" if change == "new" or now == before else f"{unit}{before} -> {now}"


def _more(name: str, source: str, optimizer: bool) -> str:
    parts = ["with optimizer values"] if optimizer else []
    return ", ".join([f"was {source}", *parts] if source not in ("", name) else parts)


def _grid(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))] if rows else []
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
