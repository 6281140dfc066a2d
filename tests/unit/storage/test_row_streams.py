"""Streams of rows are merged and compared as dictionaries would be, whatever the blocks that they come in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.checkpoint import Shard, open_version, write_delta
from storage.checkpoint.as_of import newest_of
from storage.checkpoint.row_streams import RowPatch, RowStream, array_rows, compare, patched_rows, side_by_side
from storage.errors import CheckpointError, NotFound
from storage.rows import RowCodec
from storage.specs import TableSpec
from tests.support.storage.delta_parts import delta_parts, delta_table

Rows = dict[int, int]

IDS = st.one_of(st.integers(-9, 9), st.sampled_from([-(2**63), 2**63 - 1]))
ROWS = st.dictionaries(IDS, st.integers(0, 3), max_size=14)


def _stream(rows: Rows, block: int, row_type: str = "fp32", dim: int = 3) -> RowStream:
    """Returns rows, each filled with its number, in blocks of at most `block` rows, some of them empty."""
    codec = RowCodec(row_type, dim)
    ids = np.array(sorted(rows), np.int64)
    values = np.repeat(np.array([rows[i] for i in ids.tolist()], np.float32)[:, None], dim, axis=1).reshape(-1, dim)

    def read() -> Iterator[Shard]:
        for start in range(0, len(ids), block):
            part = slice(start, start + block)
            yield Shard(ids[:0], codec.encode(values[:0]), np.empty(0, np.uint8), codec)
            yield Shard(ids[part], codec.encode(values[part]), (ids[part] % 251).astype(np.uint8), codec)

    return RowStream(TableSpec("t", dim, row_type), read)


def _dict(shards: Iterator[Shard] | RowStream | list[Shard]) -> Rows:
    rows: Rows = {}
    last = None
    for shard in shards:
        for i, row, uses in zip(shard.ids.tolist(), shard.rows, shard.freq.tolist(), strict=True):
            assert last is None or i > last
            assert uses == i % 251
            assert (row == row[0]).all()
            rows[i], last = int(row[0]), i
    return rows


@settings(max_examples=200)
@given(ROWS, st.lists(st.tuples(ROWS, st.sets(IDS, max_size=6)), max_size=4), st.integers(1, 6), st.integers(1, 6))
def test_patches_lie_on_rows_as_updates_of_a_dictionary(
    rows: Rows, patches: list[tuple[Rows, set[int]]], block: int, other_block: int
) -> None:
    wanted = dict(rows)
    made = []
    for changed, gone in patches:
        removed = np.array(sorted(gone - set(changed)), np.int64)
        made.append(RowPatch(_stream(changed, other_block), removed))
        wanted.update(changed)
        for i in removed.tolist():
            wanted.pop(i, None)
    stream = patched_rows(_stream(rows, block), made)
    assert _dict(stream) == wanted
    assert _dict(stream) == wanted, "it is not read a second time as it was the first time"


@settings(max_examples=200)
@given(ROWS, ROWS, st.integers(1, 6), st.integers(1, 6), st.sampled_from(["fp32", "int8", "bf16", "fp16"]))
def test_a_comparison_says_what_changed_what_came_and_what_went(
    before: Rows, after: Rows, block: int, other_block: int, row_type: str
) -> None:
    found = list(compare(_stream(before, block, row_type), _stream(after, other_block, row_type)))
    assert _dict([each.added for each in found]) == {i: after[i] for i in after.keys() - before.keys()}
    assert _dict([each.removed for each in found]) == {i: before[i] for i in before.keys() - after.keys()}
    other = {i for i in before.keys() & after.keys() if before[i] != after[i]}
    assert _dict([each.changed for each in found]) == {i: after[i] for i in other}
    assert _dict([each.before for each in found]) == {i: before[i] for i in other}
    assert sum(each.same for each in found) == len(before.keys() & after.keys()) - len(other)


def test_bytes_are_compared_and_not_values() -> None:
    ids = np.arange(2)
    before = array_rows(TableSpec("t", 2), ids, np.array([[0.0, 1.0], [2.0, 3.0]], np.float32))
    after = array_rows(TableSpec("t", 2), ids, np.array([[-0.0, 1.0], [2.0, 3.0]], np.float32))
    (found,) = compare(before, after)
    assert found.changed.ids.tolist() == [0]
    # As int8, a change below the rounding is none.
    spec = TableSpec("t", 2, "int8")
    rows = np.array([[1.0, 127.0]], np.float32)
    near = array_rows(spec, ids[:1], np.array([[1.1, 127.0]], np.float32))
    (same,) = compare(array_rows(spec, ids[:1], rows), near)
    assert (len(same.changed.ids), same.same) == (0, 1)


def test_a_stream_that_is_not_in_order_and_rows_of_another_type_are_refused() -> None:
    ids = np.array([3, 2])
    rows = np.zeros((2, 3), np.float32)
    with pytest.raises(CheckpointError, match="'t': ids are not strictly ascending"):
        list(array_rows(TableSpec("t", 3), ids, rows))
    blocks = RowStream(TableSpec("t", 3), lambda: [*_stream({5: 1}, 1), *_stream({5: 2}, 1)])
    with pytest.raises(CheckpointError, match="not strictly ascending"):
        list(blocks)
    with pytest.raises(CheckpointError, match="cannot be compared"):
        list(compare(_stream({1: 1}, 1), _stream({1: 1}, 1, "bf16")))
    with pytest.raises(CheckpointError, match="expected"):
        list(RowStream(TableSpec("t", 3), lambda: _stream({1: 1}, 1, "bf16").read()))


def test_ranges_span_all_streams() -> None:
    streams = [_stream({1: 0, 2: 0, 9: 0}, 2), _stream({}, 1), _stream({5: 0}, 1)]
    spans = [tuple(part.ids.tolist() for part in parts) for parts in side_by_side(streams)]
    assert spans == [([1, 2], [], []), ([], [], [5]), ([9], [], [])]


def test_a_published_snapshot_is_read_through_its_deltas(copy_version: Callable[[], Path]) -> None:
    version = open_version(copy_version())
    known = np.concatenate([shard.ids for shard in version.shards("item")])
    first, second, third = known[:3]
    ids = np.sort(np.array([first, 5], np.int64))
    table = delta_table(ids=ids, removed=np.array([second]))
    write_delta(version.path, **delta_parts(version, tables=[table]))
    again = delta_table(ids=np.array([second]), removed=np.array([5]))
    parts = {"snapshot": "e" * 32, "parent": "d" * 32, "applies_to": ["d" * 32], "sequence": 2, "from_sequence": 1}
    write_delta(version.path, **delta_parts(version, tables=[again], **parts))
    snapshot = newest_of(version.path)
    assert len(snapshot.deltas) == 2
    read = {i: row for shard in snapshot.rows("item") for i, row in zip(shard.ids.tolist(), shard.rows, strict=True)}
    assert sorted(read) == known.tolist(), "5 came and went, the second went and came back"
    np.testing.assert_array_equal(read[int(first)], table.rows[ids.tolist().index(int(first))])
    np.testing.assert_array_equal(read[int(second)], again.rows[0])
    before = {i: row for shard in version.shards("item") for i, row in zip(shard.ids.tolist(), shard.rows, strict=True)}
    np.testing.assert_array_equal(read[int(third)], before[int(third)])
    assert list(snapshot.rows("empty")) == []
    with pytest.raises(NotFound, match="nothing"):
        snapshot.rows("nothing")
