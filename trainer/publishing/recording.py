"""Watches one run of the real module: which ids each embedding layer gets, and which tensors are used otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from storage.errors import InvalidInput, Unsupported
from trainer.embedding import Embedding, EmbeddingBag
from trainer.publishing.embedding_layers import EmbeddingLayer, StandIn, embedding_layers
from trainer.publishing.tracing import Loss, Traced, Tracer, user_place

# What to write instead, by the operator whose result no feature describes.
_INSTEAD = {
    "mul": "give the product as a tensor of the batch, or use one table for each column",
    "argmax": "give the id as a tensor of the batch: the lookup comes before everything that is computed",
    "topk": "give the ids as a tensor of the batch: the lookup comes before everything that is computed",
    "bucketize": "give the number of the bucket as a tensor of the batch, or publish with a spec, whose transform "
    "`bucketise` does this",
    "unique": "look the ids up as they are: equal ids cost the server one lookup",
    "_pack_padded_sequence": "look the padded ids up, and pack the rows, if at all, behind the lookup",
}
_ELSE = (
    "pass the layer a tensor of the batch, a column of one (x[:, k]), or what shifts by constants (+, -, %, //, clamp, "
    "where) make of it"
)


@dataclass(frozen=True)
class LayerCall:
    """Describes one call of an embedding layer."""

    path: str
    layer: EmbeddingLayer
    #: What its ids are; None for ids that depend on no value of the batch.
    values: Traced | None
    #: Where bags begin, as it was in this run; None for ids (B,) and (B, n).
    offsets: Tensor | None = None
    #: What the offsets are; None where they depend on no value of the batch.
    offsets_of: Traced | None = None
    #: True where the layer is given weights.
    is_weighted: bool = False
    #: What the weights are; None where they were computed.
    weights: Traced | None = None
    #: FILE:LINE of the call.
    place: str = ""
    #: What the ids of each level of the layer's chain are.
    levels: tuple[Traced | None, ...] = ()

    @property
    def where(self) -> str:
        """Names the call in a message."""
        return f"layer {self.path!r}" + (f" ({self.place})" if self.place else "")


@dataclass
class Recording:
    """Observations of one run."""

    tracer: Tracer
    outputs: Any = None
    calls: list[LayerCall] = field(default_factory=list)

    @property
    def used(self) -> Mapping[str, Loss]:
        """The sample tensors that were used otherwise than as ids, and by what first."""
        return self.tracer.used


class _Watch(StandIn):
    """Reports every call to the watcher, which then calls the layer itself."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        path, layer, watcher = self._held
        return watcher.layer_called(path, layer, args, kwargs)


class _Watcher(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operator of the run."""

    def __init__(self, leaves: Mapping[str, Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recording = Recording(Tracer(leaves))
        self._inside_layer = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not self._inside_layer:
            self.recording.tracer.saw(func, args, kwargs, result)
        return result

    def layer_called(self, path: str, layer: EmbeddingLayer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tracer = self.recording.tracer
        self._inside_layer = True
        try:
            call = self._call(path, layer, args, kwargs)
            result = layer(*args, **kwargs)
        finally:
            self._inside_layer = False
        self.recording.calls.append(call)
        if call.values is not None:
            made = [value for value in pytree.tree_leaves(result) if isinstance(value, Tensor)]
            tracer.taint(made, Loss(f"the layer {path!r}", call.place))
        return result

    def _call(self, path: str, layer: EmbeddingLayer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> LayerCall:
        tracer, place = self.recording.tracer, user_place()
        values, offsets, weights = _layer_arguments(path, layer, args, kwargs)
        call = LayerCall(path, layer, tracer.of(values), None if offsets is None else offsets.clone(), place=place)
        if call.values is None:
            if not tracer.is_constant(values):
                loss = tracer.loss_of(values)
                name = loss.operator.removeprefix("aten.").partition(".")[0]
                raise Unsupported(
                    f"{call.where}: its ids are computed inside forward() by {loss}. The server looks ids up before "
                    f"the module runs: {_INSTEAD.get(name, _ELSE)}"
                )
            if isinstance(layer, Embedding | EmbeddingBag):
                raise Unsupported(
                    f"{call.where}: its ids depend on no value of the batch; rows that every request reads belong into "
                    "a weight: use nn.Embedding or a parameter for them"
                )
            return call
        if offsets is not None and tracer.of(offsets) is None and not tracer.is_constant(offsets):
            raise Unsupported(
                f"{call.where}: its offsets are computed inside forward() by {tracer.loss_of(offsets)}; give the "
                "offsets as a tensor of the batch, or ids (B, n) without offsets"
            )
        found = None if weights is None else tracer.of(weights)
        of_offsets = None if offsets is None else tracer.of(offsets)
        levels = tuple(tracer.of(ids) for ids, _ in _levels(layer, kwargs))
        return LayerCall(path, layer, call.values, call.offsets, of_offsets, weights is not None, found, place, levels)


def record(container: nn.Module, leaves: Mapping[str, Tensor], call: Any) -> Recording:
    """Runs `call()` with all embedding layers of `container` watched. leaves: the sample tensors that it uses.

    Raises Unsupported, naming the layer, for a module that cannot be cut.
    """
    layers = embedding_layers(container)
    watcher = _Watcher(leaves)
    watches = {layer: _Watch(path, layer, watcher) for path, layer in layers.items()}
    recording = watcher.recording
    with replaced(container, watches), torch.no_grad(), watcher:
        try:
            recording.outputs = call()
        except (IndexError, RuntimeError, TypeError, ValueError) as error:
            raise InvalidInput(
                f"sample_batch: the module cannot run on it: {type(error).__name__}: {error}", field="sample_batch"
            ) from error
    outputs = [value for value in pytree.tree_leaves(recording.outputs) if isinstance(value, Tensor)]
    recording.tracer.use(outputs, Loss("an output", ""))
    if all(entry.values is None for entry in recording.calls):
        raise Unsupported(
            "the module called no embedding layer (nn.Embedding, nn.EmbeddingBag or ours) with ids of the batch; "
            "functional.embedding on a parameter is not seen: use the layer"
        )
    return recording


@contextmanager
def replaced(container: nn.Module, replacements: Mapping[EmbeddingLayer, nn.Module]) -> Iterator[None]:
    """Puts other modules in the places of embedding layers, wherever they are registered, for the block."""
    places: list[tuple[nn.Module, str, nn.Module]] = []
    for parent in list(container.modules()):
        if parent in replacements:
            continue
        for name, child in parent._modules.items():
            if child is not None and child in replacements:
                places.append((parent, name, child))
    for parent, name, child in places:
        parent._modules[name] = replacements[child]  # type: ignore[index]
    try:
        yield
    finally:
        for parent, name, child in places:
            parent._modules[name] = child


def _levels(layer: EmbeddingLayer, kwargs: Mapping[str, Any]) -> list[tuple[Tensor, Tensor]]:
    chained = isinstance(layer, Embedding | EmbeddingBag) and layer.chain is not None
    return [(ids, ends) for ids, ends in kwargs.get("levels", ())] if chained else []


def _layer_arguments(
    path: str, layer: EmbeddingLayer, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    ours = isinstance(layer, Embedding | EmbeddingBag)
    names = ["values", "offsets", "weights"] if ours else ["input", "offsets", "per_sample_weights"]
    given = dict(zip(names, args, strict=False)) | kwargs
    values, offsets, weights = (given.get(name) for name in names)
    wrong = [name for name in names[1:] if not isinstance(given.get(name), Tensor | None)]
    if not isinstance(values, Tensor) or wrong:
        name = wrong[0] if isinstance(values, Tensor) else names[0]
        raise Unsupported(f"layer {path!r}: {name} is no tensor but {type(given.get(name)).__name__}")
    return values, offsets, weights
