"""A table for terminals that fits their width and never cuts a figure.

What does not fit is resolved in this order: columns move together, their names break at spaces, texts wrap at theirs
and ids lose their middle. Where even that is too wide, each row becomes a block with a line for each cell.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

_RULE = "─"
_ELLIPSIS = "…"
# Spaces between columns, and where they would not fit.
_GAP, _NARROW_GAP = 2, 1
# Columns of the terminal that a text or an id keeps at least, where it has so many.
_LEAST = {"text": 12, "id": 9}

Kind = Literal["figure", "word", "text", "id"]


@dataclass(frozen=True)
class Column:
    """A column: its name, and what its cells are.

    kind: "figure" is right-aligned and whole, "word" whole, "text" may wrap, and "id" may lose its middle.
    """

    name: str
    kind: Kind = "figure"

    @property
    def is_flexible(self) -> bool:
        """Returns whether its cells may be narrower than they are long."""
        return self.kind in ("text", "id")


def whole(name: str) -> Column:
    """Makes a column of words, such as states and names, that stay whole."""
    return Column(name, "word")


def wrapping(name: str) -> Column:
    """Makes a column of texts, which wrap where the terminal is narrow."""
    return Column(name, "text")


def elided(name: str) -> Column:
    """Makes a column of ids or addresses, which lose their middle where the terminal is narrow."""
    return Column(name, "id")


def elide(value: str, width: int) -> str:
    """Returns a text of at most `width` columns, of which the middle is left out if need be."""
    if cell_len(value) <= width:
        return value
    head, tail = "", ""
    for place in range(len(value)):
        for grown in ((head + value[place], tail), (head + value[place], value[-1 - place] + tail)):
            if cell_len(grown[0]) + cell_len(grown[1]) >= width:
                return head + _ELLIPSIS + tail
            head, tail = grown
    return value


class FittedTable:
    """Is printed by a console at its width. A column that is given as a text holds figures."""

    def __init__(self, *columns: Column | str, title: str = "") -> None:
        self.columns = [each if isinstance(each, Column) else Column(each) for each in columns]
        self.title = title
        self.rows: list[tuple[str, ...]] = []

    def add_row(self, *cells: str) -> None:
        """Adds a row with a cell for each column."""
        if len(cells) != len(self.columns):
            raise ValueError(f"{len(cells)} cells for {len(self.columns)} columns")
        self.rows.append(tuple(" ".join(cell.split("\n")) for cell in cells))

    @property
    def row_count(self) -> int:
        """Returns the number of rows."""
        return len(self.rows)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self.lines(options.max_width)

    def lines(self, width: int) -> Iterator[Text]:
        """Yields the lines of the table at a width."""
        if self.title:
            yield from _wrapped(self.title, width, style="italic")
        fitted = self._widths(width)
        if fitted is None:
            yield from self._blocks(width)
            return
        widths, gap = fitted
        head = [_wrapped(column.name, own) for column, own in zip(self.columns, widths, strict=True)]
        yield from self._joined(head, widths, gap, style="bold", at_end=True)
        yield Text(_RULE * (sum(widths) + gap * (len(widths) - 1)), style="dim")
        for row in self.rows:
            cells = [self._cell(*each) for each in zip(self.columns, row, widths, strict=True)]
            yield from self._joined(cells, widths, gap)

    def _widths(self, width: int) -> tuple[list[int], int] | None:
        """Returns the width of each column, and the spaces between two; None where the table does not fit."""
        cells = [max((cell_len(row[place]) for row in self.rows), default=0) for place in range(len(self.columns))]
        names = [cell_len(column.name) for column in self.columns]
        whole = [max(pair) for pair in zip(cells, names, strict=True)]
        for gap in (_GAP, _NARROW_GAP):
            if sum(whole) + gap * (len(whole) - 1) <= width:
                return whole, gap
        room = width - _NARROW_GAP * (len(whole) - 1)
        broken = [max(map(cell_len, column.name.split()), default=0) for column in self.columns]
        least = [
            max(name, min(cell, _LEAST.get(column.kind, cell)))
            for column, cell, name in zip(self.columns, cells, broken, strict=True)
        ]
        wanted = [max(cell, name) for cell, name in zip(cells, broken, strict=True)]
        spare = room - sum(least)
        if spare < 0:
            return None
        # Columns that lack little get what they lack first; the widest share what is left.
        short = sorted((place for place in range(len(least)) if wanted[place] > least[place]), key=wanted.__getitem__)
        widths = list(least)
        for index, place in enumerate(short):
            given = min(wanted[place] - least[place], spare // (len(short) - index))
            widths[place] += given
            spare -= given
        for place, name in enumerate(names):  # what is left brings names back into one line
            given = max(0, min(spare, name - widths[place]))
            if given == name - widths[place]:
                widths[place] += given
                spare -= given
        return widths, _NARROW_GAP

    def _cell(self, column: Column, cell: str, width: int) -> list[Text]:
        if column.kind == "id":
            return [Text(elide(cell, width))]
        return _wrapped(cell, width) if column.kind == "text" else [Text(cell)]

    def _joined(
        self, cells: Sequence[Sequence[Text]], widths: Sequence[int], gap: int, style: str = "", *, at_end: bool = False
    ) -> Iterator[Text]:
        """Yields lines of cells beside each other. at_end: a cell of fewer lines than others stands at their end."""
        height = max(map(len, cells), default=0)
        for number in range(height):
            line = Text(style=style)
            for column, lines, width in zip(self.columns, cells, widths, strict=True):
                at = number - (height - len(lines)) if at_end else number
                own = lines[at] if 0 <= at < len(lines) else Text()
                space = " " * max(0, width - own.cell_len)
                if column is not self.columns[0]:
                    line.append(" " * gap)
                line.append(space if column.kind == "figure" else "").append_text(own)
                line.append("" if column.kind == "figure" else space)
            line.rstrip()
            yield line

    def _blocks(self, width: int) -> Iterator[Text]:
        """Yields a block for each row, as for `\\G` of SQL clients: a line for each cell that is not empty."""
        name_width = max(cell_len(column.name) for column in self.columns)
        for row in self.rows:
            yield Text(_RULE * min(width, name_width), style="dim")
            for column, cell in zip(self.columns, row, strict=True):
                if not cell:
                    continue
                room = max(_LEAST["text"], width - name_width - _GAP)
                for number, line in enumerate(_wrapped(cell, room) if column.is_flexible else [Text(cell)]):
                    name = "" if number else column.name
                    start = name + " " * (name_width - cell_len(name) + _GAP)
                    yield Text().append(start, style="bold").append_text(line)


@functools.cache
def _wrapping() -> Console:
    return Console()


def _wrapped(value: str, width: int, style: str = "") -> list[Text]:
    """Returns a text in lines of at most `width` columns, broken at spaces, and within a word that is too long."""
    lines = Text(value, style=style).wrap(_wrapping(), max(1, width), overflow="fold", no_wrap=False)
    for line in lines:
        line.rstrip()
    return list(lines) or [Text()]
