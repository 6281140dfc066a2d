"""Joins lists of lists, such as the items of a user's sessions, into one list a row (`flatten` of an input).

The inner lists follow one another. A null among inner lists, and an empty one, adds nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage.features.column_types import is_list


def joined_array(array: Any) -> Any:
    """Returns a pyarrow Array of lists of lists, of any depth, as one of lists; a flat one as it is."""
    while is_list(array.type) and is_list(array.type.value_type):
        inner = array.flatten()  # without those of null rows
        ends = _ends(inner)[_ends(array)]
        null = array.is_null() if array.null_count else None
        array = pa.LargeListArray.from_arrays(pa.array(ends), inner.flatten(), mask=null)
    return array


def joined_rows(rows: Sequence[Any]) -> list[Any]:
    """Returns rows of Python lists of lists as `joined_array` does; anything else as it is."""
    return [_joined(row) for row in rows]


def _joined(row: Any) -> Any:
    while type(row) is list and any(map(_is_list, row)) and all(value is None or _is_list(value) for value in row):
        row = list(chain.from_iterable(value for value in row if value is not None))
    return row


def _is_list(value: Any) -> bool:
    return type(value) is list


def _ends(lists: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
