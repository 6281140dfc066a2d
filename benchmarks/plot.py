"""Draws a report: each claim's ratio, its spread and its target. Needs matplotlib (the extra `bench`)."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

from benchmarks.report import Report
from storage.errors import ConfigError


def need_matplotlib() -> None:
    """Raises ConfigError if matplotlib is missing, before anything is measured."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("--plot needs matplotlib: pip install 'emberline[bench]'", field="plot")


def plot(report: Report, path: Path) -> None:
    """Writes the picture; the suffix determines its format (.png, .svg, .pdf). Raises ConfigError."""
    need_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = [row for row in report.rows if math.isfinite(row.ratio) and row.ratio > 0]
    picture = Figure(figsize=(11, 1.4 + 0.34 * len(rows)), layout="constrained")
    FigureCanvasAgg(picture)
    axes = picture.add_subplot()
    for place, row in enumerate(reversed(rows)):
        colour = {None: "tab:gray", True: "tab:green", False: "tab:red"}[row.holds]
        low, high = (min(max(edge, 1e-3), 1e6) for edge in row.spread)
        axes.plot([low, high], [place, place], color=colour, linewidth=2, alpha=0.5)
        axes.plot([row.ratio], [place], "o", color=colour)
        if row.target is not None:
            axes.plot([row.target], [place], "|", color="black", markersize=14)
    axes.axvline(1.0, color="black", linewidth=0.5)
    axes.set_xscale("log")
    axes.set_yticks(range(len(rows)), [f"{row.claim} / {row.against}" for row in reversed(rows)], fontsize=7)
    axes.set_xlabel("ratio; more is better; bars: least and greatest of the repeats; |: target")
    axes.set_title(f"python -m benchmarks {report.name}" + (" (quick: rough)" if report.quick else ""))
    try:
        picture.savefig(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--plot {path}: {error}", field="plot") from error
