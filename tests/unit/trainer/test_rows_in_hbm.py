"""Rows that a GPU keeps and trains: the same bits as on the host, and no reader of a table sees an old one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from storage._table import begin_tables
from tests.support.examples import examples
from tests.support.late_transfers import LateTransfers
from trainer import EmbeddingBag, EmbeddingTable, SparseAdagrad, SparseAdam
from trainer.devices import replaced_transfers
from trainer.embedding import (
    Embedding,
    EmbeddingCollection,
    Eviction,
    HbmRows,
    RowMemory,
    SparseRule,
    optimizer_classes,
)
from trainer.embedding.layers import LayerLookup
from trainer.embedding.lookups import Lookups
from trainer.embedding.row_steps import stepped_rows

HOST = torch.device("cpu")
OPTIONS: dict[str, dict[str, Any]] = {
    "ftrl": {"l1": 0.01, "l2": 0.02, "beta": 0.3},
    "adagrad_decay": {"decay_steps": 2, "weight_decay": 0.01},
}


@pytest.fixture
def late() -> Iterator[LateTransfers]:
    made = LateTransfers()
    with replaced_transfers(HOST, made):
        yield made


@pytest.mark.parametrize("dim", [3, 16, 40])
@pytest.mark.parametrize("rule", list(optimizer_classes()))
def test_every_optimizer_steps_rows_to_the_same_bits_on_both_sides(rule: SparseRule, dim: int) -> None:
    draws = np.random.default_rng(dim)
    table, ids = EmbeddingTable("t", dim, optimizer=rule), np.arange(150)
    table.lookup(ids, train=True)
    optimizer = optimizer_classes()[rule]([table], 0.03, row_clip=0.5, **OPTIONS.get(rule, {"weight_decay": 0.01}))
    _, rows, slots, *_ = table.export_rows()
    values = torch.from_numpy(np.concatenate([rows, slots], axis=1))
    for step in range(5):
        gradients = draws.normal(0, 10.0 ** (step - 3), (150, dim)).astype(np.float32)
        options = optimizer._options(0.7)
        table.add_gradients(ids, gradients)
        optimizer.step(scale=0.7)
        values = stepped_rows(rule, values, torch.from_numpy(gradients), options, table.steps)
        _, rows, slots, *_ = table.export_rows()
        expected = np.concatenate([rows, slots], axis=1)
        assert np.array_equal(values.numpy().view(np.uint32), expected.view(np.uint32)), step


def collection_of(tables: list[EmbeddingTable]) -> EmbeddingCollection:
    first, second = tables
    return EmbeddingCollection(
        {
            "a": EmbeddingBag(first),
            "b": EmbeddingBag(second, "mean"),
            "s": Embedding(first, 3),
            "w": EmbeddingBag(second, "weighted"),
        }
    )


def same(one: EmbeddingTable, other: EmbeddingTable) -> bool:
    pairs: list[tuple[Any, Any]] = list(zip(one.export_rows(), other.export_rows(), strict=True))
    return all(np.array_equal(own, its) for own, its in pairs)


def inputs_of(draws: np.random.Generator, bags: int) -> dict[str, torch.Tensor]:
    inputs = {}
    for name in "absw":
        sizes = draws.integers(0, 4, bags)
        inputs[f"{name}.offsets"] = torch.from_numpy(np.concatenate([[0], np.cumsum(sizes)]))
        inputs[f"{name}.values"] = torch.from_numpy(draws.zipf(1.3, int(sizes.sum())) % 60)
    inputs["w.weights"] = torch.from_numpy(draws.normal(size=len(inputs["w.values"])).astype(np.float32))
    return inputs


@given(st.integers(0, 1000), st.lists(st.sampled_from("ckelr"), min_size=4, max_size=12), st.integers(0, 3000))
@settings(max_examples=examples(40), deadline=None)
def test_whatever_is_kept_and_whoever_reads_the_table_has_every_bit(seed: int, acts: list[str], hbm_bytes: int) -> None:
    """c: choose rows anew, k: commit, e: erase, l: look up on the host, r: restore."""
    with replaced_transfers(HOST, LateTransfers()):
        sides = []
        for keeps in (False, True):
            tables = [EmbeddingTable("one", 4, optimizer="adam"), EmbeddingTable("two", 4, optimizer="adam")]
            rows = HbmRows(tables, hbm_bytes, HOST, LateTransfers()) if keeps else None
            sides.append((tables, collection_of(tables), SparseAdam(tables, 0.1), rows))
        for step, act in enumerate(acts):
            results = []
            for tables, layers, optimizer, rows in sides:
                draws = np.random.default_rng([seed, step])
                if rows is not None and act == "c":
                    rows.choose()
                found = layers(inputs_of(draws, 5))
                (found.pooled.square().sum() + found["s"].square().sum()).backward()
                norm = optimizer.squared_norm()
                optimizer.step(scale=0.5)
                some = draws.integers(0, 60, 7)
                if act == "e":
                    tables[0].erase(some)
                elif act == "r":
                    ids, values, slots, counts, stamps, ticks = tables[1].export_rows()
                    tables[1].restore(ids, values + np.float32(1), slots, counts, stamps, ticks)
                seen: list[Any] = [norm]
                if act == "l":
                    seen += [tables[0].lookup(some, train=True), tables[1].lookup(some, train=False)]
                elif act == "k":
                    seen += [part for table in tables for part in table.export_rows()]
                    seen += [table.changes_fingerprint("fp32", 0) for table in tables]
                results.append(seen)
            for one, other in zip(*results, strict=True):
                assert np.array_equal(one, other) if isinstance(one, np.ndarray) else one == pytest.approx(other)
        for one, other in zip(sides[0][0], sides[1][0], strict=True):
            assert same(one, other)


def test_the_rows_seen_most_are_kept_within_the_memory_given(late: LateTransfers) -> None:
    tables = [EmbeddingTable("narrow", 2), EmbeddingTable("wide", 6)]
    for table in tables:
        table.lookup(np.repeat(np.arange(20), np.arange(20, 0, -1)), train=True)  # 0 is seen 20 times
    tables[1].lookup(np.zeros(100, np.int64), train=True)
    rows = HbmRows(tables, 16 * 4 + 48 * 2, HOST, late)
    rows.choose()
    assert rows.figures().memory_bytes == 16 * 3 + 48 * 2, "the next row would be a wide one"
    assert [table.hbm.ids.size() for table in tables if table.hbm is not None] == [3, 2]
    rows.choose()
    assert rows.figures().rows == 5, "choosing again changes nothing"


def test_rows_are_chosen_at_the_start_and_then_ever_more_seldom(late: LateTransfers) -> None:
    table = EmbeddingTable("t", 2)
    rows = HbmRows([table], 1 << 20, HOST, late)
    rows.before_step(0)
    assert rows.figures().rows == 0
    table.lookup(np.arange(5), train=True)
    rows.before_step(99)
    assert rows.figures().rows == 0
    rows.before_step(100)
    assert rows.figures().rows == 5
    later = HbmRows([table], 1 << 20, HOST, late)
    later.before_step(5000)
    assert later.figures().rows == 5, "a run that goes on has rows at once"


def test_an_evicted_row_begins_anew(late: LateTransfers) -> None:
    table = EmbeddingTable("t", 2, eviction=Eviction(after_steps=2))
    bag, optimizer = EmbeddingBag(table), SparseAdagrad([table], 0.5)
    rows = HbmRows([table], 1 << 20, HOST, late)
    one, offsets = torch.tensor([7]), torch.tensor([0, 1])
    first = bag(one, offsets).detach().clone()
    bag(one, offsets).sum().backward()
    optimizer.step(seconds=0.0)
    rows.choose()
    for _ in range(30):
        bag(torch.tensor([3]), offsets).sum().backward()
        optimizer.step(seconds=0.0)
    assert table.size() == 1
    assert torch.equal(bag(one, offsets), first)


def test_a_feature_without_gradients_moves_no_row(late: LateTransfers) -> None:
    tables = [EmbeddingTable("one", 4, optimizer="adam"), EmbeddingTable("two", 4, optimizer="adam")]
    layers, optimizer = collection_of(tables), SparseAdam(tables, 0.1)
    rows = HbmRows(tables, 1 << 20, HOST, late)
    draws = np.random.default_rng(1)
    for choose in (False, True, True):
        if choose:
            rows.choose()
        inputs = inputs_of(draws, 6)
        layers(inputs)["s"].sum().backward()
        before = dict(zip(*tables[0].export_rows()[:2], strict=True))
        optimizer.step()
        used = set()
        offsets = inputs["s.offsets"].tolist()
        for begin, end in zip(offsets, offsets[1:], strict=False):
            used |= set(inputs["s.values"][begin : min(end, begin + 3)].tolist())
        for id, row in zip(*tables[0].export_rows()[:2], strict=True):
            assert np.array_equal(row, before[id]) == (id not in used), id


@pytest.mark.parametrize("bags", [1, 40])
def test_a_gpu_pools_and_sums_as_the_host_does(bags: int) -> None:
    results = []
    for late in (None, LateTransfers()):
        tables = [EmbeddingTable("one", 5), EmbeddingTable("two", 3)]
        draws = np.random.default_rng(bags)
        layers, optimizer = collection_of(tables), SparseAdagrad(tables, 0.5)
        seen = []
        with nullcontext() if late is None else replaced_transfers(HOST, late):
            for _ in range(3):
                found = layers(inputs_of(draws, bags))
                (found.pooled.square().sum() + found["s"].square().sum()).backward()
                optimizer.step()
                seen += [found.pooled.detach(), found["s"].detach()]
        results.append([*seen, *(torch.from_numpy(part) for table in tables for part in table.export_rows()[1:3])])
    for one, two in zip(*results, strict=True):
        assert torch.allclose(one, two, atol=1e-5)


def test_tables_whose_rows_the_host_pools_are_not_chosen(late: LateTransfers) -> None:
    tables = [EmbeddingTable("one", 2), EmbeddingTable("two", 2)]
    Lookups([LayerLookup(tables[0], "sum", absent=tables[0].absent)])
    for table in tables:
        table.lookup(np.arange(9), train=True)
    rows = HbmRows(tables, 1 << 20, HOST, late)
    rows.choose()
    assert tables[0].hbm is None
    assert rows.figures().rows == 9


def test_rows_beyond_the_memory_of_the_host_are_kept_and_written_back(late: LateTransfers, tmp_path: Path) -> None:
    memory = RowMemory(300_000, tmp_path)
    tiered = EmbeddingTable("t", 16, optimizer="adam", memory=memory)
    plain = EmbeddingTable("t", 16, optimizer="adam")
    ways = [(table, EmbeddingBag(table), SparseAdam([table], 0.1)) for table in (tiered, plain)]
    rows = HbmRows([tiered], 20_000, HOST, late)
    draws = np.random.default_rng(3)
    for step in range(30):
        ids = torch.from_numpy(np.concatenate([draws.integers(0, 100_000, 200), draws.integers(0, 50, 60)]))
        begin_tables([tiered.unsettled])  # rows of the batch before may leave
        if step % 7 == 6:
            rows.choose()
        for _, bag, optimizer in ways:
            bag(ids, torch.arange(len(ids) + 1)).square().sum().backward()
            optimizer.step()
    assert tiered.rows_on_ssd() > 0
    assert rows.figures().hits > 0
    assert same(tiered, plain)
    memory.close()
