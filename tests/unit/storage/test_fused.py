"""Fused steps give what the graph gives, for every batch, instruction set and set of weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from storage import _dense
from storage.checkpoint.fused import fused_function
from storage.checkpoint.graph_program import packed
from storage.checkpoint.halves import split_graph
from storage.checkpoint.lowered import lower_products
from storage.errors import InvalidInput, Unsupported
from tests.support.fused_models import (
    VECTORS,
    Arranged,
    Dlrm,
    Towers,
    TwoIndices,
    exported,
    separate_inputs,
    stacked_inputs,
)

# One row, less than a tile of rows, one block, and more than a block.
BATCHES = (1, 5, 48, 113)


def towers_inputs(batch: int, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(batch, 6, generator=generator), torch.randn(batch, 4, generator=generator)]


WORLDS: list[tuple[Callable[[], nn.Module], Callable[[int, int], list[Tensor]]]] = [
    (Dlrm, separate_inputs),
    (Dlrm, stacked_inputs),
    (TwoIndices, stacked_inputs),
    (Arranged, stacked_inputs),
    (Towers, towers_inputs),
]


@pytest.fixture(params=_dense.isas())
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    before = _dense.isa()
    _dense.set_isa(request.param)
    yield request.param
    _dense.set_isa(before)


def fused(module: torch.fx.GraphModule, weights: Sequence[Tensor], inputs: int) -> Callable[..., Sequence[Tensor]]:
    return packed(fused_function(module), [*weights, *[None] * inputs])


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize(("model", "inputs"), WORLDS)
def test_every_batch_gets_the_graphs_scores(
    model: Callable[[], nn.Module], inputs: Callable[[int, int], list[Tensor]]
) -> None:
    torch.manual_seed(0)
    module, weights = exported(model(), inputs(2, 0))
    forward = fused(module, weights, len(inputs(1, 0)))
    for batch in BATCHES:
        given = inputs(batch, batch)
        with torch.inference_mode():
            expected = module.forward(*weights, *given)
        got = forward(*weights, *given)
        assert len(got) == len(expected)
        for one, other in zip(expected, got, strict=True):
            torch.testing.assert_close(other, one, rtol=2e-5, atol=2e-5)


@pytest.mark.usefixtures("isa")
def test_a_rows_scores_are_the_same_bits_in_every_batch() -> None:
    torch.manual_seed(1)
    module, weights = exported(Dlrm(), stacked_inputs(2))
    forward = fused(module, weights, 2)
    dense, rows = stacked_inputs(97)
    (whole,) = forward(*weights, dense, rows)
    for first, last in ((0, 1), (3, 8), (40, 97), (96, 97)):
        (part,) = forward(*weights, dense[first:last], rows[first:last])
        assert torch.equal(part, whole[first:last])


def test_sets_with_fused_multiply_add_give_the_same_bits() -> None:
    torch.manual_seed(2)
    module, weights = exported(Dlrm(), stacked_inputs(2))
    given, before = stacked_inputs(50), _dense.isa()
    scores = {}
    for name in _dense.isas():
        _dense.set_isa(name)
        scores[name] = fused(module, weights, 2)(*weights, *given)[0]
    _dense.set_isa(before)
    exact = [values for name, values in scores.items() if name != "portable"]
    assert all(torch.equal(values, exact[0]) for values in exact)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("kind", ["triangle above", "shuffled", "with the diagonal"])
def test_any_index_of_pairs_is_followed(kind: str) -> None:
    count = VECTORS + 1
    rows, columns = torch.triu_indices(count, count, offset=0 if kind == "with the diagonal" else 1)
    index = rows * count + columns
    if kind == "shuffled":
        index = index[torch.randperm(len(index), generator=torch.Generator().manual_seed(4))][:77]
    torch.manual_seed(3)
    module, weights = exported(Dlrm(index), stacked_inputs(2))
    given = stacked_inputs(13)
    expected, got = module.forward(*weights, *given), fused(module, weights, 2)(*weights, *given)
    torch.testing.assert_close(got[0], expected[0], rtol=2e-5, atol=2e-5)


def test_an_index_outside_the_products_is_refused() -> None:
    count = VECTORS + 1
    module, weights = exported(Dlrm(torch.tensor([1, count, 5])), stacked_inputs(2))
    wrong = [torch.tensor([1, count * count, 5]) if each.dtype == torch.int64 else each for each in weights]
    with pytest.raises(ValueError, match="outside the products"):
        fused(module, wrong, 2)


@pytest.mark.parametrize("batch", [1, 3, 60])
def test_halves_take_rows_of_users(batch: int) -> None:
    torch.manual_seed(5)
    module, weights = exported(Towers(), towers_inputs(2))
    first = len(weights)
    halves = split_graph(module, [first], [first + 1])
    assert halves is not None
    users, item = towers_inputs(3)[0], towers_inputs(batch)[1]
    rows = torch.arange(batch) % 3
    arguments = [*weights, users, item]
    with torch.inference_mode():
        expected = module.forward(*weights, users[rows], item)
    of_users = fused_function(halves.user)(*[arguments[slot] for slot in halves.user_slots])
    forward = fused_function(halves.item)
    given = [arguments[slot] for slot in halves.item_slots]
    torch.testing.assert_close(forward(rows, *of_users, *given)[0], expected[0], rtol=2e-5, atol=2e-5)
    with pytest.raises(ValueError, match="user is not there"):
        forward(rows + 3, *of_users, *given)


@pytest.mark.skipif(not _dense.has_tiles(), reason="this processor has no AMX")
@pytest.mark.parametrize(("model", "inputs"), WORLDS)
@pytest.mark.parametrize("batch", BATCHES)
def test_layers_in_tiles_are_as_near_as_bfloat16(
    model: Callable[[], nn.Module], inputs: Callable[[int, int], list[Tensor]], batch: int
) -> None:
    torch.manual_seed(6)
    module, weights = exported(model(), inputs(2, 0))
    lowered, rounded = lower_products(module, range(len(weights)), torch.bfloat16)
    taken = [weight.bfloat16() if place in rounded else weight for place, weight in enumerate(weights)]
    given = inputs(batch, 1)
    with torch.inference_mode():
        expected = module.forward(*weights, *given)
    plain, got = fused(module, weights, len(given)), fused(lowered, taken, len(given))
    for one, other, exact in zip(expected, got(*taken, *given), plain(*weights, *given), strict=True):
        torch.testing.assert_close(other, one, rtol=0.03, atol=0.03)
        if len(weights) > 2:
            assert one.shape[1] > 2 or not torch.equal(other, exact), "nothing was rounded: this compares nothing"


def test_a_lowered_graph_is_computed_exactly_without_tiles() -> None:
    torch.manual_seed(7)
    module, weights = exported(Towers(), towers_inputs(2))
    lowered, rounded = lower_products(module, range(len(weights)), torch.float16)
    taken = [weight.half() if place in rounded else weight for place, weight in enumerate(weights)]
    given = towers_inputs(20)
    with torch.inference_mode():
        expected = module.forward(*[weight.float() for weight in taken], *given)
    torch.testing.assert_close(fused(lowered, taken, 2)(*taken, *given)[0], expected[0], rtol=2e-5, atol=2e-5)


def test_threads_share_a_function() -> None:
    torch.manual_seed(8)
    module, weights = exported(Dlrm(), stacked_inputs(2))
    forward = fused(module, weights, 2)

    def scores(seed: int) -> Tensor:
        return forward(*weights, *stacked_inputs(70, seed))[0]

    alone = [scores(seed) for seed in range(24)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(scores, range(24)))
    assert all(torch.equal(one, other) for one, other in zip(alone, together, strict=True))


@pytest.mark.usefixtures("isa")
def test_nan_reaches_its_own_row_alone() -> None:
    torch.manual_seed(9)
    module, weights = exported(Dlrm(), stacked_inputs(2))
    dense, rows = stacked_inputs(20)
    (plain,) = fused(module, weights, 2)(*weights, dense, rows)
    rows[7, 3, 2] = np.nan
    (got,) = fused(module, weights, 2)(*weights, dense, rows)
    assert bool(got[7].isnan())
    assert torch.equal(torch.cat([got[:7], got[8:]]), torch.cat([plain[:7], plain[8:]]))


def test_inputs_of_different_batches_are_refused() -> None:
    module, weights = exported(Dlrm(), stacked_inputs(2))
    dense, rows = stacked_inputs(4)
    with pytest.raises(InvalidInput, match="takes 4 rows of 185 values"):
        fused(module, weights, 2)(*weights, dense, rows[:3])


def test_inputs_need_not_be_contiguous() -> None:
    module, weights = exported(Dlrm(), stacked_inputs(2))
    dense, rows = stacked_inputs(8)
    (expected,) = fused(module, weights, 2)(*weights, dense, rows)
    strided = torch.empty(8, 2, *rows.shape[1:])
    strided[:, 0] = rows
    assert torch.equal(fused(module, weights, 2)(*weights, dense, strided[:, 0])[0], expected)


class OverTheBatch(nn.Module):
    def forward(self, dense: Tensor, rows: Tensor) -> Tensor:
        return dense - dense.sum(0, keepdim=True)


class ByTheBatch(nn.Module):
    def forward(self, dense: Tensor, rows: Tensor) -> Tensor:
        return rows.reshape(rows.shape[0] * VECTORS, -1)


class Other(nn.Module):
    def forward(self, dense: Tensor, rows: Tensor) -> Tensor:
        return torch.softmax(dense, 1)


class Crossed(nn.Module):
    def forward(self, dense: Tensor, rows: Tensor) -> Tensor:
        return torch.bmm(rows, (rows + 1).transpose(1, 2))


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (OverTheBatch, "along the batch"),
        (ByTheBatch, "does not have the batch as its first size"),
        (Other, "the operator softmax"),
        (Crossed, "not one of all pairs"),
    ],
)
def test_what_no_step_computes_is_refused_by_name(model: type[nn.Module], reason: str) -> None:
    module, _ = exported(model(), stacked_inputs(2))
    with pytest.raises(Unsupported, match=reason):
        fused_function(module)
