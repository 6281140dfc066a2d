"""Makes inputs of bags of any length: a list of ids for each row, and a list of weights beside it.

B rows of the batch, N ids of all bags together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from storage.errors import InvalidInput, Unsupported
from storage.features import Column, InputSpec, column_from_jagged
from storage.features.transforms import Transform
from trainer.embedding import Embedding, EmbeddingBag
from trainer.publishing.call_layout import are_offsets_as_given, whole_leaf
from trainer.publishing.embedding_layers import layer_absent
from trainer.publishing.id_features import IdUse
from trainer.publishing.id_steps import Chain, transforms_of
from trainer.publishing.recording import LayerCall
from trainer.publishing.tracing import Tracer

_DTYPES = {torch.int64: "INT64", torch.int32: "INT32"}
_LENGTH_AT_LEAST = 1024


class BagInputs:
    """Adds the inputs and columns that the bags of a module need to those of a plan. rows: B."""

    def __init__(self, tracer: Tracer, rows: int, inputs: dict[str, InputSpec], columns: dict[str, Column]) -> None:
        self._tracer, self._rows = tracer, rows
        self._inputs, self._columns = inputs, columns
        #: Where the bags of a tensor begin, and the end.
        self._bags: dict[str, np.ndarray] = {}
        self._weighs: dict[str, str] = {}

    def __contains__(self, name: str) -> bool:
        """Returns whether a tensor of the sample holds bags."""
        return name in self._bags

    @property
    def _leaves(self) -> Mapping[str, Tensor]:
        return self._tracer.leaves

    def is_jagged(self, call: LayerCall) -> bool:
        """Returns whether the ids of a call are bags whose lengths the batch gives."""
        if isinstance(call.layer, Embedding | EmbeddingBag):
            return True
        is_whole = call.values is not None and whole_leaf(call.values, self._tracer) is not None
        return call.offsets_of is not None and is_whole

    def use(self, call: LayerCall) -> IdUse:
        """Returns the lookup of a call over bags, and adds its inputs. Raises Unsupported for what is not served."""
        layer, whole = call.layer, None if call.values is None else whole_leaf(call.values, self._tracer)
        if whole is None:
            raise Unsupported(
                f"{call.where}: its ids are a part of a tensor of the batch, or of several; bags are taken from a "
                "whole tensor of one dimension"
            )
        if call.offsets is None or call.offsets_of is None:
            raise Unsupported(f"{call.where}: its offsets do not come from the batch; give them as a tensor of it")
        if not are_offsets_as_given(call.offsets_of, self._tracer):
            raise Unsupported(
                f"{call.where}: forward() changes its offsets, and a request has lists without offsets: where bags "
                "begin has to be a tensor of the batch as it is"
            )
        name, chain = whole
        self._list_input(call, name)
        weights = self._bag_weights(call, name) if call.is_weighted else ""
        if isinstance(layer, Embedding):
            use = IdUse(name, None, _transforms(call, name, chain), "none", layer.length, True)
        else:
            mode, padding = layer.mode, None if isinstance(layer, EmbeddingBag) else layer.padding_idx
            if mode == "max" or (mode == "mean" and padding is not None):
                what = "mode 'max'" if mode == "max" else "mode 'mean' with padding_idx"
                raise Unsupported(
                    f"{call.where}: {what} over bags of any length is not served; give ids (B, n), padded to one "
                    "length, without offsets"
                )
            pooling = "weighted" if weights else str(mode)
            use = IdUse(name, None, _transforms(call, name, chain), pooling, weights=weights)
        return replace(use, absent=layer_absent(layer))

    def weigh(self, call: LayerCall, name: str, ids: str) -> None:
        """Notes that a tensor of weights belongs to one of ids. Raises Unsupported for weights of two."""
        if self._leaves[name].dtype != torch.float32:
            raise Unsupported(f"{call.where}: the weights {name!r} are {self._leaves[name].dtype}; use float32")
        if self._weighs.setdefault(name, ids) != ids:
            raise Unsupported(
                f"{call.where}: the weights {name!r} are those of the ids {self._weighs[name]!r} already; give each "
                "tensor of ids its own"
            )

    def _list_input(self, call: LayerCall, name: str) -> None:
        """Adds a tensor of bags as an input."""
        leaf = self._leaves[name]
        bags = closed_offsets(call, len(leaf))
        if bags.ndim != 1 or len(bags) != self._rows + 1:
            raise Unsupported(
                f"{call.where}: {len(bags) - 1} bags, but the outputs have {self._rows} rows; one bag a row is served"
            )
        if bags[0] != 0 or bags[-1] != len(leaf) or np.any(np.diff(bags) < 0):
            raise InvalidInput(
                f"{call.where}: its offsets must rise from 0 to {len(leaf)}, the number of ids", field=name
            )
        if not np.array_equal(self._bags.setdefault(name, bags), bags):
            raise Unsupported(f"{call.where}: the ids {name!r} are cut into bags in two ways; use one")
        if name in self._inputs and self._inputs[name].kind != "list":
            raise Unsupported(f"{call.where}: {name!r} is used as bags and as columns; use two tensors")
        if leaf.dtype not in _DTYPES:
            raise Unsupported(f"{call.where}: the ids {name!r} are {leaf.dtype}; use int64")
        longest = int(np.diff(bags).max(initial=0))
        entry = {
            "name": name,
            "dtype": _DTYPES[leaf.dtype],
            "kind": "list",
            "max_length": max(_LENGTH_AT_LEAST, longest),
            "nulls": "error",
        }
        self._inputs[name] = InputSpec.model_validate(entry)
        self._columns[name] = column_from_jagged(self._inputs[name].dtype, leaf.numpy(), bags)

    def _bag_weights(self, call: LayerCall, ids: str) -> str:
        """Adds the weights of bags as an input; returns its name."""
        found = None if call.weights is None else whole_leaf(call.weights, self._tracer)
        shape = self._leaves[ids].shape
        if found is None or found[1] or self._leaves[found[0]].shape != shape:
            raise Unsupported(
                f"{call.where}: its weights are computed inside forward(), or are not a whole tensor of the shape of "
                f"the ids {ids!r} {list(shape)}; give a weight for each id, as float32"
            )
        name = found[0]
        self.weigh(call, name, ids)
        self._inputs[name] = self._inputs[ids].model_copy(update={"name": name, "dtype": "FP32"})
        self._columns[name] = column_from_jagged("FP32", self._leaves[name].numpy(), self._bags[ids])
        return name


def closed_offsets(call: LayerCall, count: int) -> np.ndarray:
    """Returns the offsets of a call with the end behind the last, (bags + 1,) int64. count: the number of ids."""
    assert call.offsets is not None
    values = call.offsets.to(torch.int64).numpy()
    closed = isinstance(call.layer, Embedding | EmbeddingBag) or call.layer.include_last_offset
    return np.ascontiguousarray(values if closed else np.append(values, count))


def _transforms(call: LayerCall, name: str, chain: Chain) -> tuple[Transform, ...]:
    found = transforms_of([chain])
    if found is None:
        raise Unsupported(f"{call.where}: its ids are the result of a comparison of {name!r}; give them as integers")
    return found
