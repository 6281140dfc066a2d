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
from trainer.publishing.embedding_layers import EmbeddingLayer, StandIn, check_layer, collected_names, embedding_layers
from trainer.publishing.functional_lookups import FunctionalLookups, IndexedRows, MakeLayer
from trainer.publishing.packed_sequences import PaddedSequences
from trainer.publishing.tracing import Loss, Traced, Tracer, user_place

# What to write instead, by the operator whose result no feature describes.
_INSTEAD = {
    "argmax": "give the id as a tensor of the batch: the lookup comes before everything that is computed",
    "topk": "give the ids as a tensor of the batch: the lookup comes before everything that is computed",
    "bucketize": "give the number of the bucket as a tensor of the batch, or publish with a spec, whose transform "
    "`bucketise` does this",
    "unique": "look the ids up as they are: equal ids cost the server one lookup",
}
_NUMBER = torch.ops.aten._local_scalar_dense.default
# The rows of a layer whose ids no feature can give are a weight of the graph, which every delta has, up to this size.
OWN_BYTES_AT_MOST = 4 << 20
_ELSE = (
    "pass the layer a tensor of the batch, a column of one (x[:, k]), or what shifts by constants (+, -, %, //, clamp, "
    "where) make of it"
)


@dataclass(frozen=True)
class LayerCall:
    """Describes one call of an embedding layer."""

    path: str
    layer: EmbeddingLayer
    #: What its ids are; None where no feature can give them.
    values: Traced | None
    #: What made ids of which that is not known; None for ids that depend on no value of the batch.
    loss: Loss | None = None
    #: Where bags begin, as it was in this run; None for ids (B,) and (B, n).
    offsets: Tensor | None = None
    #: What the offsets are; None where they depend on no value of the batch, or were computed.
    offsets_of: Traced | None = None
    #: What made offsets of which that is not known.
    offsets_loss: Loss | None = None
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

    def check_own_size(self, weight: Tensor, error: Unsupported) -> None:
        """Raises the error where the layer's rows have too many bytes to be a weight of the graph."""
        if weight.nbytes > OWN_BYTES_AT_MOST:
            raise Unsupported(
                f"{error} (a table of up to {OWN_BYTES_AT_MOST >> 20} MiB would become a weight of the graph; it has "
                f"{weight.nbytes / 2**20:.0f})"
            )

    def computed_ids(self) -> Unsupported:
        """Returns the error that says that ids, or offsets, are computed."""
        if self.loss is None:
            return Unsupported(
                f"{self.where}: its offsets are computed inside forward() by {self.offsets_loss}; give the offsets as "
                "a tensor of the batch, or ids (B, n) without offsets"
            )
        name = self.loss.operator.removeprefix("aten.").partition(".")[0]
        return Unsupported(
            f"{self.where}: its ids are computed inside forward() by {self.loss}. The server looks ids up before the "
            f"module runs: {_INSTEAD.get(name, _ELSE)}"
        )


@dataclass
class Recording:
    """Observations of one run."""

    tracer: Tracer
    outputs: Any = None
    calls: list[LayerCall] = field(default_factory=list)
    #: Paths of parameters in which the module looks rows up by itself.
    parameters: set[str] = field(default_factory=set)
    #: The names that collections give the tables of their layers.
    own_names: Mapping[EmbeddingLayer, str] = field(default_factory=dict)
    #: Paths of layers whose weight the module reads itself.
    weights_read: set[str] = field(default_factory=set)
    #: Whether the module packs sequences.
    packs: bool = False

    @property
    def used(self) -> Mapping[str, Loss]:
        """The sample tensors that were used otherwise than as ids, and by what first."""
        return self.tracer.used


class _Watch(StandIn):
    """Reports every call to the watcher, which then calls the layer itself."""

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if name == "weight":
            path, _, watcher = self._held
            watcher.recording.weights_read.add(path)
        return found

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
        if func is _NUMBER and not self._inside_layer and self._is_number_of_batch(args[0]):
            raise Unsupported(
                f"the module reads a number out of a tensor of the batch at {user_place()} (.item(), int(), bool(), an "
                "`if` or a bound of a slice). Its graph has to be the same for every value: use torch.where, masks and "
                "fixed lengths, or give the number as an argument that is no tensor"
            )
        result = func(*args, **(kwargs or {}))
        if not self._inside_layer:
            self.recording.tracer.saw(func, args, kwargs, result)
        return result

    def _is_number_of_batch(self, tensor: Tensor) -> bool:
        # A float alone decides nothing: it may be printed.
        return not tensor.is_floating_point() and not self.recording.tracer.is_constant(tensor)

    def layer_called(self, path: str, layer: EmbeddingLayer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tracer = self.recording.tracer
        self._inside_layer = True
        try:
            call = self._call(path, layer, args, kwargs)
            result = layer(*args, **kwargs)
        finally:
            self._inside_layer = False
        self.recording.calls.append(call)
        if call.values is not None or call.loss is not None:
            made = [value for value in pytree.tree_leaves(result) if isinstance(value, Tensor)]
            tracer.looked_up(made, Loss(f"the layer {path!r}", call.place))
        return result

    def functional_called(
        self, path: str, weight: Tensor, make: MakeLayer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Records a lookup in a parameter, as a call of a layer; leaves those in a layer's own weight alone."""
        tracer, ids = self.recording.tracer, args[0]
        if self._inside_layer or not isinstance(ids, Tensor):
            return NotImplemented
        if tracer.of(ids) is None:
            if not tracer.is_constant(ids):
                # The weight stays in the graph, as that of a layer would.
                call = self._call(path, make(), args, kwargs)
                call.check_own_size(weight, call.computed_ids())
            return NotImplemented
        layer = make()
        check_layer(path, layer)
        self.recording.parameters.add(path)
        if isinstance(layer, IndexedRows):
            self._inside_layer = True  # until the layer returns: these are no operators of the module
            args = (tracer.counted_from_end(args[0], layer.num_embeddings),)
        return self.layer_called(path, layer, args, kwargs)

    def _call(self, path: str, layer: EmbeddingLayer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> LayerCall:
        tracer, place = self.recording.tracer, user_place()
        values, offsets, weights = _layer_arguments(path, layer, args, kwargs)
        levels = tuple(tracer.of(ids) for ids, _ in _levels(layer, kwargs))
        return LayerCall(
            path,
            layer,
            tracer.of(values),
            _loss(tracer, values),
            None if offsets is None else offsets.clone(),
            None if offsets is None else tracer.of(offsets),
            None if offsets is None else _loss(tracer, offsets),
            weights is not None,
            None if weights is None else tracer.of(weights),
            place,
            levels,
        )


def _loss(tracer: Tracer, tensor: Tensor) -> Loss | None:
    known = tracer.of(tensor) is not None or tracer.is_constant(tensor)
    return None if known else tracer.loss_of(tensor)


def record(container: nn.Module, leaves: Mapping[str, Tensor], call: Any) -> Recording:
    """Runs `call()` with all embedding layers of `container` watched. leaves: the sample tensors that it uses.

    Raises Unsupported, naming the layer, for a module that cannot be cut.
    """
    layers = embedding_layers(container)
    watcher = _Watcher(leaves)
    watches = {layer: _Watch(path, layer, watcher) for path, layer in layers.items()}
    recording = watcher.recording
    recording.own_names = collected_names(container)
    # The module may write into them.
    given = {name: leaf.clone() for name, leaf in leaves.items()}
    lookups, padded = FunctionalLookups(container, watcher.functional_called), PaddedSequences(container)
    with replaced(container, watches), torch.no_grad(), padded, watcher, lookups, running_on_sample():
        recording.outputs = call()
    recording.packs = padded.is_used
    for name, leaf in leaves.items():
        leaf.copy_(given[name])
    outputs = [value for value in pytree.tree_leaves(recording.outputs) if isinstance(value, Tensor)]
    recording.tracer.use(outputs, Loss("an output", ""))
    if not recording.calls:
        raise Unsupported(
            "the module looked up no row of the batch: it called no embedding layer (nn.Embedding, nn.EmbeddingBag or "
            "ours), and no functional.embedding on a parameter"
        )
    return recording


@contextmanager
def running_on_sample() -> Iterator[None]:
    """Raises InvalidInput that names the sample where the module cannot run on it, in the block."""
    try:
        yield
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        raise InvalidInput(
            f"sample_batch: the module cannot run on it: {type(error).__name__}: {error}", field="sample_batch"
        ) from error


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
