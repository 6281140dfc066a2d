"""Parts of plots as SVG text: frame, axes and the drawing around them.

Colours are classes, which the page's style sheet gives for light and dark. Places are shares of the plot, from 0 at the
left and at the bottom to 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

WIDTH, HEIGHT = 520, 260
#: The width of a plot that has a line of the page for itself.
WIDE = 1060
LEFT, RIGHT, TOP, BOTTOM = 48, 24, 12, 52
INNER_WIDTH = WIDTH - LEFT - RIGHT
INNER_HEIGHT = HEIGHT - TOP - BOTTOM
# Room at the right of a wide plot for the labels of its last axis.
_WIDE_RIGHT = 70


def short(value: float) -> str:
    """Formats a number for an axis: 1,500 as 1.5k, 0.001 as 0.001."""
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{unit}"
    if value != 0 and abs(value) < 1e-3:
        return f"{value:.0e}".replace("e-0", "e-")
    return f"{value:.3g}"


def across(share: float, *, wide: bool = False) -> float:
    """Returns the horizontal place."""
    return LEFT + share * (WIDE - LEFT - _WIDE_RIGHT if wide else INNER_WIDTH)


def down(share: float) -> float:
    """Returns the vertical place."""
    return TOP + INNER_HEIGHT * (1.0 - share)


def frame(ticks: Sequence[tuple[float, str]], label: str) -> list[str]:
    """Returns a horizontal line for each tick with its text, and the name of the axis below."""
    parts: list[str] = []
    for share, text in ticks:
        y = down(share)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="axis" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{escape(text)}</text>')
    middle = LEFT + INNER_WIDTH / 2
    parts.append(f'<text class="name" x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">{escape(label)}</text>')
    return parts


def tick(x: float, text: str, *, grid: bool = False) -> str:
    """Returns a text below the plot, and if wanted a vertical line above it."""
    line = f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{TOP + INNER_HEIGHT}"/>' if grid else ""
    y = TOP + INNER_HEIGHT + 16
    return f'{line}<text class="axis" x="{x:.1f}" y="{y}" text-anchor="middle">{escape(text)}</text>'


def drawing(parts: Sequence[str], label: str, *, wide: bool = False) -> str:
    """Returns the whole plot."""
    return (
        f'<svg viewBox="0 0 {WIDE if wide else WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}" '
        f'xmlns="http://www.w3.org/2000/svg">{"".join(parts)}</svg>'
    )
