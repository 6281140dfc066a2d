"""Builds a run's publisher from its configuration and commits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from storage.features import Column
from trainer.checkpoint import TrainingState
from trainer.config import TrainConfig
from trainer.models import RankingModel
from trainer.publishing import DeltaPolicy, Lineage, Publisher
from trainer.row_tables import TableConfig

# What a published version says of a task.
_DESCRIBED = {"name", "label", "loss", "classes"}


def delta_policy(config: TrainConfig) -> DeltaPolicy:
    """Returns the publishing policy of a configuration."""
    options = config.publish
    return DeltaPolicy(
        delta_every_steps=options.delta_every_steps,
        delta_every_rows=options.delta_every_rows,
        delta_every_seconds=options.delta_every_seconds,
        on_drift=None if options.delta_on_drift is None else (options.delta_on_drift.rise, options.delta_on_drift.rows),
        cumulative_every=options.cumulative_every,
        version_every_deltas=options.version_every_deltas,
        version_at_share=options.version_at_share,
        full_weights_every=options.full_weights_every,
        keep_deltas=options.keep_deltas,
        keep_versions=options.keep_versions,
        expire_after={
            rows.name: rows.expire_after_publishes
            for rows in (part.rows for part in config.row_tables)
            if isinstance(rows, TableConfig) and rows.expire_after_publishes
        },
    )


def publisher_of(
    config: TrainConfig,
    model: RankingModel,
    sample: dict[str, Column],
    repository: Path | str,
    policy: DeltaPolicy,
    lineage: Lineage | None,
    *,
    progress: bool = False,
) -> Publisher:
    """Returns the publisher of a run.

    sample: raw columns to draw golden requests from. lineage: that of the commit resumed from.
    """
    options = config.publish
    return Publisher(
        model,
        sample,
        repository,
        name=config.model_name,
        spec=config.spec,
        max_batch_size=options.max_batch_size,
        golden_requests=options.golden_requests,
        tolerance=options.tolerance,
        metadata=described(config),
        row_types=config.row_types,
        policy=policy,
        lineage=lineage,
        progress=progress,
    )


def described(config: TrainConfig) -> dict[str, Any]:
    """Returns what a manifest's metadata says of a run: what it learned, and the type of its model."""
    return {**_learned(config), "model": config.model.type}


def is_described(metadata: Mapping[str, Any]) -> bool:
    """Returns whether a manifest's metadata is that of a run."""
    return "model" in metadata and ("label" in metadata or "tasks" in metadata)


def _learned(config: TrainConfig) -> dict[str, Any]:
    if config.label is not None:
        return {"label": config.label.model_dump(mode="json")}
    return {"tasks": [task.model_dump(mode="json", include=_DESCRIBED, exclude_none=True) for task in config.tasks]}


def lineage_of(state: TrainingState | None) -> Lineage | None:
    """Returns the lineage that a commit holds; None when nothing was published."""
    if state is None or state.publishing is None:
        return None
    return Lineage.from_json_value(state.publishing)
