"""Draws samples of stacks as a flame graph: a rectangle for each function, as wide as the samples that contain it."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

# Functions from the outermost to the innermost, each with the library that it is in.
Stack = tuple[tuple[str, str], ...]

_WIDTH, _ROW, _MARGIN = 1600.0, 17, 10
_LEAST_WIDTH = 0.4
_CHARACTER = 6.6  # width of a character of the font, in pixels


@dataclass
class _Node:
    """A function with everything that was above it on the stack."""

    samples: int = 0
    below: dict[tuple[str, str], _Node] = field(default_factory=dict)

    def depth(self) -> int:
        """Returns the number of rows that it takes."""
        return 1 + max((node.depth() for node in self.below.values()), default=0)


def flame_graph(stacks: Sequence[Stack]) -> str:
    """Returns an SVG; the outermost functions are at the bottom, and a tooltip has the share of each."""
    root = _Node()
    for stack in stacks:
        root.samples += 1
        node = root
        for function in stack:
            node = node.below.setdefault(function, _Node())
            node.samples += 1
    height = root.depth() * _ROW + 2 * _MARGIN
    shapes: list[str] = []
    _draw(root, ("all", ""), 0.0, height - _MARGIN, _WIDTH / max(1, root.samples), root.samples, shapes)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH + 2 * _MARGIN:.0f}" height="{height}"'
    return "\n".join([f'{head} font-family="monospace" font-size="11">', *shapes, "</svg>", ""])


def _draw(
    node: _Node, function: tuple[str, str], left: float, bottom: float, scale: float, total: int, shapes: list[str]
) -> None:
    width = node.samples * scale
    if width < _LEAST_WIDTH:
        return
    name, library = function
    x, y = _MARGIN + left, bottom - _ROW
    letters = int((width - 4) / _CHARACTER)
    title = escape(f"{name} ({library}): {100 * node.samples / total:.2f} %")
    text = f'<text x="{x + 2:.1f}" y="{y + 12:.1f}">{escape(name[:letters])}</text>' if letters > 2 else ""
    shapes.append(
        f'<g><title>{title}</title><rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{_ROW - 1}" '
        f'fill="{_colour(library)}"/>{text}</g>'
    )
    for key, above in sorted(node.below.items()):
        _draw(above, key, left, bottom - _ROW, scale, total, shapes)
        left += above.samples * scale


def _colour(library: str) -> str:
    """Returns a light colour that is always the same for a library."""
    return f"hsl({zlib.crc32(library.encode()) % 360}, 70%, 72%)"
