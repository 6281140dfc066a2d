"""The difference of two snapshots: found, as JSON values, and as text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from emberline.difference.scores import Requests, ScoreDifference
from emberline.difference.tables import AskedChanges, RowChange, TableDifference, table_difference
from emberline.difference.weights import WeightDifference, weight_differences
from serving.scoring import Scorer
from storage.checkpoint.as_of import AsOf

_ROWS = ("id", "", "change", "norm before", "uses")
_NUMBERS = "{:.4g}"


@dataclass
class SnapshotDifference:
    """Holds what differs between two snapshots of a model."""

    before: str
    after: str
    tables: list[TableDifference] = field(default_factory=list)
    weights: list[WeightDifference] = field(default_factory=list)
    #: Weights that are the same in both.
    same_weights: int = 0
    #: By output; empty without requests.
    scores: list[ScoreDifference] = field(default_factory=list)
    #: In words, outputs that could not be compared.
    not_compared: list[str] = field(default_factory=list)

    def to_json_value(self) -> dict[str, Any]:
        """Returns it as JSON values."""
        return asdict(self)


def compare_snapshots(
    before: AsOf,
    after: AsOf,
    *,
    top: int,
    requests: Requests | None = None,
    scorer: Scorer | None = None,
    on_table: Callable[[str], Callable[[int], None]] = lambda _: lambda _: None,
) -> tuple[SnapshotDifference, dict[str, AskedChanges]]:
    """Compares tables and weights; also returns the ids of `requests` that differ, by table.

    scorer: made the features of the requests. top: rows to list for each table. on_table: called with a table's name,
    returns what is called with how many more of its rows were compared.
    """
    asked = {} if requests is None or scorer is None else requests.asked(scorer)
    found, changes = SnapshotDifference(str(before), str(after)), {}
    names = dict.fromkeys(spec.name for as_of in (before, after) for spec in as_of.version.tables)
    for name in names:
        ids = asked.get(name, np.empty(0, np.int64))
        table, changes[name] = table_difference(name, before, after, ids, top, on_table(name))
        found.tables.append(table)
    found.weights, found.same_weights = weight_differences(before, after)
    return found, changes


@dataclass(frozen=True)
class Grid:
    """A table of a report."""

    title: str
    names: Sequence[str]
    rows: list[Sequence[str]]


def grids(found: SnapshotDifference) -> Iterator[Grid]:
    """Yields the tables of the report, those without a row too."""
    yield Grid(
        "Rows",
        ("table", "rows are", "added", "removed", "changed", "same", "change (rms)", "largest", "uses of what differs"),
        [
            (
                table.name,
                _both(table.before, table.after),
                *(f"{count:,}" for count in (table.added, table.removed, table.changed, table.same)),
                *map(_number, (table.change_rms, table.change_max)),
                f"{table.uses_share:.1%}",
            )
            for table in found.tables
        ],
    )
    for table in found.tables:
        for what, rows in (("used most", table.hottest), ("moved furthest", table.largest)):
            if rows:
                yield Grid(f"{table.name}: what differs, {what} first", _ROWS, [_row(each) for each in rows])
    yield Grid(
        f"Dense weights that differ ({found.same_weights:,} do not)",
        ("weight", "shape", "change", "norm before", "largest"),
        [
            (
                weight.name,
                weight.after
                if weight.before == weight.after
                else f"{weight.before or 'none'} -> {weight.after or 'none'}",
                *map(_number, (weight.change, weight.norm, weight.largest)),
            )
            for weight in found.weights
        ],
    )
    for score in found.scores:
        yield from _score_grids(score)


def score_lines(score: ScoreDifference) -> list[str]:
    """Returns what is said of an output in sentences."""
    lines = [
        f"{score.output}: {score.moved:,} of {score.requests:,} requests have another score; the mean moved by "
        f"{score.shift:+.4g}, the scores by {score.mean:.4g} in the mean and {score.largest:.4g} at most"
    ]
    if score.undivided:
        lines.append(f"what moved them is not known: {score.undivided}")
    elif score.moved:
        lines.append(f"{score.together:.4g} in the mean comes of several parts together")
    return lines


def _score_grids(score: ScoreDifference) -> Iterator[Grid]:
    yield Grid(
        f"{score.output}: what each part of the second snapshot moves by itself",
        ("part", "name", "mean", "largest", "shift"),
        [
            (each.kind, each.name, *map(_number, (each.mean, each.largest)), f"{each.shift:+.4g}")
            for each in score.parts
        ],
    )
    yield Grid(
        f"{score.output}: requests that moved furthest",
        ("row", "before", "after", "by itself", "changed rows that it reads"),
        [
            (
                str(each.row),
                _number(each.before),
                _number(each.after),
                ", ".join(f"{name} {change:+.3g}" for name, change in each.parts.items()),
                ", ".join(f"{feature} {number} ({norm:.3g})" for feature, number, norm in each.rows),
            )
            for each in score.most
        ],
    )


def _row(row: RowChange) -> tuple[str, ...]:
    return str(row.id), row.kind, _number(row.change), _number(row.norm), f"{row.uses:,}"


def _both(before: str, after: str) -> str:
    return after if before == after else f"{before or 'none'} -> {after or 'none'}"


def _number(value: float) -> str:
    return _NUMBERS.format(value)
