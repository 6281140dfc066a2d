"""Refuses, by name, settings that several ranks do not train yet."""

from __future__ import annotations

from collections.abc import Iterator

from storage.errors import ConfigError
from trainer.config import TrainConfig
from trainer.ranks import Ranks
from trainer.row_tables import TableConfig
from trainer.task_config import RANKING_LOSSES, RETRIEVAL


def check_ranks(config: TrainConfig, ranks: Ranks) -> None:
    """Raises ConfigError for what several ranks do not train."""
    if not ranks.are_several:
        return
    size = config.training.batch_size
    if size % ranks.size:
        raise ConfigError(
            f"training.batch_size is {size}, expected a multiple of {ranks.size}, because each of the {ranks.size} "
            "ranks trains on as many rows of a batch",
            field="training.batch_size",
        )
    for field, value in _refused(config):
        raise ConfigError(
            f"{field}: {value} is not trained by several ranks yet; leave it out, or train in one process (without "
            "torchrun)",
            field=field,
        )


def check_last_batch(config: TrainConfig, ranks: Ranks, rows: int) -> None:
    """Raises ConfigError when the last batch of an epoch has no row for some rank."""
    left = rows % config.training.batch_size
    if 0 < left < ranks.size:
        raise ConfigError(
            f"data: the last batch of an epoch has {left} of {rows:,} rows, expected {ranks.size} or more, one for "
            "each rank; choose another training.batch_size, or a limit",
            field="training.batch_size",
        )


def _refused(config: TrainConfig) -> Iterator[tuple[str, str]]:
    for part in config.row_tables:
        rows = part.rows
        if isinstance(rows, TableConfig) and rows.bloom is not None:
            yield f"tables.{rows.name}.admission", "admission by a filter"
    for task in config.targets.tasks:
        if task.loss in RANKING_LOSSES or task.loss == RETRIEVAL:
            yield f"tasks.{task.name}.loss", f"the loss {task.loss}, which compares rows of a batch,"
        if task.missing_label == "ignore":
            yield f"tasks.{task.name}.missing_label", "a task that leaves rows out"
