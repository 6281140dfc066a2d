"""Opens the rows that a configuration trains and is evaluated on, with the columns that each needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from trainer.config import TrainConfig
from trainer.data import BlockIndex, Data, DataRows, Wanted, check_time_column
from trainer.data.negative_sampling import sampled_negatives


def training_rows(
    config: TrainConfig, data: Data, index: BlockIndex | None = None, *, learns: bool = False
) -> DataRows:
    """Opens rows to train on, with labels, weights, groups and times. learns: as `Wanted` says."""
    column = config.training.time_column
    rows = DataRows.open(data, replace(learned_columns(config), learns=learns), config.data, index)
    if column is not None:
        check_time_column(rows.schema, column)
    return rows


def learned_columns(config: TrainConfig) -> Wanted:
    """Returns the columns that training reads: inputs, labels, weights, groups and times."""
    fields = dict(config.targets.groups)
    if config.training.time_column is not None:
        fields[config.training.time_column] = "training.time_column"
    return _learned(config, fields)


def rows_to_learn(config: TrainConfig, rows: DataRows) -> DataRows:
    """Returns the rows without the negative ones that data.negative_sampling leaves out."""
    rate = config.data.negative_sampling
    if rate == 1.0:
        return rows
    return sampled_negatives(rows, config.targets.tasks[0], rate, config.training.seed)


def evaluation_rows(config: TrainConfig, data: Data, index: BlockIndex | None = None) -> DataRows:
    """Opens rows to evaluate on: as those to train on, without times."""
    return DataRows.open(data, _learned(config, config.targets.groups), config.data, index)


def _learned(config: TrainConfig, kept: Mapping[str, str]) -> Wanted:
    targets = config.targets
    return Wanted(config.inputs, targets.numbers, targets.texts, keep=tuple(kept), fields=kept)
