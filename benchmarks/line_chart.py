"""Draws lines over time as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

_COLOURS = ("#4878a8", "#d1813c", "#999999", "#5a9a5a")
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 900, 380, 60, 20, 64, 48
_STEPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)


def line_chart(
    lines: Mapping[str, Sequence[tuple[float, float]]],
    title: str,
    *,
    x_name: str,
    y_name: str,
    marks: Sequence[float] = (),
) -> str:
    """Returns the picture. lines: name -> points (x, y), ascending by x. marks: values of x with a vertical line."""
    points = [point for line in lines.values() for point in line]
    left, right = min(x for x, _ in points), max([*marks, *(x for x, _ in points)])
    low, high = min(y for _, y in points), max(y for _, y in points)
    step = next((each for each in _STEPS if (high - low) / each <= 8), _STEPS[-1])
    low, high = step * int(low / step), step * (int(high / step) + 1)

    def place(x: float, y: float) -> tuple[float, float]:
        across = _LEFT + (x - left) / ((right - left) or 1.0) * (_WIDTH - _LEFT - _RIGHT)
        return across, _HEIGHT - _BOTTOM - (y - low) / ((high - low) or 1.0) * (_HEIGHT - _TOP - _BOTTOM)

    found = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="22" font-size="14">{escape(title)}</text>',
    ]
    for number in range(round((high - low) / step) + 1):
        value = low + number * step
        _, y = place(left, value)
        found.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e4e4e4"/>')
        found.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:.2f}</text>')
    for value in marks:
        x, _ = place(value, low)
        found.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}" stroke="#bbbbbb" '
            'stroke-dasharray="4 3"/>'
        )
        found.append(f'<text x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{value:g}</text>')
    for number, (name, line) in enumerate(lines.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in line))
        found.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
        at = _LEFT + number * 270
        found.append(f'<line x1="{at}" x2="{at + 22}" y1="42" y2="42" stroke="{colour}" stroke-width="3"/>')
        found.append(f'<text x="{at + 28}" y="46">{escape(name)}</text>')
    found.append(f'<text x="{_WIDTH / 2:.0f}" y="{_HEIGHT - 10}" text-anchor="middle">{escape(x_name)}</text>')
    found.append(f'<text x="14" y="{_TOP - 6}">{escape(y_name)}</text>')
    return "\n".join([*found, "</svg>", ""])
