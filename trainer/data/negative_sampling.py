"""Trains on a share of the rows with label 0, and corrects the probabilities for it.

A row is kept by its position in the data and a seed alone, so every epoch, a resumed run and another run of the same
data see the same rows. With a share `rate` of the negative rows, the odds that a model learns are those of the data
divided by the rate; in log-odds, log(rate) is added to what the model gives. Source: He et al., "Practical Lessons from
Predicting Clicks on Ads at Facebook", 2014: p / (p + (1 - p) / rate).

N rows of a block.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from storage.data import DataRows, RowBlock
from trainer.task_config import TaskConfig

_STEP = np.uint64(0x9E3779B97F4A7C15)


def sampled_negatives(rows: DataRows, task: TaskConfig, rate: float, seed: int) -> DataRows:
    """Returns the rows with label 1, and a share of those with label 0. It reads the label of every row once.

    Rows without a label are left out, if the task ignores them.

    Raises InvalidInput for a label that cannot be read.
    """
    blocks: list[RowBlock] = []
    at = 0
    for block in rows.blocks:
        kept = _kept(block, rows.schema, task, rate, seed, at)
        at += block.rows
        if len(kept):
            blocks.append(SampledBlock(block.file, block.block, 0, len(kept), block.own, block.options, block, kept))
    text = f"{rows.fingerprint} negatives {rate} {seed}"
    return replace(rows, blocks=tuple(blocks), fingerprint=hashlib.sha256(text.encode()).hexdigest())


@dataclass(frozen=True)
class SampledBlock(RowBlock):
    """Some rows of a block."""

    whole: RowBlock
    #: The rows of `whole` that are kept, ascending.
    kept: NDArray[np.int32] = field(compare=False)

    def read(self, schema: Any) -> Any:
        """Reads the kept rows as `RowBlock.read` does."""
        return self.whole.read(schema).take(pa.array(self.kept[self.skip : self.skip + self.rows]))

    def only(self, names: Collection[str]) -> SampledBlock:
        """Returns the same rows, of which `read` reads some columns."""
        return replace(super().only(names), whole=self.whole.only(names))

    def place_of(self, row: int) -> str:
        """Returns the file and the row or line of a kept row."""
        return self.whole.place_of(int(self.kept[self.skip + row]))


def kept_of_table(table: Any, task: TaskConfig, rate: float, seed: int, first: int) -> NDArray[np.int32]:
    """Returns the rows of a pyarrow Table that are trained on, ascending. first: the position of the first in the data.

    Raises InvalidInput for a label that cannot be read.
    """
    labels = task.label.read(table, may_miss=task.missing_label == "ignore")
    drawn = _hashed(seed, first, table.num_rows)
    return np.flatnonzero(((labels != 0) | (drawn < rate)) & ~np.isnan(labels)).astype(np.int32)


def _kept(block: RowBlock, schema: Any, task: TaskConfig, rate: float, seed: int, first: int) -> NDArray[np.int32]:
    label = task.label
    own = pa.schema([entry for entry in block.own if entry.name == label.column])
    table = replace(block, own=own).read(pa.schema([schema.field(label.column)]))
    return kept_of_table(table, task, rate, seed, first)


def _hashed(seed: int, first: int, rows: int) -> NDArray[np.float64]:
    """Returns a number from 0 to below 1 for each of some rows (N,), by seed and position, with SplitMix64."""
    with np.errstate(over="ignore"):
        state = (np.arange(first + 1, first + 1 + rows, dtype=np.uint64) + np.uint64(seed) * _STEP) * _STEP
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            state = (state ^ (state >> np.uint64(shift))) * np.uint64(factor)
        state ^= state >> np.uint64(31)
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53
