"""A graph that went through the published form computes what the module computes."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.fx.graph_module import _loader

from storage.checkpoint.archive import pack_graph
from storage.checkpoint.graph import DenseGraph, load_graph
from storage.checkpoint.manifest import GraphEntry, GraphInput, GraphOutput
from storage.checkpoint.program import PackedProgram, pack_program
from storage.checkpoint.tensors import write_bytes, write_tensors
from storage.errors import ConfigError, InvalidInput, UnsafeArtifact, Unsupported

Arguments = Callable[..., tuple[torch.Tensor, ...]]
Export = Callable[..., torch.export.ExportedProgram]


def save_and_load(folder: Path, packed: PackedProgram) -> DenseGraph:
    write_bytes(folder / "dense.pt2", pack_graph(packed.document))
    write_tensors(folder / "dense.safetensors", packed.weights, packed.weight_dtypes)
    entry = GraphEntry(inputs=packed.inputs, outputs=packed.outputs, torch_version=packed.torch_version)
    return load_graph((folder / "dense.pt2").read_bytes(), (folder / "dense.safetensors").read_bytes(), entry)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory, packed: PackedProgram) -> DenseGraph:
    return save_and_load(tmp_path_factory.mktemp("graph"), packed)


@pytest.mark.parametrize("batch", [1, 2, 3, 257])
def test_any_batch_gives_the_modules_scores(
    graph: DenseGraph, attention: torch.nn.Module, make_arguments: Arguments, batch: int
) -> None:
    tensors = make_arguments(batch, seed=batch)
    with torch.inference_mode():
        expected = attention(*tensors)["score"]
    (score,) = graph.run(tensors)
    assert score.shape == (batch, 1)
    torch.testing.assert_close(score, expected, rtol=0, atol=0)


@pytest.mark.slow
def test_nothing_of_a_graph_stays_in_torch_when_it_is_dropped(tmp_path: Path, packed: PackedProgram) -> None:
    def traces() -> int:
        gc.collect()
        return sum(type(entry) is ShapeEnv for entry in gc.get_objects())

    # Other tests of the process may have left some, which may go meanwhile; a graph that stays adds its own.
    counts, sources = [], []
    for number in range(4):
        folder = tmp_path / str(number)
        folder.mkdir()
        save_and_load(folder, packed)
        counts.append(traces())
        sources.append(len(_loader.eval_cache))
    assert counts[-1] <= counts[0]
    assert sources[-1] <= sources[0]


def test_threads_share_one_set_of_weights_and_agree(graph: DenseGraph, make_arguments: Arguments) -> None:
    inputs = [make_arguments(8, seed=seed) for seed in range(32)]
    alone = [graph.run(tensors)[0] for tensors in inputs]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda tensors: graph.run(tensors)[0], inputs))
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


def test_a_graph_runs_on_other_weights_and_stays_as_it_was(graph: DenseGraph, make_arguments: Arguments) -> None:
    tensors = make_arguments(8)
    before = graph.run(tensors)[0]
    given = {name: tensor.clone() for name, tensor in graph.weights().items()}
    assert torch.equal(graph.with_weights(given).run(tensors)[0], before)
    given["state.linear.bias"] += 1
    other = graph.with_weights(given)
    given["state.other"] = given.pop("state.linear.bias")  # the mapping is the caller's
    assert not torch.equal(other.run(tensors)[0], before)
    assert torch.equal(graph.run(tensors)[0], before)
    assert torch.equal(other.with_weights(graph.weights()).run(tensors)[0], before)
    assert other.weight_bytes() == graph.weight_bytes()


def test_weights_of_another_name_type_or_shape_are_refused(graph: DenseGraph) -> None:
    good = graph.weights()
    short = {name: tensor for name, tensor in good.items() if name != "state.shift"}
    for reason, bad in (
        ("'state.shift' is not there", short),
        ("no weight 'state.more'", {**good, "state.more": torch.ones(1)}),
        (r"'state.shift' is torch.float64 \[4\]", {**good, "state.shift": good["state.shift"].double()}),
        (r"float32 \[2, 2\], the graph wants torch.float32 \[4\]", {**good, "state.shift": torch.ones(2, 2)}),
    ):
        with pytest.raises(UnsafeArtifact, match=reason):
            graph.with_weights(bad)


def test_no_path_or_trace_of_the_trainer_is_written(packed: PackedProgram) -> None:
    text = packed.document.decode()
    assert "File " not in text
    assert ".py" not in text
    assert str(Path(__file__).parent) not in text
    assert all(node["metadata"] == {} for node in json.loads(text)["graph_module"]["graph"]["nodes"])


def test_inputs_are_bound_by_name_and_not_by_position(
    tmp_path: Path, graph: DenseGraph, packed: PackedProgram, make_arguments: Arguments
) -> None:
    write_bytes(tmp_path / "dense.pt2", pack_graph(packed.document))
    write_tensors(tmp_path / "dense.safetensors", packed.weights)
    swapped = GraphEntry(inputs=packed.inputs[::-1], outputs=packed.outputs, torch_version="2")
    reverse = load_graph((tmp_path / "dense.pt2").read_bytes(), (tmp_path / "dense.safetensors").read_bytes(), swapped)
    tensors = make_arguments(4)
    assert torch.equal(reverse.run(tensors[::-1])[0], graph.run(tensors)[0])


def test_wrong_tensors_are_refused_by_name(graph: DenseGraph, make_arguments: Arguments) -> None:
    dense, rows, lengths = make_arguments(2)
    with pytest.raises(InvalidInput, match=r"history\.lengths") as caught:
        graph.run([dense, rows, lengths.to(torch.int32)])
    assert caught.value.field == "history.lengths"
    with pytest.raises(InvalidInput, match="dense"):
        graph.run([dense[:, :2], rows, lengths])
    with pytest.raises(InvalidInput, match="takes 3"):
        graph.run([dense])


class Awkward(torch.nn.Module):
    """Input names that Python or torch's generated code use themselves, in-place operators, tied and bf16 weights."""

    factors: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(2, 2, bias=False)
        self.second = torch.nn.Linear(2, 2, bias=False)
        self.second.weight = self.first.weight
        self.register_buffer("factors", torch.tensor([0.5, 1.5], dtype=torch.bfloat16))
        self.register_buffer("scalar", torch.tensor(3))

    def forward(self, input: torch.Tensor, device: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.second(self.first(input)).relu_()
        x += device * self.factors.float()
        x[:, 0] = 1.0
        x.clamp_(max=4.0)
        return x, x.sum(1) * self.scalar


def test_awkward_modules_survive(tmp_path: Path, make_export: Export) -> None:
    module = Awkward().eval()
    sample = (torch.randn(3, 2), torch.randn(3, 2))
    packed = pack_program(
        make_export(module, sample),
        [
            GraphInput(name="input", kind="dense", source="dense", shape=(-1, 2)),
            GraphInput(name="device", kind="pooled", source="device", shape=(-1, 2)),
        ],
        [GraphOutput(name="x", shape=(-1, 2)), GraphOutput(name="total", shape=(-1,))],
    )
    graph = save_and_load(tmp_path, packed)
    for batch in (1, 5):
        tensors = (torch.randn(batch, 2), torch.randn(batch, 2))
        with torch.inference_mode():
            expected = module(*(tensor.clone() for tensor in tensors))
        for got, want in zip(graph.run(tensors), expected, strict=True):
            torch.testing.assert_close(got, want, rtol=0, atol=0)


class Ranker(torch.nn.Module):
    """Operators of many kinds, so that the list of accepted ones stays generous."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(4, 2, batch_first=True)
        self.norm = torch.nn.LayerNorm(4)
        self.prelu = torch.nn.PReLU()
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.GELU(approximate="tanh"), torch.nn.Linear(8, 4), torch.nn.LeakyReLU()
        )

    def forward(self, rows: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        mixed, _ = self.attention(rows, rows, rows, key_padding_mask=~mask)
        mixed = self.norm(torch.nan_to_num(mixed) + rows)
        best = mixed.square().mean(-1).topk(2, dim=1).indices
        chosen = torch.gather(mixed, 1, best[..., None].expand(-1, -1, 4))
        cross = torch.bmm(chosen, mixed.transpose(1, 2))
        upper = torch.triu_indices(2, 6, offset=1)
        flat = cross[:, upper[0], upper[1]]
        pieces = torch.stack([chosen[:, 0], chosen[:, 1]], dim=0).sum(0)
        out = self.mlp(self.prelu(pieces)) + torch.where(mask.any(1, keepdim=True), 1.0, 0.0)
        bounded = torch.nn.functional.silu(out).clamp(-3, 3).pow(2) + torch.log1p(torch.exp(-out.abs()))
        logits = torch.nn.functional.log_softmax(bounded, -1) + flat.amax(1, keepdim=True).tanh()
        return torch.nn.functional.normalize(logits, dim=-1).unflatten(1, (2, 2)).flatten(1)


@pytest.mark.slow
def test_a_wide_choice_of_operators_is_accepted(tmp_path: Path, make_export: Export) -> None:
    torch.manual_seed(0)
    module = Ranker().eval()
    sample = (torch.randn(3, 6, 4), torch.rand(3, 6) > 0.3)
    packed = pack_program(
        make_export(module, sample),
        [
            GraphInput(name="rows", kind="rows", source="history", shape=(-1, 6, 4)),
            GraphInput(name="mask", kind="mask", source="history", shape=(-1, 6), dtype="BOOL"),
        ],
        [GraphOutput(name="out", shape=(-1, 4))],
    )
    graph = save_and_load(tmp_path, packed)
    for batch in (1, 7):
        tensors = (torch.randn(batch, 6, 4), torch.rand(batch, 6) > 0.3)
        with torch.inference_mode():
            expected = module(*tensors)
        torch.testing.assert_close(graph.run(tensors)[0], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_declared_interface_must_be_the_programs(
    program: torch.export.ExportedProgram, packed: PackedProgram, make_export: Export, make_arguments: Arguments
) -> None:
    good = [entry.model_copy(update={"placeholder": ""}) for entry in packed.inputs]
    with pytest.raises(ConfigError, match="names 2 inputs"):
        pack_program(program, good[:2], packed.outputs)
    with pytest.raises(ConfigError, match="declared INT64"):
        pack_program(program, [good[0].model_copy(update={"dtype": "INT64"}), *good[1:]], packed.outputs)
    with pytest.raises(ConfigError, match=r"declared \[-1, 7\]"):
        pack_program(program, [good[0].model_copy(update={"shape": (-1, 7)}), *good[1:]], packed.outputs)
    with pytest.raises(ConfigError, match="gives 1"):
        pack_program(program, good, [*packed.outputs, *packed.outputs])


def test_a_fixed_batch_is_refused_with_the_remedy(attention: torch.nn.Module, make_arguments: Arguments) -> None:
    fixed = torch.export.export(attention, make_arguments(3))
    inputs = [
        GraphInput(name="dense", kind="dense", source="dense", shape=(-1, 3)),
        GraphInput(name="history", kind="rows", source="history", shape=(-1, 5, 4)),
        GraphInput(name="lengths", kind="lengths", source="history", shape=(-1,), dtype="INT64"),
    ]
    with pytest.raises(ConfigError, match="export with a dynamic batch"):
        pack_program(fixed, inputs, [GraphOutput(name="score", shape=(-1, 1))])


class Random(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand_like(x)


def test_a_program_that_the_loader_would_refuse_is_refused_when_publishing(make_export: Export) -> None:
    with pytest.raises(Unsupported, match=r"aten\.rand"):
        pack_program(
            make_export(Random(), (torch.randn(3, 2),)),
            [GraphInput(name="x", kind="dense", source="dense", shape=(-1, 2))],
            [GraphOutput(name="y", shape=(-1, 2))],
        )
