"""train(): makes a trained, and if wanted published, model from a configuration and data."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from storage.data import described
from storage.errors import ConfigError
from storage.paths import local_path
from trainer.checkpoint import Commit, CommitLog, TrainingState, checkpoints, load_checkpoint, read_commit
from trainer.config import TrainConfig, load_config, parse_content, with_device, with_tracking
from trainer.config_source import named_file
from trainer.data import BatchMaker, BlockIndex, Data, DataRows, SkippedFile
from trainer.devices import choose_device, described_device, running_on
from trainer.embedding import RowMemory
from trainer.ending import RunEnd
from trainer.loop import TrainingLoop
from trainer.models import build_model, build_tables
from trainer.progress import Display
from trainer.publication import lineage_of
from trainer.publishing.target import check_repository
from trainer.rank_agreement import check_agreement
from trainer.rank_limits import check_ranks
from trainer.ranks import Ranks, join_ranks
from trainer.report import TrainReport
from trainer.row_memory import row_memory, with_dram_bytes
from trainer.row_sources import evaluation_rows, rows_to_learn, training_rows
from trainer.settings import check_same_training
from trainer.tracking import tracked
from trainer.trained import read_start, sample_columns, save_config, save_sample, save_start
from trainer.warm_start import StartFrom, StartReport


def train(
    config: TrainConfig | Mapping[str, Any] | Path | str,
    data: Data,
    *,
    output: Path | str,
    repository: Path | str | None = None,
    valid: float | Data | None = None,
    limit: int | None = None,
    progress: bool = True,
    resume: bool = False,
    dram_bytes: int | None = None,
    device: str | None = None,
    start_from: StartFrom | Path | str | None = None,
    track: str | None = None,
) -> TrainReport:
    """Trains a model and returns its figures; with a repository, publishes it there when done.

    With publish.delta_every_* in the configuration it also publishes on the way: first a version, then deltas; with
    training.early_stopping only the best model, at the end.

    config: a TrainConfig, the path of its YAML, or its content as a dict. data: files of any format that is read
    (docs/data.md), folders, URLs and patterns of them, in the order of their names; or a pyarrow Table or a DataFrame.
    valid: files to evaluate on, or a fraction: the last rows of `data`, which are then not trained on. limit: rows of
    `data` to use at most. output: a folder for checkpoints, report and configuration. resume: continues from the newest
    checkpoint in `output`, to the bit as if nothing had happened; config and data must be those of the first run
    (epochs may grow). dram_bytes: DRAM of the tables, instead of training.dram_bytes in the configuration; rows beyond
    it lie on SSD. device: cpu, cuda, cuda:N or auto, instead of training.device. start_from: a run, or a published
    version, whose rows and weights a new run begins with, as far as they fit; the report says which. track:
    "tensorboard" or "mlflow", instead of `tracking` in the configuration. Ctrl-C writes a checkpoint, says how to
    resume and raises KeyboardInterrupt. Raises ConfigError, InvalidInput; with start_from also NotFound and
    CheckpointError.
    """
    if isinstance(config, str | Path):
        with named_file(config):
            return train(
                load_config(config),
                data,
                output=output,
                repository=repository,
                valid=valid,
                limit=limit,
                progress=progress,
                resume=resume,
                dram_bytes=dram_bytes,
                device=device,
                start_from=start_from,
                track=track,
            )
    if isinstance(config, Mapping):
        config = parse_content(config)
    config = with_device(with_tracking(with_dram_bytes(config, dram_bytes), track), device)
    output = local_path(output, "output")
    if repository is not None:
        repository = check_repository(repository)
    with join_ranks() as ranks:
        check_ranks(config, ranks)
        training = _Training(config, output, repository, valid, ranks, progress=progress, resume=resume)
        return training.run(data, limit, start_from)


class _Training:
    """One call of `train`, at one rank."""

    def __init__(
        self,
        config: TrainConfig,
        output: Path,
        repository: Path | str | None,
        valid: float | Data | None,
        ranks: Ranks,
        *,
        progress: bool,
        resume: bool,
    ) -> None:
        self._output = output
        self._repository = repository
        self._valid = valid
        self._ranks = ranks
        self._device = choose_device(config.training.device, ranks.local_rank, ranks.local_size)
        ranks.use(self._device)
        self._progress = progress and ranks.is_first
        saved = checkpoints(output)
        ranks.gather(None)  # no rank writes before all have looked
        resume = bool(saved) if ranks.had_begun else resume
        _check_saved(output, saved, resume=resume)
        ranks.note_begun()
        if saved:
            config = config.with_column_types(read_commit(saved[-1]).state.column_types)
        self._saved = bool(saved)
        self._config = config

    def run(self, data: Data, limit: int | None, start_from: StartFrom | Path | str | None) -> TrainReport:
        """Trains, publishes and reports."""
        output, ranks = self._output, self._ranks
        if self._saved and start_from is not None:
            raise ConfigError(
                f"{output}: a run that is resumed goes on from its own checkpoint; leave start_from (--from) out",
                field="start_from",
            )
        index = block_index(output)
        with ranks.first_before_others():
            opened = _open_rows(self._config, data, self._valid, limit, index)
        self._config, self._rows, self._valid_rows = opened
        config, rows = self._config, self._rows
        training = config.training
        skipped = skipped_of(rows, self._valid_rows)
        with (
            CommitLog(output, keep_snapshots=config.publish.keep_states, ranks=ranks) as log,
            running_on(self._device, config.training.precision),
            threads(config.training.threads, ranks.local_size),
            Display(visible=self._progress) as display,
        ):
            given = {
                "data": rows.fingerprint,
                "valid": _fingerprint(self._valid_rows),
                "repository": "none" if self._repository is None else "given",
                "start_from": "none" if start_from is None else "given",
            }
            check_agreement(ranks, config, given, _name(log.newest))
            torch.manual_seed(config.training.seed)
            with row_memory(config, output, ranks.local_size) as memory:
                loop = self._new_loop(log, display, memory, ranks)
                if text := described_device(self._device, training.precision, compiled=training.compile):
                    display.say(text)
                state: TrainingState | None = None
                if log.newest is not None:
                    _check_same_run(log.newest, config, rows)
                    self._check_nothing_is_pending(log.newest)
                    state = load_checkpoint(log.newest.folder, loop.model, loop.tables, loop.dense_optimizer)
                    loop.restore(state)
                started = _started(loop, output, start_from, new=state is None)
                if started is not None and state is None:
                    display.say(started.text())
                # Saved before the first publish, so that a snapshot left pending by a crash is made of the same rows.
                sample = sample_columns(self._valid_rows or rows, BatchMaker(config.spec, config.targets))
                if ranks.is_first:
                    save_config(output, config)
                    save_sample(output, sample)
                end = RunEnd(config, sample, self._repository, output, self._valid_rows, started)
                if config.training.early_stopping is None:
                    end.publish_from(loop, lineage_of(state))
                held_out = self._valid
                if not isinstance(held_out, int | float) and held_out is not None:
                    held_out = described(held_out)
                asked = {"data": described(data), "valid": held_out, "limit": limit, "rows": rows.rows}
                with tracked(config, output, loop.position.step, asked) if ranks.is_first else nullcontext() as track:
                    loop.track = track or loop.track
                    loop.run()
                last = loop.state() if loop.is_behind_best else None
                profile = loop.profile()
                report = end.of(loop, profile, skipped) if last is None else None
            if last is not None:
                del loop  # its tables go before the others come
                with row_memory(config, output, ranks.local_size) as memory:
                    best = self._new_loop(log, display, memory, ranks)
                    best.go_back(last)
                    report = end.of(best, profile, skipped)
        assert report is not None
        if ranks.is_first:
            report.write(output / "report.json")
            index.remove_copies()
        return report

    def _new_loop(self, log: CommitLog, display: Display, memory: RowMemory | None, ranks: Ranks) -> TrainingLoop:
        tables = build_tables(self._config, memory, ranks)
        model = build_model(self._config, tables)
        rows, valid, device = self._rows, self._valid_rows, self._device
        return TrainingLoop(self._config, model, tables, rows, valid, log, display, memory, ranks, device)

    def _check_nothing_is_pending(self, commit: Commit) -> None:
        # Training on without writing the pending snapshot would lose its state: a server would later get another one
        # under that name.
        lineage = lineage_of(commit.state)
        if lineage is None or lineage.pending is None:
            return
        if self._repository is None:
            raise ConfigError(
                f"{commit.folder}: a snapshot was half published when the run stopped; give the same repository "
                "(--repository), so that it is finished first",
                field="repository",
            )


def check_output(output: Path, *, resume: bool) -> None:
    """Raises ConfigError for a run that `train` would not begin, or not resume, in this folder."""
    _check_saved(output, checkpoints(output), resume=resume)


def _check_saved(output: Path, saved: Sequence[Path], *, resume: bool) -> None:
    if saved and not resume:
        raise ConfigError(
            f"{output}: holds checkpoints of a run already; resume it (--resume), or choose another folder",
            field="output",
        )
    if resume and not saved:
        raise ConfigError(f"{output}: holds no checkpoint to resume from; train without resume", field="resume")


def _open_rows(
    config: TrainConfig, data: Data, valid: float | Data | None, limit: int | None, index: BlockIndex
) -> tuple[TrainConfig, DataRows, DataRows | None]:
    """Opens the rows to train on and to evaluate on; returns them with the configuration that names their column
    types.
    """
    rows = training_rows(config, data, index, learns=True)
    config = config.with_column_types(rows.column_types)
    if limit is not None:
        if limit < 1:
            raise ConfigError(f"limit is {limit}, expected 1 or more", field="limit")
        rows = rows.range(0, limit)
    valid_rows: DataRows | None = None
    if isinstance(valid, int | float):
        if not 0.0 < valid < 1.0:
            raise ConfigError(f"valid is {valid}, expected a fraction between 0 and 1, or files", field="valid")
        split = rows.rows - round(rows.rows * valid)
        rows, valid_rows = rows.range(0, split), rows.range(split, rows.rows)
    elif valid is not None:
        valid_rows = evaluation_rows(config, valid, index)
    rows = rows_to_learn(config, rows)
    for what, given in (("data", rows), ("valid", valid_rows)):
        if given is not None and given.rows == 0:
            raise ConfigError(f"{what}: there are no rows; give more data", field=what)
    if config.training.early_stopping is not None and valid_rows is None:
        raise ConfigError(
            "training.early_stopping: there are no rows to evaluate on; give validation rows (valid, --valid)",
            field="training.early_stopping",
        )
    return config, rows, valid_rows


def _started(
    loop: TrainingLoop, output: Path, given: StartFrom | Path | str | None, *, new: bool
) -> StartReport | None:
    """Starts a new run from another one if it is to; returns what the run was started with, also a resumed one."""
    if not new:
        return read_start(output)
    report = None
    if given is not None:
        report = loop.start_from(given if isinstance(given, StartFrom) else StartFrom(given))
    else:
        loop.begin_at_means()
    if loop.ranks.is_first:
        save_start(output, report)
    return report


def _fingerprint(rows: DataRows | None) -> str:
    return "none" if rows is None else rows.fingerprint


def _name(commit: Commit | None) -> str:
    return "" if commit is None else f"{commit.folder.name} ({commit.sha256[:16]})"


def skipped_of(*data: DataRows | None) -> list[SkippedFile]:
    """Returns the damaged files that were left out, each once."""
    found = {entry.path: entry for rows in data if rows is not None for entry in rows.skipped}
    return list(found.values())


def block_index(output: Path) -> BlockIndex:
    """Returns where a run remembers how its files are cut into blocks."""
    return BlockIndex(output / "data-index")


@contextmanager
def threads(wanted: int, processes: int = 1) -> Iterator[None]:
    """Sets torch's threads for the block. wanted: 0 for all cores but one of those that each of `processes` has."""
    # One core is left to the thread that reads ahead: torch's threads spin while they wait, and two that share a core
    # make each other several times slower.
    before = torch.get_num_threads()
    torch.set_num_threads(wanted or max(1, len(os.sched_getaffinity(0)) // processes - 1))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _check_same_run(commit: Commit, config: TrainConfig, rows: DataRows) -> None:
    state, folder = commit.state, commit.folder
    check_same_training(state.settings, config, folder)
    if state.update is not None:
        raise ConfigError(
            f"{folder}: the run was updated with newer rows since it was trained; go on with trainer.update "
            "(emberline update)",
            field="resume",
        )
    if state.data_fingerprint != rows.fingerprint:
        raise ConfigError(f"{folder}: was trained on other data (names, sizes or limits differ)", field="data")
