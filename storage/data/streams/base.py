"""Defines what a stream of rows is: it gives the rows that have come, in one order, and a position behind each row.

A position is a JSON value. Training commits the one behind the last row that it learned from, in the same commit as
the weights, and the stream continues from it: no row is lost, and none is used twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from storage.data.streams.start import Start

Position = dict[str, Any]


@dataclass(frozen=True)
class Credentials:
    """Names who reads a stream, where its URL does not."""

    user: str | None = None
    password: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Piece:
    """Consecutive rows of a stream."""

    #: The rows, a pyarrow Table (N,).
    table: Any
    #: Returns the position behind the first n of the rows, 0 < n <= N.
    after: Callable[[int], Position]
    #: Returns where a row came from, for people.
    place_of: Callable[[int], str]


def slice_piece(table: Any, before: Position, end: Position, place: str) -> Piece | None:
    """Returns the rows of a message of several rows, behind the first `before["row"]`, which were used; None without.

    before: the position before the message. end: the one behind it.
    """
    skip = int(before["row"])
    left = table.slice(skip)
    if left.num_rows == 0:
        return None
    return Piece(
        left,
        lambda rows: end if rows == left.num_rows else {**before, "row": skip + rows},
        lambda row: f"{place}, row {skip + row}",
    )


class StreamSource(Protocol):
    """A stream of rows. Not thread-safe, except for `waiting`."""

    @property
    def name(self) -> str:
        """Returns the name by which commits know the stream: its path or URL without passwords and options."""
        ...

    def seek(self, position: Position | None, start: Start, *, skip_lost: bool = False) -> Position:
        """Continues behind a position, or at `start` where there is none, and returns the position.

        A stream that begins with a time may give events from before it too, as far as clocks differ.
        skip_lost: goes on without rows behind the position that are not there any more, with a warning. Raises
        ConfigError for them otherwise.
        """
        ...

    def read(self, rows: int) -> Piece | None:
        """Returns the next rows, about `rows` of them or one block; None when none has come.

        It waits at most a fraction of a second. Raises InvalidInput or ConfigError naming the place of what cannot be
        read.
        """
        ...

    @property
    def is_expecting(self) -> bool:
        """True when something has come that is no row yet, such as a file that is still written."""
        ...

    def waiting(self) -> tuple[int, str]:
        """Returns how much has come and is not read, and its unit: files, entries or messages."""
        ...

    def close(self) -> None:
        """Ends connections."""
        ...
