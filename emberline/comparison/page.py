"""The comparison of runs as one HTML page: tables and plots, without scripts and without anything from elsewhere."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from emberline.comparison.plots import COLOURS, Curve, curves_plot, parallel_plot, scatter_plot, value_text
from emberline.comparison.runs import RunFigures, differing, metric_names, smaller_is_better
from emberline.pages.parts import document, figure, grid, key_figures

_PARAMETERS_DRAWN = 12
_AXES_AT_MOST = 8
_TOTALS = ("steps", "seconds", "rows_per_second", "table_rows")


def to_html(
    title: str, runs: Sequence[RunFigures], metric: str, *, minimize: bool, failed: Sequence[tuple[str, str]] = ()
) -> str:
    """Returns the page as text, to be written as UTF-8.

    metric: by which runs are ordered. failed: name and reason of trials that have no figures.
    """
    ordered = ranked(runs, metric, minimize=minimize)
    groups = parameter_groups(ordered)
    judged = [run for run in ordered if metric in run.metrics]
    body = [
        _best(judged, metric, len(runs), len(failed)),
        '<section id="runs"><h2>Runs</h2><div class="tables">',
        grid("Best first", *table_of(ordered, metric), wide=True),
        grid("Without figures", ("run", "reason"), failed, wide=True) if failed else "",
        "</div></section>",
        '<section id="epochs"><h2>By epoch</h2><div class="plots">',
        *(_curves(ordered, name) for name in metric_names(ordered)),
        "</div></section>",
    ]
    links = ["runs", "epochs"]
    if len(judged) > 1 and groups:
        body += ['<section id="parameters"><h2>By parameter</h2><div class="plots">']
        if len(groups) > 1:
            body.append(_parallel(judged, groups, metric))
        body += [_scatter(judged, group, metric) for group in groups[:_PARAMETERS_DRAWN]]
        body.append("</div></section>")
        links.append("parameters")
    return document("Runs compared", title, links, "".join(body))


def write_page(path: Path, text: str) -> None:
    """Writes a page whole or not at all. What is no file of its own, such as /dev/stdout, is written into."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        path.write_text(text, encoding="utf-8")
        return
    new = path.with_name(f".{path.name}.new")
    try:
        new.write_text(text, encoding="utf-8")
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)


def ranked(runs: Sequence[RunFigures], metric: str, *, minimize: bool) -> list[RunFigures]:
    """Returns the runs from the best to the worst; those without the metric come last."""
    sign = 1.0 if minimize else -1.0
    return sorted(runs, key=lambda run: (metric not in run.metrics, sign * run.metrics.get(metric, 0.0)))


def parameter_groups(runs: Sequence[RunFigures]) -> list[list[str]]:
    """Returns the parameters that differ; those that differ in the same way, as the dims of tables, are one group."""
    groups: dict[str, list[str]] = {}
    for path in differing(runs):
        groups.setdefault(json.dumps([run.parameters.get(path) for run in runs]), []).append(path)
    return list(groups.values())


def table_of(runs: Sequence[RunFigures], metric: str) -> tuple[list[str], list[list[str]]]:
    """Returns the names of the columns and the cells: metrics, parameters that differ, and figures of the whole run."""
    names = metric_names(runs)
    names = [metric, *(name for name in names if name != metric)] if metric in names else names
    groups = parameter_groups(runs)
    totals = [name for name in _TOTALS if any(name in run.totals for run in runs)]
    columns = ["run", *names, *map(group_name, groups), *(name.replace("_", " ") for name in totals), "end"]
    rows = [
        [
            run.name,
            *(f"{run.metrics[name]:.5f}" if name in run.metrics else "" for name in names),
            *(value_text(run.parameters.get(group[0])) for group in groups),
            *(f"{run.totals[name]:,.0f}" if name in run.totals else "" for name in totals),
            "done" if run.finished else f"after epoch {len(run.epochs)}",
        ]
        for run in runs
    ]
    return columns, rows


def group_name(group: Sequence[str]) -> str:
    """Returns what a column or an axis of parameters is called."""
    return group[0] if len(group) == 1 else f"{group[0]} and {len(group) - 1} more"


def _best(judged: Sequence[RunFigures], metric: str, runs: int, failed: int) -> str:
    entries = [("runs", str(runs), f"{failed} more without figures" if failed else "with figures")]
    if judged:
        best, worst = judged[0], judged[-1]
        entries.append((f"best {metric}", f"{best.metrics[metric]:.5f}", best.name))
        entries.append((f"worst {metric}", f"{worst.metrics[metric]:.5f}", worst.name))
    return key_figures(entries)


def _curves(runs: Sequence[RunFigures], name: str) -> str:
    curves = [
        Curve(run.name, [(entry["epoch"], entry[name]) for entry in run.epochs if name in entry], rank)
        for rank, run in enumerate(runs)
    ]
    if not any(curve.points for curve in curves):
        return ""
    legend = ""
    if len(curves) <= COLOURS:
        legend = "".join(f'<span class="c{curve.rank}"></span>{escape(curve.name)}' for curve in curves)
    else:
        legend = f'<span class="best"></span>{escape(runs[0].name)}<span class="other"></span>the others'
    better = "smaller is better" if smaller_is_better(name) else "larger is better"
    what = "loss of training" if name == "loss" else f"{name}, on the rows to evaluate on"
    return figure(name, curves_plot(curves, name), f"{escape(what)}; {better}", legend)


def _scatter(runs: Sequence[RunFigures], group: Sequence[str], metric: str) -> str:
    entries = [(run.name, run.parameters.get(group[0]), run.metrics[metric]) for run in runs]
    caption = f"best: <b>{escape(value_text(entries[0][1]))}</b>"
    if len(group) > 1:
        caption += f"; the same holds of {escape(', '.join(group[1:]))}"
    return figure(f"{metric} by {group_name(group)}", scatter_plot(entries, group_name(group), metric), caption)


def _parallel(runs: Sequence[RunFigures], groups: Sequence[Sequence[str]], metric: str) -> str:
    shown = groups[: _AXES_AT_MOST - 1]
    rows: list[list[Any]] = [[*(run.parameters.get(group[0]) for group in shown), run.metrics[metric]] for run in runs]
    plot = parallel_plot([*map(group_name, shown), metric], rows, [run.name for run in runs])
    caption = "Each line is a run; the stronger, the better. The best has a colour."
    return figure("All parameters", plot, caption, wide=True)
