"""A finished training run on disk: its configuration, its newest checkpoint, and rows to make golden requests of.

OUTPUT/{config.json, report.json, sample.safetensors, checkpoints/}, and start.json where it began with another model.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from storage.checkpoint.tensors import TensorFile, write_bytes, write_tensors
from storage.errors import CheckpointError, NotFound
from storage.features import Column, FeatureSpec, column_from_rows, pack_columns, unpack_columns
from storage.features.python_rows import column_rows
from storage.paths import local_path
from trainer.checkpoint import CommitLog, checkpoints, load_checkpoint, read_commit
from trainer.config import TrainConfig, load_config, with_row_types
from trainer.data import BatchMaker, Data, DataRows, Wanted
from trainer.embedding import EmbeddingTable
from trainer.evaluate import Evaluation, evaluate, predict_rows
from trainer.event_times import TrainedTimes
from trainer.models import RankingModel, build_model, build_tables
from trainer.publication import delta_policy, described, lineage_of, publisher_of
from trainer.publishing import Outcome, WantedKind, publish_module
from trainer.publishing.golden import as_sent
from trainer.publishing.target import check_repository
from trainer.row_memory import memory_of
from trainer.row_sources import evaluation_rows
from trainer.settings import check_same_model
from trainer.start_report import StartReport

CONFIG = "config.json"
_SAMPLE = "sample.safetensors"
_START = "start.json"
# Golden requests are drawn from these; more rows make it likelier that every table is reached.
SAMPLE_ROWS = 2048
_SAMPLE_PARTS = 8


@dataclass
class Trained:
    """A model with its tables."""

    config: TrainConfig
    model: RankingModel
    tables: dict[str, EmbeddingTable]
    #: Raw columns of some rows, for golden requests.
    sample: dict[str, Column]
    #: The commit of a run that it was loaded from, None when it was put together from parts.
    checkpoint: Path | None = None

    def predict(self, data: Data) -> np.ndarray[Any, Any]:
        """Returns the scores of rows, (N,) float32, in the order of files and rows. Labels are not read.

        Of a model with several tasks, they are those of the first one; those of a task of C classes are (N, C).
        """
        return self.outputs(data)[self.config.targets.tasks[0].name]

    def outputs(self, data: Data) -> dict[str, np.ndarray[Any, Any]]:
        """Returns all outputs for rows by name, that of its task: (N,) float32, or (N, C) for C classes."""
        rows = DataRows.open(data, Wanted(self.config.inputs), self.config.data)
        return predict_rows(self.model, rows, BatchMaker(self.config.spec, self.config.targets))

    def evaluate(self, data: Data) -> Evaluation:
        """Returns labels and scores of rows, and the metrics of the tasks."""
        rows = evaluation_rows(self.config, data)
        return evaluate(self.model, rows, BatchMaker(self.config.spec, self.config.targets))

    def publish(
        self,
        repository: Path | str,
        *,
        kind: WantedKind = "version",
        version: int | None = None,
        from_snapshot: str | None = None,
        row_types: Mapping[str, str] | None = None,
        progress: bool = False,
    ) -> Path:
        """Publishes this state under repository/MODEL_NAME and returns the folder of the version or delta.

        kind: "version", numbered `version` or the next; "delta", all that changed since the newest snapshot of the run,
        or since `from_snapshot` (its id, or VERSION.SEQUENCE), which it then continues; "cumulative", all changes since
        the version; "auto", the next kind by the policy of the configuration. The run remembers what it has published.
        row_types: how rows are stored, by table and "default", instead of what the configuration says. Raises
        CheckpointError when the run has trained further since it was loaded, NotFound for an unknown snapshot.
        """
        repository = check_repository(repository)
        config = self.config if row_types is None else with_row_types(self.config, row_types)
        policy = delta_policy(config)
        if self.checkpoint is None:
            publisher = publisher_of(config, self.model, self.sample, repository, policy, None, progress=progress)
            return publisher.publish(kind, from_snapshot=from_snapshot, version=version)
        with CommitLog(self.checkpoint.parent.parent, keep_snapshots=self.config.publish.keep_states) as log:
            commit = log.newest
            if commit is None or commit.folder != self.checkpoint:
                raise CheckpointError(f"{self.checkpoint}: the run has gone on since it was loaded; load it again")
            state = commit.state
            publisher = publisher_of(
                config, self.model, self.sample, repository, policy, lineage_of(state), progress=progress
            )
            # What a crash left pending is dropped here if it was never written: the new snapshot has its changes.
            times = TrainedTimes.from_json_value(state.events)
            pending = publisher.prepare(kind, from_snapshot=from_snapshot, version=version, times=times)
            state = state.published(publisher.lineage.to_json_value(), pending.snapshots, times.to_json_value())
            self.checkpoint = log.save(state, self.tables).folder
            folder = publisher.write()
            self.checkpoint = log.save(state.published(publisher.lineage.to_json_value()), self.tables).folder
        return folder

    def publish_changes(
        self,
        repository: Path | str,
        *,
        name: str,
        row_types: Mapping[str, str] | None = None,
        delta: bool | Literal["only"] = True,
        **options: Any,
    ) -> Outcome:
        """Publishes what differs between this state and the newest snapshot of repository/name, whoever published that.

        row_types: as for `publish`. The other arguments are those of `emberline.publish`. The run remembers nothing of
        it: its own next delta is one of what it published itself.
        """
        publish = self.config.publish
        return publish_module(
            self.model,
            self.sample,
            check_repository(repository),
            name=name,
            spec=self.config.spec,
            delta=delta,
            max_batch_size=publish.max_batch_size,
            golden_requests=publish.golden_requests,
            tolerance=publish.tolerance,
            metadata=described(self.config),
            row_types=self.config.row_types if row_types is None else row_types,
            policy=delta_policy(self.config),
            **options,
        )


def load_trained(output: Path | str) -> Trained:
    """Opens what `train` wrote to `output`, at its newest checkpoint. Raises NotFound, CheckpointError."""
    output = local_path(output, "output")
    config, commit = read_run(output)
    # The tables hold a reference to their memory, which is released with them.
    tables = build_tables(config, memory_of(config, output))
    model = build_model(config, tables)
    load_checkpoint(commit, model, tables)
    model.eval()
    return Trained(config, model, tables, read_sample(output, config), commit)


def read_run(output: Path) -> tuple[TrainConfig, Path]:
    """Returns a run's configuration, whose inputs name the column types of the training, and its newest commit.

    Raises NotFound when either is missing, ConfigError when config.json describes another model than the commit holds.
    """
    config = read_config(output)
    saved = checkpoints(output)
    if not saved:
        raise NotFound(f"{output}: holds no checkpoint; train first")
    state = read_commit(saved[-1]).state
    check_same_model(state.settings, config, saved[-1])
    return config.with_column_types(state.column_types), saved[-1]


def read_config(output: Path) -> TrainConfig:
    """The configuration that `save_config` kept. Raises NotFound when there is none."""
    path = output / CONFIG
    if not path.is_file():
        raise NotFound(f"{output}: holds no trained model ({CONFIG} is missing); give the output folder of a training")
    return load_config(path)


def save_config(output: Path, config: TrainConfig) -> None:
    """Keeps the configuration beside the checkpoints."""
    _replace(output / CONFIG, lambda path: write_bytes(path, config.model_dump_json(indent=1).encode() + b"\n"))


def save_sample(output: Path, columns: dict[str, Column]) -> None:
    """Keeps rows for golden requests, so that publishing again needs no data."""
    _replace(output / _SAMPLE, lambda path: write_tensors(path, pack_columns(columns)))


def save_start(output: Path, report: StartReport | None) -> None:
    """Keeps what the run began with, for the report of a run that is resumed; None: with nothing."""
    if report is None:
        (output / _START).unlink(missing_ok=True)
        return
    text = json.dumps(report.to_json_value(), indent=1)
    _replace(output / _START, lambda path: write_bytes(path, text.encode() + b"\n"))


def read_start(output: Path) -> StartReport | None:
    """Returns the report that `save_start` kept; None when there is none."""
    try:
        return StartReport.from_json_value(json.loads((output / _START).read_bytes()))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    # A full disk or a crash leaves the file that was there.
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    try:
        write(new)
        os.replace(new, path)
    except OSError as error:
        raise CheckpointError(f"{path}: could not be written: {error}") from error
    finally:
        new.unlink(missing_ok=True)


def sample_columns(rows: DataRows, maker: BatchMaker, count: int = SAMPLE_ROWS) -> dict[str, Column]:
    """Raw columns of up to `count` rows, in some runs spread over the data."""
    import pyarrow as pa

    if rows.rows <= count:
        return maker.columns(rows.read())
    part = count // _SAMPLE_PARTS
    starts = np.linspace(0, rows.rows - part, _SAMPLE_PARTS).astype(int).tolist()
    return maker.columns(pa.concat_tables([rows.range(start, start + part).read() for start in starts]))


def with_newer_rows(sample: dict[str, Column], newer: dict[str, Column], spec: FeatureSpec) -> dict[str, Column]:
    """Returns `newer` and as many rows of `sample`, spread over it, as still fit; raw columns by input."""
    room = max(0, SAMPLE_ROWS - max(column.rows for column in newer.values()))
    mixed: dict[str, Column] = {}
    for entry in spec.inputs:
        old = column_rows(sample[entry.name])
        kept = np.linspace(0, len(old) - 1, min(room, len(old))).astype(int).tolist()
        rows = [*column_rows(newer[entry.name]), *(old[place] for place in kept)]
        mixed[entry.name] = column_from_rows(as_sent(entry, [sample, newer]), rows)
    return mixed


def read_sample(output: Path, config: TrainConfig) -> dict[str, Column]:
    """The rows that `save_sample` kept."""
    path = output / _SAMPLE
    if not path.is_file():
        raise CheckpointError(f"{path}: missing; train again, or publish with trainer.publish and a sample of your own")
    return unpack_columns(TensorFile.open(path).arrays, config.spec)
