"""Watches one run of the real module: which sample tensors feed which embedding layer, and what else touches ids.

B rows of the batch, W columns of a tensor, N ids.
"""

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


@dataclass(frozen=True)
class View:
    """A tensor that is a view of a sample tensor."""

    #: Name of the sample tensor.
    leaf: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    #: First element of the view in it.
    start: int

    def is_whole(self, leaf: Tensor) -> bool:
        """Returns whether it is the sample tensor itself, or that with a last dimension of 1 added."""
        return self.start == 0 and self.shape in (tuple(leaf.shape), (*leaf.shape, 1)) and leaf.numel() == _count(self)

    def columns(self, leaf: Tensor) -> tuple[int, int] | None:
        """Returns the columns start to stop that it shows of a (B, W) or (B,) sample tensor, None if it is no such
        view.
        """
        if leaf.dim() == 1:
            return (0, 1) if self.is_whole(leaf) else None
        if leaf.dim() != 2 or not self.shape or len(self.shape) > 2 or self.shape[0] != leaf.shape[0]:
            return None
        width = leaf.shape[1]
        count = self.shape[1] if len(self.shape) == 2 else 1
        regular = self.strides[0] == width and (count == 1 or self.strides[1] == 1)
        if not regular or self.start + count > width or count == 0:
            return None
        return self.start, self.start + count


@dataclass(frozen=True)
class LayerCall:
    """Describes one call of an embedding layer by views of sample tensors."""

    path: str
    layer: EmbeddingLayer
    values: View
    #: None for ids (B,) and (B, n).
    offsets: View | None
    #: None where the layer takes no weights.
    weights: View | None = None
    #: Values and offsets of each level of the layer's chain.
    levels: tuple[tuple[View, View], ...] = ()


@dataclass
class Recording:
    """Observations of one run."""

    outputs: Any = None
    calls: list[LayerCall] = field(default_factory=list)
    #: Sample tensors that any operator took outside the embedding layers.
    used: set[str] = field(default_factory=set)
    #: Integer sample tensor -> the operator that computed with it there.
    computed: dict[str, str] = field(default_factory=dict)


class _Watch(StandIn):
    """Reports every call to the watcher, which then calls the layer itself."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        path, layer, watcher = self._held
        return watcher.layer_called(path, layer, args, kwargs)


class _Watcher(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operator of the run."""

    def __init__(self, leaves: Mapping[str, Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recording = Recording()
        self._leaves = {_storage(leaf): name for name, leaf in leaves.items()}
        self._ids = {_storage(leaf): name for name, leaf in leaves.items() if not leaf.is_floating_point()}
        self._inside_layer = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not self._inside_layer:
            used = {_storage(value) for value in pytree.tree_leaves((args, kwargs)) if isinstance(value, Tensor)}
            self.recording.used.update(self._leaves[storage] for storage in used & self._leaves.keys())
            for storage in used & self._ids.keys():
                results = [value for value in pytree.tree_leaves(result) if isinstance(value, Tensor)]
                if not results or any(_storage(value) != storage for value in results):
                    self.recording.computed.setdefault(self._ids[storage], str(func))
        return result

    def layer_called(self, path: str, layer: EmbeddingLayer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        values, offsets, weights = _layer_arguments(path, layer, args, kwargs)
        self.recording.calls.append(
            LayerCall(
                path,
                layer,
                self._view(path, values),
                None if offsets is None else self._view(path, offsets, "offsets"),
                None if weights is None else self._view(path, weights, "weights"),
                tuple(
                    (self._view(path, ids), self._view(path, ends, "offsets")) for ids, ends in _levels(layer, kwargs)
                ),
            )
        )
        self._inside_layer = True
        try:
            return layer(*args, **kwargs)
        finally:
            self._inside_layer = False

    def _view(self, path: str, tensor: Tensor, what: str = "ids") -> View:
        leaf = self._leaves.get(_storage(tensor))
        if leaf is None:
            operators = "".join(f"; {name!r} went through {op}" for name, op in self.recording.computed.items())
            dtype = "float32" if what == "weights" else "int64"
            raise Unsupported(
                f"layer {path!r}: its {what} are computed inside forward(){operators}. The server looks ids up before "
                f"the module runs: pass the layer a tensor of the batch, or a column of one (x[:, k]), as {dtype}"
            )
        return View(leaf, tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset()))


def record(container: nn.Module, leaves: Mapping[str, Tensor], call: Any) -> Recording:
    """Runs `call()` with all embedding layers of `container` watched. leaves: the sample tensors that it uses.

    Raises Unsupported, naming the layer or the input, for a module that cannot be cut.
    """
    layers = embedding_layers(container)
    watcher = _Watcher(leaves)
    watches = {layer: _Watch(path, layer, watcher) for path, layer in layers.items()}
    with replaced(container, watches), torch.no_grad(), watcher:
        try:
            watcher.recording.outputs = call()
        except (IndexError, RuntimeError, TypeError, ValueError) as error:
            raise InvalidInput(
                f"sample_batch: the module cannot run on it: {type(error).__name__}: {error}", field="sample_batch"
            ) from error
    recording = watcher.recording
    if not recording.calls:
        raise Unsupported(
            "the module called no embedding layer (nn.Embedding, nn.EmbeddingBag or ours); functional.embedding on a "
            "parameter is not seen: use the layer"
        )
    for name, operator in recording.computed.items():
        raise Unsupported(
            f"input {name!r} is of {leaves[name].dtype} and is used by {operator} outside the embedding layers; the "
            "server gives integers to the lookup only. Pass what is computed from them as a float32 tensor of the batch"
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


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _count(view: View) -> int:
    count = 1
    for size in view.shape:
        count *= size
    return count
