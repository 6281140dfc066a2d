"""Scores a published snapshot, as it is or changed, with the feature engine and the dense graph of the server.

Lookups are done in numpy, so that a hypothesis about rows can be computed.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from emberline.proving.batches import Batch, rows_of
from emberline.proving.changes import Change
from storage.checkpoint.as_of import AsOf
from storage.checkpoint.graph import DenseGraph
from storage.errors import ConfigError, InvalidInput, Unsupported
from storage.features import (
    Column,
    FeatureBatch,
    FeatureEngine,
    InputSpec,
    Jagged,
    column_from_jagged,
    column_from_numpy,
)
from storage.features.dtypes import NUMPY_DTYPES
from storage.features.fallback import MEAN_ID, level_ids
from storage.features.strict_model import did_you_mean
from storage.rows import RowCodec
from storage.specs import LookupLevel, TableSpec

# Tables up to so many bytes are read whole; of others, the rows that are asked for.
_WHOLE_BYTES = 256 << 20


class Rows:
    """The rows of one table that have been asked for."""

    def __init__(self, as_of: AsOf, spec: TableSpec) -> None:
        self.spec = spec
        self._stream = as_of.rows(spec.name)
        self._known = np.empty(0, np.int64)
        self._ids = np.empty(0, np.int64)
        self._rows = np.empty((0, spec.dim), np.float32)
        self._is_whole = spec.rows * spec.dim * 4 <= _WHOLE_BYTES
        if self._is_whole:
            blocks = list(self._stream)
            if blocks:
                self._ids = np.concatenate([block.ids for block in blocks])
                self._rows = np.concatenate([block.rows for block in blocks])

    @property
    def ids(self) -> np.ndarray:
        """Ids that have a row, ascending; of a large table those among the ids that were asked for."""
        return self._ids

    def find(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns rows (n, D), a copy, and which of them are there."""
        if not self._is_whole and not np.isin(ids, self._known).all():
            self._read(np.union1d(self._known, ids))
        if not len(self._ids):
            return np.zeros((len(ids), self.spec.dim), np.float32), np.zeros(len(ids), bool)
        places = np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1)
        return self._rows[places], self._ids[places] == ids

    def _read(self, wanted: np.ndarray) -> None:
        found = [block.take(np.isin(block.ids, wanted)) for block in self._stream]
        self._known = wanted
        self._ids = np.concatenate([np.empty(0, np.int64), *(block.ids for block in found)])
        self._rows = np.concatenate([np.empty((0, self.spec.dim), np.float32), *(block.rows for block in found)])


class LocalModel:
    """A snapshot in memory. Not thread-safe."""

    def __init__(self, as_of: AsOf) -> None:
        self.as_of = as_of
        self.spec = as_of.version.spec
        self._engine = FeatureEngine(self.spec)
        graph = as_of.version.graph()
        self._graph = graph.with_weights(as_of.weights()) if as_of.deltas else graph
        self._lowered: dict[str, DenseGraph] = {}
        #: By table.
        self.rows = {table.name: Rows(as_of, table) for table in as_of.version.tables}
        #: By feature of ids, the table that it reads.
        self.tables = {entry.name: entry.table for entry in self.spec.ids_features}
        self.pooling = {entry.name: entry.pooling for entry in self.spec.ids_features}

    def check_names(self, inputs: Iterable[str], outputs: Iterable[str]) -> None:
        """Raises ConfigError naming an input or an output that the model has not."""
        known = {
            "input": [entry.name for entry in self.spec.inputs],
            "output": [entry.name for entry in self._graph.outputs],
        }
        for what, names in (("input", inputs), ("output", outputs)):
            for name in names:
                if name not in known[what]:
                    hint = did_you_mean(name, known[what])
                    raise ConfigError(
                        f"--{what}: the model has no {what} {name!r}{hint}; it has {known[what]}", field=what
                    )

    def features(self, batch: Batch) -> FeatureBatch:
        """Computes the features of a batch of raw inputs. Raises InvalidInput naming the input at fault."""
        names = [entry.name for entry in self.spec.inputs]
        for name in batch:
            if name not in names:
                raise InvalidInput(f"the model has no input {name!r}{did_you_mean(name, names)}", field=name)
        columns = {entry.name: column(entry, batch[entry.name]) for entry in self.spec.inputs if entry.name in batch}
        return self._engine.run(columns, rows_of(batch))

    def score(self, features: FeatureBatch, change: Change | None = None) -> dict[str, np.ndarray]:
        """Returns the outputs by name, (B, ...) each, with a change of how rows are read."""
        change = change or Change()
        tensors = self.tensors(features, change)
        graph = self._graph
        if change.precision:
            graph = self._lowered.setdefault(change.precision, graph.lowered(change.precision))
        found = graph.run([torch.from_numpy(np.ascontiguousarray(values)) for values in tensors])
        return {entry.name: values.numpy() for entry, values in zip(graph.outputs, found, strict=True)}

    def tensors(self, features: FeatureBatch, change: Change) -> list[np.ndarray]:
        """Returns the inputs of the dense graph."""
        found: dict[str, tuple[np.ndarray, Jagged]] = {}
        tensors: list[np.ndarray] = []
        for entry in self._graph.inputs:
            if entry.kind in ("dense", "ids"):
                tensors.append(
                    _exchanged(features, entry.source, change)
                    if entry.kind == "dense"
                    else features.integers(change.sources.get(entry.source, entry.source))
                )
                continue
            if entry.kind == "mask":
                raise Unsupported(f"the graph takes the mask of {entry.source!r}, which is not computed here")
            feature = entry.source
            if feature not in found:
                bags = features.ids[change.sources.get(feature, feature)]
                found[feature] = self.looked_up(features, feature, change), bags
            rows, bags = found[feature]
            length = self.spec.feature(feature).length
            if entry.kind == "lengths":
                tensors.append(np.minimum(bags.lengths(), length))
            elif entry.kind == "rows":
                tensors.append(_padded(rows, bags, length))
            else:
                tensors.append(pooled(rows, bags, change.pooling.get(feature, self.pooling[feature])))
        return tensors

    def has_row(self, features: FeatureBatch, feature: str) -> np.ndarray:
        """Returns for each id of a feature whether its table has a row for it, (n,) bool."""
        return self.rows[self.tables[feature]].find(features.ids[feature].values)[1]

    def looked_up(self, features: FeatureBatch, feature: str, change: Change) -> np.ndarray:
        """Returns the rows of all ids of a feature, (n, D)."""
        source = change.sources.get(feature, feature)
        ids = features.ids[source].values + change.shifts.get(feature, 0)
        name = change.tables.get(feature, self.tables[feature])
        if name in change.beyond:
            first, read = change.beyond[name]
            ids = np.where(ids >= first, read, ids)
        table = self.rows[name]
        rows, found = table.find(ids)
        gone = change.missing.get(name)
        if gone:
            found = found & ~np.isin(ids, np.fromiter(gone, np.int64))
        absent = self.spec.feature(feature).absent_rows or table.spec.absent
        default = change.defaults.get(name)
        rows[~found] = absent.rows(ids[~found], table.spec.dim) if default is None else default
        rows = _rounded(rows, change.rounding.get(name, ""))
        for level in self.spec.lookup(feature).fallback:
            self._fall_back(rows, found, features, source, level, change)
        return rows

    def _fall_back(
        self,
        rows: np.ndarray,
        found: np.ndarray,
        features: FeatureBatch,
        feature: str,
        level: LookupLevel,
        change: Change,
    ) -> None:
        """Writes the rows of a level of a feature's chain where none is found yet."""
        left = np.flatnonzero(~found)
        if level.feature:
            ids, has = level_ids(features.ids[feature], left, features.ids[level.feature], level.parallel)
            left, ids = left[has], ids[has]
        else:
            ids = np.full(len(left), MEAN_ID)
        others, there = self.rows[level.table].find(ids)
        rows[left[there]] = _rounded(others[there], change.rounding.get(level.table, ""))
        found[left[there]] = True

    def check_golden(self) -> None:
        """Raises Unsupported where the snapshot's golden requests get other scores here, which then prove nothing."""
        golden = self.as_of.version.golden()
        if self.as_of.deltas:
            golden = self.as_of.deltas[-1].golden(self.spec, self.as_of.version.manifest.graph)
        found = self.score(self._engine.run(golden.columns, golden.batch))
        for name, wanted in golden.outputs.items():
            apart = np.abs(found[name].astype(np.float64) - wanted.astype(np.float64))
            if not apart.max(initial=0.0) <= 4 * golden.allowed(name):
                raise Unsupported(
                    f"snapshot {self.as_of}: its golden requests get other scores here, {apart.max():.3g} apart in "
                    f"{name!r}; it uses what `emberline prove` does not compute"
                )


def _exchanged(features: FeatureBatch, group: str, change: Change) -> np.ndarray:
    """Returns the values of a dense group, (B, width)."""
    values = features.dense[group]
    moved = {place[1]: source for place, source in change.columns.items() if place[0] == group}
    if moved:
        values = values.copy()
        for column, (name, other) in moved.items():
            values[:, column] = features.dense[name][:, other]
    return values


def _rounded(rows: np.ndarray, row_type: str) -> np.ndarray:
    if not row_type or not len(rows):
        return rows
    codec = RowCodec(row_type, rows.shape[1])
    return codec.decode(codec.encode(rows))


def column(entry: InputSpec, values: np.ndarray) -> Column:
    """Returns an input's values as the feature engine takes them. Raises InvalidInput for another type or shape."""
    if entry.dtype != "BYTES":
        target = np.dtype(NUMPY_DTYPES[entry.dtype])
        if values.dtype != target and values.dtype.kind in "iufb" and values.dtype.kind == target.kind:
            narrow = values.astype(target)
            if target.kind in "iu" and not np.array_equal(narrow, values):
                wrong = f"{entry.dtype}, which cannot hold {values[narrow != values].reshape(-1)[0]}"
                raise InvalidInput(f"input {entry.name!r} is {wrong}", field=entry.name)
            values = narrow
    if entry.kind == "list":
        wide = values.reshape(len(values), -1)
        return column_from_jagged(
            entry.dtype, wide.reshape(-1), np.arange(len(wide) + 1) * wide.shape[1], name=entry.name
        )
    return column_from_numpy(entry.dtype, values.reshape(len(values), -1), name=entry.name)


def taken(features: FeatureBatch, rows: np.ndarray) -> FeatureBatch:
    """Returns some rows of a batch of features."""
    bags: dict[str, Jagged] = {}
    for name, each in features.ids.items():
        lengths = each.lengths()[rows]
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        places = np.repeat(each.offsets[rows] - offsets[:-1], lengths) + np.arange(offsets[-1])
        weights = None if each.weights is None else each.weights[places]
        bags[name] = Jagged(each.values[places], offsets, weights)
    return FeatureBatch(len(rows), {name: values[rows] for name, values in features.dense.items()}, bags)


def pooled(rows: np.ndarray, bags: Jagged, pooling: str) -> np.ndarray:
    """Pools rows (n, D) to (B, D) as sum, mean, weighted, sqrtn (a sum over the root of the count) or max."""
    lengths = bags.lengths()
    if pooling == "weighted" and bags.weights is not None:
        rows = rows * bags.weights[:, None]
    out = np.zeros((len(lengths), rows.shape[1]), np.float32)
    for step in range(int(lengths.max(initial=0))):
        longer = np.flatnonzero(lengths > step)
        each = rows[bags.offsets[longer] + step]
        out[longer] = np.maximum(out[longer], each) if pooling == "max" and step else out[longer] + each
    counts = np.maximum(lengths, 1).astype(np.float32)[:, None]
    return out / counts if pooling == "mean" else out / np.sqrt(counts) if pooling == "sqrtn" else out


def _padded(rows: np.ndarray, bags: Jagged, length: int) -> np.ndarray:
    lengths = bags.lengths()
    out = np.zeros((len(lengths), length, rows.shape[1]), np.float32)
    for step in range(min(length, int(lengths.max(initial=0)))):
        longer = np.flatnonzero(lengths > step)
        out[longer, step] = rows[bags.offsets[longer] + step]
    return out
