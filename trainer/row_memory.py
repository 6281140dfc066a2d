"""Bounds the memory that a run gives its tables, and lists the rows that a batch needs there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from storage.features import FeatureSpec
from trainer.config import TrainConfig
from trainer.data import Batch
from trainer.embedding import RowMemory

ROWS = "rows"


def memory_of(config: TrainConfig, output: Path, processes: int = 1) -> RowMemory | None:
    """Returns the bounded memory of the tables of a run, None when they are to be in DRAM whole.

    processes: those that share the bound, on this machine.
    """
    bound = config.training.dram_bytes
    return None if bound is None else RowMemory(bound // processes, output / ROWS)


@contextmanager
def row_memory(config: TrainConfig, output: Path, processes: int = 1) -> Iterator[RowMemory | None]:
    """Yields `memory_of` and closes it after the block; the tables are not used after it."""
    memory = memory_of(config, output, processes)
    if memory is None:
        yield None
        return
    with memory:
        yield memory


def with_dram_bytes(config: TrainConfig, dram_bytes: int | None) -> TrainConfig:
    """Returns the configuration with another bound; None keeps its own."""
    if dram_bytes is None:
        return config
    content = config.model_dump()
    content["training"]["dram_bytes"] = dram_bytes
    return TrainConfig.model_validate(content)


class BatchIds:
    """Lists the ids that the layers of a spec look up in a batch."""

    def __init__(self, spec: FeatureSpec) -> None:
        self._features = spec.ids_features

    def __call__(self, batch: Batch) -> dict[str, NDArray[np.int64]]:
        """Returns the ids (N,) int64 by table, with repetitions."""
        found: dict[str, list[NDArray[np.int64]]] = {}
        for feature in self._features:
            values = batch.inputs[f"{feature.name}.values"].numpy()
            if feature.pooling == "none":
                offsets = batch.inputs[f"{feature.name}.offsets"].numpy()
                places = np.arange(len(values)) - np.repeat(offsets[:-1], np.diff(offsets))
                values = values[places < feature.length]  # a sequence layer does not look at the rest
            found.setdefault(feature.table, []).append(values)
        return {table: np.concatenate(parts) for table, parts in found.items()}
