"""Plots as SVG text. Colours are classes, which the page's style sheet gives for light and dark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from emberline.inspection.histogram import Bar, Histogram

_WIDTH, _HEIGHT = 520, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 24, 12, 52
_INNER_WIDTH = _WIDTH - _LEFT - _RIGHT
_INNER_HEIGHT = _HEIGHT - _TOP - _BOTTOM
_MOST_LABELS = 9


def short(value: float) -> str:
    """Formats a number for an axis: 1,500 as 1.5k, 0.001 as 0.001."""
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{unit}"
    if value != 0 and abs(value) < 1e-3:
        return f"{value:.0e}".replace("e-0", "e-")
    return f"{value:.3g}"


def histogram_plot(histogram: Histogram, label: str) -> str:
    """Draws bars by powers of two: the share of the rows, and beside it that of the lookups of their ids."""
    bars = histogram.doublings()
    rows, uses = histogram.rows, histogram.uses
    most = max((max(bar.rows / rows, bar.uses / uses if uses else 0.0) for bar in bars), default=1.0)
    top = _round_up(most)
    parts = _frame(top, label)
    slot = _INNER_WIDTH / max(1, len(bars))
    width = min(26.0, slot * (0.4 if uses else 0.7))
    for place, bar in enumerate(bars):
        middle = _LEFT + (place + 0.5) * slot
        text = _bar_text(bar, rows, uses)
        left = middle - (width if uses else width / 2)
        parts.append(_rect(left, width, bar.rows / rows / top, "rows", text))
        if uses:
            parts.append(_rect(middle, width, bar.uses / uses / top, "uses", text))
    step = max(1, math.ceil(len(bars) / _MOST_LABELS))
    for place in range(0, len(bars), step):
        parts.append(_tick(_LEFT + (place + 0.5) * slot, short(bars[place].low)))
    return _svg(parts, label)


def coverage_plot(points: Sequence[tuple[float, float]], label: str) -> str:
    """Draws the share of the lookups by the share of the most used ids, whose axis is logarithmic.

    points: (share of ids, share of lookups), ascending from (0, 0).
    """
    shown = [(ids, uses) for ids, uses in points if ids > 0]
    decades = max(1, min(9, math.ceil(-math.log10(shown[0][0]) - 1e-9)))
    parts = _frame(1.0, label)

    def across(share: float) -> float:
        return _LEFT + _INNER_WIDTH * max(0.0, 1.0 + math.log10(max(share, 10.0**-decades)) / decades)

    for decade in range(decades + 1):
        share = 10.0 ** (decade - decades)
        parts.append(_tick(across(share), f"{share:.{max(0, decades - decade - 2)}%}", grid=True))
    line = " ".join(f"{across(ids):.1f},{_down(uses):.1f}" for ids, uses in shown)
    area = f"{across(shown[0][0]):.1f},{_down(0)} {line} {across(1.0):.1f},{_down(0)}"
    parts.append(f'<polygon class="area" points="{area}"/><polyline class="line" points="{line}"/>')
    for wanted in (0.8, 0.9, 0.95, 0.99):
        ids = next((ids for ids, uses in shown if uses >= wanted - 1e-9), 1.0)
        text = f"{ids:.2%} of the ids make {wanted:.0%} of the lookups"
        parts.append(
            f'<circle class="mark" cx="{across(ids):.1f}" cy="{_down(wanted):.1f}" r="4"><title>{escape(text)}</title>'
            "</circle>"
        )
    return _svg(parts, label)


def _bar_text(bar: Bar, rows: int, uses: int) -> str:
    text = f"{short(bar.low)} to {short(bar.high)}: {bar.rows:,} rows ({bar.rows / rows:.2%})"
    return text + (f", {bar.uses / uses:.2%} of the lookups" if uses else "")


def _rect(left: float, width: float, height: float, kind: str, text: str) -> str:
    pixels = _INNER_HEIGHT * height
    if pixels > 0:
        pixels = max(1.0, pixels)
    return (
        f'<rect class="{kind}" x="{left:.1f}" y="{_TOP + _INNER_HEIGHT - pixels:.1f}" width="{width:.1f}" '
        f'height="{pixels:.1f}" rx="1.5"><title>{escape(text)}</title></rect>'
    )


def _frame(top: float, label: str) -> list[str]:
    """Returns horizontal lines with their shares, and the name of the axis below."""
    parts: list[str] = []
    for fraction in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = _TOP + _INNER_HEIGHT * (1 - fraction)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        share = f"{top * fraction:.3g}" if top < 0.01 else f"{100 * top * fraction:.3g}%"
        parts.append(f'<text class="axis" x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{share}</text>')
    middle = _LEFT + _INNER_WIDTH / 2
    parts.append(f'<text class="name" x="{middle}" y="{_HEIGHT - 8}" text-anchor="middle">{escape(label)}</text>')
    return parts


def _tick(x: float, text: str, *, grid: bool = False) -> str:
    line = f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_TOP + _INNER_HEIGHT}"/>' if grid else ""
    y = _TOP + _INNER_HEIGHT + 16
    return f'{line}<text class="axis" x="{x:.1f}" y="{y}" text-anchor="middle">{escape(text)}</text>'


def _down(share: float) -> float:
    return _TOP + _INNER_HEIGHT * (1.0 - share)


def _round_up(share: float) -> float:
    for step in (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8):
        if share <= step:
            return step
    return 1.0


def _svg(parts: Sequence[str], label: str) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(label)}" '
        f'xmlns="http://www.w3.org/2000/svg">{"".join(parts)}</svg>'
    )
