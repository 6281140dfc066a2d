"""Modules whose rows lie in files: their embedding layers take no memory and answer with rows made of ids.

Such rows let a module be recorded, cut, exported and compared with its halves before a table is read. What is
published, and the golden scores, are computed from the rows of the files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from storage.checkpoint import TableData
from storage.errors import Unsupported
from storage.initializers import AbsentRows, Initializer
from trainer.publishing.embedding_layers import LAYER_TYPES, TABLE_LAYERS, ForwardOfOtherRows, TableSource

# Small, so that no activation is saturated, and different for each id.
_STAND_IN = AbsentRows.of(Initializer("normal", 0.05), seed=1)


@contextmanager
def rows_elsewhere() -> Iterator[None]:
    """Gives embedding layers of torch that are made in the block no memory for rows."""
    originals: dict[type, Callable[..., None]] = {each: each.__init__ for each in (nn.Embedding, nn.EmbeddingBag)}

    def without_rows(kind: type) -> Callable[..., None]:
        def init(self: nn.Module, *args: Any, **kwargs: Any) -> None:
            kwargs["device"] = "meta"
            originals[kind](self, *args, **kwargs)

        return init

    for kind in originals:
        kind.__init__ = without_rows(kind)  # type: ignore[misc]
    try:
        yield
    finally:
        for kind, original in originals.items():
            kind.__init__ = original  # type: ignore[misc]


@contextmanager
def stand_ins(module: nn.Module) -> Iterator[None]:
    """Has the plain embedding layers of a module answer with rows made of ids, for the block."""
    layers = [each for each in module.modules() if isinstance(each, LAYER_TYPES) and not isinstance(each, TABLE_LAYERS)]
    for layer in layers:
        # An attribute of the object, so that the layer's class still says what it is.
        layer.forward = ForwardOfOtherRows(_answer(layer))  # type: ignore[method-assign]
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def stand_in_table(source: TableSource, row_type: str) -> TableData:
    """Returns a table without rows whose absent rows are those that `stand_ins` answer with."""
    absent = _STAND_IN if source.trained is None else source.absent
    empty = np.empty((0, source.dim), np.float32)
    return TableData(source.name, source.dim, np.empty(0, np.int64), empty, np.empty(0, np.uint8), row_type, absent)


def check_plain(path: str, module: nn.Module) -> None:
    """Raises Unsupported for a table of ours that has rows of its own. path: of the layer."""
    if isinstance(module, TABLE_LAYERS) and module.table.size():
        raise Unsupported(f"layer {path!r}: its table has {module.table.size():,} rows already; give it an empty one")


def _answer(layer: nn.Embedding | nn.EmbeddingBag) -> Callable[..., Tensor]:
    dim = layer.embedding_dim

    def rows_of(ids: Tensor) -> Tensor:
        flat = np.ascontiguousarray(ids.reshape(-1).numpy(), np.int64)
        return torch.from_numpy(_STAND_IN.rows(flat, dim))

    def embedding(input: Tensor) -> Tensor:
        return rows_of(input).reshape(*input.shape, dim)

    def bag(input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        assert isinstance(layer, nn.EmbeddingBag)
        places = torch.arange(input.numel()).reshape(input.shape)
        return functional.embedding_bag(
            places,
            rows_of(input),
            offsets,
            mode=layer.mode,
            per_sample_weights=per_sample_weights,
            include_last_offset=layer.include_last_offset,
        )

    return bag if isinstance(layer, nn.EmbeddingBag) else embedding
