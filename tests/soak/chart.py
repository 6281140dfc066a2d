"""Draws what was watched during a soak as lines over the work that was done, as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

_COLOURS = ("#4878a8", "#d1813c", "#5a9a5a", "#a05a9a")
_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 1000, 420, 60, 80, 20, 40
_TICKS = 5


@dataclass(frozen=True)
class Line:
    """One line of the chart.

    at, values: the coordinates of its points, of equal length.
    """

    name: str
    at: Sequence[float]
    values: Sequence[float]


def chart(lines: Sequence[Line], title: str, unit: str) -> str:
    """Returns the chart as SVG. Both axes begin at 0.

    unit: the unit of the horizontal axis.
    """
    most_at = max((max(line.at) for line in lines if line.at), default=1.0)
    most = max((max(line.values) for line in lines if line.values), default=1.0) * 1.1 or 1.0
    wide, high = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        f'<text x="10" y="20" font-size="14">{escape(title)}</text>',
    ]
    for tick in range(_TICKS + 1):
        x, y = _LEFT + wide * tick / _TICKS, _TOP + high * (1 - tick / _TICKS)
        drawn.append(f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}" stroke="#dddddd"/>')
        drawn.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{most * tick / _TICKS:.0f}</text>')
        text = f"{most_at * tick / _TICKS:.0f}" + (f" {unit}" if tick == _TICKS else "")
        drawn.append(f'<text x="{x:.1f}" y="{_HEIGHT - 16}" text-anchor="{_anchor(tick)}">{escape(text)}</text>')
    for place, line in enumerate(lines):
        colour = _COLOURS[place % len(_COLOURS)]
        key = _LEFT + 230 * place
        drawn.append(f'<rect x="{key}" y="36" width="12" height="12" fill="{colour}"/>')
        drawn.append(f'<text x="{key + 18}" y="46">{escape(line.name)}</text>')
        points = " ".join(
            f"{_LEFT + wide * at / most_at:.1f},{_TOP + high * (1 - value / most):.1f}"
            for at, value in zip(line.at, line.values, strict=True)
        )
        drawn.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
    return "\n".join([*drawn, "</svg>"]) + "\n"


def _anchor(tick: int) -> str:
    return "end" if tick == _TICKS else "middle"
