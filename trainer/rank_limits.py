"""Refuses, by name, settings that several ranks do not train."""

from __future__ import annotations

from storage.errors import ConfigError
from trainer.config import TrainConfig
from trainer.ranks import Ranks


def check_ranks(config: TrainConfig, ranks: Ranks) -> None:
    """Raises ConfigError for what several ranks do not train."""
    if not ranks.are_several:
        return
    if config.training.batch_size < ranks.size:
        raise ConfigError(
            f"training.batch_size is {config.training.batch_size}, expected {ranks.size} or more: a row for each rank",
            field="training.batch_size",
        )
    for feature in config.features:
        if feature.fallback:
            raise ConfigError(
                f"features.{feature.name}.fallback: several ranks do not bring each other rows of a chain yet; leave "
                "it out, or train in one process (without torchrun)",
                field=f"features.{feature.name}.fallback",
            )
    if config.training.hbm_bytes is not None:
        raise ConfigError(
            "training.hbm_bytes: several ranks do not train rows in the memory of GPUs yet; leave it out, or train in "
            "one process (without torchrun)",
            field="training.hbm_bytes",
        )
