"""A program of torch.export as a module with embedding layers."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

from storage.checkpoint.assembly import SCALAR_DTYPES
from storage.errors import Unsupported
from trainer.converting.aten_layers import AtenLayers
from trainer.converting.converted import Converted, DeclaredInput
from trainer.converting.pt2_file import Pt2File, read_pt2


def convert_pt2(path: Path) -> Converted:
    """Converts a file of torch.export.save. Raises Unsupported or InvalidInput naming what is at fault."""
    module = Pt2Module(path, read_pt2(path))
    zeros = {
        entry.name: torch.zeros([2, *(size or 2 for size in entry.shape)], dtype=entry.dtype) for entry in module.inputs
    }
    with module.adding(), torch.no_grad():
        module(zeros)
    return Converted(module, module.inputs, uncompared="torch's own loader alone runs the file, and it reads pickles")


class Pt2Module(AtenLayers):
    """forward(batch) takes tensors by the names of the program's inputs and returns its outputs by name."""

    def __init__(self, path: Path, file: Pt2File) -> None:
        super().__init__()
        self._graph = file.graph
        self._placeholders = {placeholder: name for placeholder, (name, _) in file.weights.items()}
        for name, value in file.weights.values():
            self.add_weight(name, value)
        self.inputs = tuple(
            _declared(path, file, node)
            for node in file.graph.find_nodes(op="placeholder")
            if node.name not in file.weights
        )
        self._output_names = file.output_names

    def forward(self, batch: dict[str, Tensor]) -> Any:
        with self.running():
            values: dict[fx.Node, Any] = {}
            for node in self._graph.nodes:
                if node.op == "output":
                    outputs = fx.node.map_arg(node.args[0], values.__getitem__)
                    break
                if node.op == "placeholder":
                    weight = self._placeholders.get(node.name)
                    values[node] = batch[node.name] if weight is None else self.weight(weight)
                    continue
                args = fx.node.map_arg(node.args, values.__getitem__)
                kwargs = fx.node.map_arg(node.kwargs, values.__getitem__)
                if node.target is operator.getitem or not hasattr(node.target, "_schema"):
                    values[node] = node.target(*args, **kwargs)
                else:
                    values[node] = self.run(node.target._schema.name.partition("::")[2], node.target, args, kwargs)
        if self._output_names is not None:
            return dict(zip(self._output_names, outputs, strict=True))
        return outputs


def _declared(path: Path, file: Pt2File, node: fx.Node) -> DeclaredInput:
    meta = file.document.graph_module.graph.tensor_values[node.name]
    sizes = [None if size.as_int is None else size.as_int for size in meta.sizes]
    if not sizes or sizes[0] is not None:
        raise Unsupported(
            f"{path}: the input {node.name!r} has the shape {sizes}, exported with a fixed batch; export it with "
            "dynamic_shapes={...: {0: torch.export.Dim('batch')}}"
        )
    return DeclaredInput(node.name, SCALAR_DTYPES[meta.dtype], tuple(sizes[1:]))
