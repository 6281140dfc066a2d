"""Rows on their way between ranks: what one rank has read for the others, as Arrow streams.

R ranks. Parts keep the order in which their rows were read, so that a receiver knows which ones they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from storage.features.column_types import is_list
from trainer.data.stream import taken


def parts_of(table: Any, owners: NDArray[np.int16], ranks: int) -> list[Any]:
    """Returns the rows of each rank, (R,). owners: that of each row, (N,); -1: nobody wants it."""
    order = np.argsort(owners, kind="stable")
    counts = np.bincount(owners + 1, minlength=ranks + 1)
    ordered = taken(table, order[counts[0] :])
    starts = np.concatenate(([0], np.cumsum(counts[1:])))
    return [ordered.slice(start, count) for start, count in zip(starts, counts[1:], strict=False)]


def packed(parts: Sequence[Sequence[Any]], own: int, ranks: int, schema: Any) -> tuple[NDArray[np.uint8], list[int]]:
    """Returns the message to all ranks, and the bytes for each, (R,).

    parts: of each block, the rows of each rank. own: the rank that sends, which gets no bytes.
    """
    sink = pa.BufferOutputStream()
    sizes = []
    for rank in range(ranks):
        start = sink.tell()
        wanted = [block[rank] for block in parts if block[rank].num_rows] if rank != own else []
        if wanted:
            with pa.ipc.new_stream(sink, schema) as stream:
                for part in wanted:
                    stream.write_table(_with_small_dictionaries(part))
        sizes.append(sink.tell() - start)
    message = sink.getvalue()
    return np.frombuffer(message, np.uint8) if message.size else np.empty(0, np.uint8), sizes


def unpacked(message: NDArray[np.uint8], sizes: Sequence[int]) -> list[Any]:
    """Returns the rows that each rank has sent, (R,), None where it sent none. sizes: bytes of each, (R,)."""
    found = []
    whole, start = pa.py_buffer(message), 0
    for size in sizes:
        found.append(pa.ipc.open_stream(whole.slice(start, size)).read_all() if size else None)
        start += size
    return found


def _with_small_dictionaries(part: Any) -> Any:
    """Leaves out entries of dictionaries that these rows do not use, where there are more entries than values."""
    for place, entry in enumerate(part.schema):
        column = part.column(place)
        if pa.types.is_dictionary(entry.type):
            small = pa.chunked_array([_small(chunk) for chunk in column.chunks], entry.type)
        elif is_list(entry.type) and pa.types.is_dictionary(entry.type.value_type):
            small = pa.chunked_array([_small_list(chunk) for chunk in column.chunks], entry.type)
        else:
            continue
        part = part.set_column(place, entry, small)
    return part


def _small(values: Any) -> Any:
    if len(values.dictionary) <= len(values):
        return values
    used = pc.unique(values.indices).drop_null()
    indices = pc.index_in(values.indices, used, skip_nulls=True).cast(values.indices.type)
    return pa.DictionaryArray.from_arrays(indices, values.dictionary.take(used))


def _small_list(lists: Any) -> Any:
    values = lists.flatten()
    small = _small(values)
    if small is values:
        return lists
    if pa.types.is_fixed_size_list(lists.type):
        return lists  # a null of it has values too
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    kind = pa.large_list if pa.types.is_large_list(lists.type) else pa.list_
    made = pa.LargeListArray if kind is pa.large_list else pa.ListArray
    width = pa.int64() if kind is pa.large_list else pa.int32()
    return made.from_arrays(pa.array(offsets, width), small, type=lists.type, mask=lists.is_null())
