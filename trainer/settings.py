"""The configuration that a run was trained with, kept in its commits so that a change can be named.

A setting is a dotted name and a value, both text: `tables.items.dim` is `16`. A large value or one with parts of its
own, such as the transforms of a feature, is stored as a digest.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from storage.errors import ChangedConfig, ConfigError
from storage.features.feature import Feature
from trainer.config import TrainConfig

# Settings that a resumed training may change; `publish`, `tracking` and the model's name are no settings at all.
_FREE_ON_RESUME = (
    "epochs",
    "eval_every",
    "checkpoint_every_steps",
    "dram_bytes",
    "feature_threads",
    "device",
    "precision",
    "compile",
    "hbm_bytes",
    "wire",
)
# Settings of a table that say which rows it has, and what their values mean.
_OF_ROWS = ("kind", "dim", "dims", "rows", "buckets", "quotient_buckets", "hashes", "combine", "seed")
# Of `data`: another file that is left out makes other data, which is compared itself.
_FREE_OF_DATA = {"read_threads", "column_threads", "on_damaged"}
# Settings that have keys of their own.
_IN_PARTS = ("inputs", "features", "tables", "label", "tasks", "sample_weight")
# Settings of a task that say what its head computes.
_OF_HEADS = ("place", "loss", "classes", "given")
# Of each table.
_FREE_OF_TABLES = ("admit_after", "eviction")
# The setting that stands for a new or removed entry of a section.
_STANDS_FOR = {"tables": ".kind", "tasks": ".place"}
_NAMED_AT_MOST = 5

Settings = dict[str, str]


def settings_of(config: TrainConfig) -> Settings:
    """Returns the settings of a configuration, without those that a resumed run may change."""
    content = config.model_dump(mode="json", exclude={"publish", "tracking", "model_name", "data", *_IN_PARTS})
    for free in _FREE_ON_RESUME:
        content["training"].pop(free)
    # Defaults are left out: runs that began before an option was there have none of it.
    content["data"] = config.data.model_dump(mode="json", exclude_defaults=True, exclude=_FREE_OF_DATA)
    if content["training"]["early_stopping"] is None:
        del content["training"]["early_stopping"]  # as in runs of releases that had none
    if not content["training"]["fallback_share"]:
        del content["training"]["fallback_share"]
    found = dict(_leaves(content))
    if config.label is not None:
        found |= _leaves({"label": config.label.model_dump(mode="json")})
    if config.sample_weight is not None:
        found["sample_weight"] = config.sample_weight
    for place, task in enumerate(config.tasks):
        found[f"tasks.{task.name}.place"] = str(place)
        for key, value in task.model_dump(mode="json", exclude={"name", "metrics"}).items():
            found[f"tasks.{task.name}.{key}"] = str(value)
    for entry in config.inputs:
        found[f"inputs.{entry.name}"] = _digest(entry.model_dump(mode="json", exclude={"column_type"}))
    for feature in config.features:
        found[f"features.{feature.name}"] = _shape(config, feature)
        found[f"definitions.{feature.name}"] = _digest(feature.model_dump(mode="json"))
    for table in config.tables:
        for key, value in table.model_dump(mode="json", exclude={"name", *_FREE_OF_TABLES}).items():
            found[f"tables.{table.name}.{key}"] = str(value)
    return found


def check_same_training(trained: Settings, config: TrainConfig, folder: Path) -> None:
    """Raises ChangedConfig naming the difference, when continuing with `config` would not be the same training."""
    changes = _differences(trained, settings_of(config))
    if changes:
        raise ChangedConfig(
            f"{folder}: was trained with another configuration: {_listed(changes)}. On resume only "
            f"{', '.join((*_FREE_ON_RESUME, *_FREE_OF_TABLES))}, "
            f"{', '.join(f'data.{name}' for name in sorted(_FREE_OF_DATA))}, tasks.metrics, "
            "publish and tracking may change; give the configuration that the run began with, or start a new run in "
            "another folder from this one (start_from, --from)",
            field="resume",
        )


def check_same_model(trained: Settings, config: TrainConfig, folder: Path) -> None:
    """Raises ConfigError naming the feature, table or option by which the model of `config` has another shape."""
    before, after = ({key: one[key] for key in one if _is_of_the_model(key)} for one in (trained, settings_of(config)))
    changes = _differences(before, after)
    if changes:
        raise ConfigError(
            f"{folder}: was trained as another model than config.json describes now: {_listed(changes)}. A run keeps "
            "its features, tables and network; put config.json back, or train the new model into another folder, "
            f"from this run (emberline train --from {folder.parent.parent}), and publish it as the next version",
            field="config",
        )


def _is_of_the_model(key: str) -> bool:
    section, *rest = key.split(".")
    if section == "tasks":
        return rest[-1] in _OF_HEADS
    return section in ("features", "model") or (section == "tables" and rest[-1] in _OF_ROWS)


def _shape(config: TrainConfig, feature: Feature) -> str:
    """Describes the shape in which the network sees a feature."""
    if feature.output == "dense":
        return f"{config.spec.flow(feature.name).high} dense values in the group {feature.group}"
    if feature.output == "integers":
        return f"{config.spec.flow(feature.name).high} integers"
    length = f" of {feature.length}" if feature.pooling == "none" else ""
    return f"ids of the table {feature.table}, pooling {feature.pooling}{length}"


def _differences(before: Settings, after: Settings) -> list[str]:
    changes = []
    for key in dict.fromkeys((*before, *after)):
        old, new = before.get(key), after.get(key)
        section = key.partition(".")[0]
        if old == new:
            continue
        if old is None or new is None:
            # One of its settings stands for a table, a task or a feature that is new or gone.
            kept = _STANDS_FOR.get(section, "")
            if section != "definitions" and key.endswith(kept):
                name = key.removesuffix(kept)
                changes.append(f"{name} was {'added' if old is None else 'removed'}")
        elif section in ("inputs", "definitions"):
            changes.append(f"{key.replace('definitions.', 'features.', 1)} was changed")
        else:
            changes.append(f"{key} was {old} and is {new}")
    return changes


def _leaves(content: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for key, value in content.items():
        found += _leaves(value, f"{prefix}{key}.") if isinstance(value, dict) else [(f"{prefix}{key}", str(value))]
    return found


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


def _listed(changes: list[str]) -> str:
    more = f" and {len(changes) - _NAMED_AT_MOST} more" if len(changes) > _NAMED_AT_MOST else ""
    return ", ".join(changes[:_NAMED_AT_MOST]) + more
