"""TorchScript gives what the graph gives, for every batch; what has no counterpart is refused by name."""

from __future__ import annotations

import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import fx, nn
from torch.nn import functional

from storage.checkpoint.assembly import assemble
from storage.checkpoint.program import document_of
from storage.checkpoint.script import script_function
from storage.errors import Unsupported

BATCHES = (1, 3, 130)


class DeepAndCross(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cross = nn.Linear(12, 12)
        self.norm = nn.LayerNorm(12)
        self.deep = nn.Sequential(nn.Linear(12, 16), nn.GELU(), nn.Linear(16, 2))

    def forward(self, flat, lists, ids):  # type: ignore[no-untyped-def]
        x = torch.cat([flat, lists.sum(1)], 1)
        x = x * self.cross(x) + x
        left, right = self.deep(self.norm(x)).chunk(2, dim=1)
        return torch.sigmoid(left), torch.clamp(right, min=-0.5, max=float(2))


class Attention(nn.Module):
    """Masks, where, softmax, reshapes by the batch, an einsum."""

    def __init__(self) -> None:
        super().__init__()
        self.key = nn.Linear(4, 8)

    def forward(self, flat, lists, ids):  # type: ignore[no-untyped-def]
        batch = lists.shape[0]
        keys = self.key(lists.reshape(batch * 5, 4)).view(batch, 5, 8)
        scores = torch.einsum("blk,bk->bl", keys, flat) / 8**0.5
        mask = ids[:, :5] > 2
        weights = torch.softmax(torch.where(mask, scores, torch.full_like(scores, -1e9)), dim=1)
        return ((weights.unsqueeze(2) * keys).sum(1), weights.argmax(1, keepdim=True).to(torch.float32))


class Shapes(nn.Module):
    """Several outputs of one operator, lists of tensors, gathers, sizes that are computed."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(8, 3)

    def forward(self, flat, lists, ids):  # type: ignore[no-untyped-def]
        values, places = torch.topk(flat, 3, dim=1)
        parts = torch.split(lists.flatten(1), [8, 12], dim=1)
        variance, mean = torch.var_mean(parts[1], 1, keepdim=True)
        rows = self.emb(ids).reshape(ids.shape[0], ids.shape[1] * 3)
        zeros = torch.zeros(flat.shape[0], 2, dtype=torch.float64)
        return (
            values + flat.gather(1, places),
            torch.stack([variance, mean], 1).squeeze(2),
            torch.cat([rows.to(torch.float64), zeros], 1),
            functional.pad(flat, (1, 1))[:, ::2] ** 2,
            flat.new_ones(3) + torch.arange(3),
        )


def inputs(batch: int, seed: int = 0) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.rand(batch, 8, generator=generator),
        torch.rand(batch, 5, 4, generator=generator),
        torch.randint(0, 8, (batch, 6), generator=generator),
    )


def exported(model: nn.Module) -> tuple[fx.GraphModule, list[torch.Tensor]]:
    """The graph and the values of its arguments before the inputs."""
    size = torch.export.Dim("batch", min=1, max=512)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(model.eval(), inputs(2), dynamic_shapes=tuple({0: size} for _ in range(3)))
        program, document = document_of(program)
    lifted = {**dict(program.state_dict), **dict(program.constants)}
    signature = program.graph_signature
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    names |= signature.inputs_to_lifted_tensor_constants
    holders = [node.name for node in program.graph.nodes if node.op == "placeholder"]
    return assemble(document), [lifted[names[name]].detach() for name in holders if name in names]


@pytest.mark.slow
@pytest.mark.parametrize("model", [DeepAndCross, Attention, Shapes])
@pytest.mark.parametrize("batch", BATCHES)
def test_a_graph_as_script_gives_the_same(model: type[nn.Module], batch: int) -> None:
    module, weights = exported(model())
    function = script_function(module)
    with torch.inference_mode():
        for seed in range(3):  # the interpreter looks at the first runs
            arguments = (*weights, *inputs(batch, seed))
            expected, got = module.forward(*arguments), function(*arguments)
            assert len(expected) == len(got)
            for one, other in zip(expected, got, strict=True):
                torch.testing.assert_close(other, one, rtol=1e-6, atol=1e-6)


def test_threads_share_a_script_and_other_weights_give_other_scores() -> None:
    module, weights = exported(DeepAndCross())
    function = script_function(module)

    def scores(seed: int) -> torch.Tensor:
        with torch.inference_mode():
            return function(*weights, *inputs(9, seed))[0]

    alone = [scores(seed) for seed in range(24)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(scores, range(24)))
    assert all(torch.equal(one, other) for one, other in zip(alone, together, strict=True))
    with torch.inference_mode():
        other = function(*[weight + 0.1 for weight in weights], *inputs(9, 0))[0]
    assert not torch.allclose(other, alone[0])


def test_a_script_runs_while_another_thread_exports_a_model() -> None:
    """Trains and serves in one program, as a notebook may."""
    module, weights = exported(DeepAndCross())
    function = script_function(module)
    begun, done = threading.Event(), threading.Event()

    class Waiting(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            begun.set()
            assert done.wait(60)
            return x + 1

    with ThreadPoolExecutor(1) as pool:
        exporting = pool.submit(torch.export.export, Waiting(), (torch.zeros(2),))
        try:
            assert begun.wait(60)
            with torch.inference_mode():
                got = function(*weights, *inputs(9, 0))
        finally:
            done.set()
        exporting.result()
    with torch.inference_mode():
        torch.testing.assert_close(list(got), list(function(*weights, *inputs(9, 0))))


def test_what_has_no_counterpart_is_refused_by_name() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_function(torch.ops.aten.einsum.default, ('"ij->ji"', [x])),))
    with pytest.raises(Unsupported, match="constant '\"ij->ji\"'"):
        script_function(fx.GraphModule(nn.Module(), graph))
    graph = fx.Graph()
    x = graph.placeholder("x")
    size = graph.call_function(torch.ops.aten.sym_size.int, (x, 0))
    half = graph.call_function(torch.sym_sqrt, (size,))
    graph.output((graph.call_function(torch.ops.aten.mul.Tensor, (x, half)),))
    with pytest.raises(Unsupported, match="sym_sqrt"):
        script_function(fx.GraphModule(nn.Module(), graph))
