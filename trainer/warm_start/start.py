"""Starts a model from another one: what is new is initialised, what is gone is named."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from storage.errors import ConfigError
from storage.features.spec import FeatureSpec
from trainer.config import TrainConfig
from trainer.embedding import Embedding, EmbeddingBag, EmbeddingTable, SparseOptimizer
from trainer.model_config import OwnModelConfig
from trainer.models import RankingModel, build_model, build_tables
from trainer.models.blocks import InputLayout
from trainer.optimizers import dense_optimizer, sparse_optimizer
from trainer.start_report import Change, StartReport, TableStart
from trainer.warm_start.opening import open_source
from trainer.warm_start.renamed import Renamed
from trainer.warm_start.rows import SlotsFor, take_rows
from trainer.warm_start.source import Source
from trainer.warm_start.weights import Taking, find_by_layout, find_by_name, take_weights

Rows = NDArray[np.float32]

_NAMED_AT_MOST = 10


@dataclass(frozen=True)
class StartFrom:
    """The source of a start, and how names of the model are found in it."""

    #: The output folder of a run; or REPOSITORY/MODEL, with or without /VERSION or /VERSION.SEQUENCE behind it.
    source: Path | str
    #: Old names by new ones, of tables and features; in a module of your own, also of weights, by how they begin.
    renamed: Mapping[str, str] = field(default_factory=dict)
    #: Takes the leading block of a dense weight of another shape, where nothing is known of what its values mean.
    partial: bool = False


def start_config(
    config: TrainConfig,
    given: StartFrom,
    model: RankingModel,
    tables: Mapping[str, EmbeddingTable],
    dense: torch.optim.Optimizer,
    sparse: SparseOptimizer,
    *,
    dry_run: bool = False,
) -> StartReport:
    """Fills a new model, its empty tables and its optimizers, all of this configuration. Returns what was taken.

    A dry run changes nothing. Raises ConfigError when nothing of the source fits, NotFound, CheckpointError.
    """
    _check_kinds(tables)
    source = open_source(given.source)
    spec = config.spec
    names = _names(given.renamed, source, tables, model, [feature.name for feature in spec.features])
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    takings: dict[str, Taking] = {}
    if source.model == config.model.type and source.layouts:
        inputs = InputLayout(spec, model.features.dims, names.feature, config.targets.heads)
        takings = find_by_layout(source, shapes, model.layouts(inputs, shapes))
    elif given.partial or (source.model == config.model.type and isinstance(config.model, OwnModelConfig)):
        takings = find_by_name(source, shapes, {name: names.weight(name) for name in shapes}, partial=given.partial)
    before = {feature.name for feature in source.spec.features} if source.spec is not None else set()
    shared = [feature.name for feature in spec.features if names.feature(feature.name) in before]
    _check_fit(source, names, tables, bool(takings) and (bool(shared) or given.partial))
    notes = _notes(spec, source, names)
    if source.model != config.model.type:
        notes.insert(0, f"the source is another model ({source.model or 'a module'}), this one is {config.model.type}")
    started = _take_tables(source, tables, names, sparse.slots_for, dry_run=dry_run)
    return StartReport(source.title, started, take_weights(source, model, takings, dense, dry_run=dry_run), notes)


def plan_start(config: TrainConfig, given: StartFrom) -> StartReport:
    """Returns what a training of this configuration would take; reads the source and writes nothing."""
    with torch.random.fork_rng(devices=[]):
        tables = build_tables(config)
        model = build_model(config, tables)
    dense = dense_optimizer(config.optimizer.dense, model)
    return start_config(
        config, given, model, tables, dense, sparse_optimizer(config.optimizer.sparse, tables), dry_run=True
    )


def start_module(
    module: nn.Module,
    source: Path | str,
    *,
    renamed: Mapping[str, str] | None = None,
    partial: bool = False,
    optimizer: SparseOptimizer | None = None,
) -> StartReport:
    """Fills a module of your own, and the empty tables of its embedding layers. Returns what was taken.

    source, renamed, partial: those of `StartFrom`. Rows go into the table of the same name, and dense weights into
    those of the same name and shape; other weights stay as they are. optimizer: of the tables; FTRL needs it. Raises
    ConfigError when nothing of the source fits, or a table has rows already; NotFound, CheckpointError.
    """
    opened = open_source(source)
    layers = (each for each in module.modules() if isinstance(each, Embedding | EmbeddingBag))
    tables = {layer.table.name: layer.table for layer in layers}
    for name, table in tables.items():
        if table.size():
            raise ConfigError(f"table {name!r} has {table.size():,} rows already; start before training", field=name)
    names = _names(renamed or {}, opened, tables, module, ())
    shapes = {name: tuple(value.shape) for name, value in module.state_dict().items()}
    takings = find_by_name(opened, shapes, {name: names.weight(name) for name in shapes}, partial=partial)
    _check_fit(opened, names, tables, bool(takings))
    slots_for: SlotsFor = _first_slots if optimizer is None else optimizer.slots_for
    started = _take_tables(opened, tables, names, slots_for, dry_run=False)
    return StartReport(opened.title, started, take_weights(opened, module, takings, None, dry_run=False), [])


def _check_kinds(tables: Mapping[str, EmbeddingTable]) -> None:
    for name, table in tables.items():
        if table.kind.type not in ("dynamic", "hashed"):
            raise ConfigError(
                f"table {name!r} is of the kind {table.kind.type}; a model can start from another one where all its "
                "tables are of the kinds dynamic and hashed",
                field=f"tables.{name}.kind",
            )


def _names(
    renamed: Mapping[str, str],
    source: Source,
    tables: Mapping[str, EmbeddingTable],
    model: nn.Module,
    features: Collection[str],
) -> Renamed:
    before = [] if source.spec is None else [feature.name for feature in source.spec.features]
    return Renamed(
        renamed,
        {"tables": list(tables), "features": features, "weights": list(model.state_dict())},
        {"tables": list(source.tables), "features": before, "weights": list(source.weights)},
    )


def _take_tables(
    source: Source, tables: Mapping[str, EmbeddingTable], names: Renamed, slots_for: SlotsFor, *, dry_run: bool
) -> list[TableStart]:
    report: list[TableStart] = []
    for name, table in tables.items():
        before = source.tables.get(names.table(name))
        if before is None:
            report.append(TableStart(name, "new", 0, table.dim))
            continue
        rows = before.rows() if dry_run else take_rows(before, table, slots_for)
        change: Change = "taken" if before.dim == table.dim else "widened" if before.dim < table.dim else "cut"
        kept = before.optimizer == table.optimizer and table.slots > 0
        report.append(TableStart(name, change, rows, table.dim, before.name, before.dim, kept))
    if any(table.optimizer == "adagrad_decay" for table in tables.values()):
        # It counts periods by the steps of the first table, and the rows of each carry the period of their last step.
        steps = max(table.steps for table in tables.values())
        for table in tables.values():
            table.set_steps(steps)
    used = {entry.source for entry in report}
    gone = [table for table in source.tables.values() if table.name not in used]
    return [*report, *(TableStart(table.name, "gone", table.rows(), 0, table.name, table.dim) for table in gone)]


def _first_slots(table: EmbeddingTable, rows: Rows) -> Rows:
    return np.tile(table.first_slots(), (len(rows), 1))


def _check_fit(source: Source, names: Renamed, tables: Mapping[str, EmbeddingTable], fits: bool) -> None:
    if fits or any(names.table(name) in source.tables for name in tables):
        return
    raise ConfigError(
        f"{source.title}: nothing of it fits. Its tables are {_listed(source.tables)}, those of the new model "
        f"{_listed(tables)}; give another run or version to start from, or the names that changed (--map NEW=OLD)",
        field="start_from",
    )


def _notes(spec: FeatureSpec, source: Source, names: Renamed) -> list[str]:
    """Returns what changed in the features, where it may matter to the rows."""
    if source.spec is None:
        return []
    before = {feature.name: feature for feature in source.spec.features}
    old_inputs = {entry.name: entry for entry in source.spec.inputs}
    inputs = {entry.name: entry for entry in spec.inputs}
    notes: list[str] = []
    for feature in spec.features:
        old = before.pop(names.feature(feature.name), None)
        if old is None:
            notes.append(f"feature {feature.name}: new")
        elif feature.output == old.output == "ids" and names.table(feature.table) != old.table:
            notes.append(f"feature {feature.name}: looks up the table {feature.table}, and looked up {old.table}")
        elif feature.output != old.output or feature.transforms != old.transforms:
            notes.append(f"feature {feature.name}: its transforms changed; its ids or values may mean something else")
        elif len(feature.inputs) != len(old.inputs) or any(
            inputs[one].dtype != old_inputs[other].dtype for one, other in zip(feature.inputs, old.inputs, strict=True)
        ):
            notes.append(f"feature {feature.name}: its inputs changed; its ids or values may mean something else")
    mapped = {names.feature(feature.name) for feature in spec.features}
    return [*notes, *(f"feature {name}: gone" for name in before if name not in mapped)]


def _listed(names: Collection[str]) -> str:
    more = f" and {len(names) - _NAMED_AT_MOST} more" if len(names) > _NAMED_AT_MOST else ""
    return (", ".join(list(names)[:_NAMED_AT_MOST]) or "none") + more
