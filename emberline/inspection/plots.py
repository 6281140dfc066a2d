"""Plots of tables as SVG text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from emberline.inspection.histogram import Bar, Histogram
from emberline.pages.svg import INNER_HEIGHT, INNER_WIDTH, LEFT, TOP, down, drawing, frame, short, tick

_MOST_LABELS = 9


def histogram_plot(histogram: Histogram, label: str) -> str:
    """Draws bars by powers of two: the share of the rows, and beside it that of the lookups of their ids."""
    bars = histogram.doublings()
    rows, uses = histogram.rows, histogram.uses
    most = max((max(bar.rows / rows, bar.uses / uses if uses else 0.0) for bar in bars), default=1.0)
    top = _round_up(most)
    parts = frame(_shares(top), label)
    slot = INNER_WIDTH / max(1, len(bars))
    width = min(26.0, slot * (0.4 if uses else 0.7))
    for place, bar in enumerate(bars):
        middle = LEFT + (place + 0.5) * slot
        text = _bar_text(bar, rows, uses)
        left = middle - (width if uses else width / 2)
        parts.append(_rect(left, width, bar.rows / rows / top, "rows", text))
        if uses:
            parts.append(_rect(middle, width, bar.uses / uses / top, "uses", text))
    step = max(1, math.ceil(len(bars) / _MOST_LABELS))
    for place in range(0, len(bars), step):
        parts.append(tick(LEFT + (place + 0.5) * slot, short(bars[place].low)))
    return drawing(parts, label)


def coverage_plot(points: Sequence[tuple[float, float]], label: str) -> str:
    """Draws the share of the lookups by the share of the most used ids, whose axis is logarithmic.

    points: (share of ids, share of lookups), ascending from (0, 0).
    """
    shown = [(ids, uses) for ids, uses in points if ids > 0]
    decades = max(1, min(9, math.ceil(-math.log10(shown[0][0]) - 1e-9)))
    parts = frame(_shares(1.0), label)

    def across(share: float) -> float:
        return LEFT + INNER_WIDTH * max(0.0, 1.0 + math.log10(max(share, 10.0**-decades)) / decades)

    for decade in range(decades + 1):
        share = 10.0 ** (decade - decades)
        parts.append(tick(across(share), f"{share:.{max(0, decades - decade - 2)}%}", grid=True))
    line = " ".join(f"{across(ids):.1f},{down(uses):.1f}" for ids, uses in shown)
    area = f"{across(shown[0][0]):.1f},{down(0)} {line} {across(1.0):.1f},{down(0)}"
    parts.append(f'<polygon class="area" points="{area}"/><polyline class="line" points="{line}"/>')
    for wanted in (0.8, 0.9, 0.95, 0.99):
        ids = next((ids for ids, uses in shown if uses >= wanted - 1e-9), 1.0)
        text = f"{ids:.2%} of the ids make {wanted:.0%} of the lookups"
        parts.append(
            f'<circle class="mark" cx="{across(ids):.1f}" cy="{down(wanted):.1f}" r="4"><title>{escape(text)}</title>'
            "</circle>"
        )
    return drawing(parts, label)


def _bar_text(bar: Bar, rows: int, uses: int) -> str:
    text = f"{short(bar.low)} to {short(bar.high)}: {bar.rows:,} rows ({bar.rows / rows:.2%})"
    return text + (f", {bar.uses / uses:.2%} of the lookups" if uses else "")


def _rect(left: float, width: float, height: float, kind: str, text: str) -> str:
    pixels = INNER_HEIGHT * height
    if pixels > 0:
        pixels = max(1.0, pixels)
    return (
        f'<rect class="{kind}" x="{left:.1f}" y="{TOP + INNER_HEIGHT - pixels:.1f}" width="{width:.1f}" '
        f'height="{pixels:.1f}" rx="1.5"><title>{escape(text)}</title></rect>'
    )


def _shares(top: float) -> list[tuple[float, str]]:
    fractions = (0.0, 0.25, 0.5, 0.75, 1.0)
    return [(each, f"{top * each:.3g}" if top < 0.01 else f"{100 * top * each:.3g}%") for each in fractions]


def _round_up(share: float) -> float:
    for step in (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8):
        if share <= step:
            return step
    return 1.0
