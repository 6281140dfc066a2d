"""Plots of runs: curves by epoch, a metric by a parameter, and all parameters as parallel axes."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from emberline.pages import svg

#: Runs that have a colour each in curves; of more, the best stands out.
COLOURS = 8
_MOST_TICKS = 8
# A parameter whose largest value is so many times the smallest gets a logarithmic axis.
_LOG_FROM = 30.0
_LONGEST_LABEL = 12


@dataclass(frozen=True)
class Curve:
    """The values of one run by epoch."""

    name: str
    points: Sequence[tuple[float, float]]
    #: Its place among the runs, the best first.
    rank: int


class Axis:
    """Places values between 0 and 1: numbers by size or logarithm, anything else side by side."""

    def __init__(self, values: Sequence[Any]) -> None:
        numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
        self._numeric = len(numbers) == len(values) and bool(numbers)
        self._named: list[str] = []
        if not self._numeric:
            self._named = list(dict.fromkeys(map(value_text, sorted(values, key=value_text))))
            return
        low, high = min(numbers), max(numbers)
        self._log = low > 0 and high / low >= _LOG_FROM
        if low == high:
            low, high = low - (abs(low) or 1.0) / 2, high + (abs(high) or 1.0) / 2
        self._low, self._high = self._scaled(low), self._scaled(high)

    def _scaled(self, value: float) -> float:
        return math.log10(value) if self._log else float(value)

    def place(self, value: Any) -> float:
        """Returns where a value lies."""
        if not self._numeric:
            return (self._named.index(value_text(value)) + 0.5) / len(self._named)
        return (self._scaled(value) - self._low) / (self._high - self._low)

    def ticks(self, most: int = _MOST_TICKS) -> list[tuple[float, str]]:
        """Returns places with their labels."""
        if not self._numeric:
            step = max(1, math.ceil(len(self._named) / most))
            return [
                ((place + 0.5) / len(self._named), cut(name))
                for place, name in enumerate(self._named)
                if place % step == 0
            ]
        shares = [place / 4 for place in range(5)]
        values = [self._low + share * (self._high - self._low) for share in shares]
        return [
            (share, f"{10**value if self._log else value:.3g}") for share, value in zip(shares, values, strict=True)
        ]


def curves_plot(curves: Sequence[Curve], label: str) -> str:
    """Draws a line for each run, by epoch."""
    shown = [curve for curve in curves if curve.points]
    across = Axis([epoch for curve in shown for epoch, _ in curve.points])
    up = Axis([value for curve in shown for _, value in curve.points])
    parts = svg.frame(up.ticks(), f"{label} by epoch")
    last = max(int(epoch) for curve in shown for epoch, _ in curve.points)
    first = min(int(epoch) for curve in shown for epoch, _ in curve.points)
    step = max(1, math.ceil((last - first + 1) / _MOST_TICKS))
    parts += [svg.tick(svg.across(across.place(epoch)), str(epoch)) for epoch in range(first, last + 1, step)]
    few = len(curves) <= COLOURS
    for curve in sorted(shown, key=lambda each: -each.rank):  # the best is drawn last, above the others
        kind = f"c{curve.rank}" if few else ("best" if curve.rank == 0 else "other")
        points = [(svg.across(across.place(epoch)), svg.down(up.place(value))) for epoch, value in curve.points]
        text = escape(f"{curve.name}: {label} {curve.points[-1][1]:.5g} at the end")
        drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline class="curve {kind}" points="{drawn}"><title>{text}</title></polyline>')
        parts += [
            f'<circle class="point {kind}" cx="{x:.1f}" cy="{y:.1f}" r="2.5"><title>{text}</title></circle>'
            for x, y in points
        ]
    return svg.drawing(parts, f"{label} by epoch")


def scatter_plot(entries: Sequence[tuple[str, Any, float]], parameter: str, metric: str) -> str:
    """Draws a point for each run. entries: its name, the value of the parameter, and that of the metric; best first."""
    across, up = Axis([value for _, value, _ in entries]), Axis([figure for *_, figure in entries])
    parts = svg.frame(up.ticks(), parameter)
    parts += [svg.tick(svg.across(place), text) for place, text in across.ticks()]
    for rank, (name, value, figure) in reversed(list(enumerate(entries))):
        text = escape(f"{name}: {parameter} {value_text(value)}, {metric} {figure:.5g}")
        parts.append(
            f'<circle class="point {"best" if rank == 0 else "run"}" cx="{svg.across(across.place(value)):.1f}" '
            f'cy="{svg.down(up.place(figure)):.1f}" r="{5 if rank == 0 else 4}"><title>{text}</title></circle>'
        )
    return svg.drawing(parts, f"{metric} by {parameter}")


def parallel_plot(names: Sequence[str], rows: Sequence[Sequence[Any]], runs: Sequence[str]) -> str:
    """Draws an axis for each name and a line for each run, from the best to the worst. rows: (run, axis) values."""
    axes = [Axis([row[place] for row in rows]) for place in range(len(names))]
    parts: list[str] = []
    places = [svg.across(place / max(1, len(names) - 1), wide=True) for place in range(len(names))]
    for x, name, axis in zip(places, names, axes, strict=True):
        parts.append(f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{svg.down(0)}" y2="{svg.down(1)}"/>')
        parts.append(svg.tick(x, cut(name.rpartition(".")[2] if len(names) > 4 else name, 24)))
        parts += [
            f'<text x="{x + 5:.1f}" y="{svg.down(at) + 4:.1f}">{escape(text)}</text>' for at, text in axis.ticks(6)
        ]
    for rank, (run, row) in reversed(list(enumerate(zip(runs, rows, strict=True)))):
        points = " ".join(
            f"{x:.1f},{svg.down(axis.place(value)):.1f}" for x, axis, value in zip(places, axes, row, strict=True)
        )
        text = f"{run}: " + ", ".join(f"{name} {value_text(value)}" for name, value in zip(names, row, strict=True))
        share = 1.0 - rank / max(1, len(rows) - 1)
        kind = "best" if rank == 0 else "run"
        parts.append(
            f'<polyline class="curve {kind}" style="opacity:{0.15 + 0.85 * share:.2f}" points="{points}">'
            f"<title>{escape(text)}</title></polyline>"
        )
    return svg.drawing(parts, "all parameters", wide=True)


def value_text(value: Any) -> str:
    """Returns a value of a configuration as text."""
    if value is None:
        return "not set"
    if isinstance(value, float):
        return f"{value:.5g}"
    return value if isinstance(value, str) else json.dumps(value)


def cut(text: str, most: int = _LONGEST_LABEL) -> str:
    """Returns text that is short enough to stand below an axis."""
    return text if len(text) <= most else text[: most - 1] + "…"
