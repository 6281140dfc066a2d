"""Reads the newest commit of a run as a source: rows with counts and optimizer values, and the dense optimizer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from storage.errors import CheckpointError
from trainer.checkpoint import Commit, commit_chain, read_dense, read_table
from trainer.config import TrainConfig
from trainer.models import build_model, build_tables
from trainer.models.blocks import InputLayout, WeightLayout
from trainer.trained import read_run
from trainer.warm_start.source import PIECE_BYTES, Array, Ids, Piece, Source, SourceTable, check_whole


def read_run_source(output: Path) -> Source:
    """Opens a run's newest commit, and checks every byte of it. Raises NotFound, ConfigError, CheckpointError."""
    config, folder = read_run(output)
    check_whole({part.rows.name: part.kind for part in config.row_tables}, f"the run {output}")
    chain = commit_chain(folder)
    state = chain[-1].state
    arrays = read_dense(chain)
    weights = {name.removeprefix("model."): value for name, value in arrays.items() if name.startswith("model.")}
    parameters, layouts = _network(config, weights)
    return Source(
        title=f"the run {output} after step {state.position.step:,}",
        weights=weights,
        tables={name: _table(chain, name) for name in chain[-1].tables},
        model=config.model.type,
        spec=config.spec,
        layouts=layouts,
        dense_optimizer=config.optimizer.dense.type,
        dense_values=_values(arrays, parameters),
    )


@dataclass(frozen=True)
class CommitLayer:
    """The part of a table that one commit holds."""

    arrays: Mapping[str, Array]

    @property
    def removed(self) -> Ids:
        """Ids that it erases."""
        return self.arrays["removed_ids"]

    def ids(self) -> Iterator[Ids]:
        """Yields the ids of its rows."""
        yield self.arrays["ids"]

    def pieces(self) -> Iterator[Piece]:
        """Yields its rows, read from the mapped file piece by piece."""
        ids, rows, slots, counts = (self.arrays[name] for name in ("ids", "rows", "slots", "counts"))
        at_once = max(1, PIECE_BYTES // (8 + rows.itemsize * (rows.shape[1] + slots.shape[1])))
        for start in range(0, len(ids), at_once):
            part = slice(start, start + at_once)
            yield Piece(*(np.array(each[part]) for each in (ids, rows, counts, slots)))


def _table(chain: list[Commit], name: str) -> SourceTable:
    parts = [arrays for commit in chain for arrays in read_table(commit, name)]
    if not parts:
        raise CheckpointError(f"{chain[-1].folder}: has no file of the table {name!r}")

    def counts() -> Iterator[tuple[Ids, NDArray[np.uint32]]]:
        for arrays in parts:
            yield arrays["waiting_ids"].copy(), arrays["waiting_counts"].copy()

    return SourceTable(
        name,
        int(parts[0]["rows"].shape[1]),
        [CommitLayer(arrays) for arrays in parts],
        optimizer=chain[-1].tables[name].optimizer,
        steps=chain[-1].tables[name].steps,
        counts=counts,
    )


def _network(config: TrainConfig, weights: Mapping[str, Array]) -> tuple[list[str], dict[str, WeightLayout]]:
    """Returns the names of the parameters in the order in which the optimizer counts them, and the layouts."""
    with torch.random.fork_rng(devices=[]):
        model = build_model(config, build_tables(config))
    shapes = {name: value.shape for name, value in weights.items()}
    layouts = model.layouts(InputLayout(config.spec, model.features.dims, heads=config.targets.heads), shapes)
    return [name for name, _ in model.named_parameters()], layouts


def _values(arrays: Mapping[str, Array], parameters: list[str]) -> dict[str, dict[str, Array]]:
    values: dict[str, dict[str, Array]] = {}
    for name, array in arrays.items():
        if name.startswith("optimizer."):
            _, index, key = name.split(".", 2)
            values.setdefault(parameters[int(index)], {})[key] = array
    return values
