"""Records what ran on a GPU and when: intervals, how much of a window they leave idle, and a picture of them as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

KINDS = {
    "lookup": "#b9b9c9",
    "copy in": "#d1813c",
    "graph": "#4878a8",
    "kernel": "#4878a8",
    "copy out": "#5a9a5a",
    "other": "#999999",
}
_WIDTH, _LEFT, _ROW, _TOP, _BOTTOM = 1100, 150, 26, 52, 46
_TICKS = 6
# A picture of more spans is unreadable.
_MOST_SPANS = 4000


@dataclass(frozen=True)
class Span:
    """One operation on a GPU."""

    #: The stream.
    row: str
    name: str
    #: One of KINDS.
    kind: str
    #: In the unit of the whole timeline, microseconds mostly; `end` likewise.
    start: float
    end: float


def merged(spans: Sequence[Span]) -> list[tuple[float, float]]:
    """Returns the intervals in which anything ran, ascending, none touching another."""
    found: list[tuple[float, float]] = []
    for start, end in sorted((span.start, span.end) for span in spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def idle_share(spans: Sequence[Span]) -> float:
    """Returns the share of the time from the first start to the last end in which nothing ran; 1 without spans."""
    busy = merged(spans)
    if not busy or busy[-1][1] <= busy[0][0]:
        return 1.0
    return 1.0 - sum(end - start for start, end in busy) / (busy[-1][1] - busy[0][0])


def between(spans: Sequence[Span], start: float, end: float) -> list[Span]:
    """Returns the spans that overlap a window, cut to it."""
    return [
        Span(span.row, span.name, span.kind, max(span.start, start), min(span.end, end))
        for span in spans
        if span.end > start and span.start < end
    ]


def svg(spans: Sequence[Span], title: str, *, unit: str = "us") -> str:
    """Returns the picture: a row for each stream, a box for each operation, its name and length as a tooltip."""
    shown = list(spans)[:_MOST_SPANS]
    rows = list(dict.fromkeys(span.row for span in sorted(shown, key=lambda span: span.row)))
    first = min((span.start for span in shown), default=0.0)
    length = max((span.end for span in shown), default=1.0) - first or 1.0
    height = _TOP + _ROW * max(1, len(rows)) + _BOTTOM
    scale = (_WIDTH - _LEFT - 20) / length
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="10" y="20" font-size="14">{escape(title)}</text>',
    ]
    there = {span.kind for span in shown}
    for place, kind in enumerate([*(kind for kind in KINDS if kind in there), *sorted(there - KINDS.keys())]):
        key = _LEFT + 110 * place
        lines.append(f'<rect x="{key}" y="30" width="12" height="12" fill={quoteattr(_colour(kind))}/>')
        lines.append(f'<text x="{key + 18}" y="40">{escape(kind)}</text>')
    for place, row in enumerate(rows):
        top = _TOP + _ROW * place
        lines.append(f'<text x="10" y="{top + 17}">{escape(row[:22])}</text>')
        lines.append(f'<line x1="{_LEFT}" y1="{top + 24}" x2="{_WIDTH - 20}" y2="{top + 24}" stroke="#dddddd"/>')
        for span in shown:
            if span.row != row:
                continue
            at, width = _LEFT + (span.start - first) * scale, max(0.4, (span.end - span.start) * scale)
            said = f"{span.name}: {span.end - span.start:.1f} {unit} from {span.start - first:.1f}"
            lines.append(
                f'<rect x="{at:.2f}" y="{top + 3}" width="{width:.2f}" height="19" '
                f'fill={quoteattr(_colour(span.kind))} stroke="#ffffff" stroke-width="0.3">'
                f"<title>{escape(said)}</title></rect>"
            )
    bottom = _TOP + _ROW * max(1, len(rows))
    for tick in range(_TICKS + 1):
        at = _LEFT + (_WIDTH - _LEFT - 20) * tick / _TICKS
        lines.append(f'<line x1="{at:.1f}" y1="{bottom}" x2="{at:.1f}" y2="{bottom + 5}" stroke="#666666"/>')
        lines.append(f'<text x="{at:.1f}" y="{bottom + 20}" text-anchor="middle">{length * tick / _TICKS:.0f}</text>')
    lines.append(f'<text x="10" y="{bottom + 20}">{escape(unit)}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def _colour(kind: str) -> str:
    return KINDS.get(kind, KINDS["other"])
