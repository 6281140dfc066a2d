"""The end of a training: the last publish, and the report."""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path

import numpy as np

from storage.data import SkippedFile
from storage.features import Column
from trainer.config import TrainConfig
from trainer.data import DataRows
from trainer.devices import device_report
from trainer.embedding import MemoryFigures
from trainer.label_ranges import metric_warnings
from trainer.loop import TrainingLoop
from trainer.publication import delta_policy, lineage_of, publisher_of
from trainer.publishing import Lineage, Publisher
from trainer.report import TableReport, TrainReport
from trainer.step_profile import ProfileReport
from trainer.warm_start import StartReport


class RunEnd:
    """Publishes and reports what a training made."""

    def __init__(
        self,
        config: TrainConfig,
        sample: dict[str, Column],
        repository: Path | str | None,
        output: Path,
        valid: DataRows | None,
        started: StartReport | None,
    ) -> None:
        self._config = config
        self._sample = sample
        self._repository = repository
        self._output = output
        self._valid = valid
        self._started = started
        self._policy = delta_policy(config)
        self._publishes = False

    def publish_from(self, loop: TrainingLoop, lineage: Lineage | None) -> None:
        """Publishes the states of this loop from now on."""
        if self._repository is not None:
            publisher: Publisher | None = None
            if loop.ranks.is_first:
                publisher = publisher_of(
                    self._config, loop.model, self._sample, self._repository, self._policy, lineage
                )
            loop.publish_with(publisher, self._policy)
            self._publishes = True

    def of(self, loop: TrainingLoop, profile: ProfileReport | None, skipped: list[SkippedFile]) -> TrainReport:
        """Publishes a loop that is done, and returns the report. profile, skipped: what it says of them."""
        if not self._publishes:
            self.publish_from(loop, lineage_of(loop.state()))
        published = self._published(loop) if self._publishes else None
        config, best = self._config, loop.verdict.best_epoch
        evaluated = [entry for entry in loop.history if entry.metrics]
        if loop.stopped:
            evaluated = [entry for entry in evaluated if entry.epoch <= best]
        assert loop.checkpoint is not None
        return TrainReport(
            model_name=config.model_name,
            auc=evaluated[-1].auc if evaluated else None,
            log_loss=evaluated[-1].log_loss if evaluated else None,
            steps=loop.position.step,
            rows=loop.position.rows,
            seconds=loop.position.seconds,
            valid_rows=0 if self._valid is None else self._valid.rows,
            output=self._output,
            checkpoint=loop.checkpoint,
            published=published,
            epochs=loop.history,
            tables=table_reports(loop),
            memory=memory_figures(loop),
            device=device_report(loop.device),
            hbm=loop.hbm,
            started=self._started,
            profile=profile,
            skipped=skipped,
            metrics=evaluated[-1].metrics if evaluated else {},
            best_epoch=best or None,
            warnings=[*loop.warnings, *metric_warnings(evaluated[-1].metrics if evaluated else {})],
        )

    def _published(self, loop: TrainingLoop) -> Path:
        # The snapshot that a crash left pending, or the policy's last publish, may be of this very state; and a run
        # that is resumed when it is done has published it before.
        path: Path | None = None
        if loop.position.step == loop.position.published_step:
            path = loop.published[-1] if loop.published else loop.published_path()
        if path is None:
            on_the_way = self._policy.publishes_deltas and self._config.training.early_stopping is None
            path = loop.publish("auto" if on_the_way else "version")
        loop.settle()
        return path


def table_reports(loop: TrainingLoop) -> list[TableReport]:
    """Returns the size of each table, at all ranks together."""
    own = [(table.size(), table.waiting(), table.memory_bytes(), table.rows_on_ssd()) for table in loop.tables.values()]
    of_ranks = np.array(loop.ranks.gather(own), np.int64).reshape(-1, len(own), 4)
    return [
        TableReport(name, table.dim, *(int(number) for number in numbers))
        for (name, table), numbers in zip(loop.tables.items(), of_ranks.sum(axis=0), strict=True)
    ]


def memory_figures(loop: TrainingLoop) -> MemoryFigures | None:
    """Returns the figures of bounded memory, at all ranks together; None where it is not bounded."""
    if loop.memory is None:
        return None
    of_ranks = [astuple(each) for each in loop.ranks.gather(loop.memory.figures())]
    return MemoryFigures(*(sum(each) for each in zip(*of_ranks, strict=True)))
