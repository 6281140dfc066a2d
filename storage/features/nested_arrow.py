"""Joins lists of lists in Arrow's memory into one list a row, as `storage.features.nested` does those of Python."""

from __future__ import annotations

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


def _ends(lists: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
