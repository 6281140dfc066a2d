"""The analysis of tables as one HTML page: plots and figures, without scripts and without anything from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from emberline.inspection import advice
from emberline.inspection.document import TableAnalysis
from emberline.inspection.figures import SampleRow, TableFigures
from emberline.inspection.histogram import Histogram
from emberline.inspection.plots import coverage_plot, histogram_plot
from emberline.inspection.source import Origin
from emberline.inspection.text import UNITS, hashed_line, ids_text, number, threshold_text
from emberline.pages.parts import document, figure, grid, key_figures
from storage.byte_sizes import human_bytes

_LEGEND = '<span class="rows"></span>share of rows<span class="uses"></span>share of lookups'
_NOTE = "Judged by the lookups that training counted; requests to come also ask for new ids."


def to_html(origin: Origin, tables: Sequence[TableAnalysis]) -> str:
    """Returns the page as text, to be written as UTF-8."""
    body = _overview([each.figures for each in tables]) + "".join(map(_section, tables))
    return document("Embedding tables", origin.title, [each.figures.facts.name for each in tables], body, _NOTE)


def _overview(tables: Sequence[TableFigures]) -> str:
    rows = [
        (
            figures.facts.name,
            f"{figures.rows:,}",
            str(figures.facts.dim),
            figures.facts.spec.row_type,
            human_bytes(sum(figures.bytes_of().values())),
            f"{figures.waiting:,}" if figures.facts.history else "not known",
            f"{figures.uses:,}",
            f"{advice.share_of_lookups(figures, 0.2):.1%}" if figures.uses else "",
        )
        for figures in tables
    ]
    return grid(
        "All tables",
        ("table", "rows", "dim", "row type", "bytes", "waiting ids", "lookups counted", "20% of ids make"),
        rows,
    )


def _section(analysis: TableAnalysis) -> str:
    figures = analysis.figures
    name = escape(figures.facts.name)
    notes = "".join(
        f"<li>{escape(text)}</li>" for text in (*advice.remarks(figures), *map(hashed_line, analysis.hashed))
    )
    return (
        f'<section id="{name}"><h2>{name}</h2>{_key_figures(figures)}'
        f"{f'<ul class=notes>{notes}</ul>' if notes else ''}{_plots(figures)}"
        f'<div class="tables">{_advice(figures)}{_samples(figures)}</div></section>'
    )


def _key_figures(figures: TableFigures) -> str:
    facts = figures.facts
    entries = [
        ("rows", f"{figures.rows:,}", f"{facts.dim} values, {facts.spec.row_type}"),
        *((what, human_bytes(size), f"{size:,} bytes") for what, size in figures.bytes_of().items()),
        ("ids", ids_text(figures), "smallest to largest"),
        ("lookups counted", f"{figures.uses:,}", "approximate" if facts.approximate else "of ids with a row"),
    ]
    if facts.history is not None:
        waited = f"looked up {figures.waiting_counts.uses:,} times; admit_after {facts.admit_after}"
        entries.append(("waiting ids", f"{figures.waiting:,}", waited))
    if figures.rows:
        near = f"norm below {figures.near_zero:g}; {figures.zero_rows:,} rows are all zeros"
        entries.append(("near zero", f"{figures.near_zero_rows / figures.rows:.2%}", near))
    return key_figures(entries)


def _plots(figures: TableFigures) -> str:
    about = ", approximate" if figures.facts.approximate and figures.uses else ""
    plots: list[str] = []
    if points := advice.coverage_curve(figures):
        text = "".join(
            f"<b>{share:.0%}</b> of the ids make <b>{advice.share_of_lookups(figures, share):.1%}</b> of the lookups. "
            for share in (0.01, 0.2)
        )
        plot = coverage_plot(points, "share of the ids, the most used first")
        plots.append(figure("Coverage of lookups", plot, text))
    plots.append(_bars("Occurrences of an id", f"occurrences in training{about}", figures.counts))
    if figures.waiting:
        plots.append(_bars("Ids that wait for a row", "occurrences in training", figures.waiting_counts))
    plots += [_bars(f"Last use, in {unit}", UNITS[unit], ages) for unit, ages in advice.shown_ages(figures).items()]
    plots.append(_bars("L2 norms", "norm of a row", figures.norms))
    return f'<div class="plots">{"".join(plots)}</div>'


def _bars(title: str, label: str, histogram: Histogram) -> str:
    if histogram.rows == 0:
        return ""
    quantiles = ", ".join(
        f"{name} <b>{number(histogram.quantile(share))}</b>"
        for name, share in (("median", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999))
    )
    caption = f"{quantiles}, largest <b>{number(histogram.largest)}</b>"
    return figure(title, histogram_plot(histogram, label), caption, legend=_LEGEND if histogram.uses else "")


def _advice(figures: TableFigures) -> str:
    parts: list[str] = []
    if kept := advice.admissions(figures):
        now = figures.facts.admit_after
        rows = [
            (
                f"{entry.admit_after}{' (now)' if entry.admit_after == now else ''}",
                f"{entry.rows:,}",
                f"{entry.share:.2%}",
                human_bytes(entry.bytes),
            )
            for entry in kept
        ]
        parts.append(grid("Admission thresholds", ("admit_after", "rows kept", "of lookups", "bytes"), rows))
    if budgets := advice.budgets(figures):
        rows = [
            (
                f"{entry.coverage:.0%}",
                f"{entry.rows:,}",
                human_bytes(entry.dram_bytes),
                human_bytes(entry.hbm_bytes),
            )
            for entry in budgets
        ]
        parts.append(grid("Memory of a server", ("of lookups", "rows", "DRAM", "HBM of a GPU"), rows))
    if figures.rows:
        sizes = advice.row_type_bytes(figures)
        by_dim = [(str(dim), *(human_bytes(size) for size in by_type.values())) for dim, by_type in sizes.items()]
        parts.append(grid("Bytes of the rows", ("dim", *next(iter(sizes.values()))), by_dim))
    if freed := advice.evictions(figures):
        rows = [
            (threshold_text(entry), f"{entry.rows:,}", f"{entry.share:.2%}", human_bytes(entry.bytes))
            for entry in freed
        ]
        parts.append(grid("Evictions", ("rows with", "rows freed", "of lookups lost", "bytes freed"), rows))
    return "".join(parts)


def _samples(figures: TableFigures) -> str:
    names = ("id", "count", "stamp", "tick", "norm", "first values")
    return "".join(
        grid(title, names, [_sample(row) for row in rows])
        for title, rows in (("Hottest ids", figures.hottest), ("Sample", figures.sample))
        if rows
    )


def _sample(row: SampleRow) -> tuple[str, ...]:
    stamp, tick = ("" if value is None else str(value) for value in (row.stamp, row.tick))
    values = ", ".join(f"{value:.3g}" for value in row.values)
    return (str(row.id), f"{row.count:,}", stamp, tick, f"{row.norm:.3g}", values)
