"""A graph that is assembled from its document computes what torch's own deserializer would compute, and needs less."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from storage.checkpoint.assembly import assemble
from storage.checkpoint.document import GraphDocument, document_from
from storage.checkpoint.graph import load_graph
from storage.checkpoint.manifest import GraphEntry
from storage.checkpoint.program import PackedProgram, document_of
from storage.errors import CheckpointError
from tests.unit.storage.test_script import Attention, DeepAndCross, Shapes, inputs


class Options(nn.Module):
    """Arguments of every kind: by name, dtypes, devices, memory formats, optional tensors, infinity, texts."""

    def forward(self, flat, lists, ids):  # type: ignore[no-untyped-def]
        batch = flat.shape[0]
        mask = torch.zeros(batch, 5, dtype=torch.bool).logical_not()
        kept = lists.masked_fill(~mask.unsqueeze(2), float("-inf")).clone(memory_format=torch.contiguous_format)
        first, *_ = torch.unbind(kept, 1)
        counted = torch.bucketize(flat, torch.tensor([0.25, 0.5, 0.75]), right=True).to(torch.float32)
        picked = lists[torch.arange(batch), ids[:, 0] % 5]
        return (
            torch.nn.functional.gelu(first, approximate="tanh") + picked,
            torch.cat([counted.sum(1, keepdim=True), (ids.argsort(1) + batch).to(torch.float32)], 1),
        )


def exported(model: nn.Module) -> torch.export.ExportedProgram:
    size = torch.export.Dim("batch", min=2, max=512)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.export(model.eval(), inputs(3), dynamic_shapes=tuple({0: size} for _ in range(3)))


@pytest.mark.slow
@pytest.mark.parametrize("make", [DeepAndCross, Attention, Shapes, Options])
@pytest.mark.parametrize("batch", [2, 130])
def test_an_assembled_graph_gives_the_same_bits(make: Callable[[], nn.Module], batch: int) -> None:
    torch.manual_seed(0)
    program, document = document_of(exported(make()))
    held = {**dict(program.state_dict), **dict(program.constants)}
    weights = [held[spec.target] for spec in program.graph_signature.input_specs if spec.target is not None]
    with torch.inference_mode():
        expected = program.graph_module.forward(*weights, *inputs(batch))
        got = assemble(document).forward(*weights, *inputs(batch))
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


def changed(document: GraphDocument, change: Callable[[list[dict[str, Any]]], object]) -> GraphDocument:
    content = document.to_json_value()
    change(content["graph_module"]["graph"]["nodes"])
    return document_from(content)


def test_a_graph_that_does_not_hold_together_is_refused() -> None:
    _, document = document_of(exported(DeepAndCross()))
    for change, reason in (
        (lambda nodes: nodes.reverse(), "KeyError"),  # values are used before they are computed
        (lambda nodes: nodes.append(nodes[0]), "two values are named"),
        (lambda nodes: nodes[0]["inputs"].clear(), "is not there"),
        (lambda nodes: nodes[0]["inputs"][0].update(name="other"), "is not there|no argument 'other'"),
        (lambda nodes: nodes[0]["inputs"].append({**nodes[0]["inputs"][0], "name": "more"}), "no argument 'more'"),
    ):
        with pytest.raises(CheckpointError, match=reason):
            assemble(changed(document, change))


@pytest.mark.slow
def test_opening_a_graph_imports_neither_torchs_compiler_nor_sympy(packed: PackedProgram, tmp_path: Any) -> None:
    from storage.checkpoint.archive import pack_graph
    from storage.checkpoint.tensors import write_tensors

    entry = GraphEntry(inputs=packed.inputs, outputs=packed.outputs, torch_version=packed.torch_version)
    (tmp_path / "entry").write_text(entry.model_dump_json())
    (tmp_path / "graph").write_bytes(pack_graph(packed.document))
    write_tensors(tmp_path / "weights", packed.weights, packed.weight_dtypes)
    text = f"""
import sys
from pathlib import Path
from storage.checkpoint.graph import load_graph
from storage.checkpoint.manifest import GraphEntry
from storage.checkpoint.script import script_function
folder = Path({str(tmp_path)!r})
entry = GraphEntry.model_validate_json((folder / "entry").read_bytes())
graph = load_graph((folder / "graph").read_bytes(), (folder / "weights").read_bytes(), entry)
script_function(graph.program.module)
print([name for name in ("sympy", "torch._dynamo", "torch._export.serde") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", text], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
    weights = (tmp_path / "weights").read_bytes()
    assert load_graph((tmp_path / "graph").read_bytes(), weights, entry).weight_bytes() > 0
