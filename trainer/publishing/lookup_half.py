"""The lookup half in plain numpy: slow, obvious, over the rows as published. The golden scores rest on it.

For a delta the rows are read out of the trained table itself, so that the cost is that of the ids asked for. B rows, N
ids, D dim, L length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from storage.checkpoint import TableData
from storage.features import FeatureBatch, Jagged
from storage.features.fallback import MEAN_ID, level_ids
from storage.initializers import AbsentRows
from storage.rows import RowCodec
from storage.specs import LookupLevel
from trainer.embedding import EmbeddingTable
from trainer.publishing.cut_plan import CutPlan
from trainer.publishing.weight_rows import WeightRows

# Rows that are read by id out of the module.
LiveRows = EmbeddingTable | WeightRows
TableRows = TableData | LiveRows


def graph_tensors(
    features: FeatureBatch, plan: CutPlan, tables: Mapping[str, TableRows], codecs: Mapping[str, RowCodec] | None = None
) -> list[Tensor]:
    """Returns the dense half's inputs for these features, in the order of plan.graph_inputs().

    codecs: rows as they are when they were published with these; None takes them as they were trained.
    """
    tensors = [
        torch.from_numpy(
            np.ascontiguousarray(features.integers(entry.group) if entry.is_integer else features.dense[entry.group])
        )
        for entry in plan.dense
    ]
    for feature in plan.features:
        bags = features.ids[feature.name]
        lengths = bags.lengths()
        found, _ = find_rows(tables[feature.table], bags.values, feature.absent)
        if codecs is not None:
            found = rounded(codecs[feature.table], found)
        if feature.fallback:
            levels = read_levels(feature.table, feature.fallback, features, feature.name, tables)
            found = chain_rows(found, levels, feature.fallback, features, feature.name, tables, codecs)
        if feature.pooling == "none":
            rows = padded_rows(found, bags, feature.length)
            lengths = np.minimum(lengths, feature.length)
        else:
            rows = pooled_rows(found, bags, feature.pooling)
        tensors.append(torch.from_numpy(rows))
        if feature.with_lengths:
            tensors.append(torch.from_numpy(lengths))
    return tensors


def find_rows(table: TableRows, ids: np.ndarray, absent: AbsentRows | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Maps ids (N,) to rows (N, D), absent rows where the table has none, and found (N,) bool.

    absent: what those are; None: what the table says. In a trained table a row that is the absent row counts as not
    found; no score can tell the two apart.
    """
    ids = np.ascontiguousarray(ids)
    without = (table.absent if absent is None else absent).rows(ids, table.dim)
    if isinstance(table, EmbeddingTable):
        rows = _as_layers_read(table, ids, absent)
        return rows, np.asarray((rows != without).any(axis=1))
    if isinstance(table, WeightRows):
        rows, found = table.find(ids)
        rows[~found] = without[~found]
        return rows, found
    if len(table.ids) == 0:
        return without, np.zeros(len(ids), bool)
    places = np.minimum(np.searchsorted(table.ids, ids), len(table.ids) - 1)
    found = table.ids[places] == ids
    rows = table.rows[places]
    rows[~found] = without[~found]
    return rows, found


def read_levels(
    table: str, fallback: Sequence[LookupLevel], features: FeatureBatch, name: str, tables: Mapping[str, TableRows]
) -> np.ndarray:
    """Returns the level of its chain that each id of a feature reads, (N,): 0 its own row, then those of `fallback`.

    An id for which no level has a row has one more than there are levels.
    """
    bags = features.ids[name]
    levels = np.where(_has_row(tables[table], bags.values), 0, len(fallback) + 1)
    for number, level in enumerate(fallback, start=1):
        left = np.flatnonzero(levels > len(fallback))
        ids, has = _ids_of_level(level, bags, left, features)
        left, ids = left[has], ids[has]
        levels[left[_has_row(tables[level.table], ids)]] = number
    return levels


def chain_rows(
    rows: np.ndarray,
    levels: np.ndarray,
    fallback: Sequence[LookupLevel],
    features: FeatureBatch,
    name: str,
    tables: Mapping[str, TableRows],
    codecs: Mapping[str, RowCodec] | None,
) -> np.ndarray:
    """Returns rows (N, D) of the ids of a feature, in which those of its chain stand where `levels` says so."""
    rows = rows.copy()
    for number, level in enumerate(fallback, start=1):
        places = np.flatnonzero(levels == number)
        ids, _ = _ids_of_level(level, features.ids[name], places, features)
        found, _ = find_rows(tables[level.table], ids)
        rows[places] = found if codecs is None else rounded(codecs[level.table], found)
    return rows


def _ids_of_level(
    level: LookupLevel, bags: Jagged, places: np.ndarray, features: FeatureBatch
) -> tuple[np.ndarray, np.ndarray]:
    if not level.feature:
        return np.full(len(places), MEAN_ID), np.ones(len(places), bool)
    return level_ids(bags, places, features.ids[level.feature], level.parallel)


def _has_row(table: TableRows, ids: np.ndarray) -> np.ndarray:
    if isinstance(table, EmbeddingTable):
        return np.asarray(table.read(np.ascontiguousarray(ids))[1] != 0)
    return find_rows(table, ids)[1]


def _as_layers_read(table: EmbeddingTable, ids: np.ndarray, absent: AbsentRows | None) -> np.ndarray:
    """Reads rows (N, D) out of a trained table, as a layer with these absent rows does."""
    if absent is None:
        return table.lookup(ids, train=False)
    rows, has_row = table.read(ids)
    without = has_row == 0
    rows[without] = absent.rows(ids[without], table.dim)
    return rows


def rounded(codec: RowCodec, rows: np.ndarray) -> np.ndarray:
    """Returns rows (N, D) as they read back after they were stored."""
    return codec.decode(codec.encode(rows))


def pooled_rows(rows: np.ndarray, bags: Jagged, pooling: str) -> np.ndarray:
    """Pools rows (N, D) of the ids of bags to (B, D), summed in their order; a mean divides by the ids given."""
    lengths, offsets = bags.lengths(), bags.offsets
    if pooling == "weighted":
        assert bags.weights is not None
        rows = rows * bags.weights[:, None]
    out = np.zeros((len(lengths), rows.shape[1]), np.float32)
    for step in range(int(lengths.max(initial=0))):
        longer = np.flatnonzero(lengths > step)
        out[longer] += rows[offsets[longer] + step]
    if pooling == "mean":
        out /= np.maximum(lengths, 1).astype(np.float32)[:, None]
    return out


def padded_rows(rows: np.ndarray, bags: Jagged, length: int) -> np.ndarray:
    """Pads rows (N, D) of the ids of bags to (B, L, D): the first `length` of each, then zeros."""
    lengths, offsets = bags.lengths(), bags.offsets
    out = np.zeros((len(lengths), length, rows.shape[1]), np.float32)
    for step in range(min(length, int(lengths.max(initial=0)))):
        longer = np.flatnonzero(lengths > step)
        out[longer, step] = rows[offsets[longer] + step]
    return out


def first_rows(tensors: Sequence[Tensor], count: int) -> list[Tensor]:
    """The first `count` rows of each tensor."""
    return [tensor[:count].contiguous() for tensor in tensors]
