"""Our embedding layers beside torch's, and the fused optimizers beside hand-written ones."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
import torch
from torch import nn

from storage.errors import ConfigError, InvalidInput
from trainer import Embedding, EmbeddingBag, EmbeddingTable, Initializer, SparseAdagrad, SparseSGD

IDS = 12
DIM = 5


def filled_table(optimizer: Literal["adagrad", "sgd"] = "adagrad") -> tuple[EmbeddingTable, torch.Tensor]:
    """Makes a table with rows for the ids 0 to IDS - 1, and the same rows as a matrix."""
    table = EmbeddingTable(
        "t", DIM, optimizer=optimizer, seed=3, rows=Initializer("uniform", 0.5), initial_accumulator=0.1
    )
    rows = table.lookup(np.arange(IDS, dtype=np.int64), train=True)
    return table, torch.from_numpy(rows.copy())


def random_bags(seed: int, bags: int = 9) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 5, bags)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return torch.from_numpy(rng.integers(0, IDS, offsets[-1])), torch.from_numpy(offsets)


def all_rows(table: EmbeddingTable) -> torch.Tensor:
    return torch.from_numpy(table.lookup(np.arange(IDS, dtype=np.int64), train=False))


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_pooling_and_adagrad_are_those_of_torch(mode: Literal["sum", "mean"]) -> None:
    table, start = filled_table()
    ours = EmbeddingBag(table, mode)
    theirs = nn.EmbeddingBag(IDS, DIM, mode=mode, include_last_offset=True, _weight=start.clone())
    sparse = SparseAdagrad([table], lr=0.3, eps=1e-8)
    weight, accumulator = theirs.weight, torch.full((IDS, DIM), 0.1)
    for step in range(5):
        values, offsets = random_bags(step)
        target = torch.randn(9, DIM, generator=torch.Generator().manual_seed(step))
        for layer in (ours, theirs):
            ((layer(values, offsets) - target) ** 2).sum().backward()
        assert sparse.step() == len(values.unique())
        with torch.no_grad():
            gradient = weight.grad
            assert gradient is not None
            accumulator += gradient * gradient
            weight -= 0.3 * gradient / (accumulator.sqrt() + 1e-8)
        weight.grad = None
        torch.testing.assert_close(all_rows(table), weight.detach(), rtol=1e-5, atol=1e-6)


def test_sgd_sums_the_gradients_of_features_that_share_a_table() -> None:
    table, start = filled_table("sgd")
    first, second = EmbeddingBag(table, "sum"), EmbeddingBag(table, "mean")
    weight = start.clone().requires_grad_()
    (values_a, offsets_a), (values_b, offsets_b) = random_bags(1), random_bags(2)
    loss = (first(values_a, offsets_a) ** 2).sum() + (second(values_b, offsets_b) ** 3).sum()
    expected = (
        nn.functional.embedding_bag(values_a, weight, offsets_a, mode="sum", include_last_offset=True) ** 2
    ).sum() + (
        nn.functional.embedding_bag(values_b, weight, offsets_b, mode="mean", include_last_offset=True) ** 3
    ).sum()
    loss.backward()
    expected.backward()
    SparseSGD([table], lr=0.2).step()
    assert weight.grad is not None
    torch.testing.assert_close(all_rows(table), (weight - 0.2 * weight.grad).detach(), rtol=1e-5, atol=1e-6)


def test_an_unpooled_lookup_pads_cuts_and_trains_only_what_it_used() -> None:
    table, start = filled_table("sgd")
    layer = Embedding(table, length=2)
    values, offsets = torch.tensor([3, 4, 5, 7]), torch.tensor([0, 3, 3, 4])
    rows, lengths = layer(values, offsets)
    assert lengths.tolist() == [2, 0, 1]
    expected = torch.zeros(3, 2, DIM)
    expected[0, 0], expected[0, 1], expected[2, 0] = start[3], start[4], start[7]
    torch.testing.assert_close(rows.detach(), expected, rtol=0, atol=0)
    (rows * 2.0).sum().backward()
    SparseSGD([table], lr=0.5).step()
    changed = start.clone()
    changed[[3, 4, 7]] -= 1.0
    torch.testing.assert_close(all_rows(table), changed)


def test_evaluation_never_changes_a_table() -> None:
    table = EmbeddingTable("t", DIM, admit_after=2)
    layer = EmbeddingBag(table).eval()
    sequence = Embedding(table, 3).eval()
    values, offsets = torch.tensor([1, 1, 2]), torch.tensor([0, 2, 3])
    for _ in range(3):
        assert not layer(values, offsets).any()
        assert not sequence(values, offsets)[0].any()
    assert table.size() == 0
    assert len(table.export_counts()[0]) == 0


def test_an_id_is_zero_until_it_was_seen_often_enough_and_gets_no_gradient_before() -> None:
    table = EmbeddingTable("t", DIM, admit_after=3)
    layer = EmbeddingBag(table)
    optimizer = SparseAdagrad([table])
    values, offsets = torch.tensor([7]), torch.tensor([0, 1])
    for _ in range(2):
        pooled = layer(values, offsets)
        assert not pooled.any()
        pooled.sum().backward()
        assert optimizer.step() == 0
    pooled = layer(values, offsets)
    assert pooled.any()
    pooled.sum().backward()
    assert optimizer.step() == 1
    assert table.export_rows()[3].tolist() == [3]


def test_two_tables_with_one_seed_start_with_different_rows_and_one_table_always_with_the_same() -> None:
    ids = np.array([-1, 0, 2**63 - 1, -(2**63)], dtype=np.int64)
    rows = [EmbeddingTable(name, DIM, seed=1).lookup(ids, train=True) for name in ("a", "a", "b")]
    assert np.array_equal(rows[0], rows[1])
    assert not np.any(rows[0] == rows[2])


def test_dropped_gradients_move_nothing() -> None:
    table, start = filled_table()
    optimizer = SparseAdagrad([table])
    EmbeddingBag(table)(*random_bags(4)).sum().backward()
    optimizer.zero_grad()
    assert optimizer.step() == 0
    torch.testing.assert_close(all_rows(table), start, rtol=0, atol=0)


def test_an_optimizer_refuses_a_table_made_for_another() -> None:
    with pytest.raises(ConfigError, match="made for sgd"):
        SparseAdagrad([EmbeddingTable("t", DIM, optimizer="sgd")])


@pytest.mark.parametrize(
    ("values", "offsets"),
    [
        (torch.tensor([1.0]), torch.tensor([0, 1])),
        (torch.tensor([1, 2]), torch.tensor([0, 1])),
        (torch.tensor([1, 2]), torch.tensor([1, 2])),
        (torch.tensor([[1, 2]]), torch.tensor([0, 2])),
    ],
)
def test_bags_that_do_not_add_up_are_refused(values: torch.Tensor, offsets: torch.Tensor) -> None:
    table, _ = filled_table()
    with pytest.raises(InvalidInput):
        EmbeddingBag(table)(values, offsets)
