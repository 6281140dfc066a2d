"""Loads commits back into a model, its tables and its optimizer.

N rows, D dim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from storage.checkpoint.tensors import TensorFile
from storage.errors import CheckpointError
from trainer.checkpoint.commits import DENSE, Commit, chain_of
from trainer.checkpoint.state import TrainingState
from trainer.checkpoint.tables import FILTER_LAYOUT, TABLE_FIELDS, table_paths
from trainer.embedding import EmbeddingTable
from trainer.embedding.whole_table import owned

_BYTES_AT_ONCE = 64 << 20

# Keys that torch's optimizers, as this package makes them, keep for each weight.
_OPTIMIZER_VALUES: dict[type, set[str]] = {
    torch.optim.Adam: {"step", "exp_avg", "exp_avg_sq"},
    torch.optim.AdamW: {"step", "exp_avg", "exp_avg_sq"},
    torch.optim.Adagrad: {"step", "sum"},
    torch.optim.SGD: set(),
}

Array = np.ndarray[Any, Any]


def commit_chain(folder: Path) -> list[Commit]:
    """Returns a commit and all that it stands on, the full one first, with every file checked.

    Raises IntegrityError for a changed byte.
    """
    chain = chain_of(folder)
    for commit in chain:
        commit.check_files()
    return chain


def read_dense(chain: Sequence[Commit]) -> dict[str, Array]:
    """Returns the arrays of the newest dense weights of a chain: `model.NAME`, `optimizer.INDEX.KEY` and `random`."""
    # A commit without a training step between it and its parent holds no dense weights of its own.
    commit = next((commit for commit in reversed(chain) if DENSE in commit.files), None)
    if commit is None:
        raise CheckpointError(f"{chain[-1].folder}: neither it nor what it stands on has {DENSE}")
    return TensorFile.open(commit.folder / DENSE).arrays


def read_table(commit: Commit, name: str) -> list[dict[str, Array]]:
    """Returns what one commit holds of a table, mapped, in parts with other ids each: one for each rank that trained.

    Empty when nothing of it changed. Raises CheckpointError.
    """
    parts = []
    for path in table_paths(name, commit.files):
        arrays = TensorFile.open(commit.folder / path).arrays
        if missing := [field for field in TABLE_FIELDS if field not in arrays]:
            raise CheckpointError(
                f"{commit.folder / path}: lacks {missing[0]!r}; the checkpoint was made by another release"
            )
        parts.append(arrays)
    return parts


def load_checkpoint(
    folder: Path,
    model: nn.Module,
    tables: Mapping[str, EmbeddingTable],
    optimizer: torch.optim.Optimizer | None = None,
) -> TrainingState:
    """Puts a commit's weights and rows in place; with an optimizer also its state and torch's generator.

    folder: that of the commit; the commits it stands on lie beside it. model, tables, optimizer: fresh, from the
    configuration of the run. Raises IntegrityError for a changed byte, CheckpointError when they do not fit.
    """
    chain = commit_chain(folder)
    _load_dense(chain, model, optimizer)
    unknown = set(chain[-1].tables) - set(tables)
    if unknown:
        raise CheckpointError(f"{folder}: holds the table {min(unknown)!r}; it was saved by another configuration")
    for name, table in tables.items():
        _load_table(chain, name, table)
    return chain[-1].state


def _load_dense(chain: Sequence[Commit], model: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
    arrays, folder = read_dense(chain), chain[-1].folder
    weights = {
        name.removeprefix("model."): _tensor(array) for name, array in arrays.items() if name.startswith("model.")
    }
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise CheckpointError(f"{folder}: its weights are those of another model: {error}") from None
    if optimizer is None:
        return
    values: dict[int, dict[str, Tensor]] = {}
    for name, array in arrays.items():
        if name.startswith("optimizer."):
            _, index, key = name.split(".", 2)
            values.setdefault(int(index), {})[key] = _tensor(array)
    _check_optimizer(folder, values, optimizer)
    optimizer.load_state_dict({"state": values, "param_groups": optimizer.state_dict()["param_groups"]})
    torch.set_rng_state(_tensor(arrays["random"]))


def _check_optimizer(
    folder: Path, values: Mapping[int, Mapping[str, Tensor]], optimizer: torch.optim.Optimizer
) -> None:
    # Another optimizer would accept this state silently, then fail or train differently at the next step.
    wanted = next((values for kind, values in _OPTIMIZER_VALUES.items() if isinstance(optimizer, kind)), None)
    saved = {key for entry in values.values() for key in entry}
    if wanted is not None and saved != wanted and (saved or "sum" in wanted):
        raise CheckpointError(
            f"{folder}: was trained with another dense optimizer than {type(optimizer).__name__}; "
            "optimizer.dense.type cannot change in the life of a run"
        )


def _load_table(chain: Sequence[Commit], name: str, table: EmbeddingTable) -> None:
    stamps = chain[-1].tables.get(name)
    if stamps is None:
        raise CheckpointError(f"{chain[-1].folder}: holds no table {name!r}; it was saved by another configuration")
    if stamps.optimizer != table.optimizer:
        raise CheckpointError(
            f"{chain[-1].folder}: table {name!r} was trained by {stamps.optimizer}, not by {table.optimizer}; "
            "optimizer.sparse.type cannot change in the life of a run"
        )
    saved = [read_table(commit, name) for commit in chain]
    table.set_stamp(stamps.stamp + 1)
    table.set_steps(stamps.steps)
    gone = [np.empty(0, np.int64)]
    for parts in saved[:0:-1]:
        gone.append(np.unique(np.concatenate([gone[-1], *(arrays["removed_ids"] for arrays in parts)])))
    # A row that a later commit holds replaces the earlier one, so the order is that of the chain; one that a later
    # commit says was removed must not come back from an earlier one.
    for commit, parts, later in zip(chain, saved, reversed(gone), strict=True):
        for arrays in parts:
            if arrays["rows"].shape[1] != table.dim:
                raise CheckpointError(
                    f"{commit.folder}: table {name!r} has dim {arrays['rows'].shape[1]}, expected {table.dim}"
                )
            _restore_rows(table, arrays, later)
    for commit, parts in zip(chain, saved, strict=True):
        for arrays in parts:
            _restore_filter(table, arrays, commit.folder, commit.tables[name].stamp)
            table.restore_counts(*_own(table, arrays["waiting_ids"], arrays["waiting_counts"]))
            table.restore_removed(*_own(table, arrays["removed_ids"], arrays["removed_stamps"]))
    try:
        table.restore_eviction(stamps.eviction)
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"{chain[-1].folder}: table {name!r}: eviction: {error!r}") from None
    table.forgotten = stamps.forgotten
    table.saved(stamps.stamp)


def _own(table: EmbeddingTable, ids: Array, *fields: Array) -> list[Array]:
    """Returns copies of ids and of what belongs to them, of the ids whose rows this rank has."""
    mine = owned(table, ids)
    return [each[mine].copy() for each in (ids, *fields)]


def _restore_filter(table: EmbeddingTable, arrays: Mapping[str, Array], folder: Path, stamp: int) -> None:
    shape = [int(each) for each in arrays["filter_shape"]] if "filter_shape" in arrays else [0, 0, 0, FILTER_LAYOUT]
    if shape[3:] != [FILTER_LAYOUT]:
        raise CheckpointError(
            f"{folder}: the filter of table {table.name!r} was made by another release; start a new run from this one "
            "(start_from, --from)"
        )
    blocks, probes, bits, _ = shape
    if (blocks, probes) != table.filter_shape[:2]:
        raise CheckpointError(
            f"{folder}: table {table.name!r} has a filter of {blocks} blocks and {probes} probes, expected "
            f"{table.filter_shape[:2]}; of a table's admission only admit_after can change in the life of a run"
        )
    if blocks == 0:
        return
    pages, content = arrays["filter_pages"], arrays["filter_content"]
    at_once = max(1, _BYTES_AT_ONCE // content.shape[1])
    for start in range(0, len(pages), at_once):
        part = slice(start, start + at_once)
        table.restore_filter(pages[part].copy(), content[part].copy(), bits, stamp)


def _restore_rows(table: EmbeddingTable, arrays: Mapping[str, Array], gone: Array) -> None:
    """Restores rows in parts, so that mapped files need not be in memory at once. gone: ids (m,) ascending to leave
    out.
    """
    fields = [arrays[field] for field in ("ids", "rows", "slots", "counts", "stamps", "ticks")]
    count = len(fields[0])
    at_once = max(1, _BYTES_AT_ONCE * count // max(1, sum(field.nbytes for field in fields)))
    for start in range(0, count, at_once):
        part = [field[start : start + at_once] for field in fields]
        keep = ~np.isin(part[0], gone, assume_unique=True) if len(gone) else slice(None)
        table.restore(*_own(table, *(field[keep] for field in part)))


def _tensor(array: Array) -> Tensor:
    return torch.from_numpy(array.copy())
