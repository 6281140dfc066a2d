"""A graph in halves gives what the whole graph gives when the user's rows are repeated."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import nn

from storage.checkpoint.assembly import assemble
from storage.checkpoint.halves import GraphHalves, split_graph
from storage.checkpoint.program import document_of

B, U = 7, 3
ROWS = torch.tensor([0, 0, 2, 1, 2, 2, 0])


class TwoTowers(nn.Module):
    """Dot product of two towers: the user's is all in its half."""

    def __init__(self) -> None:
        super().__init__()
        self.user = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 8))
        self.item = nn.Linear(5, 8)

    def forward(self, user, history, item):  # type: ignore[no-untyped-def]
        return torch.sigmoid((self.user(torch.cat([user, history.mean(1)], 1)) * self.item(item)).sum(1, keepdim=True))


class Attention(nn.Module):
    """Items look at the user's history: reshapes by the batch, masks, softmax over the list."""

    def __init__(self) -> None:
        super().__init__()
        self.key = nn.Linear(2, 5)
        self.head = nn.Linear(9, 1)

    def forward(self, user, history, item):  # type: ignore[no-untyped-def]
        batch = history.shape[0]
        keys = self.key(history.reshape(batch * 3, 2)).view(batch, 3, 5)
        weights = torch.softmax((keys * item.unsqueeze(1)).sum(2), dim=1)
        pooled = (weights.unsqueeze(2) * keys).sum(1)
        return self.head(torch.cat([pooled, user], 1)), torch.zeros(item.shape[0], 1) + user[:, :1]


class Turned(nn.Module):
    """The user's vectors leave their half turned around, which cannot be taken by rows: the cut comes before."""

    def forward(self, user, history, item):  # type: ignore[no-untyped-def]
        return (user.relu().t().contiguous() * 2).t() + item[:, :4], torch.split(user, 2, dim=1)[1]


class UserAlone(nn.Module):
    """One output needs no item at all."""

    def forward(self, user, history, item):  # type: ignore[no-untyped-def]
        return user.sum(1, keepdim=True), item * history.flatten(1)[:, :5]


def exported(model: nn.Module) -> torch.fx.GraphModule:
    batch = torch.export.Dim("batch", min=1, max=512)
    example = (torch.rand(2, 4), torch.rand(2, 3, 2), torch.rand(2, 5))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(model.eval(), example, dynamic_shapes=tuple({0: batch} for _ in example))
        return assemble(document_of(program)[1])


def weights_of(module: torch.fx.GraphModule, model: nn.Module) -> list[torch.Tensor]:
    named = dict(model.named_parameters())
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    assert len(named) == len(placeholders) - 3
    return list(named.values())


def run(halves: GraphHalves, arguments: Sequence[torch.Tensor], rows: torch.Tensor) -> list[torch.Tensor]:
    given = halves.user(*[arguments[slot] for slot in halves.user_slots])
    return list(halves.item(rows, *given, *[arguments[slot] for slot in halves.item_slots]))


@pytest.mark.parametrize("make", [TwoTowers, Attention, Turned, UserAlone])
def test_halves_give_what_the_whole_graph_gives(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(3)
    model = make()
    module = exported(model)
    weights = weights_of(module, model)
    first = len(weights)
    halves = split_graph(module, [first, first + 1], [first + 2])
    assert halves is not None
    user, history, item = torch.rand(U, 4), torch.rand(U, 3, 2), torch.rand(B, 5)
    with torch.inference_mode():
        whole = module.forward(*weights, user[ROWS], history[ROWS], item)
        parts = run(halves, [*weights, user, history, item], ROWS)
        one = run(halves, [*weights, user[:1], history[:1], item], torch.zeros(B, dtype=torch.int64))
        repeated = module.forward(*weights, user[[0] * B], history[[0] * B], item)
    for expected, got in [*zip(whole, parts, strict=True), *zip(repeated, one, strict=True)]:
        assert got.shape == expected.shape
        torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)


def test_the_tower_of_the_user_is_in_its_half_alone() -> None:
    model = TwoTowers()
    module = exported(model)
    first = len(weights_of(module, model))
    halves = split_graph(module, [first, first + 1], [first + 2])
    assert halves is not None
    assert len(halves.user_slots) == 4 + 2
    assert len(halves.item_slots) == 2 + 1


def test_a_graph_that_needs_nothing_of_the_user_or_has_a_second_size_is_not_split() -> None:
    class ItemOnly(nn.Module):
        def forward(self, user, history, item):  # type: ignore[no-untyped-def]
            return item + 1

    assert split_graph(exported(ItemOnly()), [0, 1], [2]) is None
    batch, length = torch.export.Dim("batch", min=1, max=64), torch.export.Dim("length", min=2, max=64)

    class Sum(nn.Module):
        def forward(self, user, item):  # type: ignore[no-untyped-def]
            return user.sum(1) + item.sum(1)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(
            Sum(), (torch.rand(2, 4), torch.rand(2, 5)), dynamic_shapes=({0: batch, 1: length}, {0: batch})
        )
    assert split_graph(assemble(document_of(program)[1]), [0], [1]) is None
