"""Plots of a load test: figures over time, and latency by throughput."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from emberline.pages import svg

# Points of a line at most; of more, the largest of each stretch is drawn, so that peaks stay.
_MOST_POINTS = 500
_LOG_FROM = 30.0


@dataclass(frozen=True)
class Line:
    """A line of a plot. points: (x, y), ascending by x. colour: a number of the style sheet."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: int
    #: Whether neighbouring points belong together; if not, no line is drawn through them.
    joined: bool = True

    def thinned(self) -> list[tuple[float, float]]:
        """Returns at most about _MOST_POINTS points."""
        finite = [point for point in self.points if math.isfinite(point[1])]
        width = math.ceil(len(finite) / _MOST_POINTS) or 1
        return [max(finite[at : at + width], key=lambda point: point[1]) for at in range(0, len(finite), width)]


@dataclass(frozen=True)
class Scale:
    """An axis from `low` to `high`."""

    low: float
    high: float
    is_log: bool = False

    @classmethod
    def over(cls, values: Sequence[float], *, from_zero: bool = False, may_be_log: bool = False) -> Scale:
        """Returns an axis that holds all values."""
        low, high = min(values, default=0.0), max(values, default=1.0)
        if may_be_log and low > 0 and high / low > _LOG_FROM:
            return cls(low, high, True)
        low = 0.0 if from_zero else low
        return cls(low, high if high > low else low + (abs(low) or 1.0))

    def place(self, value: float) -> float:
        """Returns where a value lies, from 0 to 1."""
        if self.is_log:
            return math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[tuple[float, str]]:
        """Returns places with their labels."""
        if self.is_log:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            steps = [digit * 10.0**power for power in range(first, last + 1) for digit in (1, 2, 5)]
            values = [step for step in steps if self.low <= step <= self.high]
        else:
            step = _round_step((self.high - self.low) / 5)
            count = math.floor(self.high / step) - math.ceil(self.low / step)
            values = [step * (math.ceil(self.low / step) + number) for number in range(count + 1)]
        return [(self.place(value), svg.short(value)) for value in values]


def time_plot(
    lines: Sequence[Line],
    label: str,
    seconds: float,
    *,
    marks: Sequence[tuple[float, str]] = (),
    bound: float | None = None,
    top: float | None = None,
    may_be_log: bool = False,
) -> str:
    """Draws lines over the seconds of a test, in a plot that has a line of the page for itself.

    marks: seconds with a vertical line, and what happened then. bound: a value with a horizontal line. top: the largest
    value of the axis, where it is known.
    """
    values = [y for line in lines for _, y in line.thinned()] + ([] if bound is None else [bound])
    up = Scale.over([*values, *([] if top is None else [top])], from_zero=True)
    if may_be_log:
        up = Scale.over([value for value in values if value > 0], from_zero=True, may_be_log=True)
    across = Scale(0.0, max(seconds, 1.0))
    parts = []
    left, right = svg.across(0.0, wide=True), svg.across(1.0, wide=True)
    for share, text in up.ticks():
        y = svg.down(share)
        parts.append(f'<line class="grid" x1="{left:.1f}" x2="{right:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="axis" x="{left - 6:.1f}" y="{y + 4:.1f}" text-anchor="end">{escape(text)}</text>')
    parts += [svg.tick(svg.across(share, wide=True), text) for share, text in across.ticks()]
    middle = (left + right) / 2
    parts.append(
        f'<text class="name" x="{middle:.1f}" y="{svg.HEIGHT - 8}" text-anchor="middle">{escape(label)}</text>'
    )
    for second, text in marks:
        x = svg.across(across.place(second), wide=True)
        parts.append(
            f'<line class="switch" x1="{x:.1f}" x2="{x:.1f}" y1="{svg.down(1)}" y2="{svg.down(0)}">'
            f"<title>{escape(text)}</title></line>"
        )
    if bound is not None:
        y = svg.down(up.place(bound))
        parts.append(f'<line class="bound" x1="{left:.1f}" x2="{right:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>')
    for line in lines:
        points = " ".join(
            f"{svg.across(across.place(x), wide=True):.1f},{svg.down(up.place(y)):.1f}" for x, y in line.thinned()
        )
        parts.append(
            f'<polyline class="curve c{line.colour}" points="{points}"><title>{escape(line.name)}</title></polyline>'
        )
    return svg.drawing(parts, label, wide=True)


def throughput_plot(lines: Sequence[Line], bound: float | None) -> str:
    """Draws latency in milliseconds by requests answered a second. bound: a latency with a horizontal line."""
    points = [point for line in lines for point in line.points if math.isfinite(point[1]) and point[1] > 0]
    across = Scale.over([x for x, _ in points], from_zero=True)
    up = Scale.over([y for _, y in points] + ([] if bound is None else [bound]), from_zero=True, may_be_log=True)
    parts = svg.frame(up.ticks(), "requests answered a second")
    parts += [svg.tick(svg.across(share), text) for share, text in across.ticks()]
    if bound is not None:
        y = svg.down(up.place(bound))
        parts.append(f'<line class="bound" x1="{svg.LEFT}" x2="{svg.WIDTH - svg.RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
    for line in lines:
        placed = [
            (svg.across(across.place(x)), svg.down(up.place(y)), x, y)
            for x, y in line.points
            if math.isfinite(y) and y > 0
        ]
        drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y, *_ in placed)
        if line.joined:
            parts.append(f'<polyline class="curve c{line.colour}" points="{drawn}"/>')
        parts += [
            f'<circle class="point c{line.colour}" cx="{x:.1f}" cy="{y:.1f}" r="3.5">'
            f"<title>{escape(line.name)}: {latency:.2f} ms at {rate:,.0f}/s</title></circle>"
            for x, y, rate, latency in placed
        ]
    return svg.drawing(parts, "latency by throughput")


def _round_step(step: float) -> float:
    power = 10.0 ** math.floor(math.log10(step)) if step > 0 else 1.0
    return next((digit * power for digit in (1, 2, 5) if digit * power >= step), 10 * power)
