"""Bags with a weight for each id, beside torch's per_sample_weights."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
import torch
from torch import nn

from storage.errors import ConfigError, InvalidInput
from trainer import EmbeddingBag, EmbeddingTable, Initializer, SparseAdagrad, SparseSGD

IDS = 12
DIM = 5
BAGS = 9


def filled_table(optimizer: Literal["adagrad", "sgd"]) -> tuple[EmbeddingTable, torch.Tensor]:
    table = EmbeddingTable(
        "t", DIM, optimizer=optimizer, seed=3, rows=Initializer("uniform", 0.5), initial_accumulator=0.1
    )
    rows = table.lookup(np.arange(IDS, dtype=np.int64), train=True)
    return table, torch.from_numpy(rows.copy())


def random_bags(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(0, 5, BAGS))])
    weights = rng.standard_normal(offsets[-1]).astype(np.float32)
    return torch.from_numpy(rng.integers(0, IDS, offsets[-1])), torch.from_numpy(offsets), torch.from_numpy(weights)


def test_weighted_sums_and_their_training_are_those_of_torch() -> None:
    table, start = filled_table("adagrad")
    ours = EmbeddingBag(table, "weighted")
    theirs = nn.EmbeddingBag(IDS, DIM, mode="sum", include_last_offset=True, _weight=start.clone())
    sparse = SparseAdagrad([table], lr=0.3, eps=1e-8)
    accumulator = torch.full((IDS, DIM), 0.1)
    for step in range(5):
        values, offsets, weights = random_bags(step)
        target = torch.randn(BAGS, DIM, generator=torch.Generator().manual_seed(step))
        torch.testing.assert_close(ours(values, offsets, weights), theirs(values, offsets, weights))
        for layer in (ours, theirs):
            ((layer(values, offsets, weights) - target) ** 2).sum().backward()
        assert sparse.step() == len(values.unique())
        with torch.no_grad():
            gradient = theirs.weight.grad
            assert gradient is not None
            accumulator += gradient**2
            theirs.weight -= 0.3 * gradient / (accumulator.sqrt() + 1e-8)
        theirs.weight.grad = None
        after = torch.from_numpy(table.lookup(np.arange(IDS, dtype=np.int64), train=False))
        torch.testing.assert_close(after, theirs.weight.detach(), rtol=1e-5, atol=1e-6)


def test_the_gradient_goes_to_the_rows_and_not_to_the_weights() -> None:
    table, start = filled_table("sgd")
    values, offsets, _ = random_bags(1)
    weights = torch.full((len(values),), 2.0, requires_grad=True)
    EmbeddingBag(table, "weighted")(values, offsets, weights).sum().backward()
    assert weights.grad is None
    SparseSGD([table], lr=0.5).step()
    after = torch.from_numpy(table.lookup(np.arange(IDS, dtype=np.int64), train=False))
    counts = torch.bincount(values, minlength=IDS).float()
    torch.testing.assert_close(after, start - counts[:, None])


def test_empty_bags_and_unknown_ids_are_zero() -> None:
    table, start = filled_table("sgd")
    layer = EmbeddingBag(table, "weighted").eval()
    values, offsets = torch.tensor([-7, 3]), torch.tensor([0, 0, 1, 2, 2])
    pooled = layer(values, offsets, torch.tensor([9.0, -0.5]))
    torch.testing.assert_close(
        pooled, torch.stack([torch.zeros(DIM), torch.zeros(DIM), -0.5 * start[3], torch.zeros(DIM)])
    )
    assert layer(values[:0], torch.tensor([0, 0]), torch.zeros(0)).tolist() == [[0.0] * DIM]
    assert table.size() == IDS


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (None, "mode weighted needs weights"),
        (torch.ones(3), r"expected float32 \[2\], one for each id, got torch.float32 \[3\]"),
        (torch.ones(2, dtype=torch.float64), "got torch.float64"),
        (torch.ones(1, 2), r"got torch.float32 \[1, 2\]"),
        (torch.tensor([1.0, float("nan")]), "NaN or infinity"),
        (torch.tensor([1.0, float("inf")]), "NaN or infinity"),
    ],
)
def test_weights_that_do_not_fit_are_named(weights: torch.Tensor | None, message: str) -> None:
    table, _ = filled_table("sgd")
    with pytest.raises(InvalidInput, match=message) as caught:
        EmbeddingBag(table, "weighted")(torch.tensor([1, 2]), torch.tensor([0, 2]), weights)
    assert caught.value.field == "weights"


def test_weights_are_for_weighted_bags_alone() -> None:
    table, _ = filled_table("sgd")
    with pytest.raises(InvalidInput, match="for mode weighted, not mean"):
        EmbeddingBag(table, "mean")(torch.tensor([1]), torch.tensor([0, 1]), torch.ones(1))
    with pytest.raises(ConfigError, match="expected sum, mean or weighted"):
        EmbeddingBag(table, "max")  # type: ignore[arg-type]
