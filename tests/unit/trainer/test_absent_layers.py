"""Layers over one table that differ in what ids without a row read as, beside rows that plain Python makes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from storage.checkpoint import TableData
from storage.checkpoint.manifest import AbsentEntry
from storage.initializers import ABSENT_ZEROS
from tests.reference.initial import absent_row
from trainer import AbsentRows, Embedding, EmbeddingBag, EmbeddingTable, Initializer, RowMemory, SparseSGD
from trainer.embedding import EmbeddingCollection
from trainer.publishing.lookup_half import find_rows

DIM, IDS = 5, 12
OWN = AbsentRows.of(Initializer("truncated_normal", 0.5), 6)
CONSTANT = AbsentRows.of(Initializer("constant", -2.0))


def filled_table(memory: RowMemory | None = None) -> EmbeddingTable:
    """Makes a table with rows for the ids 0 to IDS - 1."""
    absent = Initializer("normal", 0.5)
    table = EmbeddingTable("t", DIM, optimizer="sgd", seed=3, absent=absent, admit_after=1, memory=memory)
    table.lookup(np.arange(IDS, dtype=np.int64), train=True)
    table.native.set_admit_after(1000)
    return table


def row_of(table: EmbeddingTable, absent: AbsentRows, i: int) -> np.ndarray:
    if 0 <= i < IDS:
        return table.lookup(np.array([i]), train=False)[0].astype(np.float64)
    entry = AbsentEntry.of(absent)
    return absent_row(None if entry is None else entry.model_dump(), DIM, i)


def bags_of(seed: int, count: int = 30) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], rng.integers(0, 5, count).cumsum()])
    values = rng.integers(-IDS, 2 * IDS, offsets[-1])
    return (
        torch.from_numpy(values),
        torch.from_numpy(offsets),
        torch.from_numpy(rng.standard_normal(len(values)).astype(np.float32)),
    )


@pytest.mark.parametrize("threads", [1, 3])
def test_each_layer_reads_absent_ids_in_its_own_way(threads: int) -> None:
    table = filled_table()
    layers: dict[str, EmbeddingBag | Embedding] = {
        "plain": EmbeddingBag(table),
        "mean": EmbeddingBag(table, "mean", absent=OWN),
        "weighted": EmbeddingBag(table, "weighted", absent=CONSTANT),
        "zeros": EmbeddingBag(table, absent=ABSENT_ZEROS),
        "rows": Embedding(table, 3, absent=OWN),
    }
    inputs: dict[str, torch.Tensor] = {}
    for number, name in enumerate(layers):
        values, offsets, weights = bags_of(number)
        inputs |= {f"{name}.values": values, f"{name}.offsets": offsets}
        if name == "weighted":
            inputs[f"{name}.weights"] = weights
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = EmbeddingCollection(layers)(inputs)
    finally:
        torch.set_num_threads(before)
    for name, layer in layers.items():
        absent = table.absent if layer.absent is None else layer.absent
        ids, ends = inputs[f"{name}.values"].tolist(), inputs[f"{name}.offsets"].tolist()
        factors = inputs[f"{name}.weights"].tolist() if name == "weighted" else [1.0] * len(ids)
        for bag, (start, stop) in enumerate(zip(ends, ends[1:], strict=False)):
            rows = [row_of(table, absent, i) * w for i, w in zip(ids[start:stop], factors[start:stop], strict=True)]
            if name == "rows":
                want = np.array([*rows[:3], *[np.zeros(DIM)] * 3])[:3]
            else:
                want = sum(rows, np.zeros(DIM)) / (max(1, len(rows)) if name == "mean" else 1)
            np.testing.assert_allclose(found[name][bag].detach().numpy(), want, rtol=1e-5, atol=1e-6, err_msg=name)
        alone = layer(
            *(inputs[f"{name}.{part}"] for part in ("values", "offsets", "weights") if f"{name}.{part}" in inputs)
        )
        assert torch.equal(alone[0] if isinstance(alone, tuple) else alone, found[name])


def test_gradients_go_to_rows_alone() -> None:
    table = filled_table()
    layer, optimizer = EmbeddingBag(table, absent=OWN), SparseSGD([table], lr=1.0)
    before = table.lookup(np.array([4]), train=False)
    layer(torch.tensor([4, 500]), torch.tensor([0, 2])).sum().backward()
    assert optimizer.step() == 1
    np.testing.assert_allclose(table.lookup(np.array([4]), train=False), before - 1.0)
    assert table.size() == IDS
    np.testing.assert_allclose(
        layer(torch.tensor([500]), torch.tensor([0, 1]))[0].detach(), row_of(table, OWN, 500), rtol=1e-6
    )


def test_rows_on_ssd_are_not_absent(tmp_path: Path) -> None:
    with RowMemory(60_000, tmp_path) as memory:
        table = EmbeddingTable("t", 8, optimizer="sgd", absent=Initializer("constant", 9.0), memory=memory)
        ids = np.arange(4000, dtype=np.int64)
        for start in range(0, len(ids), 100):
            table.lookup(ids[start : start + 100], train=True)
        assert table.rows_on_ssd() > 0
        some = torch.arange(-50, 1000)
        layer = EmbeddingBag(table, absent=CONSTANT).eval()
        rows = layer(some, torch.arange(len(some) + 1)).detach().numpy()
        np.testing.assert_array_equal(rows[:50], -2.0)
        np.testing.assert_array_equal(rows[50:], table.lookup(ids[:1000], train=False))
        assert np.abs(rows[50:]).max() < 1.0


@pytest.mark.parametrize("absent", [None, OWN, ABSENT_ZEROS])
def test_the_published_rows_read_as_the_tables(absent: AbsentRows | None) -> None:
    table = filled_table()
    ids, rows, _, counts, *_ = table.export_rows()
    published = TableData("t", DIM, ids, rows, np.zeros(len(counts), np.uint8), absent=table.absent)
    asked = np.array([3, 77, -5, 11, 3], np.int64)
    (trained, found), (stored, there) = find_rows(table, asked, absent), find_rows(published, asked, absent)
    np.testing.assert_array_equal(trained, stored)
    assert found.tolist() == there.tolist() == [True, False, False, True, True]
    none = TableData("t", DIM, ids[:0], rows[:0], np.zeros(0, np.uint8), absent=table.absent)
    np.testing.assert_array_equal(find_rows(none, asked, absent)[0][1], trained[1])
