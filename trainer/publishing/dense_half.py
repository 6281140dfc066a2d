"""The dense half: the user's own module, with the results of the lookups in the places of its embedding layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from storage.checkpoint import GraphOutput
from storage.errors import Unsupported
from trainer.publishing.answers import answer
from trainer.publishing.cut_plan import CutCall, CutPlan
from trainer.publishing.embedding_layers import TABLE_LAYERS, EmbeddingLayer, StandIn, embedding_layers
from trainer.publishing.functional_lookups import FunctionalLookups, MakeLayer
from trainer.publishing.packed_sequences import PaddedSequences
from trainer.publishing.recording import replaced
from trainer.publishing.sample import Sample

_DTYPES = {
    torch.float32: "FP32",
    torch.float64: "FP64",
    torch.int64: "INT64",
    torch.int32: "INT32",
    torch.bool: "BOOL",
}


class DenseHalf(nn.Module):
    """The module without its embedding layers: forward(*tensors) in the order of plan.graph_inputs().

    Returns the module's outputs in the order of output_names. container: holds the module as its child `module`.
    repeats_a_row: the module gets the first row once more behind the batch, so that it never sees one row alone. Usable
    inside `cut()` only.
    """

    def __init__(
        self,
        container: nn.Module,
        sample: Sample,
        plan: CutPlan,
        output_names: Sequence[str],
        *,
        repeats_a_row: bool = False,
    ) -> None:
        super().__init__()
        self.container = container
        self._sample = sample
        self._plan = plan
        self.output_names = tuple(output_names)
        self._repeats_a_row = repeats_a_row
        self._answers: Iterator[CutCall] = iter(())
        self._found: Mapping[str, tuple[Tensor, Tensor | None]] = {}

    @contextmanager
    def cut(self) -> Iterator[DenseHalf]:
        """Removes the embedding layers for the block."""
        layers = embedding_layers(self.container)
        read = self._plan.weights_read
        stand_ins = {layer: _Answered(path, layer, self, path in read) for path, layer in layers.items()}
        with replaced(self.container, stand_ins):
            yield self

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        plan, position = self._plan, len(self._plan.dense)
        if plan.writes_inputs:
            tensors = tuple(tensor.clone() for tensor in tensors)
        if self._repeats_a_row:
            tensors = tuple(torch.cat([tensor, tensor[:1]]) for tensor in tensors)
        batch = tensors[0].shape[0]
        found: dict[str, tuple[Tensor, Tensor | None]] = {}
        for feature in plan.features:
            lengths = tensors[position + 1] if feature.with_lengths else None
            found[feature.name] = (tensors[position], lengths)
            position += 2 if feature.with_lengths else 1
        given: dict[str, Tensor] = {
            entry.leaf: entry.restored(tensors[index]) for index, entry in enumerate(plan.dense)
        }
        for name, leaf in self._sample.leaves.items():
            if name not in given:
                given[name] = _blank(leaf, plan.rows, batch)
        self._found = found
        self._answers = iter(plan.calls)
        module = self.container.get_submodule("module")
        with (
            PaddedSequences(self.container) if plan.packs else nullcontext(),
            FunctionalLookups(self.container, self._looked_up) if plan.parameters else nullcontext(),
        ):
            outputs = named_outputs(self._sample.call(module, given))
        self._answers, self._found = iter(()), {}
        end = -1 if self._repeats_a_row else None
        return tuple(_at_least_two_dimensions(outputs[name][:end]) for name in self.output_names)

    def _looked_up(
        self, path: str, weight: Tensor, make: MakeLayer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        return self.answer(path, weight, args, kwargs) if path in self._plan.parameters else NotImplemented

    def answer(self, path: str, weight: Tensor | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Returns the result of the next call of an embedding layer. weight: its rows, where the graph has them."""
        call = next(self._answers, None)
        if call is None or call.path != path:
            raise Unsupported(f"the module calls its embedding layers in another order each time (now {path!r})")
        return answer(call, self._found, weight, args, kwargs)


class _Answered(StandIn):
    """Returns the result that the dense half holds for this call. has_weight: whether it needs the layer's weight."""

    def __init__(self, path: str, layer: EmbeddingLayer, half: DenseHalf, has_weight: bool) -> None:
        super().__init__(path, layer, half)
        if has_weight and not isinstance(layer, TABLE_LAYERS):
            # Under the name that it has in the module, by which deltas find it.
            self._parameters["weight"] = layer.weight  # type: ignore[assignment]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        path, _, half = self._held
        return half.answer(path, self._parameters.get("weight"), args, kwargs)


def named_outputs(value: Any) -> dict[str, Tensor]:
    """Returns outputs by name: a tensor is "score", a mapping keeps its names, a sequence counts from output_0."""
    if isinstance(value, Tensor):
        return {"score": value}
    if isinstance(value, Mapping):
        named = {str(name): entry for name, entry in value.items()}
    elif isinstance(value, tuple) and hasattr(value, "_asdict"):
        named = dict(value._asdict())
    elif isinstance(value, list | tuple):
        named = {"score": value[0]} if len(value) == 1 else {f"output_{i}": entry for i, entry in enumerate(value)}
    else:
        raise Unsupported(f"the module returns {type(value).__name__}; return a tensor, or a dict of tensors")
    # A loss beside the scores has no batch, and cannot be asked for.
    batched = {name: entry for name, entry in named.items() if not isinstance(entry, Tensor) or entry.dim() > 0}
    named = batched or named
    for name, entry in named.items():
        if not isinstance(entry, Tensor):
            raise Unsupported(f"the module's output {name!r} is {type(entry).__name__}, expected a tensor")
    if not named:
        raise Unsupported("the module returns no output")
    return named


def graph_outputs(outputs: Mapping[str, Tensor]) -> list[GraphOutput]:
    """Describes the outputs as the manifest does.

    Raises Unsupported for a dtype that is not served, or without a batch.
    """
    batch = next(iter(outputs.values())).shape[:1]
    result: list[GraphOutput] = []
    for name, value in outputs.items():
        if value.dim() == 0 or value.shape[:1] != batch:
            raise Unsupported(
                f"the module's output {name!r} has the shape {list(value.shape)}; the batch must come first"
            )
        if value.dtype not in _DTYPES:
            raise Unsupported(f"the module's output {name!r} is {value.dtype}; convert it to float32")
        shape = (-1, *value.shape[1:]) if value.dim() > 1 else (-1, 1)
        result.append(GraphOutput.model_validate({"name": name, "shape": shape, "dtype": _DTYPES[value.dtype]}))
    return result


def output_arrays(names: Sequence[str], values: Sequence[Tensor]) -> dict[str, np.ndarray]:
    """Returns outputs as numpy arrays by name."""
    return {name: value.detach().numpy() for name, value in zip(names, values, strict=True)}


def _blank(leaf: Tensor, rows: int, batch: Any) -> Tensor:
    # The recording proved that no operator computes with it; only its shape can matter.
    shape = [batch if size == rows else batch + 1 if size == rows + 1 else size for size in leaf.shape]
    if leaf.dim() > 1 and leaf.shape[0] == rows:
        shape[1:] = leaf.shape[1:]
    return torch.zeros(shape, dtype=leaf.dtype)


def _at_least_two_dimensions(output: Tensor) -> Tensor:
    # KServe's shapes have the batch and at least one more dimension.
    return output.unsqueeze(1) if output.dim() == 1 else output
