"""Forgets ids: their rows leave a run's tables, its commits, its sample and what waits to be joined, and a repository.

The run publishes a delta that removes them, and behind it a version that replaces all snapshots before it: these hold
the rows, and are removed. A commit of everything replaces all commits before it. Each step can be repeated, so a call
that was killed is finished by the same call again.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from storage.data import BlockIndex
from storage.data.streams import JoinLog
from storage.errors import CheckpointError, ConfigError
from storage.features import Column, FeatureEngine, column_from_rows
from storage.features.python_rows import column_rows
from storage.features.strict_model import did_you_mean
from storage.forgetting import Needles, Wanted, find_places
from trainer.checkpoint import CommitLog, TrainingState
from trainer.config import TrainConfig
from trainer.data import BatchMaker
from trainer.event_times import TrainedTimes
from trainer.publication import delta_policy, lineage_of, publisher_of
from trainer.publishing.golden import as_sent
from trainer.publishing.target import check_repository, shown
from trainer.row_memory import ROWS
from trainer.row_tables import TableConfig
from trainer.trained import Trained, save_sample

_JOIN = "join"
_INDEXES = ("data-index", "stream-index", "labels-index")


@dataclass
class Forgotten:
    """Says what a call of `forget` did."""

    #: Rows that the tables had, by table.
    rows: dict[str, int] = field(default_factory=dict)
    #: Raw rows that left the sample of which golden requests are made.
    sample_rows: int = 0
    #: Events that waited to be joined, and went.
    waiting_rows: int = 0
    #: The folder of the version that replaces all snapshots before it.
    version: Path | None = None
    #: Its id.
    snapshot: str = ""
    #: Where people find it: its folder, or its URL.
    published: str = ""
    #: Versions that have to stay for now, because a fleet serves them.
    stays: list[str] = field(default_factory=list)


def check_tables(config: TrainConfig, wanted: Wanted) -> None:
    """Raises ConfigError for a table that the model lacks, or whose rows are not those of one id each."""
    known = {part.rows.name: part for part in config.row_tables}
    for name in wanted.tables:
        part = known.get(name)
        if part is None:
            raise ConfigError(
                f"table {name!r}: the model has none of that name{did_you_mean(name, known)}", field="table"
            )
        if part.transforms or not isinstance(part.rows, TableConfig):
            raise ConfigError(
                f"table {name!r}: its kind is {part.kind.type}, whose rows are not those of one id each, so forgetting "
                "one id would forget others; train the model anew without the data, or use a dynamic table",
                field="table",
            )


def forget(
    trained: Trained,
    repository: Path | str,
    wanted: Wanted,
    *,
    progress: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Forgotten:
    """Forgets ids in a run that was loaded at its newest commit, and in the repository that it is published into.

    When it returns, no file of the run, and none of the snapshots of the run, has a row of the ids, or a raw request
    that leads to one. Snapshots before the new version are gone: neither a server nor the run can go back to them.
    Raises ConfigError for a table of another kind, when the run has not finished or another process holds it, and
    CheckpointError when it has trained further since it was loaded.
    """
    assert trained.checkpoint is not None
    config, output = trained.config, trained.checkpoint.parent.parent
    check_tables(config, wanted)
    repository = check_repository(repository)
    done = Forgotten()
    with CommitLog(output, keep_snapshots=config.publish.keep_states) as log:
        commit = log.newest
        if commit is None or commit.folder != trained.checkpoint:
            raise CheckpointError(f"{trained.checkpoint}: the run has gone on since it was loaded; load it again")
        state = commit.state
        if state.update is None and not (state.stopped or state.position.epoch >= config.training.epochs):
            raise ConfigError(
                f"{output}: the training is at epoch {state.position.epoch + 1} of {config.training.epochs}; finish it "
                "first (emberline train --resume)",
                field="output",
            )
        say("erasing rows")
        done.rows = {name: trained.tables[name].erase(ids) for name, ids in wanted.tables.items()}
        done.sample_rows = _clean_sample(trained, output, wanted)
        streams, done.waiting_rows = _clean_streams(config, output, state, wanted)
        state = replace(state, streams=streams)
        policy = delta_policy(config)
        publisher = publisher_of(
            config, trained.model, trained.sample, repository, policy, lineage_of(state), progress=progress
        )
        times = TrainedTimes.from_json_value(state.events)
        pending = publisher.prepare("erasure", times=times)
        state = state.published(publisher.lineage.to_json_value(), pending.snapshots, times.to_json_value())
        log.save(state, trained.tables)
        say("publishing")
        done.version = publisher.write()
        done.snapshot, done.published = pending.snapshots[-1], shown(repository, done.version)
        say("removing older snapshots and commits")
        done.stays = publisher.remove_older(lambda folder: _holds(folder, config, wanted))
        # Unless a fleet still serves an older one, no snapshot is left that a delta would have to remove the ids from.
        for table in () if done.stays else trained.tables.values():
            table.forget_removed(table.stamp)
        state = state.published(publisher.lineage.to_json_value(), pending.snapshots[-1:])
        trained.checkpoint = log.save(state, trained.tables, alone=True).folder
        _remove_copies(output, streams)
    return done


def _holds(folder: Path, config: TrainConfig, wanted: Wanted) -> bool:
    return bool(find_places([folder], wanted, config.spec, Needles()))


def _clean_sample(trained: Trained, output: Path, wanted: Wanted) -> int:
    """Removes the raw rows that lead to the ids from the sample of golden requests; returns how many they were."""
    spec, sample = trained.config.spec, trained.sample
    rows = max(column.rows for column in sample.values())
    holding = wanted.rows_holding(FeatureEngine(spec), sample, rows)
    if holding.all():
        raise ConfigError(
            f"{output}: every raw row of the sample that golden requests are made of leads to one of the ids; update "
            "the run over other rows first (emberline update), which renews the sample",
            field="ids",
        )
    if holding.any():
        kept = np.flatnonzero(~holding).tolist()
        trained.sample = {entry.name: _taken(entry, sample, kept) for entry in spec.inputs}
        save_sample(output, trained.sample)
    return int(holding.sum())


def _taken(entry: Any, sample: Mapping[str, Column], kept: list[int]) -> Column:
    rows = column_rows(sample[entry.name])
    return column_from_rows(as_sent(entry, [sample]), [rows[place] for place in kept])


def _clean_streams(
    config: TrainConfig, output: Path, state: TrainingState, wanted: Wanted
) -> tuple[dict[str, dict[str, Any]], int]:
    """Writes what waits to be joined anew without the events of the ids; returns the positions, and how many went."""
    streams, count = dict(state.streams), 0
    for name, entry in streams.items():
        if entry["at"].get("log"):
            position, gone = _clean_position(config, JoinLog(output / _JOIN), entry["at"], wanted)
            streams[name] = {**entry, "at": position}
            count += gone
    return streams, count


def _clean_position(
    config: TrainConfig, log: JoinLog, position: dict[str, Any], wanted: Wanted
) -> tuple[dict[str, Any], int]:
    join = config.data.join
    assert join is not None
    maker, engine = BatchMaker(config.spec, config.targets), FeatureEngine(config.spec)
    parts, gone, left, emitted = [], 0, int(position["emitted"]), 0
    keys: set[Any] = set()
    try:
        records = list(log.read([tuple(part) for part in position["log"]]))
        holding = [_holding(maker, engine, rows, wanted) for _, rows, _ in records]
        for (_, rows, _), held in zip(records, holding, strict=True):
            keys.update(_keys(rows.filter(pa.array(held)), join.key))
        for (_, rows, labels), held in zip(records, holding, strict=True):
            done = min(left, rows.num_rows)
            left -= done
            emitted += int((~held[:done]).sum())
            gone += int(held.sum())
            stays = pa.array([key not in keys for key in _keys(labels, join.key)], pa.bool_())
            parts.append(log.append(rows.filter(pa.array(~held)), labels.filter(stays)))
        log.sync()
    finally:
        log.close()
    return {**position, "log": [list(part) for part in parts], "emitted": emitted}, gone


def _holding(maker: BatchMaker, engine: FeatureEngine, rows: Any, wanted: Wanted) -> np.ndarray[Any, Any]:
    if not rows.num_rows:
        return np.zeros(0, np.bool_)
    return wanted.rows_holding(engine, maker.columns(rows), rows.num_rows)


def _keys(events: Any, names: tuple[str, ...]) -> list[Any]:
    columns = [events.column(name).to_pylist() for name in names]
    return list(zip(*columns, strict=True))


def _remove_copies(output: Path, streams: Mapping[str, Mapping[str, Any]]) -> None:
    """Removes what no commit refers to: unpacked data, rows of a process that ended, and events that were joined."""
    for name in _INDEXES:
        BlockIndex(output / name).remove_copies()
    shutil.rmtree(output / ROWS, ignore_errors=True)
    needed = {int(part[0]) for entry in streams.values() for part in entry["at"].get("log", ())}
    for path in (output / _JOIN).glob("*.log"):
        if path.stem.isdigit() and int(path.stem) not in needed:
            path.unlink(missing_ok=True)
