"""Joins lists of lists, such as the items of a user's sessions, into one list a row (`flatten` of an input).

The inner lists follow one another. A null among inner lists, and an empty one, adds nothing. A server joins lists
without pyarrow, which it does not load.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any


def joined_rows(rows: Sequence[Any]) -> list[Any]:
    """Returns rows of Python lists of lists, of any depth, as lists; anything else as it is."""
    return [_joined(row) for row in rows]


def _joined(row: Any) -> Any:
    while type(row) is list and any(map(_is_list, row)) and all(value is None or _is_list(value) for value in row):
        row = list(chain.from_iterable(value for value in row if value is not None))
    return row


def _is_list(value: Any) -> bool:
    return type(value) is list
