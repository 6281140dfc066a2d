"""Refuses, by name, settings that several ranks do not train yet."""

from __future__ import annotations

from collections.abc import Iterator

from storage.errors import ConfigError
from trainer.config import TrainConfig
from trainer.ranks import Ranks
from trainer.row_tables import TableConfig


def check_ranks(config: TrainConfig, ranks: Ranks) -> None:
    """Raises ConfigError for what several ranks do not train."""
    if not ranks.are_several:
        return
    if config.training.batch_size < ranks.size:
        raise ConfigError(
            f"training.batch_size is {config.training.batch_size}, expected {ranks.size} or more: a row for each rank",
            field="training.batch_size",
        )
    for field, value in _refused(config):
        raise ConfigError(
            f"{field}: {value} is not trained by several ranks yet; leave it out, or train in one process (without "
            "torchrun)",
            field=field,
        )


def _refused(config: TrainConfig) -> Iterator[tuple[str, str]]:
    for part in config.row_tables:
        rows = part.rows
        if isinstance(rows, TableConfig) and rows.bloom is not None:
            yield f"tables.{rows.name}.admission", "admission by a filter"
