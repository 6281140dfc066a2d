"""Checks and assembles the dense graph of a published version, which many threads run on one set of weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from storage.checkpoint.archive import MAX_GRAPH_BYTES, unpack_graph
from storage.checkpoint.assembly import SCALAR_DTYPES, assemble
from storage.checkpoint.document import GraphDocument, parse_document, placeholder_of
from storage.checkpoint.graph_program import Forward, GraphProgram, RunnableHalves, StackedProgram, packed
from storage.checkpoint.lowered import LOWERED, lower_products
from storage.checkpoint.manifest import GRAPH, WEIGHTS, GraphEntry, GraphInput, GraphOutput
from storage.checkpoint.operators import resolve_operator
from storage.checkpoint.program import weight_key
from storage.checkpoint.weights import read_weights
from storage.errors import IntegrityError, InvalidInput, UnsafeArtifact

TORCH_DTYPES = {
    "FP32": torch.float32,
    "FP64": torch.float64,
    "INT64": torch.int64,
    "INT32": torch.int32,
    "BOOL": torch.bool,
}


# For each input of a graph, the numbers of the published graph's inputs that lie in it, behind each other in a row.
Members = tuple[tuple[int, ...], ...]


class DenseGraph:
    """Computes a model without its tables. `inputs` and `outputs` describe the tensors of `run`, in order.

    Thread-safe: weights are read only (every operator in the graph is functional) and shared by all callers.
    """

    def __init__(
        self,
        program: GraphProgram,
        keys: Sequence[str | None],
        weights: Mapping[str, torch.Tensor],
        slots: Sequence[int],
        inputs: Sequence[GraphInput],
        outputs: Sequence[GraphOutput],
        members: Members | None = None,
    ) -> None:
        """Binds weights to a program.

        keys: the weight of each of the program's arguments, None for inputs. slots: the argument of each input.
        program: shared by all graphs that differ in their weights alone.
        """
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.members = members or tuple((number,) for number in range(len(self.inputs)))
        self.program = program
        self._keys = tuple(keys)
        self._weights = dict(weights)
        self._arguments = tuple(None if key is None else self._argument(slot, key) for slot, key in enumerate(keys))
        self._slots = tuple(slots)
        # By the program's Forward, the one with this graph's weights packed.
        self._packed: dict[Forward, Forward] = {}
        self._shapes = tuple(tuple(entry.shape[1:]) for entry in inputs)
        self._dtypes = tuple(TORCH_DTYPES[entry.dtype] for entry in inputs)
        self._stacked: DenseGraph | None = None

    def _argument(self, slot: int, key: str) -> torch.Tensor:
        """Returns a weight as the program takes it."""
        value = self._weights[key]
        return value.to(self.program.rounded_to) if slot in self.program.rounded else value

    @property
    def slots(self) -> tuple[int, ...]:
        """The program's argument for each of `inputs`; the others are weights."""
        return self._slots

    def weight_arguments(self) -> dict[int, torch.Tensor]:
        """The weights by argument as the program takes them, rounded where it needs that. Do not write to them."""
        return {slot: value for slot, value in enumerate(self._arguments) if value is not None}

    def weight_bytes(self) -> int:
        """The bytes of all weights."""
        return sum(value.nbytes for value in self._weights.values())

    def weights(self) -> dict[str, torch.Tensor]:
        """Returns the weights by their names in dense.safetensors. They are the graph's own: do not write to them."""
        return dict(self._weights)

    def with_weights(self, weights: Mapping[str, torch.Tensor]) -> DenseGraph:
        """Returns the same graph on other weights, which it keeps. It takes microseconds: torch loads nothing again.

        weights: exactly the names, dtypes and shapes of `weights()`. Raises UnsafeArtifact naming the difference.
        """
        for name in sorted(set(self._weights) - set(weights)):
            raise UnsafeArtifact(f"{WEIGHTS}: the graph's weight {name!r} is not there")
        for name in sorted(set(weights) - set(self._weights)):
            raise UnsafeArtifact(f"{WEIGHTS}: the graph has no weight {name!r}")
        for name, own in self._weights.items():
            given = weights[name]
            if given.dtype != own.dtype or given.shape != own.shape:
                raise UnsafeArtifact(
                    f"{WEIGHTS}: the weight {name!r} is {given.dtype} {list(given.shape)}, "
                    f"the graph wants {own.dtype} {list(own.shape)}"
                )
        kept = {name: weights[name].detach() for name in self._weights}
        return DenseGraph(self.program, self._keys, kept, self._slots, self.inputs, self.outputs, self.members)

    @property
    def stacked(self) -> DenseGraph | None:
        """The same graph with stacked inputs, where its program has one that was compared: `program.stacked`."""
        found = self.program.stacked
        if self._stacked is None and found is not None:
            self._stacked = self.stacked_by(found)
        return self._stacked

    @property
    def pooled(self) -> list[int]:
        """Numbers of the inputs that a lookup can write in a stacked one."""
        sources = [entry.source for entry in self.inputs if entry.kind in ("pooled", "rows")]
        return [
            number
            for number, entry in enumerate(self.inputs)
            if entry.kind == "pooled" and entry.dtype == "FP32" and sources.count(entry.source) == 1
        ]

    def stacked_by(self, found: StackedProgram) -> DenseGraph:
        """Returns the same graph on the same weights by a program of its own that takes stacked inputs."""
        keys = [None if weight is None else self._keys[weight] for weight in found.inputs.weights]
        inputs = [
            self.inputs[members[0]].model_copy(update={"shape": (-1, *shape)})
            for members, shape in zip(found.inputs.members, found.inputs.shapes, strict=True)
        ]
        slots, members = found.inputs.slots, found.inputs.members
        return DenseGraph(found.program, keys, self._weights, slots, inputs, self.outputs, members)

    def lowered(self, precision: str = "bf16") -> DenseGraph:
        """Returns the same graph with its matrix products in bf16 or fp16; rounded weights are kept beside the
        originals.
        """
        dtype = LOWERED[precision]
        places = [slot for slot, key in enumerate(self._keys) if key is not None]
        module, rounded = lower_products(self.program.module, places, dtype)
        program = GraphProgram(module, self._slots, rounded, dtype)
        return DenseGraph(program, self._keys, self._weights, self._slots, self.inputs, self.outputs)

    def run(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Computes the outputs, in the order of `outputs`.

        tensors: one for each of `inputs`, in order; first dimension the batch, the same for all.
        Raises InvalidInput naming the input with another dtype or shape.
        """
        arguments = self.arguments(tensors)
        with torch.inference_mode():
            return list(self._forward(self.program.forward)(*arguments))

    def run_halves(
        self, halves: RunnableHalves, tensors: Sequence[torch.Tensor], rows: torch.Tensor
    ) -> list[torch.Tensor]:
        """Computes the outputs as `run` does, with the user's side computed once for each user.

        halves: those of `program`. tensors: as for `run`, those of the user's side with U rows, the others with B.
        rows: (B,) int64, each row's user.
        """
        arguments = self.arguments(tensors)
        slots = halves.halves
        user, item = self._half(halves.user, halves), self._half(halves.item, halves)
        with torch.inference_mode():
            of_users = user(*[arguments[slot] for slot in slots.user_slots])
            return list(item(rows, *of_users, *[arguments[slot] for slot in slots.item_slots]))

    def pack(self) -> None:
        """Packs the weights for the program's runner, which the first run would do otherwise."""
        if self.stacked is None:
            self._forward(self.program.forward)
        else:
            self.stacked.pack()
        for halves in self.program.known_halves():
            self._half(halves.user, halves)
            self._half(halves.item, halves)

    def _forward(self, forward: Forward) -> Forward:
        """Returns a Forward of the whole graph with the weights packed. Threads that come at once pack the same."""
        found = self._packed.get(forward)
        if found is None:
            found = self._packed[forward] = packed(forward, self._arguments)
        return found

    def _half(self, forward: Forward, halves: RunnableHalves) -> Forward:
        """Returns a Forward of one half with the weights packed."""
        found = self._packed.get(forward)
        if found is None:
            slots = halves.halves.user_slots if forward is halves.user else halves.halves.item_arguments
            taken = [None if slot is None else self._arguments[slot] for slot in slots]
            found = self._packed[forward] = packed(forward, taken)
        return found

    def arguments(self, tensors: Sequence[torch.Tensor]) -> list[Any]:
        """Returns the program's arguments: the weights and, in their places, the tensors of a batch.

        Raises InvalidInput naming the input with another dtype or shape.
        """
        if len(tensors) != len(self.inputs):
            raise InvalidInput(f"the graph takes {len(self.inputs)} tensors, got {len(tensors)}")
        arguments: list[Any] = list(self._arguments)
        # Many inputs are alike, and reading a shape takes as long as comparing two: the last good one is kept.
        good: tuple[Any, ...] = (None, None)
        for tensor, slot, wanted, dtype in zip(tensors, self._slots, self._shapes, self._dtypes, strict=True):
            shape = tensor.shape
            if tensor.dtype is not dtype or ((shape != good[0] or wanted != good[1]) and not _fits(shape, wanted)):
                entry = self.inputs[self._slots.index(slot)]
                raise InvalidInput(
                    f"graph input {entry.name!r}: expected {entry.dtype} {list(entry.shape)}, "
                    f"got {tensor.dtype} {list(shape)}",
                    field=entry.name,
                )
            good = shape, wanted
            arguments[slot] = tensor
        return arguments


def _fits(shape: torch.Size, wanted: tuple[int, ...]) -> bool:
    """Returns whether a shape is a batch of rows of the wanted shape."""
    return len(shape) > 0 and shape[1:] == wanted


def load_graph(archive: bytes, weights: np.ndarray | bytes, entry: GraphEntry) -> DenseGraph:
    """Opens a published graph: the bytes of dense.pt2 and of dense.safetensors.

    Raises UnsafeArtifact for anything that is not on the lists, before torch sees it.
    """
    document = parse_document(unpack_graph(GRAPH, archive), max_bytes=MAX_GRAPH_BYTES)
    for target in sorted(document.targets()):
        resolve_operator(target, where=GRAPH)
    return build_graph(document, read_weights(weights), entry)


def build_graph(document: GraphDocument, weights: dict[str, torch.Tensor], entry: GraphEntry) -> DenseGraph:
    """Makes the runnable graph from a checked document and its weights."""
    keys: list[str | None] = []
    positions: dict[str, int] = {}
    unused = set(weights)
    for spec in document.graph_module.signature.input_specs:
        if spec.user_input is not None:
            positions[placeholder_of(spec)] = len(keys)
            keys.append(None)
            continue
        if spec.parameter is not None:
            name, kind = spec.parameter.parameter_name, "state"
        elif spec.buffer is not None:
            name, kind = spec.buffer.buffer_name, "state" if spec.buffer.persistent else "constant"
        else:
            assert spec.tensor_constant is not None
            name, kind = spec.tensor_constant.tensor_constant_name, "constant"
        key = weight_key(kind, name)
        tensor = weights.get(key)
        if tensor is None:
            raise UnsafeArtifact(f"{WEIGHTS}: the graph's weight {key!r} is not there")
        _check_weight(document, placeholder_of(spec), name, tensor)
        if spec.parameter is not None and not bool(torch.isfinite(tensor).all()):
            raise IntegrityError(f"{WEIGHTS}: the weight {key!r} holds infinity; the training went wrong")
        unused.discard(key)
        keys.append(key)
    if unused:
        raise UnsafeArtifact(f"{WEIGHTS}: the graph has no weight {sorted(unused)[0]!r}")
    if sorted(positions) != sorted(given.placeholder for given in entry.inputs):
        raise UnsafeArtifact("manifest.json: graph.inputs does not name the graph's own inputs")
    if len(entry.outputs) != len(document.graph_module.graph.outputs):
        raise UnsafeArtifact("manifest.json: graph.outputs does not name the graph's own outputs")

    slots = [positions[given.placeholder] for given in entry.inputs]
    return DenseGraph(GraphProgram(assemble(document), slots), keys, weights, slots, entry.inputs, entry.outputs)


def _check_weight(document: GraphDocument, placeholder: str, name: str, tensor: torch.Tensor) -> None:
    meta = document.graph_module.graph.tensor_values.get(placeholder)
    sizes = None if meta is None else [size.as_int for size in meta.sizes]
    if meta is None or sizes != list(tensor.shape) or SCALAR_DTYPES[meta.dtype] != tensor.dtype:
        raise UnsafeArtifact(
            f"{WEIGHTS}: the weight {name!r} is {tensor.dtype} {list(tensor.shape)}, the graph wants {sizes}"
        )
