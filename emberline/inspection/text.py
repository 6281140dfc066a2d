"""Prints the analysis of tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from emberline.fitted_table import FittedTable, wrapping
from emberline.inspection import advice
from emberline.inspection.collisions import HashedFeature
from emberline.inspection.document import TableAnalysis
from emberline.inspection.figures import SampleRow, TableFigures
from emberline.inspection.histogram import Bar, Histogram
from emberline.inspection.source import Origin
from storage.byte_sizes import human_bytes

UNITS = {
    "publishes": "publishes ago",
    "ticks": "ticks ago",
    "stamps": "commits and publishes ago",
}
_BAR_WIDTH = 40
# Columns of the terminal that a bar has at least, and those that the figures beside it take.
_LEAST_BAR, _BESIDE_BAR = 8, 58
_QUANTILES = (("p10", 0.1), ("median", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999))


def show(console: Console, origin: Origin, tables: Sequence[TableAnalysis]) -> None:
    """Prints one line for each table, then everything about each."""
    console.print(origin.title)
    console.print(_overview([analysis.figures for analysis in tables]))
    for analysis in tables:
        _show_table(console, analysis)


def number(value: float) -> str:
    """Formats a count or a norm: whole numbers with commas, others with three digits."""
    return f"{int(value):,}" if value == int(value) and abs(value) < 1e15 else f"{value:.3g}"


def hashed_line(feature: HashedFeature) -> str:
    """Returns one sentence about the collisions of a feature."""
    if feature.buckets is None:
        text = f"feature {feature.feature}: 63-bit hashes, which do not collide in practice"
    else:
        text = f"feature {feature.feature}: {feature.buckets:,} buckets, {feature.ids:,} ids seen"
        if feature.expected_rate is not None and feature.expected_values is not None:
            text += (
                f"; about {feature.expected_values:,.0f} values gave them, so {feature.expected_rate:.2%} are expected "
                "to collide"
            )
        elif feature.mixed:
            text += "; features that hash differently share the table, so its ids do not tell the collisions of each"
        else:
            text += "; nearly every bucket is in use, so most values collide"
    if feature.measured is not None:
        found = feature.measured
        text += (
            f"; measured on the data: {found.before:,} values, {found.after:,} ids, {found.rate:.2%} collide "
            f"({found.expected_rate:.2%} expected)"
        )
    return text


def threshold_text(freed: advice.Freed) -> str:
    """Returns what an eviction asks of a row."""
    if freed.by == "norm":
        return f"norm below {number(freed.threshold)}"
    return f"last use {number(freed.threshold)} or more {freed.by} ago"


def ids_text(figures: TableFigures) -> str:
    """Returns the range of the ids."""
    return "none" if figures.smallest_id is None else f"{figures.smallest_id} to {figures.largest_id}"


def _overview(tables: Sequence[TableFigures]) -> FittedTable:
    shown = _grid(
        "tables", "table", "rows", "dim", "row type", "bytes", "waiting", "lookups counted", "20% of ids make"
    )
    for figures in tables:
        spec = figures.facts.spec
        share = f"{advice.share_of_lookups(figures, 0.2):.1%}" if figures.uses else ""
        waiting = f"{figures.waiting:,}" if figures.facts.history is not None else "not known"
        size = human_bytes(sum(figures.bytes_of().values()))
        about = "about " if figures.facts.approximate and figures.uses else ""
        uses = f"{about}{figures.uses:,}"
        shown.add_row(spec.name, f"{figures.rows:,}", str(spec.dim), spec.row_type, size, waiting, uses, share)
    return shown


def _show_table(console: Console, analysis: TableAnalysis) -> None:
    figures = analysis.figures
    facts = figures.facts
    console.print(f"\n{facts.name}", style="bold")
    parts = ", ".join(f"{what} {human_bytes(size)}" for what, size in figures.bytes_of().items())
    console.print(f"{figures.rows:,} rows of {facts.dim} values ({facts.spec.row_type}), ids {ids_text(figures)}")
    console.print(f"bytes: {parts}; {figures.row_bytes} a row")
    if facts.optimizer:
        console.print(
            f"optimizer {facts.optimizer}: {facts.slots} values a row; admit_after {facts.admit_after}; "
            f"{figures.waiting:,} ids wait for a row, looked up {figures.waiting_counts.uses:,} times"
        )
    for line in (*map(hashed_line, analysis.hashed), *advice.remarks(figures)):
        console.print(f"- {line}")
    if figures.rows:
        console.print(_rows("hottest ids", figures.hottest))
        console.print(_rows("sample", figures.sample))
    about = " (approximate)" if facts.approximate and figures.uses else ""
    _show_bars(console, f"occurrences of an id in training{about}", figures.counts)
    if figures.waiting:
        _show_bars(console, "occurrences of ids that wait for a row", figures.waiting_counts)
    for unit, ages in advice.shown_ages(figures).items():
        _show_bars(console, f"last use, {UNITS[unit]}", ages)
    _show_bars(console, "L2 norm of a row", figures.norms)
    if figures.rows:
        console.print(
            f"near zero (norm below {figures.near_zero:g}): {figures.near_zero_rows / figures.rows:.2%} of the rows; "
            f"all zeros: {figures.zero_rows / figures.rows:.2%}"
        )
    _show_advice(console, figures)


def _show_bars(console: Console, title: str, histogram: Histogram) -> None:
    if histogram.rows == 0:
        return
    quantiles = ", ".join(f"{name} {number(histogram.quantile(share))}" for name, share in _QUANTILES)
    shown = _grid(title, "range", "rows", "of rows", "of lookups", "")
    bars = histogram.doublings()
    most = max(bar.rows for bar in bars)
    width = max(_LEAST_BAR, min(_BAR_WIDTH, console.width - _BESIDE_BAR))
    for bar in bars:
        length = round(width * bar.rows / most)
        drawn = "█" * length if length or bar.rows == 0 else "▏"
        uses = f"{bar.uses / histogram.uses:.1%}" if histogram.uses else ""
        shown.add_row(range_text(bar), f"{bar.rows:,}", f"{bar.rows / histogram.rows:.1%}", uses, drawn)
    console.print(shown)
    console.print(f"{quantiles}, largest {number(histogram.largest)}")


def range_text(bar: Bar) -> str:
    """Returns the range of a bar: whole numbers by their first and last, others by their edges."""
    if bar.high == 0:
        return "0"
    if bar.low >= 1 and bar.high < 2**53:
        return number(bar.low) if bar.low == bar.high - 1 else f"{number(bar.low)} to <{number(bar.high)}"
    return f"{bar.low:.3g} to <{bar.high:.3g}"


def _show_advice(console: Console, figures: TableFigures) -> None:
    if figures.uses:
        shares = ", ".join(
            f"{share:.0%} of ids make {advice.share_of_lookups(figures, share):.1%}" for share in advice.ID_SHARES
        )
        console.print(f"coverage of lookups: {shares}")
        kept = _grid("admission thresholds", "admit_after", "rows kept", "of lookups", "bytes")
        for each in advice.admissions(figures):
            now = " (now)" if each.admit_after == figures.facts.admit_after else ""
            kept.add_row(f"{each.admit_after}{now}", f"{each.rows:,}", f"{each.share:.2%}", human_bytes(each.bytes))
        console.print(kept)
    if evictions := advice.evictions(figures):
        freed = _grid("evictions", "rows with", "rows freed", "of rows", "of lookups lost", "bytes freed")
        for eviction in evictions:
            lost = f"{eviction.share:.2%}" if figures.uses else ""
            of_rows = f"{eviction.rows / figures.rows:.1%}"
            freed.add_row(threshold_text(eviction), f"{eviction.rows:,}", of_rows, lost, human_bytes(eviction.bytes))
        console.print(freed)
    if budgets := advice.budgets(figures):
        shown = _grid("memory of a server", "of lookups", "rows", "of rows", "DRAM", "HBM of a GPU")
        for budget in budgets:
            memory = (human_bytes(budget.dram_bytes), human_bytes(budget.hbm_bytes))
            of_rows = f"{budget.rows / figures.rows:.1%}"
            shown.add_row(f"{budget.coverage:.0%}", f"{budget.rows:,}", of_rows, *memory)
        console.print(shown)
    if figures.rows:
        sizes = advice.row_type_bytes(figures)
        shown = _grid("bytes of the rows", "dim", *next(iter(sizes.values())))
        for dim, by_type in sizes.items():
            now = " (now)" if dim == figures.facts.dim else ""
            shown.add_row(f"{dim}{now}", *(human_bytes(size) for size in by_type.values()))
        console.print(shown)


def _rows(title: str, rows: Sequence[SampleRow]) -> FittedTable:
    shown = _grid(title, "id", "count", "stamp", "tick", "norm", "first values")
    for row in rows:
        values = ", ".join(f"{value:.4g}" for value in row.values)
        stamp, tick = ("" if value is None else str(value) for value in (row.stamp, row.tick))
        shown.add_row(str(row.id), f"{row.count:,}", stamp, tick, f"{row.norm:.4g}", values)
    return shown


_LEFT = {"table", "row type", "range", "rows with", "first values", ""}


def _grid(title: str, *columns: str) -> FittedTable:
    return FittedTable(*(wrapping(name) if name in _LEFT else name for name in columns), title=title)
