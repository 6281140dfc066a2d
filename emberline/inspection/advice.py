"""Tells what other thresholds, evictions and budgets would do to a table, by the occurrences that training counted.

Everything is judged by the past: lookups to come ask for ids that were not seen yet, so they are answered a little less
(`emberline plan` corrects for that). Each figure is a lower bound of what it costs to drop rows only as far as ids are
used as they were.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from emberline.inspection.figures import TableFigures
from emberline.inspection.histogram import Histogram
from storage.hbm.replica import bytes_of
from storage.specs import ROW_TYPES, encoded_bytes
from storage.tiers.planning.budget import INDEX_BYTES_PER_ROW

ADMISSIONS = (2, 3, 5, 10)
COVERAGES = (0.80, 0.90, 0.95, 0.99)
ID_SHARES = (0.01, 0.05, 0.10, 0.20, 0.50)
_NORM_QUANTILES = (0.01, 0.05, 0.10, 0.25)
# The most points of a coverage curve that is drawn or written.
_CURVE_POINTS = 200


@dataclass(frozen=True)
class Kept:
    """The rows that an admission threshold would leave."""

    admit_after: int
    rows: int
    #: The share of all occurrences, those of waiting ids included, that are of these ids.
    share: float
    #: Bytes that the rows take.
    bytes: int


@dataclass(frozen=True)
class Freed:
    """The rows that an eviction would remove."""

    #: "norm", "publishes", "ticks" or "stamps".
    by: str
    #: Rows with a smaller norm, or last used at least so long ago.
    threshold: float
    rows: int
    #: The share of the occurrences of all rows that were theirs.
    share: float
    #: Bytes that the rows take.
    bytes: int


@dataclass(frozen=True)
class Budget:
    """Memory in which the rows that were used most answer a share of the lookups."""

    coverage: float
    rows: int
    dram_bytes: int
    hbm_bytes: int


def coverage_curve(figures: TableFigures) -> list[tuple[float, float]]:
    """Returns points (share of the ids, share of their lookups), from (0, 0) to (1, 1): the most used ids first.

    Empty when nothing was counted.
    """
    rows, uses = _descending(figures)
    if uses[-1] == 0:
        return []
    if len(rows) > _CURVE_POINTS:
        # Evenly on a logarithmic axis of rows, where curves of skewed counts have their shape.
        wanted = np.geomspace(max(1, rows[1]), rows[-1], _CURVE_POINTS)
        kept = np.unique(np.concatenate([[0, 1, len(rows) - 1], np.searchsorted(rows, wanted)]))
        rows, uses = rows[kept], uses[kept]
    return list(zip((rows / rows[-1]).tolist(), (uses / uses[-1]).tolist(), strict=True))


def share_of_lookups(figures: TableFigures, id_share: float) -> float:
    """Returns the share of the lookups that the most used ids make. id_share: how many of the ids; 0 without counts."""
    rows, uses = _descending(figures)
    return float(np.interp(id_share * rows[-1], rows, uses)) / float(uses[-1]) if uses[-1] else 0.0


def rows_for(figures: TableFigures, coverage: float) -> int:
    """Returns how many of the most used rows make this share of the lookups."""
    rows, uses = _descending(figures)
    return int(np.ceil(np.interp(coverage * uses[-1], uses, rows) - 1e-6))


def admissions(figures: TableFigures, thresholds: Iterable[int] = ADMISSIONS) -> list[Kept]:
    """Returns what admission thresholds, and the table's own, would keep, by the counts of rows and waiting ids.

    A published version has no waiting ids, so the share is of the lookups of its rows.
    """
    total = figures.uses + figures.waiting_counts.uses
    found: list[Kept] = []
    if total == 0:
        return found
    own = figures.facts.admit_after
    for threshold in sorted({*thresholds, *((own,) if own else ())}):
        rows, uses = figures.counts.at_least(threshold)
        waiting, waiting_uses = figures.waiting_counts.at_least(threshold)
        rows += waiting
        found.append(Kept(threshold, rows, (uses + waiting_uses) / total, rows * figures.row_bytes))
    return found


def evictions(figures: TableFigures) -> list[Freed]:
    """Returns what evictions by norm and by age would free, for some thresholds of each.

    Ages at which every row would go are left out.
    """
    found: list[Freed] = []
    quantiles = {figures.norms.quantile(share) for share in _NORM_QUANTILES}
    found += [
        _freed(figures, "norm", threshold, *figures.norms.below(threshold))
        for threshold in sorted({figures.near_zero, *quantiles} - {0.0})
    ]
    for unit, ages in shown_ages(figures).items():
        oldest, threshold = ages.largest, 1
        while threshold <= oldest:
            rows, uses = ages.at_least(threshold)
            if rows < figures.rows:
                found.append(_freed(figures, unit, threshold, rows, uses))
            threshold *= 2 if threshold < 16 else 4
    return found


def shown_ages(figures: TableFigures) -> dict[str, Histogram]:
    """Returns the units of age that say something: stamps count commits too, so publishes take their place."""
    return {unit: ages for unit, ages in figures.ages.items() if unit != "stamps" or len(figures.ages) == 1}


def budgets(figures: TableFigures, coverages: Iterable[float] = COVERAGES) -> list[Budget]:
    """Returns the memory of a server that covers shares of the lookups; empty when nothing was counted.

    DRAM as the server's cache counts it, index included; HBM as a replica on a GPU takes it.
    """
    if figures.uses == 0:
        return []
    size = figures.facts.spec.row_bytes
    found: list[Budget] = []
    for coverage in coverages:
        rows = rows_for(figures, coverage)
        found.append(Budget(coverage, rows, rows * (size + INDEX_BYTES_PER_ROW), bytes_of(size, rows)))
    return found


def row_type_bytes(figures: TableFigures) -> dict[int, dict[str, int]]:
    """Returns the bytes of all rows by dim (the table's, half and twice it) and row type."""
    dim = figures.facts.dim
    dims = sorted({max(1, dim // 2), dim, min(4096, 2 * dim)})
    return {each: {kind: figures.rows * encoded_bytes(kind, each) for kind in ROW_TYPES} for each in dims}


def remarks(figures: TableFigures) -> list[str]:
    """Returns what deserves attention, as sentences."""
    found: list[str] = []
    facts, rows = figures.facts, max(1, figures.rows)
    if figures.not_finite_rows:
        found.append(
            f"{figures.not_finite_rows:,} rows hold NaN or infinity: the training diverged; lower the learning rate, "
            "or set a clip (optimizer.sparse.row_clip)"
        )
    if figures.uses == 0 and figures.rows:
        found.append("no use was counted (layers of plain torch count none), so nothing follows from counts")
    if facts.approximate and figures.uses:
        found.append(
            "counts are approximate: a published row has one byte, exact to 31, then rounded down by at most a "
            "sixteenth, and 507,904 stands for more as well; a run has exact counts"
        )
    once, _ = figures.counts.below(2)
    if figures.uses and once > 0.2 * figures.rows:
        found.append(
            f"{once / rows:.0%} of the rows were used once; admit_after: 2 in the configuration's `tables` would leave "
            "them out"
        )
    if figures.zero_rows > 0.2 * figures.rows:
        found.append(f"{figures.zero_rows / rows:.0%} of the rows are all zeros")
    if facts.slots * 4 > facts.spec.row_bytes:
        found.append(
            f"optimizer values take {facts.slots * 4 / facts.spec.row_bytes:.3g} times the bytes of the rows; a "
            "rowwise optimizer keeps one value a row"
        )
    return found


def _freed(figures: TableFigures, by: str, threshold: float, rows: int, uses: int) -> Freed:
    return Freed(by, threshold, rows, uses / figures.uses if figures.uses else 0.0, rows * figures.row_bytes)


def _descending(figures: TableFigures) -> tuple[np.ndarray, np.ndarray]:
    """Returns rows (k,) and their uses (k,) summed up from the most used on, both from 0."""
    _, rows, uses = figures.counts.filled()
    zero = np.zeros(1, np.int64)
    return np.concatenate([zero, np.cumsum(rows[::-1])]), np.concatenate([zero, np.cumsum(uses[::-1])])
