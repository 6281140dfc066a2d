"""Reads a published version and its deltas as a source: rows decoded to float32, counts from their use counts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from storage.checkpoint import PublishedDelta, PublishedVersion, Shard
from storage.checkpoint.as_of import AsOf
from storage.checkpoint.finite import LEARNED
from storage.errors import CheckpointError
from storage.features.spec import FeatureSpec
from trainer.models import MODELS
from trainer.models.blocks import InputLayout, WeightLayout
from trainer.publishing.embedding_layers import count_of_byte
from trainer.warm_start.source import PIECE_BYTES, Array, Ids, Piece, Source, SourceTable, check_whole

# The module that was published is a part of the module that was exported.
_PREFIX = f"{LEARNED}container.module."


def read_version_source(snapshot: AsOf, title: str) -> Source:
    """Returns the source of a snapshot whose files were checked. Raises ConfigError, CheckpointError."""
    version = snapshot.version
    check_whole({table.name: table.kind for table in version.manifest.tables}, title)
    published = snapshot.weights()
    weights = {
        name.removeprefix(_PREFIX): value.float().numpy()
        for name, value in published.items()
        if name.startswith(_PREFIX) and value.is_floating_point()
    }
    dims = {table.name: table.dim for table in version.tables}
    heads = [(output.name, math.prod(output.shape[1:])) for output in version.manifest.graph.outputs]
    model = str(version.manifest.metadata.get("model", ""))
    return Source(
        title=title,
        weights=weights,
        tables={name: _table(snapshot, name, dim) for name, dim in dims.items()},
        model=model,
        spec=version.spec,
        layouts=_layouts(model, version.spec, dims, weights, heads),
    )


@dataclass(frozen=True)
class PublishedLayer:
    """The part of a table that a version or a delta holds."""

    published: PublishedVersion | PublishedDelta
    table: str
    dim: int
    removed: Ids = field(default_factory=lambda: np.empty(0, np.int64))

    def ids(self) -> Iterator[Ids]:
        """Yields the ids of its rows, shard by shard."""
        if isinstance(self.published, PublishedVersion):
            return (ids for ids, _ in self.published.uses(self.table))
        return (shard.ids for shard in self._shards())

    def pieces(self) -> Iterator[Piece]:
        """Yields its rows, decoded piece by piece."""
        at_once = max(1, PIECE_BYTES // (8 + 4 * self.dim))
        for shard in self._shards():
            for start in range(0, len(shard.ids), at_once):
                part = shard.take(slice(start, start + at_once))
                yield Piece(part.ids, part.rows, count_of_byte(part.freq))

    def _shards(self) -> Iterator[Shard]:
        for shard in self.published.shards(self.table):
            if shard.codec.dim != self.dim:
                raise CheckpointError(
                    f"{self.published.path}: table {self.table!r} has dim {shard.codec.dim}, its version {self.dim}"
                )
            yield shard


def _table(snapshot: AsOf, name: str, dim: int) -> SourceTable:
    deltas = [delta for delta in snapshot.deltas if name in {table.name for table in delta.tables}]
    layers = [PublishedLayer(delta, name, dim, delta.removed(name)) for delta in deltas]
    return SourceTable(name, dim, [PublishedLayer(snapshot.version, name, dim), *layers])


def _layouts(
    model: str,
    spec: FeatureSpec,
    dims: Mapping[str, int],
    weights: Mapping[str, Array],
    heads: Iterable[tuple[str, int]],
) -> dict[str, WeightLayout]:
    if model not in MODELS:
        return {}
    shapes = {name: value.shape for name, value in weights.items()}
    try:
        inputs = InputLayout(
            spec, {feature.name: dims[feature.table] for feature in spec.ids_features}, heads=tuple(heads)
        )
        return MODELS[model].layouts(inputs, shapes)
    except (KeyError, IndexError, ValueError):
        return {}  # the name of the type is metadata, which any publisher may write beside another module
