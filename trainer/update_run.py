"""The frame of a pass over newer rows: the run that it continues, opened where the pass begins, and its report."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from storage.errors import ConfigError, NotFound
from storage.features import Column
from storage.paths import local_path
from trainer.checkpoint import CommitLog, UpdateState, begun_update, load_checkpoint, note_begun_update
from trainer.config import PublishConfig, with_device, with_tracking
from trainer.data import Data, DataRows
from trainer.devices import choose_device, described_device, device_report, running_on
from trainer.embedding import RowMemory
from trainer.embedding.memory import MemoryFigures
from trainer.ending import memory_figures, table_reports
from trainer.label_ranges import metric_warnings
from trainer.loop import TrainingLoop
from trainer.models import build_model, build_tables
from trainer.progress import Display
from trainer.publication import delta_policy, publisher_of
from trainer.publishing import Publisher
from trainer.publishing.target import check_repository
from trainer.rank_agreement import check_agreement
from trainer.rank_limits import check_ranks
from trainer.ranks import Ranks
from trainer.report import Metrics, TableReport, UpdateReport, first_figure
from trainer.row_memory import row_memory, with_dram_bytes
from trainer.row_sources import evaluation_rows
from trainer.run import block_index, threads
from trainer.trained import read_run, read_sample, save_sample, with_newer_rows
from trainer.update_start import UpdateStart


@dataclass
class OpenPass:
    """A pass whose run is open: its loop is at the state where the pass begins or continues."""

    run: UpdateRun
    loop: TrainingLoop
    log: CommitLog
    display: Display
    start: UpdateStart
    sample: dict[str, Column]
    memory: RowMemory | None
    metrics_after: Metrics = field(default_factory=dict)
    tables_after: list[TableReport] = field(default_factory=list)
    memory_after: MemoryFigures | None = None
    #: What publishes, from `begin` on; None at other ranks than the first.
    publisher: Publisher | None = None

    def begin(self) -> UpdateState:
        """Continues the log of commits here, and publishes from now on; returns the pass.

        A snapshot that a crash left half published is written first.
        """
        run, loop = self.run, self.loop
        self.log.go_on_from(self.start.commit)
        publisher: Publisher | None = None
        if loop.ranks.is_first:
            lineage = self.start.lineage
            publisher = publisher_of(run.config, loop.model, self.sample, run.repository, run.policy, lineage)
        self.publisher = publisher
        loop.publish_with(publisher, run.policy)
        if self.start.update is not None:
            return self.start.update
        return self.start.begun(loop)

    def renew_sample(self, newer: dict[str, Column]) -> None:
        """Keeps newer rows for golden requests. They must have been trained on, so that they can be scored.

        Ids expire, so an old sample would reach too few.
        """
        self.sample = with_newer_rows(self.sample, newer, self.run.config.spec)
        if self.loop.ranks.is_first:
            save_sample(self.run.output, self.sample)
        if self.publisher is not None:
            self.publisher.renew_sample(self.sample)

    def end(self) -> None:
        """Evaluates, and takes the figures that the report needs while the tables are open."""
        after = self.loop.evaluate()
        self.metrics_after = {} if after is None else after.metrics
        self.loop.settle()
        self.tables_after = table_reports(self.loop)
        self.memory_after = memory_figures(self.loop)

    def report(self, update: UpdateState) -> UpdateReport:
        """Returns the figures of the pass, which has ended."""
        loop, valid = self.loop, self.run.valid
        assert loop.checkpoint is not None
        return UpdateReport(
            model_name=loop.config.model_name,
            number=update.number,
            steps=loop.position.step - update.start_step,
            rows=loop.position.rows - update.start_rows,
            seconds=loop.position.seconds - update.start_seconds,
            valid_rows=0 if valid is None else valid.rows,
            auc_before=update.auc_before,
            auc_after=first_figure(self.metrics_after, "auc"),
            log_loss_before=update.log_loss_before,
            log_loss_after=first_figure(self.metrics_after, "log_loss"),
            output=self.run.output,
            checkpoint=loop.checkpoint,
            published=loop.published,
            tables=self.tables_after,
            memory=self.memory_after,
            device=device_report(loop.device),
            hbm=loop.hbm,
            profile=loop.profile(),
            metrics_before=update.metrics_before,
            metrics_after=self.metrics_after,
            warnings=[*loop.warnings, *metric_warnings(self.metrics_after)],
        )


class UpdateRun:
    """A finished run that a pass over newer rows continues. For the arguments see `trainer.update`.

    ranks: those that train together, each with its part of the tables.
    """

    def __init__(
        self,
        output: Path | str,
        repository: Path | str,
        ranks: Ranks,
        *,
        valid: Data | None,
        publish: PublishConfig | None,
        dram_bytes: int | None,
        device: str | None,
        track: str | None,
        progress: bool,
    ) -> None:
        self.ranks = ranks
        self.output = local_path(output, "output")
        self.repository = check_repository(repository)
        config = with_tracking(with_dram_bytes(read_run(self.output)[0], dram_bytes), track)
        config = with_device(config, device)
        self._device = choose_device(config.training.device, ranks.local_rank, ranks.local_size)
        ranks.use(self._device)
        self.config = config if publish is None else config.model_copy(update={"publish": publish})
        self.policy = delta_policy(self.config)
        check_ranks(self.config, ranks)
        self.index = block_index(self.output)
        with ranks.first_before_others():
            self.valid = None if valid is None else evaluation_rows(self.config, valid, self.index)
        if self.valid is not None and self.valid.rows == 0:
            raise ConfigError("valid: there are no rows; give more data", field="valid")
        self._progress = progress and ranks.is_first

    @contextmanager
    def opened(
        self, rows: DataRows, *, resume: bool, from_snapshot: str | None, follows: str = ""
    ) -> Iterator[OpenPass]:
        """Opens the run at the state where a pass over `rows` begins, for the block. follows: the name of a stream.

        Ranks that are started again resume the pass that they had begun.
        """
        config, ranks = self.config, self.ranks
        resume = resume or ranks.had_begun
        with (
            CommitLog(self.output, keep_snapshots=config.publish.keep_states, ranks=ranks) as log,
            running_on(self._device, config.training.precision),
            threads(config.training.threads, ranks.local_size),
            Display(visible=self._progress) as display,
            row_memory(config, self.output, ranks.local_size) as memory,
        ):
            if log.newest is None:
                raise NotFound(f"{self.output}: holds no checkpoint; train first")
            given = {
                "data": rows.fingerprint,
                "valid": "none" if self.valid is None else self.valid.fingerprint,
                "resume": resume,
                "from_snapshot": from_snapshot,
            }
            check_agreement(ranks, config, given, f"{log.newest.folder.name} ({log.newest.sha256[:16]})")
            start = UpdateStart(
                log,
                log.newest,
                config,
                rows.fingerprint,
                resume=resume,
                from_snapshot=from_snapshot,
                begun=ranks.from_first(begun_update(self.output) if ranks.is_first else 0),
                follows=follows,
            )
            if start.update is None and ranks.is_first:
                note_begun_update(self.output, start.number)
            ranks.note_begun()
            tables = build_tables(config, memory, ranks)
            model = build_model(config, tables)
            loop = TrainingLoop(config, model, tables, rows, self.valid, log, display, memory, ranks, self._device)
            training = config.training
            if text := described_device(self._device, training.precision, compiled=training.compile):
                display.say(text)
            loop.restore(load_checkpoint(start.commit.folder, model, tables, loop.dense_optimizer))
            yield OpenPass(self, loop, log, display, start, read_sample(self.output, config), memory)
