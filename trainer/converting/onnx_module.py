"""An ONNX graph as a module: its lookups are embedding layers, its other nodes torch functions."""

from __future__ import annotations

import re
import warnings
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from storage.errors import InvalidInput, Unsupported
from trainer.converting.converted import HALF_TOLERANCE, TOLERANCE, Converted, DeclaredInput, Original
from trainer.converting.onnx_call import Call, Value
from trainer.converting.onnx_file import OnnxGraph, OnnxNode, read_onnx
from trainer.converting.onnx_operators import OPERATORS

# Constants of so many values at most are also known as arrays: shapes, axes, bounds.
_SMALL = 1024
# Operators that leave a whole number an id, or make one of it.
_VIEWS = frozenset({"Cast", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Unsqueeze"})
_SUMS = frozenset({"Add", "Clip", "Div", "Max", "Min", "Mod", "Mul", "Sub", "Where"})
_OF_IDS = _VIEWS | _SUMS | {"Concat", "Expand", "Transpose"}
_INT32, _INT64 = 6, 7


def convert_onnx(path: Path) -> Converted:
    """Converts a model. Raises Unsupported naming every node that is not computed, InvalidInput for a damaged file."""
    graph = read_onnx(path)
    module = OnnxModule(graph)
    inputs = tuple(
        DeclaredInput(
            entry.name,
            # What is half precision in the file is computed in float32.
            torch.float32 if entry.dtype.itemsize == 2 and entry.dtype.kind == "f" else _torch_type(entry.dtype),
            tuple(size if isinstance(size, int) else None for size in entry.shape[1:]),
        )
        for entry in graph.inputs
    )
    tolerance = HALF_TOLERANCE if graph.has_halves else TOLERANCE
    return Converted(module, inputs, _original(graph), "onnxruntime is not installed", tolerance)


def _torch_type(dtype: np.dtype[Any]) -> torch.dtype:
    return torch.from_numpy(np.zeros(0, dtype)).dtype


class OnnxModule(nn.Module):
    """forward(batch) takes tensors by the names of the file's inputs and returns its outputs by name.

    Tables are child modules, called after the tensors of the file. Weights stay where the file's reader has them.
    """

    def __init__(self, graph: OnnxGraph) -> None:
        super().__init__()
        self._graph = graph
        _check_operators(graph)
        _check_inputs(graph)
        consumers = _consumers(graph)
        self._lookups = _lookups(graph)
        self._same = _ids_as_given(graph, self._lookups, consumers)
        self._layers: dict[str, str] = {}
        self._weights: dict[str, str] = {}
        self._pooled: dict[str, OnnxNode] = {}
        # By a node's first output, what it keeps from its first run.
        self._kept: dict[str, dict[str, Any]] = {}
        tables: dict[str, str] = {}
        with warnings.catch_warnings():
            # Arrays of a file cannot be written to, and nothing here does.
            warnings.simplefilter("ignore")
            for node in graph.nodes:
                if node.outputs[0] in self._lookups:
                    self._add_layer(node, consumers, tables)
            for name, values in graph.constants.items():
                if any(_is_read(node, name, self._lookups) for node in consumers[name]) or name in graph.outputs:
                    attribute = f"weight_{_plain_name(name)}"
                    while hasattr(self, attribute):
                        attribute += "_"
                    self.register_buffer(attribute, torch.from_numpy(values))
                    self._weights[name] = attribute
        self._small = {name: values for name, values in graph.constants.items() if values.size <= _SMALL}

    def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        values: dict[str, Value | None] = {"": None, **self._small}
        for name in self._weights:
            values.setdefault(name, self._constant(name))
        for entry in self._graph.inputs:
            values[entry.name] = batch[entry.name]
        for node in self._graph.nodes:
            if node.outputs[0] and node.outputs[0] in values:
                continue  # a sum that the layer before it has done
            results = self._run(node, values)
            values.update((name, value) for name, value in zip(node.outputs, results, strict=False) if name)
        return {name: self._output(name, values[name]) for name in self._graph.outputs}

    def _run(self, node: OnnxNode, values: dict[str, Value | None]) -> tuple[Any, ...]:
        first = node.outputs[0]
        if first in self._same:
            return (values[node.inputs[0]],)
        layer = self._layers.get(first)
        if layer is not None:
            ids = values[node.inputs[1]]
            shape = self._graph.constants[node.inputs[0]].shape[1:]
            rows = self.get_submodule(layer)(ids)
            pooled = self._pooled.get(first)
            if pooled is not None:
                values[pooled.outputs[0]] = rows
                return (None,)
            return (rows if len(shape) == 1 else rows.reshape(*rows.shape[:-1], *shape),)
        call = Call(
            node.operator,
            f"{node.operator} {node.name!r}",
            node.inputs,
            [values.get(name) for name in node.inputs],
            node.attributes,
            max(place for place, name in enumerate(node.outputs, 1) if name),
            self._graph.opset,
            self._constant,
            self._kept.setdefault(first, {}),
        )
        result = OPERATORS[node.operator].run(call)
        return result if isinstance(result, tuple) else (result,)

    def _constant(self, name: str) -> Tensor | None:
        attribute = self._weights.get(name)
        return None if attribute is None else getattr(self, attribute)

    def _output(self, name: str, value: Value | None) -> Tensor:
        if not isinstance(value, Tensor):
            raise Unsupported(f"the output {name!r} does not depend on the values of a request")
        return value

    def _add_layer(self, node: OnnxNode, consumers: Mapping[str, list[OnnxNode]], tables: dict[str, str]) -> None:
        """Adds the layer of a lookup. Lookups of one constant share their weight, which makes them one table."""
        rows = self._graph.constants[node.inputs[0]]
        weight = torch.from_numpy(rows).reshape(len(rows), -1)
        weight = weight if weight.dtype == torch.float32 else weight.float()
        path = _plain_name(node.inputs[0])
        kept = self._modules.get(tables.get(node.inputs[0], ""))
        weight = weight if kept is None else kept.weight  # type: ignore[assignment]
        name = path
        while name in self._modules or hasattr(self, name):
            name += "_again"
        tables.setdefault(node.inputs[0], name)
        pooled = _pooled_by(self._graph, node, consumers)
        layer: nn.Module
        if pooled is not None:
            mode = "sum" if pooled.operator == "ReduceSum" else "mean"
            layer = nn.EmbeddingBag.from_pretrained(weight, mode=mode)
            self._pooled[node.outputs[0]] = pooled
        else:
            layer = nn.Embedding.from_pretrained(weight)  # type: ignore[no-untyped-call]
        self.add_module(name, layer)
        self._layers[node.outputs[0]] = name


def _plain_name(name: str) -> str:
    text = re.sub(r"\W+", "_", name.removesuffix(".weight").removesuffix("_weight")).strip("_")
    return text if text and not text[0].isdigit() else f"t_{text}"


def _check_operators(graph: OnnxGraph) -> None:
    unknown: dict[str, list[str]] = defaultdict(list)
    for node in graph.nodes:
        if node.operator not in OPERATORS:
            unknown[node.operator].append(node.name)
    if unknown:
        named = "; ".join(f"{kind} ({', '.join(names)})" for kind, names in sorted(unknown.items()))
        raise Unsupported(
            f"{graph.path}: operators that are not converted: {named}. docs/importing-networks.md lists those that "
            "are; write the part in PyTorch and publish the module, or move it into features"
        )


def _check_inputs(graph: OnnxGraph) -> None:
    for entry in graph.inputs:
        if not entry.shape:
            raise Unsupported(f"{graph.path}: the input {entry.name!r} has no dimension; the batch comes first")
    fixed = {entry.name: entry.shape[0] for entry in graph.inputs if isinstance(entry.shape[0], int)}
    if fixed:
        named = ", ".join(f"{name!r} ({size})" for name, size in fixed.items())
        raise Unsupported(
            f"{graph.path}: the batch of {named} is a fixed number; export with a dynamic one (in torch.onnx.export "
            "dynamic_shapes={...: {0: Dim('batch')}} or dynamic_axes), or name it with "
            "onnx.tools.update_model_dims.update_inputs_outputs_dims and check the constants of Reshape"
        )


def _consumers(graph: OnnxGraph) -> dict[str, list[OnnxNode]]:
    found: dict[str, list[OnnxNode]] = defaultdict(list)
    for node in graph.nodes:
        for name in node.inputs:
            found[name].append(node)
    return found


def _lookups(graph: OnnxGraph) -> set[str]:
    """Returns the first outputs of nodes that look rows of a constant up by ids of a request."""
    kinds = {entry.name: entry.dtype.kind for entry in graph.inputs}
    ids = {name for name, kind in kinds.items() if kind in "iu"}
    found: set[str] = set()
    for node in graph.nodes:
        if node.operator == "Gather" and node.inputs[1] in ids:
            table, axis = graph.constants.get(node.inputs[0]), node.attributes.get("axis", 0)
            if table is not None and table.dtype.kind == "f" and table.ndim > 0 and axis in (0, -table.ndim):
                found.add(node.outputs[0])
                continue
        if node.operator in _OF_IDS and any(name in ids for name in node.inputs):
            ids.update(node.outputs)
    return found


def _ids_as_given(graph: OnnxGraph, lookups: set[str], consumers: Mapping[str, list[OnnxNode]]) -> set[str]:
    """Returns outputs of casts between whole numbers that only lookups read: a row is found by either."""

    def only_looked_up(name: str) -> bool:
        return name not in graph.outputs and all(
            (each.outputs[0] in lookups and each.inputs[0] != name)
            or (each.operator in _VIEWS and all(only_looked_up(output) for output in each.outputs))
            for each in consumers[name]
        )

    ints = {entry.name for entry in graph.inputs if entry.dtype.name in ("int32", "int64")}
    same: set[str] = set()
    for node in graph.nodes:
        if node.operator == "Cast" and node.inputs[0] in ints and node.attributes.get("to") in (_INT32, _INT64):
            ints.add(node.outputs[0])
            if only_looked_up(node.outputs[0]):
                same.add(node.outputs[0])
        elif node.operator in _VIEWS - {"Cast"} and node.inputs[0] in ints:
            ints.update(node.outputs)
    return same


def _pooled_by(graph: OnnxGraph, node: OnnxNode, consumers: Mapping[str, list[OnnxNode]]) -> OnnxNode | None:
    """Returns the sum or mean over a row's ids that is all that reads a lookup of ids (B, n); None for another use."""
    readers = consumers[node.outputs[0]]
    table = graph.constants[node.inputs[0]]
    ids = next((entry for entry in graph.inputs if entry.name == node.inputs[1]), None)
    if len(readers) != 1 or node.outputs[0] in graph.outputs or table.ndim != 2 or ids is None or len(ids.shape) != 2:
        return None
    reader = readers[0]
    if reader.operator not in ("ReduceSum", "ReduceMean") or reader.attributes.get("keepdims", 1):
        return None
    axes = graph.constants.get(reader.inputs[1]) if len(reader.inputs) > 1 else reader.attributes.get("axes")
    found = None if axes is None else [int(axis) % 3 for axis in np.asarray(axes).reshape(-1)]
    return reader if found == [1] else None


def _is_read(node: OnnxNode, name: str, lookups: set[str]) -> bool:
    """Returns whether a node needs a constant as a tensor."""
    if node.outputs[0] in lookups:
        return False
    host = OPERATORS[node.operator].host
    return any(given == name and position not in host for position, given in enumerate(node.inputs))


def _original(graph: OnnxGraph) -> Original | None:
    try:
        import onnxruntime
    except ImportError:
        return None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    dtypes = {entry.name: entry.dtype for entry in graph.inputs}

    def run(batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        try:
            session = onnxruntime.InferenceSession(str(graph.path), options, providers=["CPUExecutionProvider"])
            found = session.run(
                list(graph.outputs), {name: batch[name].astype(dtype) for name, dtype in dtypes.items()}
            )
        except Exception as error:  # onnxruntime raises kinds of its own that share no base
            raise InvalidInput(f"{graph.path}: onnxruntime cannot run it on the sample: {error}") from error
        return dict(zip(graph.outputs, map(np.asarray, found), strict=True))

    return run
