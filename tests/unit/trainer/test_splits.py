"""Batches that several ranks make together hold the rows that they hold for one."""

from __future__ import annotations

from itertools import chain, zip_longest
from typing import Any

import pyarrow as pa
import pytest

from storage.data import DataOptions, DataRows
from trainer.data import RowStream, Split

ROWS = 1003


def read(shuffle: int | None, rank: int, ranks: int, *, together: int = 1, skip: int = 0) -> list[Any]:
    rows = DataRows.open(pa.table({"row": range(ROWS)}), None, DataOptions(block_rows=100))
    stream = RowStream(rows, 60, shuffle_rows=shuffle, seed=3, split=Split(rank, ranks))
    return [table["row"].to_pylist() for table in stream.cut(stream.windows(1, skip_batches=skip), together)]


@pytest.mark.parametrize("shuffle", [None, 1, 250, 10**6])
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_the_parts_of_a_batch_are_its_rows_in_their_order(shuffle: int | None, ranks: int) -> None:
    whole = read(shuffle, 0, 1)
    parts = [read(shuffle, rank, ranks) for rank in range(ranks)]
    assert all(len(batch) in (60 // ranks, -(-60 // ranks)) for part in parts for batch in part[:-1])
    joined = [[row for part in batch for row in part] for batch in zip_longest(*parts)]
    assert joined == whole
    assert sorted(row for batch in joined for row in batch) == list(range(ROWS))


@pytest.mark.parametrize("shuffle", [None, 250])
def test_a_part_goes_on_from_any_batch_and_is_cut_alike_several_at_once(shuffle: int | None) -> None:
    part = read(shuffle, 1, 2)
    assert read(shuffle, 1, 2, skip=7) == part[7:]
    assert list(chain.from_iterable(read(shuffle, 1, 2, together=4))) == list(chain.from_iterable(part))


@pytest.mark.parametrize("shuffle", [None, 250])
def test_ranks_without_a_row_of_the_last_batch_take_it_too(shuffle: int | None) -> None:
    whole = read(shuffle, 0, 1)  # 43 rows in the last batch
    for rank, ranks in ((0, 50), (6, 50), (7, 50), (49, 50)):
        for together, skip in ((1, 0), (4, 0), (4, 16)):
            part = read(shuffle, rank, ranks, together=together, skip=skip)
            rows = [row for table in part for row in table]
            assert len(part[-1]) == 0 if rank < 7 else whole[-1][rank - 7] == rows[-1]
            assert len(rows) == (rank >= 7) + (1 if rank < 40 else 2) * (16 - skip)
        assert read(shuffle, rank, ranks, skip=17) == []


def test_a_row_at_fault_is_named_by_its_place_in_the_whole_batch() -> None:
    rows = DataRows.open(pa.table({"row": range(ROWS)}), None, DataOptions(block_rows=100))
    streams = [RowStream(rows, 60, split=Split(rank, ranks)) for rank, ranks in ((0, 1), (1, 2))]
    assert streams[1].place_of(0, 3, 5) == streams[0].place_of(0, 3, 35)
    assert streams[1].place_of(0, 3, 2 * 30 + 5) == streams[0].place_of(0, 5, 35)
    assert streams[0].place_of(0, 3, 2 * 60 + 35) == streams[0].place_of(0, 5, 35)
