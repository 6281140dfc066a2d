"""A graph with stacked inputs gives the same bits, and takes one input where the other stacked several."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn

from storage.checkpoint.assembly import assemble
from storage.checkpoint.program import document_of
from storage.checkpoint.script import script_function
from storage.checkpoint.stacked_inputs import StackedInputs, stack_inputs

B, DIM = 5, 4
# Widths of the inputs a, b, c, d and dense; the first four are pooled features.
WIDTHS = (DIM, DIM, DIM, 6, 3)
POOLED = (0, 1, 2, 3)


class Stack(nn.Module):
    """Joins three features and a value of its own, as DLRM does."""

    def __init__(self) -> None:
        super().__init__()
        self.below = nn.Linear(3, DIM)

    def forward(self, a, b, c, d, dense):  # type: ignore[no-untyped-def]
        vectors = torch.cat([self.below(dense).unsqueeze(1), torch.stack([a, b, c], 1)], 1)
        return torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1) + d.sum(1, keepdim=True)


class Between(nn.Module):
    """Other values stand among the features, and one of these is asked for its size."""

    def forward(self, a, b, c, d, dense):  # type: ignore[no-untyped-def]
        own = torch.relu(d[:, :DIM]) * 2
        return torch.stack([own, a, b, dense[:, :1].expand(-1, DIM), c], dim=1).flatten(1), a.shape[0] + d


class Concatenation(nn.Module):
    """Widths differ, and dense values follow; the features' own order is not that of the inputs."""

    def forward(self, a, b, c, d, dense):  # type: ignore[no-untyped-def]
        return torch.cat([d, a, c, dense, b], dim=-1) * 2, torch.zeros(d.shape[0], 1) + dense[:, 2:]


class Repeated(nn.Module):
    """Features that stand twice, in one place or in two, stay inputs of their own."""

    def forward(self, a, b, c, d, dense):  # type: ignore[no-untyped-def]
        return torch.stack([a, b, a], 1), torch.cat([b, c, d], 1), torch.zeros(c.shape[0], 2)


class AllAtOnce(nn.Module):
    """Returns what it stacks."""

    def forward(self, a, b, c, d, dense):  # type: ignore[no-untyped-def]
        return torch.stack([a, b, c], -2), dense


class OtherDirections(nn.Module):
    """Neither along the batch nor value by value do features stand behind each other."""

    def forward(self, a, b, c, d, dense):  # type: ignore[no-untyped-def]
        return torch.cat([a, b], 0), torch.stack([a, b], 2), torch.stack([b, c], 0), torch.cat([a, dense], 1)


def exported(model: nn.Module) -> torch.fx.GraphModule:
    batch = torch.export.Dim("batch", min=1, max=512)
    example = tuple(torch.rand(2, width) for width in WIDTHS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(model.eval(), example, dynamic_shapes=tuple({0: batch} for _ in example))
        return assemble(document_of(program)[1])


def stacked(model: nn.Module, module: torch.fx.GraphModule) -> StackedInputs | None:
    first = len(list(model.parameters()))
    return stack_inputs(module, [first + number for number in range(len(WIDTHS))], POOLED)


def arguments(found: StackedInputs, weights: list[nn.Parameter], tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    given = [torch.empty(0) if weight is None else weights[weight] for weight in found.weights]
    for slot, members, shape in zip(found.slots, found.members, found.shapes, strict=True):
        given[slot] = torch.cat([tensors[number] for number in members], 1).reshape(len(tensors[0]), *shape)
    return given


@pytest.mark.parametrize(
    ("make", "members"),
    [
        (Stack, [(3,), (4,), (0, 1, 2)]),
        (Between, [(2,), (3,), (4,), (0, 1)]),
        (Concatenation, [(1,), (4,), (3, 0, 2)]),
        (Repeated, [(0,), (1,), (4,), (2, 3)]),
        (AllAtOnce, [(3,), (4,), (0, 1, 2)]),
    ],
)
def test_outputs_are_the_same_bit_for_bit(make: Callable[[], nn.Module], members: list[tuple[int, ...]]) -> None:
    torch.manual_seed(4)
    model = make()
    module = exported(model)
    found = stacked(model, module)
    assert found is not None
    assert list(found.members) == members
    weights = list(model.parameters())
    for batch in (1, B):
        tensors = [torch.randn(batch, width) for width in WIDTHS]
        given = arguments(found, weights, tensors)
        with torch.inference_mode():
            expected = module.forward(*weights, *tensors)
            for got in (found.module.forward(*given), script_function(found.module)(*given)):
                assert len(got) == len(expected)
                for one, other in zip(got, expected, strict=True):
                    assert one.shape == other.shape
                    assert one.numpy().tobytes() == other.numpy().tobytes()


def test_nothing_is_stacked_where_the_features_come_stacked() -> None:
    model = Stack()
    found = stacked(model, exported(model))
    assert found is not None
    targets = [node.target for node in found.module.graph.nodes if node.op == "call_function"]
    assert torch.ops.aten.stack.default not in targets
    assert found.shapes[-1] == (3, DIM)


def test_a_graph_that_puts_no_features_behind_each_other_is_left_as_it_is() -> None:
    model = OtherDirections()
    assert stacked(model, exported(model)) is None
    assert stack_inputs(exported(AllAtOnce()), range(5), [0, 4]) is None  # a lookup writes only one of them
