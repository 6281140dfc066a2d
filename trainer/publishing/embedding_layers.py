"""The embedding layers that the publisher recognises, and the table behind each."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import type_before_parametrizations

from storage.checkpoint import TableData
from storage.checkpoint.fingerprint import MASK, rows_fingerprint
from storage.checkpoint.row_streams import RowStream, array_rows
from storage.checkpoint.table_kinds import StaticKind
from storage.errors import ConfigError, Unsupported
from storage.initializers import ABSENT_ZEROS, AbsentRows
from storage.specs import TableSpec
from trainer.embedding import Chain, Embedding, EmbeddingBag, EmbeddingTable
from trainer.embedding.whole_table import whole
from trainer.publishing.weight_rows import WeightRows

EmbeddingLayer = Embedding | EmbeddingBag | nn.Embedding | nn.EmbeddingBag
LAYER_TYPES = (Embedding, EmbeddingBag, nn.Embedding, nn.EmbeddingBag)
# Layers whose rows lie in an EmbeddingTable, which tracks changes.
TABLE_LAYERS = (Embedding, EmbeddingBag)


_CODED_AT_ONCE = 1 << 20


class StandIn(nn.Module):
    """Replaces an embedding layer while a module is examined; its attributes are the layer's, and so is its class.

    A module may ask isinstance(self.items, nn.Embedding). asked: answers its calls.
    """

    def __new__(cls, path: str, layer: EmbeddingLayer, *_: Any) -> Self:
        """Makes an instance of a class that is the layer's, too."""
        own = type_before_parametrizations(layer)
        bases = own.__mro__[: own.__mro__.index(nn.Module)]
        defined = {name for base in bases for name in vars(base) if not name.startswith("__")}
        # What the layer's class defines still comes from the layer, as what the layer itself has does.
        through = {name: _of_layer(name) for name in defined - {"forward"} if not hasattr(cls, name)}
        made = type(cls.__name__, (cls, own), through)
        return object.__new__(made)

    def __init__(self, path: str, layer: EmbeddingLayer, asked: Any) -> None:
        nn.Module.__init__(self)  # and not the layer's, which would make rows
        # In a tuple, so that no module in it becomes a submodule and no weight a parameter.
        self._held = (path, layer, asked)

    def has_weight(self, tensor: torch.Tensor) -> bool:
        """Returns whether a tensor is the layer's weight."""
        return getattr(self._held[1], "weight", None) is tensor

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self._held[1], name)


def _of_layer(name: str) -> property:
    return property(lambda stand_in: stand_in.__getattr__(name))


@dataclass(frozen=True)
class TableSource:
    """A table to publish."""

    name: str
    dim: int
    #: The table of our own layers, or None.
    trained: EmbeddingTable | None = None
    #: The weight of a plain torch layer, or None.
    weight: torch.Tensor | None = None
    #: An id whose row is left out.
    hidden: int | None = None

    @property
    def absent(self) -> AbsentRows:
        """The rows that ids without one read as."""
        return ABSENT_ZEROS if self.trained is None else self.trained.absent

    def data(self, row_type: str = "fp32") -> TableData:
        """Returns all rows, to be published as `row_type`. A plain layer's ids are its row numbers."""
        if self.trained is not None:
            ids, rows, counts = self.trained.published_rows()
            rest = row_type, self.absent, self.trained.kind
            return TableData(self.name, self.dim, ids, rows, frequency_byte(counts), *rest)
        assert self.weight is not None
        rows = self.weight.detach().cpu().contiguous().numpy()
        ids = np.arange(len(rows), dtype=np.int64)
        if self.hidden is not None:
            keep = ids != self.hidden
            ids, rows = ids[keep], np.ascontiguousarray(rows[keep])
        kind = StaticKind(rows=len(self.weight))
        return TableData(self.name, self.dim, ids, rows, np.zeros(len(ids), dtype=np.uint8), row_type, kind=kind)

    @property
    def live(self) -> EmbeddingTable | WeightRows:
        """The rows as they are now, to be read by id."""
        if self.trained is not None:
            return self.trained
        assert self.weight is not None
        return WeightRows(self.name, self.weight, self.hidden)

    def stream(self, row_type: str) -> RowStream:
        """Returns all rows, in ascending order of ids, as `row_type` stores them."""
        live = self.live
        if isinstance(live, WeightRows):
            return live.stream(row_type)
        ids, rows, counts = live.published_rows()
        spec = TableSpec(self.name, self.dim, row_type, len(ids), self.absent)
        return array_rows(spec, ids, rows, frequency_byte(counts))

    def fingerprint(self, row_type: str) -> int:
        """The fingerprint of all rows as `row_type` stores them, read out of the table or the layer piece by piece."""
        live = self.live
        if not isinstance(live, WeightRows):
            return live.rows_fingerprint(row_type)
        return sum(rows_fingerprint(block.ids, block.encoded) for block in live.stream(row_type)) & MASK


def frequency_byte(counts: np.ndarray) -> np.ndarray:
    """Encodes how often an id was seen, (N,) uint32, as the DRAM table's use counts (cuda/line.cuh, count_code).

    Exact to 31, then four bits of mantissa behind an exponent, rounded down; half a million and more is 255.
    """
    codes = np.empty(len(counts), np.uint8)
    for start in range(0, len(counts), _CODED_AT_ONCE):  # the wide values of a large table would take several tables
        part = slice(start, start + _CODED_AT_ONCE)
        wide = np.minimum(counts[part].astype(np.int64), 31 << 14)
        shift = np.maximum(np.frexp(wide.astype(np.float64))[1] - 5, 0)
        codes[part] = (shift << 4) + (wide >> shift)
    return codes


def count_of_byte(codes: np.ndarray) -> np.ndarray:
    """Returns the smallest counts, (N,) uint32, that `frequency_byte` encodes so."""
    shift = np.maximum((codes >> 4).astype(np.int64) - 1, 0)
    counts: np.ndarray = ((codes - (shift << 4)) << shift).astype(np.uint32)
    return counts


@dataclass(frozen=True)
class ForwardOfOtherRows:
    """The forward of a layer that looks up as its own does, in rows that are elsewhere: the layer counts as plain."""

    look_up: Callable[..., Tensor]

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        """Looks up."""
        return self.look_up(*args, **kwargs)


def embedding_layers(container: nn.Module) -> dict[str, EmbeddingLayer]:
    """Returns every embedding layer once, by its first path in container.module.

    Raises Unsupported for one that cannot be published.
    """
    found: dict[str, EmbeddingLayer] = {}
    for full_path, module in container.named_modules():
        path = full_path.removeprefix("module.")
        if isinstance(module, LAYER_TYPES) and not _has_own_forward(path, module):
            check_layer(path, module)
            found[path] = module
    return found


def collected_names(container: nn.Module) -> dict[EmbeddingLayer, str]:
    """Returns the names that TorchRec's collections give the tables of their layers; torchrec is not needed for it."""
    found: dict[EmbeddingLayer, str] = {}
    for module in container.modules():
        for configs, layers in (("embedding_bag_configs", "embedding_bags"), ("embedding_configs", "embeddings")):
            held = getattr(module, layers, None)
            if callable(getattr(module, configs, None)) and isinstance(held, nn.ModuleDict):
                found |= {layer: name for name, layer in held.items() if isinstance(layer, LAYER_TYPES)}
    return found


def _has_own_forward(path: str, layer: nn.Module) -> bool:
    """Returns whether a layer looks up otherwise, or does more; then it is a module like others, whose lookups count.

    Raises Unsupported for one of ours: its lookups show in its calls alone.
    """
    own = vars(layer).get("forward")
    replaced = own is not None and not isinstance(own, ForwardOfOtherRows)
    hooked = replaced or layer._forward_hooks or layer._forward_pre_hooks
    if isinstance(layer, Embedding | EmbeddingBag):
        if hooked:
            raise Unsupported(
                f"layer {path!r}: it has hooks, or a forward of its own, which the server would not run; take them off "
                "(handle.remove()), and do in the module that calls the layer what they did"
            )
        return False
    base, own_class = nn.Embedding if isinstance(layer, nn.Embedding) else nn.EmbeddingBag, type(layer)
    return bool(hooked) or own_class.forward is not base.forward or own_class.__call__ is not nn.Module.__call__


def tables_of(module: nn.Module) -> list[EmbeddingTable]:
    """Returns the tables of our own layers in a module, each once."""
    layers = (each for each in module.modules() if isinstance(each, TABLE_LAYERS))
    return list(dict.fromkeys(layer.table for layer in layers))


def check_layer(path: str, layer: EmbeddingLayer) -> None:
    """Raises Unsupported for options that the server does not reproduce."""
    if isinstance(layer, Embedding | EmbeddingBag):
        return
    if layer.max_norm is not None:
        raise Unsupported(f"layer {path!r}: max_norm changes rows while they are read; renormalise once, then drop it")
    if layer.weight.dtype != torch.float32:
        raise Unsupported(f"layer {path!r}: the rows are {layer.weight.dtype}; call .float() before publishing")


def table_key(layer: EmbeddingLayer) -> object:
    """Returns a key that is equal for layers that read the same table: ours by the table, plain ones by their
    weight.
    """
    if isinstance(layer, Embedding | EmbeddingBag):
        return layer.table
    weight = layer.weight
    if not any(weight is each for each in (*layer.parameters(recurse=False), *layer.buffers(recurse=False))):
        return layer  # a weight that is computed whenever it is read is in other memory each time
    # Without memory all weights lie at address 0. Two weights may begin at one place of a larger one.
    place = int(weight.untyped_storage()._cdata) if weight.is_meta else weight.data_ptr()
    return place, tuple(weight.shape), weight.stride()


def layer_absent(layer: EmbeddingLayer) -> AbsentRows | None:
    """Returns what ids without a row read as in a layer; None where the table says it."""
    return layer.absent if isinstance(layer, Embedding | EmbeddingBag) else None


def layer_chain(layer: EmbeddingLayer) -> Chain | None:
    """Returns the chain that ids without a row follow in a layer."""
    return layer.chain if isinstance(layer, Embedding | EmbeddingBag) else None


def layer_dim(layer: EmbeddingLayer) -> int:
    """Number of values of a row."""
    return layer.table.dim if isinstance(layer, Embedding | EmbeddingBag) else layer.embedding_dim


class TableNames:
    """Gives each table one name and each name one table."""

    def __init__(self, own_names: Mapping[EmbeddingLayer, str] | None = None) -> None:
        """own_names: the names that collections give the tables of their layers."""
        self._own_names = dict(own_names or {})
        self._sources: dict[object, TableSource] = {}
        self._users: dict[object, list[tuple[str, EmbeddingLayer]]] = {}

    def name(self, path: str, layer: EmbeddingLayer, wanted: str | None = None) -> str:
        """Names the table behind a layer that is called. wanted: the name that a given spec uses for it."""
        key = table_key(layer)
        users = self._users.setdefault(key, [])
        if all(user is not layer for _, user in users):
            users.append((path, layer))
        if key not in self._sources:
            self._sources[key] = self._source(path, layer, wanted)
        source = self._sources[key]
        if wanted is not None and source.name != wanted:
            raise ConfigError(
                f"layer {path!r} reads the table {source.name!r}, but the spec says {wanted!r}", field="features.table"
            )
        return source.name

    def add(self, table: EmbeddingTable) -> None:
        """Adds a table that no layer is called for."""
        if table not in self._sources:
            self._users[table] = []
            self._sources[table] = TableSource(table.name, table.dim, trained=whole(table))

    def sources(self) -> list[TableSource]:
        """Returns all tables named so far, in order.

        Raises Unsupported when two layers need different rows of one table.
        """
        return [self._with_hidden(key, source) for key, source in self._sources.items()]

    def _source(self, path: str, layer: EmbeddingLayer, wanted: str | None) -> TableSource:
        taken = {source.name for source in self._sources.values()}
        if isinstance(layer, Embedding | EmbeddingBag):
            name = layer.table.name
        else:
            given = self._own_names.get(layer, path)
            name = wanted or re.sub(r"[^A-Za-z0-9_-]", "_", given).lstrip("-")[:56] or "table"
            if wanted is None:
                name = free_name(name, taken)
        if name in taken:
            raise ConfigError(f"layer {path!r}: another table is called {name!r} already; rename one", field="tables")
        if isinstance(layer, Embedding | EmbeddingBag):
            return TableSource(name, layer.table.dim, trained=whole(layer.table))
        return TableSource(name, layer.embedding_dim, weight=layer.weight)

    def _with_hidden(self, key: object, source: TableSource) -> TableSource:
        # A bag leaves its padding id out of the sum: without its row, the server's sum does too.
        hidden = {
            layer.padding_idx if isinstance(layer, nn.EmbeddingBag) else None
            for _, layer in self._users[key]
            if source.trained is None
        } or {None}
        if len(hidden) > 1:
            paths = [path for path, _ in self._users[key]]
            raise Unsupported(f"layers {paths} share a table, but not their padding_idx; give them one, or two tables")
        return TableSource(source.name, source.dim, source.trained, source.weight, hidden.pop())


def free_name(name: str, taken: set[str]) -> str:
    """Returns `name`, or `name` followed by the first number that makes it free."""
    if name not in taken:
        return name
    number = 2
    while f"{name}_{number}" in taken:
        number += 1
    return f"{name}_{number}"
