"""Products in bfloat16 or float16 are as near as that is, everything else is what it was."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from storage.checkpoint.graph_program import GraphProgram
from storage.checkpoint.halves import split_graph
from storage.checkpoint.lowered import LOWERED, lower_products
from storage.checkpoint.script import script_function
from tests.unit.storage.test_script import Attention, DeepAndCross, Shapes, exported, inputs


def arguments(
    weights: list[torch.Tensor], rounded: frozenset[int], batch: int, dtype: torch.dtype = torch.bfloat16
) -> list[torch.Tensor]:
    lowered = [weight.to(dtype) if place in rounded else weight for place, weight in enumerate(weights)]
    return [*lowered, *inputs(batch)]


@pytest.mark.slow
@pytest.mark.parametrize("model", [DeepAndCross, Attention, Shapes])
@pytest.mark.parametrize("batch", [1, 65])
@pytest.mark.parametrize(("precision", "tolerance"), [("bf16", 0.02), ("fp16", 0.002)])
def test_scores_are_as_near_as_the_precision(
    model: type[nn.Module], batch: int, precision: str, tolerance: float
) -> None:
    torch.manual_seed(0)
    module, weights = exported(model())
    dtype = LOWERED[precision]
    lowered, rounded = lower_products(module, range(len(weights)), dtype)
    with torch.inference_mode():
        expected = module.forward(*weights, *inputs(batch))
        got = lowered.forward(*arguments(weights, rounded, batch, dtype))
        scripted = script_function(lowered)(*arguments(weights, rounded, batch, dtype))
    for one, other, third in zip(expected, got, scripted, strict=True):
        assert other.dtype == one.dtype
        torch.testing.assert_close(other, one, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(third, other, rtol=1e-6, atol=1e-6)
    if model is not Shapes:  # which has no product
        assert any(not torch.equal(one, other) for one, other in zip(expected, got, strict=True))


def test_weights_of_products_alone_are_rounded_once() -> None:
    module, weights = exported(DeepAndCross())
    _, rounded = lower_products(module, range(len(weights)), torch.bfloat16)
    shapes = sorted(tuple(weights[place].shape) for place in rounded)
    assert shapes == [(2,), (2, 16), (12,), (12, 12), (16,), (16, 12)]  # not those of the layer norm


def test_a_weight_that_others_read_too_stays_and_is_rounded_for_the_product() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.emb = nn.Embedding(8, 8)

        def forward(self, flat, lists, ids):  # type: ignore[no-untyped-def]
            return (flat @ self.emb.weight.t(), self.emb(ids[:, 0]))

    module, weights = exported(Tied())
    lowered, rounded = lower_products(module, range(len(weights)), torch.bfloat16)
    assert rounded == frozenset()
    with torch.inference_mode():
        expected, got = module.forward(*weights, *inputs(5)), lowered.forward(*weights, *inputs(5))
    assert torch.equal(got[1], expected[1])
    torch.testing.assert_close(got[0], expected[0], rtol=0.02, atol=0.02)


def test_a_lowered_graph_is_split_as_the_graph_is() -> None:
    module, weights = exported(Attention())
    lowered, rounded = lower_products(module, range(len(weights)), torch.bfloat16)
    user, item = [len(weights)], [len(weights) + 1, len(weights) + 2]
    assert split_graph(module, user, item) is None or split_graph(lowered, user, item) is not None
    program = GraphProgram(lowered, [*user, *item], rounded)
    program.use("script", script_function)
    with torch.inference_mode():
        got = program.forward(*arguments(weights, rounded, 3))
        torch.testing.assert_close(got[0], module.forward(*weights, *inputs(3))[0], rtol=0.02, atol=0.02)


class Tower(nn.Module):
    """Products with only a relu and a reshape between them; another node also reads one of their results."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, flat, lists, ids):  # type: ignore[no-untyped-def]
        first = torch.relu(self.layers[0](flat))
        second = torch.relu(self.layers[1](torch.cat([first[:, :4], first[:, 4:]], 1).reshape(-1, 8)))
        return (self.layers[2](second), torch.sigmoid(second))


@pytest.mark.parametrize("dtype", LOWERED.values())
def test_nothing_is_widened_between_products_and_the_bits_are_the_same(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    module, weights = exported(Tower())
    lowered, rounded = lower_products(module, range(len(weights)), dtype)
    casts = [node for node in lowered.graph.nodes if node.target is torch.ops.aten._to_copy.default]
    # In: the first product's input. Out: what the sigmoid reads, and the last product's result.
    assert len(casts) == 3
    with torch.inference_mode():
        got = lowered.forward(*arguments(weights, rounded, 9, dtype))

        def product(layer: nn.Module, values: torch.Tensor) -> torch.Tensor:
            assert isinstance(layer, nn.Linear)
            made = torch.nn.functional.linear(values.to(dtype), layer.weight.to(dtype), layer.bias.to(dtype))
            return made.float()

        tower = Tower()
        tower.load_state_dict(dict(zip(tower.state_dict(), weights, strict=True)))
        flat = inputs(9)[0]
        second = torch.relu(product(tower.layers[1], torch.relu(product(tower.layers[0], flat))))
        assert torch.equal(got[0], product(tower.layers[2], second))
        assert torch.equal(got[1], torch.sigmoid(second))
