"""Reads the content of a delta out of the live module: changed rows, removed ids, dense weights.

The dense graph is that of the version; its weights have the same names in the module, so nothing is exported again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from storage.checkpoint import DeltaTable, DenseGraph
from storage.checkpoint.program import weight_key
from storage.errors import CheckpointError
from trainer.embedding import EmbeddingTable
from trainer.publishing.dense_half import DenseHalf
from trainer.publishing.embedding_layers import frequency_byte


@dataclass(frozen=True)
class Changes:
    """The rows that a delta holds."""

    tables: list[DeltaTable]
    #: By table, computed from the module's own tables.
    fingerprints: dict[str, int]


def tracked_changes(
    tables: Mapping[str, EmbeddingTable], since: Mapping[str, int], row_types: Mapping[str, str]
) -> Changes:
    """Returns, for each table, the rows that changed and the ids that were removed after the stamps of `since`.

    row_types: those of the version.
    """
    changed = [_changed(name, table, since.get(name, 0), row_types[name]) for name, table in tables.items()]
    own = {name: table.changes_fingerprint(row_types[name], since.get(name, 0)) for name, table in tables.items()}
    return Changes(changed, own)


def is_unchanged(tables: Mapping[str, EmbeddingTable], since: Mapping[str, int]) -> bool:
    """Returns whether no row changed and no id was removed after the stamps of `since`."""
    return not any(table.has_changes(since.get(name, 0)) for name, table in tables.items())


def live_weights(half: DenseHalf, graph: DenseGraph) -> dict[str, Tensor]:
    """Returns the weights of a published graph as they are in the module now; constants of the graph are its own.

    Raises CheckpointError for a weight that the module does not have any more.
    """
    # By the names that torch.export uses; a module's own state_dict may rename, leave out or convert its entries.
    buffers = dict(half.named_buffers(remove_duplicate=False))
    named = {**dict(half.named_parameters(remove_duplicate=False)), **buffers}
    live: dict[str, Tensor] = {weight_key("state", name): value for name, value in named.items()}
    # Buffers that are not saved are constants to torch.export; they may change all the same.
    live.update({weight_key("constant", name): value for name, value in buffers.items()})
    weights: dict[str, Tensor] = {}
    for key, published in graph.weights().items():
        value = live.get(key)
        if value is None and key.startswith(weight_key("state", "")):
            raise CheckpointError(f"the module has no weight {key!r}, which its version has; publish a version")
        kept = published if value is None else value.detach().cpu().contiguous()
        if kept.dtype != published.dtype or kept.shape != published.shape:
            raise CheckpointError(
                f"the module's weight {key!r} is {kept.dtype} {list(kept.shape)}, published was {published.dtype} "
                f"{list(published.shape)}; publish a version"
            )
        weights[key] = kept
    return weights


def weight_arrays(weights: Mapping[str, Tensor]) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Returns weights as numpy arrays, and the safetensors names of those whose numpy type does not say it."""
    arrays: dict[str, np.ndarray] = {}
    dtypes: dict[str, str] = {}
    for key, value in weights.items():
        if value.dtype == torch.bfloat16:
            arrays[key] = value.view(torch.int16).numpy().view(np.uint16)
            dtypes[key] = "BF16"
        else:
            arrays[key] = value.numpy()
    return arrays, dtypes


def _changed(name: str, table: EmbeddingTable, since: int, row_type: str) -> DeltaTable:
    ids, rows, counts = table.published_rows(since)
    return DeltaTable(
        name, table.dim, ids, rows, frequency_byte(counts), table.removed_since(since), row_type, table.absent
    )
