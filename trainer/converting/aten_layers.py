"""Lookups of a graph of aten operators, made into calls of embedding layers.

A graph knows no layers: it has aten.embedding and aten.embedding_bag on weights. The first run of a graph adds a layer
for each, and later runs call them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from storage.checkpoint.operators import ATEN
from storage.errors import Unsupported

_MODES = ("sum", "mean", "max")
# Operators that are no part of a published graph, but become some that are: by a layer, or while torch exports.
REPLACED = frozenset(
    {"batch_norm", "dropout", "embedding_bag", "_embedding_bag", "_embedding_bag_forward_only", "feature_dropout"}
)
# By operator, the argument that says that it computes as in training.
_TRAINING = {"batch_norm": "training", "dropout": "train", "feature_dropout": "train"}
CALL_EVAL = "call eval() before you export it (batch norm needs running statistics)"
BAGS = ("embedding_bag", "_embedding_bag", "_embedding_bag_forward_only")


def is_known(name: str) -> bool:
    """Returns whether an operator, by its name in aten, is converted. One that ends in "_" writes into its argument."""
    return name in ATEN or name in REPLACED or name.removesuffix("_") in ATEN


def in_training(name: str, given: Mapping[str, Any]) -> bool:
    """Returns whether an operator computes as in training: at random, or with the mean of the batch.

    name: its name in aten; given: its arguments by name.
    """
    return bool(given.get(_TRAINING.get(name.removesuffix("_"), ""))) and given.get("p") != 0


def refuse(where: object, unknown: Mapping[str, Sequence[str]]) -> None:
    """Raises Unsupported naming all operators that are not converted, and where each is used."""
    named = "; ".join(f"{kind} ({', '.join(dict.fromkeys(places))})" for kind, places in sorted(unknown.items()))
    raise Unsupported(
        f"{where}: operators that are not converted: {named}. storage/checkpoint/operators.py lists those that a "
        "published graph may use; write the part with them, or move it into features"
    )


@dataclass(frozen=True)
class TableWeight:
    """Stands for a weight that is a table: its shape and type, and no values to compute with."""

    name: str
    _like: Tensor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._like, name)


class AtenLayers(nn.Module):
    """The weights of a graph, and the layers of its lookups; a base class of the modules that run one."""

    def __init__(self) -> None:
        super().__init__()
        self._attributes: dict[str, str] = {}
        self._layers: dict[tuple[str, tuple[Any, ...]], str] = {}
        self._names: dict[int, str] = {}
        self._is_adding = False
        # During a run: tensors that are another one flattened, and offsets of bags of one length.
        self._flat: dict[int, tuple[Tensor, Tensor]] = {}
        self._regular: dict[int, tuple[Tensor, Any]] = {}

    def add_weight(self, name: str, value: Tensor) -> None:
        """Keeps a weight by its name in the file."""
        attribute = f"weight_{plain_name(name)}"
        while hasattr(self, attribute):
            attribute += "_"
        self.register_buffer(attribute, value.detach())
        self._attributes[name] = attribute

    def weight(self, name: str) -> Tensor | TableWeight | None:
        """Returns a weight by its name in the file: a TableWeight for one whose rows are looked up and nothing else,
        None for one that nothing reads.
        """
        attribute = self._attributes.get(name)
        if attribute is None:
            layer = next((layer for key, layer in self._layers.items() if key[0] == name), None)
            return None if layer is None else TableWeight(name, self._rows(layer))
        value: Tensor = getattr(self, attribute)
        self._names[id(value)] = name
        return value

    @contextmanager
    def adding(self) -> Iterator[None]:
        """Adds layers during a run in the block; then drops the weights that only lookups read."""
        self._is_adding, self._read = True, set[str]()
        try:
            yield
        finally:
            self._is_adding = False
        for name in set(self._attributes) - self._read:
            delattr(self, self._attributes.pop(name))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Watches which tensors are views for bags, for the block."""
        self._flat, self._regular = {}, {}
        try:
            yield
        finally:
            self._flat, self._regular, self._names = {}, {}, {}

    def run(self, name: str, target: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Computes one operator, by a layer where it looks rows of a weight up. name: its name in aten."""
        weight = self._name_of(args[0]) if args else None
        if weight is not None and name == "embedding":
            return self._layer(weight, ("rows",))(args[1])
        if weight is not None and name in BAGS:
            return self._bag(weight, _bound(target, args, kwargs))
        if name.removesuffix("_") in _TRAINING and in_training(name, _bound(target, args, kwargs)):
            raise Unsupported(f"aten.{name}: the file was made in training mode; {CALL_EVAL}")
        if self._is_adding:
            self._note_reads(args)
            self._note_reads(list(kwargs.values()))
        result = target(*args, **kwargs)
        if name in ("reshape", "view", "flatten") and isinstance(result, Tensor) and result.dim() == 1:
            self._flat[id(result)] = (result, args[0])
        elif name == "arange" and len(args) >= 3 and args[0] == 0:
            self._regular[id(result)] = (result, args[2])
        return result

    def _name_of(self, value: object) -> str | None:
        return value.name if isinstance(value, TableWeight) else self._names.get(id(value))

    def _note_reads(self, values: Sequence[Any]) -> None:
        for value in values:
            if isinstance(value, list | tuple):
                self._note_reads(value)
            elif id(value) in self._names:
                self._read.add(self._names[id(value)])

    def _bag(self, weight: str, call: Mapping[str, Any]) -> tuple[Any, ...]:
        ids, offsets, weights = call["indices"], call["offsets"], call.get("per_sample_weights")
        padding = call.get("padding_idx")
        padding = None if padding is None or padding < 0 else padding
        mode = _MODES[call.get("mode", 0)]
        closed = bool(call.get("include_last_offset", False))
        layer = self._layer(weight, ("bag", mode, closed, padding))
        wide = self._flat.get(id(ids))
        step = self._regular.get(id(offsets))
        if wide is not None and step is not None and wide[1].dim() == 2 and not closed and wide[1].shape[1] == step[1]:
            # The operator takes ids (B, n) as B bags of n; the layer takes them as they are.
            wide_weights = None if weights is None else self._flat.get(id(weights), (weights, weights))[1]
            return layer(wide[1], None, wide_weights), None, None, None
        return layer(ids, offsets, weights), None, None, None

    def _rows(self, layer: str) -> Tensor:
        rows: Tensor = self.get_submodule(layer).weight  # type: ignore[assignment]
        return rows

    def _layer(self, weight: str, kind: tuple[Any, ...]) -> nn.Module:
        name = self._layers.get((weight, kind))
        if name is None:
            if not self._is_adding:
                raise Unsupported(f"{weight}: its rows are looked up in another way than on the sample")
            shared = next((each for key, each in self._layers.items() if key[0] == weight), None)
            rows: Tensor = getattr(self, self._attributes[weight]) if shared is None else self._rows(shared)
            name = plain_name(weight.removesuffix(".weight"))
            while name in self._modules or hasattr(self, name):
                name += "_again"
            layer: nn.Module
            if kind[0] == "rows":
                layer = nn.Embedding.from_pretrained(rows)  # type: ignore[no-untyped-call]
            else:
                _, mode, closed, padding = kind
                layer = nn.EmbeddingBag.from_pretrained(
                    rows, mode=mode, include_last_offset=closed, padding_idx=padding
                )
            self.add_module(name, layer)
            self._layers[weight, kind] = name
        return self.get_submodule(name)


def plain_name(name: str) -> str:
    """Returns a name that an attribute of a module can have."""
    text = re.sub(r"\W+", "_", name).strip("_")
    return text if text and not text[0].isdigit() else f"t_{text}"


def _bound(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    names = [entry.name for entry in target._schema.arguments]
    return {**dict(zip(names, args, strict=False)), **kwargs}
