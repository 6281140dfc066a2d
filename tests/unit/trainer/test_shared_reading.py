"""Blocks are dealt out to ranks by how fast each reads, and rows travel between them unchanged."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from trainer.data.dealing import Dealer
from trainer.data.row_messages import packed, parts_of, unpacked


def test_ranks_that_read_alike_are_dealt_alike() -> None:
    dealer = Dealer(3)
    assert sorted(dealer.deal([100] * 6)) == [0, 0, 1, 1, 2, 2]
    dealer.measured([200, 200, 200], [1.0, 1.0, 1.0])
    for rank in range(3):
        assert dealer.deal([100]) == [rank]
        dealer.measured([100 * (each == rank) for each in range(3)], [0.5 * (each == rank) for each in range(3)])


def test_a_round_that_was_dealt_and_ended_leaves_nothing_behind() -> None:
    # The ranks stop together, and some of them had dealt one more round than others.
    early, late = Dealer(3), Dealer(3)
    late.deal([100] * 4)
    assert late.deal([100] * 5) == early.deal([100] * 5)


def test_a_slow_rank_is_dealt_less_and_is_tried_again() -> None:
    dealer = Dealer(3)
    dealer.measured([200, 200, 200], [1.0, 5.0, 1.0])
    dealt = dealer.deal([100] * 6)
    assert dealt.count(1) == 0
    rounds = 1
    while 1 not in dealt:
        dealer.measured([300, 0, 300], [1.5, 0.0, 1.5])
        dealt = dealer.deal([100] * 6)
        rounds += 1
    assert 2 < rounds < 6
    for _ in range(8):
        dealer.measured([200, 200, 200], [1.0, 1.0, 1.0])
    assert sorted(dealer.deal([100] * 6)) == [0, 0, 1, 1, 2, 2]


def test_ranks_of_a_busy_machine_are_dealt_alike() -> None:
    dealer = Dealer(3)
    dealer.measured([200, 200, 200], [1.0, 1.4, 0.8])
    assert sorted(dealer.deal([100] * 6)) == [0, 0, 1, 1, 2, 2]


def test_the_largest_blocks_are_dealt_first() -> None:
    assert Dealer(2).deal([10, 20, 30, 60]) == [1, 1, 1, 0]


def test_rows_arrive_as_they_were_and_dictionaries_with_what_is_used() -> None:
    text = [f"a rather long text number {each % 500}" for each in range(1000)]
    lists = [[each, text[-1 - k]] if k % 5 else None for k, each in enumerate(text)]
    kind = pa.dictionary(pa.int32(), pa.string())
    table = pa.table(
        {
            "text": pa.array(text).cast(kind),
            "lists": pa.array(lists, pa.list_(pa.string())).cast(pa.list_(kind)),
            "number": range(1000),
        }
    )
    owners = np.arange(1000, dtype=np.int16) % 100 - 1  # 10 rows for each of 99 ranks, and 10 that nobody wants
    parts = parts_of(table, owners, 99)
    message, sizes = packed([parts, parts], 7, 99, table.schema)
    came = unpacked(message, sizes)
    assert came[7] is None
    for rank in (0, 50, 98):
        expected = table.take(pa.array(np.flatnonzero(owners == rank)))
        assert came[rank].to_pylist() == expected.to_pylist() * 2
        assert came[rank].schema == table.schema
    assert len(message) < 99 * 8000  # a whole dictionary has 15,000 bytes
    assert unpacked(*packed([], 0, 3, table.schema)) == [None, None, None]
