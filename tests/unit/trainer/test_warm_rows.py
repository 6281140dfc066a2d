"""Rows that move between tables: of any optimizer, in layers, of which the last that has an id counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import get_args

import numpy as np
import pytest

from trainer.embedding import EmbeddingTable, SparseAdagrad, SparseFtrl, SparseRule, optimizer_classes
from trainer.warm_start.rows import slot_widths, take_rows
from trainer.warm_start.source import Ids, Piece, SourceTable

RULES: tuple[SparseRule, ...] = get_args(SparseRule)


@dataclass(frozen=True)
class Given:
    """A layer of rows that are in memory."""

    parts: list[Piece]
    removed: Ids

    def ids(self) -> Iterator[Ids]:
        return (part.ids for part in self.parts)

    def pieces(self) -> Iterator[Piece]:
        return iter(self.parts)


def piece(ids: list[int], rows: np.ndarray, slots: np.ndarray | None = None) -> Piece:
    return Piece(np.array(ids, np.int64), rows.astype(np.float32), np.full(len(ids), 3, np.uint32), slots)


def trained_table(rule: SparseRule, dim: int, steps: int = 5) -> EmbeddingTable:
    """Makes a table of 20 rows that took some steps."""
    rng = np.random.default_rng(1)
    table = EmbeddingTable("t", dim, optimizer=rule, initial_accumulator=0.01)
    optimizer = optimizer_classes()[rule]([table], lr=0.1)
    for _ in range(steps):
        ids = rng.integers(0, 20, 30)
        table.lookup(ids, train=True)
        table.add_gradients(ids, rng.normal(size=(30, dim)).astype(np.float32))
        optimizer.step()
    return table


def source_of(table: EmbeddingTable) -> SourceTable:
    ids, rows, slots, counts, *_ = table.export_rows()
    layer = Given([Piece(ids, rows, counts, slots)], np.empty(0, np.int64))
    return SourceTable("t", table.dim, [layer], optimizer=table.optimizer, steps=table.steps)


@pytest.mark.parametrize("rule", RULES)
def test_the_widths_of_optimizer_values_are_those_of_the_native_table(rule: SparseRule) -> None:
    for dim in (1, 3, 8):
        assert sum(slot_widths(rule, dim)) == EmbeddingTable("t", dim, optimizer=rule).slots


@pytest.mark.parametrize("rule", RULES)
def test_the_next_step_of_a_moved_table_is_that_of_the_table_it_came_from(rule: SparseRule) -> None:
    before = trained_table(rule, 4)
    now = EmbeddingTable("t", 4, optimizer=rule, initial_accumulator=0.01)
    optimizer = optimizer_classes()[rule]([now], lr=0.1)
    assert take_rows(source_of(before), now, optimizer.slots_for) == before.size()
    ids, gradients = np.arange(5), np.ones((5, 4), np.float32)
    results = []
    for table, each in ((before, optimizer_classes()[rule]([before], lr=0.1)), (now, optimizer)):
        table.lookup(ids, train=True)
        table.add_gradients(ids, gradients)
        each.step()
        results.append([part.tobytes() for part in table.export_rows()[:4]])
    assert results[0] == results[1]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dim", [2, 7])
def test_optimizer_values_follow_their_row_values_to_another_dim(rule: SparseRule, dim: int) -> None:
    before = trained_table(rule, 4)
    now = EmbeddingTable("t", dim, optimizer=rule, initial_accumulator=0.01)
    take_rows(source_of(before), now, optimizer_classes()[rule]([now], lr=0.1).slots_for)
    ids, old_rows, old_slots, *_ = before.export_rows()
    new_ids, rows, slots, *_ = now.export_rows()
    kept = min(4, dim)
    assert new_ids.tobytes() == ids.tobytes()
    assert rows[:, :kept].tobytes() == np.ascontiguousarray(old_rows[:, :kept]).tobytes()
    old = new = 0
    for width, other in zip(slot_widths(rule, 4), slot_widths(rule, dim), strict=True):
        both = min(width, other)
        np.testing.assert_array_equal(slots[:, new : new + both], old_slots[:, old : old + both])
        old, new = old + width, new + other


def test_ftrl_goes_on_from_rows_of_another_optimizer() -> None:
    before = trained_table("adagrad", 4)
    now = EmbeddingTable("t", 4, optimizer="ftrl", initial_accumulator=0.1)
    optimizer = SparseFtrl([now], lr=0.1, beta=1.0, l1=0.01, l2=0.1)
    take_rows(source_of(before), now, optimizer.slots_for)
    ids, rows, *_ = now.export_rows()
    now.lookup(ids, train=True)
    now.add_gradients(ids, np.full((len(ids), 4), 1e-7, np.float32))
    optimizer.step()
    np.testing.assert_allclose(now.export_rows()[1], rows, atol=1e-5)
    assert np.abs(rows).max() > 0.1


def test_of_layers_the_last_row_counts_and_removed_ids_are_gone() -> None:
    none = np.empty(0, np.int64)
    ones = np.ones((3, 2))
    source = SourceTable(
        "t",
        2,
        [
            Given([piece([1, 2, 3], ones), piece([4, 5], 2 * ones[:2])], none),
            Given([piece([2, 6], 3 * ones[:2])], np.array([4, 5])),
            Given([], none),
            Given([piece([5, 1], 4 * ones[:2])], np.array([6])),
        ],
    )
    table = EmbeddingTable("t", 2)
    assert take_rows(source, table, SparseAdagrad([table]).slots_for) == source.rows() == 4
    ids, rows, slots, counts, stamps, _ = table.export_rows()
    assert dict(zip(ids.tolist(), rows[:, 0].tolist(), strict=True)) == {1: 4.0, 2: 3.0, 3: 1.0, 5: 4.0}
    assert (slots == np.float32(0.1)).all()
    assert counts.tolist() == [3] * 4
    assert (stamps == table.stamp).all()


def test_no_layer_of_rows_is_an_empty_table() -> None:
    source = SourceTable("t", 2, [Given([], np.empty(0, np.int64))])
    table = EmbeddingTable("t", 2)
    assert take_rows(source, table, SparseAdagrad([table]).slots_for) == source.rows() == 0


def test_counts_of_ids_that_wait_are_kept_where_rows_are_admitted_by_count() -> None:
    def counts() -> Iterator[tuple[Ids, np.ndarray]]:
        yield np.array([7, 8, 9]), np.array([2, 1, 1], np.uint32)
        yield np.array([8]), np.array([0], np.uint32)

    source = SourceTable("t", 2, [Given([], np.empty(0, np.int64))], counts=counts)
    for admit_after, expected in ((3, {7: 2, 9: 1}), (1, {})):
        table = EmbeddingTable("t", 2, admit_after=admit_after)
        take_rows(source, table, SparseAdagrad([table]).slots_for)
        assert dict(zip(*(part.tolist() for part in table.export_counts()), strict=True)) == expected
