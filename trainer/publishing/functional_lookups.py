"""Sees rows that a module looks up in a parameter by itself: functional.embedding, parameter[ids], index_select.

Each such parameter counts as an embedding layer. So does that of a layer with a forward of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from storage.errors import Unsupported
from trainer.publishing.embedding_layers import EmbeddingLayer, StandIn

# Makes the layer that a lookup counts as.
MakeLayer = Callable[[], EmbeddingLayer]
# Takes the path of a parameter, the parameter, what makes the layer, and the layer's arguments; returns the rows, or
# NotImplemented.
Answer = Callable[[str, Tensor, MakeLayer, tuple[Any, ...], dict[str, Any]], Any]
_EMBEDDING = "input weight padding_idx max_norm"
_BAG = """input weight offsets max_norm norm_type scale_grad_by_freq mode sparse per_sample_weights include_last_offset
padding_idx"""


class IndexedRows(nn.Embedding):
    """A parameter indexed by ids, of which negative ones count from its end."""


class FunctionalLookups(TorchFunctionMode):
    """Gives lookups in the parameters of `container.module` to a function, while it is active."""

    def __init__(self, container: nn.Module, answer: Answer) -> None:
        super().__init__()
        self._container, self._answer = container, answer

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found = _lookup(func, args, kwargs)
        # A vector indexed by ids, such as a bias for each item, is a weight like others.
        if found is not None and found[0].dim() == 2:
            weight, make, given = found
            path = _path(self._container, weight)
            if path is not None:
                if _renormalises(func, args, kwargs):
                    raise Unsupported(
                        f"{path!r}: max_norm changes rows while they are read; renormalise once, then drop it"
                    )
                result = self._answer(path, weight, lambda: make(weight, path), *given)
                if result is not NotImplemented:
                    return result
        return func(*args, **kwargs)


def _path(container: nn.Module, weight: Tensor) -> str | None:
    """Returns the path of a parameter in container.module; None for another tensor."""
    module = container.get_submodule("module")
    for path, parameter in module.named_parameters():
        if parameter is weight:
            return str(path).removesuffix(".weight")
    # A stand-in has its layer's weight without registering it.
    for path, child in module.named_modules():
        if isinstance(child, StandIn) and child.has_weight(weight):
            return str(path)
    return None


def _lookup(func: Any, args: Any, kwargs: Any) -> tuple[Tensor, Callable[[Tensor, str], EmbeddingLayer], Any] | None:
    """Returns the weight of a lookup, what makes a layer of it, and the layer's arguments; None for another call."""
    if func is functional.embedding:
        given = dict(zip(_EMBEDDING.split(), args, strict=False)) | kwargs
        return given["weight"], _layer, ((given["input"],), {})
    if func is torch.embedding:
        return args[0], _layer, ((args[1],), {})
    if func is functional.embedding_bag:
        given = dict(zip(_BAG.split(), args, strict=False)) | kwargs

        def bag(weight: Tensor, path: str) -> EmbeddingLayer:
            return _bag(weight, path, given)

        rest = {"per_sample_weights": given.get("per_sample_weights")}
        return given["weight"], bag, ((given["input"], given.get("offsets")), rest)
    if func is Tensor.__getitem__ and args[0].dim() == 2 and _are_ids(args[1]):
        return args[0], _indexed, ((args[1],), {})
    if func in (Tensor.index_select, torch.index_select) and len(args) == 3 and args[1] == 0 and not kwargs:
        return (args[0], _layer, ((args[2],), {})) if args[0].dim() == 2 else None
    return None


def _renormalises(func: Any, args: Any, kwargs: Any) -> bool:
    """Returns whether a lookup writes rows of a smaller norm into the weight."""
    names = {functional.embedding: _EMBEDDING, functional.embedding_bag: _BAG}.get(func, "")
    given = dict(zip(names.split(), args, strict=False)) | kwargs
    return given.get("max_norm") is not None


def _are_ids(index: Any) -> bool:
    return isinstance(index, Tensor) and index.dtype in (torch.int64, torch.int32)


def _layer(weight: Tensor, path: str) -> EmbeddingLayer:
    """Returns a layer over the same memory, (rows, dim)."""
    return nn.Embedding(weight.shape[0], weight.shape[1], _weight=weight.detach())


def _indexed(weight: Tensor, path: str) -> EmbeddingLayer:
    return IndexedRows(weight.shape[0], weight.shape[1], _weight=weight.detach())


def _bag(weight: Tensor, path: str, given: dict[str, Any]) -> EmbeddingLayer:
    return nn.EmbeddingBag(
        weight.shape[0],
        weight.shape[1],
        _weight=weight.detach(),
        mode=given.get("mode", "mean"),
        include_last_offset=given.get("include_last_offset", False),
        padding_idx=given.get("padding_idx"),
    )
