"""Programs for a device: nothing of a graph stays on the processor. torch's `meta` device stands in for a GPU."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import fx

from serving.gpu.device_program import on_device
from storage.errors import Unsupported

META = torch.device("meta")


def exported(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[fx.GraphModule, list[torch.Tensor]]:
    """Returns a graph whose weights are arguments, as published ones are, and those weights."""
    batch = torch.export.Dim("batch", min=1, max=4096)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(module.eval(), inputs, dynamic_shapes=[{0: batch} for _ in inputs])
        program = program.run_decompositions({})
    return program.graph_module, [*program.state_dict.values(), *program.constants.values()]


class Masked(torch.nn.Module):
    """Makes tensors in the graph: a range, a constant, zeros, one of another dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.top = torch.nn.Linear(4, 1)

    def forward(self, rows: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        mask = torch.arange(rows.shape[1], device=rows.device) < lengths[:, None]
        taken = torch.where(mask[..., None], rows, torch.full((), -1.0)).sum(1)
        bias = torch.zeros(rows.shape[0], 1).to(torch.float64).to(torch.float32)
        return torch.sigmoid(self.top(taken) + bias + torch.tensor([0.5]))


class Attending(torch.nn.Module):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        heads = rows[:, None]
        return torch.nn.functional.scaled_dot_product_attention(heads, heads, heads)[:, 0]


def on_meta(values: list[torch.Tensor]) -> list[torch.Tensor]:
    return [value.to(META) for value in values]


def test_everything_that_a_graph_makes_is_on_the_device() -> None:
    inputs = (torch.rand(3, 5, 4), torch.tensor([1, 5, 0]))
    module, weights = exported(Masked(), inputs)
    moved = on_device(module, META)
    outputs = moved(*on_meta([*weights, *inputs]))
    assert [output.device.type for output in outputs] == ["meta"]
    assert outputs[0].shape == (3, 1)
    # The same graph where it came from: the same numbers.
    back = on_device(module, torch.device("cpu"))
    with torch.no_grad():
        assert torch.equal(back(*weights, *inputs)[0], module(*weights, *inputs)[0])
    devices = {str(value) for node in moved.graph.nodes for value in node.kwargs.values() if is_device(value)}
    assert devices <= {"meta"}
    assert any(is_device(value) for node in moved.graph.nodes for value in node.kwargs.values())


def is_device(value: object) -> bool:
    return isinstance(value, torch.device)


def attention(graph_module: fx.GraphModule) -> fx.Node:
    """Returns the attention node of a graph."""
    for node in graph_module.graph.nodes:
        if "scaled_dot_product" in str(node.target):
            return node
    raise AssertionError("no attention")


def of_processor(arguments: Mapping[str, Any], reads: int = 0) -> fx.GraphModule:
    """Computes softmax(q k) v of three inputs by the processor's kernel; output `reads` of it is the graph's output."""
    graph = fx.Graph()
    query, key, value = (graph.placeholder(name) for name in ("query", "key", "value"))
    target = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    made = graph.call_function(target, (query, key, value), dict(arguments))
    graph.output((graph.call_function(operator.getitem, (made, reads)),))
    return fx.GraphModule(torch.nn.Module(), graph)


@pytest.mark.parametrize("arguments", [{}, {"is_causal": True}, {"scale": 0.25}, {"dropout_p": 0.0}])
def test_the_processors_attention_is_computed_by_what_any_device_has(arguments: dict[str, object]) -> None:
    module = of_processor(arguments)
    inputs = [torch.rand(2, 1, 6, 8, generator=torch.Generator().manual_seed(number)) for number in range(3)]
    moved = on_device(module, torch.device("cpu"))
    assert "math" in str(attention(moved).target)
    assert torch.allclose(moved(*inputs)[0], module(*inputs)[0], atol=1e-6)
    assert on_device(module, META)(*on_meta(inputs))[0].shape == (2, 1, 6, 8)


def test_what_only_the_processor_gives_is_refused() -> None:
    with pytest.raises(Unsupported, match="more of the processor's attention"):
        on_device(of_processor({}, reads=1), META)


def test_attention_as_modules_write_it_moves() -> None:
    module, weights = exported(Attending(), (torch.rand(3, 5, 4),))
    rows = torch.rand(2, 5, 4)
    assert on_device(module, META)(*on_meta([*weights, rows]))[0].shape == (2, 5, 4)
    assert torch.allclose(on_device(module, torch.device("cpu"))(rows)[0], Attending()(rows), atol=1e-6)
