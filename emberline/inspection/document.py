"""The analysis of tables as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from emberline.inspection import advice
from emberline.inspection.collisions import HashedFeature
from emberline.inspection.figures import TableFigures
from emberline.inspection.histogram import Histogram
from emberline.inspection.source import Origin

FORMAT = "emberline-inspect-1"
QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999)


@dataclass(frozen=True)
class TableAnalysis:
    """A table's figures, and the features that hash into it."""

    figures: TableFigures
    hashed: tuple[HashedFeature, ...] = ()


def to_json_value(origin: Origin, tables: Sequence[TableAnalysis]) -> dict[str, Any]:
    """Returns everything that text and pages show. Histograms are lists of bars with `low` <= value < `high`."""
    return {
        "format": FORMAT,
        "kind": origin.kind,
        "path": origin.path,
        "title": origin.title,
        "tables": [_table(analysis) for analysis in tables],
    }


def _table(analysis: TableAnalysis) -> dict[str, Any]:
    figures = analysis.figures
    facts = figures.facts
    return {
        "name": facts.name,
        "dim": facts.dim,
        "row_type": facts.spec.row_type,
        "optimizer": facts.optimizer or None,
        "optimizer_values": facts.slots,
        "admit_after": facts.admit_after,
        "rows": figures.rows,
        "bytes": figures.bytes_of(),
        "row_bytes": figures.row_bytes,
        "smallest_id": figures.smallest_id,
        "largest_id": figures.largest_id,
        "lookups": figures.uses,
        "counts_are_approximate": facts.approximate,
        "counts": _histogram(figures.counts),
        "waiting": {
            "ids": figures.waiting,
            "lookups": figures.waiting_counts.uses,
            **_histogram(figures.waiting_counts),
        },
        "last_use": {unit: _histogram(ages) for unit, ages in figures.ages.items()},
        "norms": _histogram(figures.norms),
        "zero_rows": figures.zero_rows,
        "near_zero": {"norm_below": figures.near_zero, "rows": figures.near_zero_rows},
        "not_finite_rows": figures.not_finite_rows,
        "hottest": [asdict(row) for row in figures.hottest],
        "sample": [asdict(row) for row in figures.sample],
        "coverage_curve": advice.coverage_curve(figures),
        "coverage": [
            {"share_of_ids": share, "share_of_lookups": advice.share_of_lookups(figures, share)}
            for share in (advice.ID_SHARES if figures.uses else ())
        ],
        "admit_after_would_keep": [asdict(kept) for kept in advice.admissions(figures)],
        "eviction_would_free": [asdict(freed) for freed in advice.evictions(figures)],
        "budgets": [asdict(budget) for budget in advice.budgets(figures)],
        "bytes_by_dim_and_row_type": advice.row_type_bytes(figures),
        "hashed_features": [_hashed(feature) for feature in analysis.hashed],
        "remarks": advice.remarks(figures),
    }


def _histogram(histogram: Histogram) -> dict[str, Any]:
    return {
        "quantiles": {f"{share:g}": histogram.quantile(share) for share in QUANTILES} if histogram.rows else {},
        "largest": histogram.largest if histogram.rows else None,
        "bars": [bar._asdict() for bar in histogram.doublings()],
    }


def _hashed(feature: HashedFeature) -> dict[str, Any]:
    value = asdict(feature)
    if feature.measured is not None:
        value["measured"] = {
            "values": feature.measured.before,
            "ids": feature.measured.after,
            "rate": feature.measured.rate,
            "expected_rate": feature.measured.expected_rate,
        }
    return value
