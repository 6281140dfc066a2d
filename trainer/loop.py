"""The training loop: steps, epochs, evaluation, checkpoints, publishing on the way, and a clean stop on Ctrl-C.

A snapshot is published in three steps, so that servers only ever see a state that training can continue from: the
publisher prepares it, a commit with the pending snapshot is saved, the snapshot is written. After a crash in between,
the newest commit names the pending snapshot, and it is written from there first.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from storage.errors import CheckpointError
from trainer.batch_flow import BatchFlow
from trainer.checkpoint import CommitLog, Position, TrainingState, UpdateState, load_checkpoint
from trainer.config import TrainConfig
from trainer.data import Batch, DataRows, RowStream
from trainer.devices import device_report, on_host, out_of_memory
from trainer.embedding import EmbeddingTable, HbmFigures, RowMemory
from trainer.evaluate import Evaluation, evaluate
from trainer.event_times import TrainedTimes
from trainer.freshness import Freshness
from trainer.interrupts import noticed_interrupts
from trainer.label_means import begin_at_means
from trainer.label_ranges import joined_ranges, label_warnings, widened
from trainer.models import RankingModel
from trainer.progress import Display
from trainer.publishing import DeltaPolicy, Publisher, WantedKind
from trainer.publishing.delta_golden import POOL_ROWS
from trainer.rank_times import RankTimes, short_line
from trainer.ranks import Ranks, Traffic
from trainer.report import EpochReport, first_figure
from trainer.row_memory import BatchIds
from trainer.settings import settings_of
from trainer.snapshots import Snapshots
from trainer.step import TrainingStep
from trainer.step_profile import ProfileReport, StepProfile, time_lookups
from trainer.stopping import Verdict, judge
from trainer.tracking import Track
from trainer.warm_start import StartFrom, StartReport, start_config
from trainer.wire import WIRES

_HOST = torch.device("cpu")


class TrainingLoop:
    """Trains `model` over `rows`, from `position` on. The generator of torch must be seeded, or restored, before.

    log: writes the commits. memory: that of the tables, when it is bounded. publisher, policy: publish on the way, as
    the policy says; without them the loop carries on what an earlier run published and publishes nothing. ranks: those
    that train together; each has a loop, over its part of the tables, and they call every method in the same order.
    device: where the dense part is computed; the weights are moved there.
    """

    def __init__(
        self,
        config: TrainConfig,
        model: RankingModel,
        tables: Mapping[str, EmbeddingTable],
        rows: DataRows,
        valid: DataRows | None,
        log: CommitLog,
        display: Display,
        memory: RowMemory | None = None,
        ranks: Ranks | None = None,
        device: torch.device = _HOST,
    ) -> None:
        self.config = config
        with out_of_memory(device, "moving the weights", "make the layers of `model` narrower"):
            self.model = model.to(device)
        self.device = device
        self.tables = tables
        self.position = Position()
        self.history: list[EpochReport] = []
        self.stopped = False
        self.update: UpdateState | None = None
        #: Positions of streams: TrainingState.streams.
        self.streams: dict[str, dict[str, Any]] = {}
        #: The times of the rows since the last publish.
        self.times = TrainedTimes()
        self.freshness = Freshness()
        #: Deltas that this loop has published because the loss rose.
        self.drifts = 0
        #: Called before each commit, and has on the disk what the commit refers to.
        self.before_commit: Callable[[], None] = lambda: None
        self._rows = rows
        self._valid = valid
        self.ranks = ranks or Ranks()
        self.ranks.wire = WIRES[config.training.wire]
        self._log = log
        self._display = display
        display.tasks = config.targets.tasks
        self.memory = memory
        #: Gets the figures of steps and epochs.
        self.track = Track()
        self._settings = settings_of(config)
        #: Gets the work of the stages.
        self.stages = StepProfile({"features": config.training.feature_threads})
        time_lookups(model, self.stages)
        #: Counts the rows that ranks read for each other.
        self.reading = Traffic()
        #: Measures the steps of the ranks.
        self.rank_times = RankTimes(self.ranks, lambda: self.stages.seconds("wait"), display.warn, self.reading)
        self._learning = TrainingStep(config, model, tables, self.stages, self.ranks, self.rank_times, device)
        #: Brings batches to the device ahead of their step.
        self.batches = self._learning.batches
        if config.training.hbm_bytes is not None and self._learning.hbm is None and config.training.device != "auto":
            display.say("training.hbm_bytes is memory of a GPU, and has no effect on the processor")
        self._flow = BatchFlow(config, rows, self.stages, self.ranks, self.batches, self.reading)
        self.dense_optimizer = self._learning.dense_optimizer
        self._snapshots = Snapshots(display, self.ranks, tables.values())
        self._stop = threading.Event()

    @property
    def checkpoint(self) -> Path | None:
        """The folder of the commit that the next one adds to; None before the first."""
        return None if self._log.base is None else self._log.base.folder

    @property
    def published(self) -> list[Path]:
        """The folders of the versions and deltas that this loop has published, oldest first."""
        return self._snapshots.written

    def restore(self, state: TrainingState) -> None:
        """Continues where `state` ended; weights, rows and optimizer are in place already."""
        self.position = state.position
        self.history = [EpochReport(**entry) for entry in state.history]
        self.stopped = state.stopped
        if self.stopped and not self.verdict.is_over and self.config.training.epochs > len(self.history) > 0:
            # Epochs were added: the best one is trained on, through those that came after it.
            self.history, self.stopped = self.history[: self.position.epoch], False
        self.update = state.update
        self.streams = dict(state.streams)
        # Those of all ranks are in it.
        self.times = TrainedTimes.from_json_value(state.events if self.ranks.is_first else {})
        if self._learning.loss_scale is not None:
            self._learning.loss_scale.restore(state.loss_scale)
        self._snapshots.carried = state.publishing
        self._snapshots.carried_drift = state.drift

    def start_from(self, given: StartFrom) -> StartReport:
        """Fills model, tables and optimizers, all new, from another run or version; training begins at step 0."""
        learning = self._learning
        learning.schedule.set(0)  # what FTRL makes of rows from elsewhere depends on the learning rate
        optimizers = learning.dense_optimizer, learning.sparse_optimizer
        return start_config(self.config, given, self.model, self.tables, *optimizers)

    def begin_at_means(self) -> None:
        """Lets regressions begin at the mean label of the first rows. For a new run that starts from nothing else."""
        targets = self.config.targets
        labels = self._rows.only({*targets.numbers, *targets.texts})
        stream = BatchFlow(self.config, labels, self.stages).stream(in_order=False)
        begin_at_means(self.model, stream.epoch(0), targets)

    def publish_with(self, publisher: Publisher | None, policy: DeltaPolicy) -> None:
        """Publishes from this call on. A snapshot that the publisher has pending is written first.

        publisher: None at the other ranks than the first.
        """
        self._snapshots.publish_with(publisher, policy)
        base = self._log.base
        if publisher is not None and base is not None and base.state.data_fingerprint == self._rows.fingerprint:
            # Golden requests are made of rows before the position, so they are offered as the stopped run did.
            epoch = 0 if self.update is not None else self.position.epoch
            for columns in self._flow.columns_before(self._stream(), epoch, self.position.batch, POOL_ROWS):
                self._snapshots.offer(columns)
        with on_host(self.model, self.device):
            self._snapshots.write_pending()

    def run(self) -> None:
        """Trains the remaining epochs. Raises KeyboardInterrupt after Ctrl-C, when the commit is written."""
        training = self.config.training
        with noticed_interrupts(self._stop):
            while self.position.epoch < training.epochs and not (self.stopped or self.verdict.is_over):
                epoch = self.position.epoch
                self._pass(self._stream(), epoch, f"epoch {epoch + 1}/{training.epochs}")
                self._finish_epoch()
        if self.checkpoint is None:
            self.save()

    @property
    def warnings(self) -> list[str]:
        """Returns what the labels that were trained on leave unlearned, and slow ranks, a sentence each."""
        learned = label_warnings(self.position.labels, self.config.targets, self.config.data.negative_sampling)
        return [*learned, *self.rank_times.warnings]

    @property
    def verdict(self) -> Verdict:
        """The verdict of early stopping on the epochs so far."""
        return judge(self.config, self.history)

    @property
    def is_behind_best(self) -> bool:
        """True if an earlier epoch than the last one trained has the model to keep."""
        return not self.stopped and self.verdict.best_epoch not in (0, self.position.epoch)

    def go_back(self, last: TrainingState) -> None:
        """Becomes the end of a run, at its best epoch. last: the state after its last epoch. This loop is new."""
        commit = self._log.at_epoch(last.best_epoch)
        if commit is None:
            raise CheckpointError(f"the commit of epoch {last.best_epoch}, the best one, is not there any more")
        state = load_checkpoint(commit.folder, self.model, self.tables, self.dense_optimizer)
        self._log.go_on_from(commit)
        self.restore(replace(state, history=last.history, publishing=last.publishing, stopped=True))
        self.save()
        self._display.say(f"keeping the model of epoch {self.position.epoch}, the best one")

    def run_update(self, update: UpdateState) -> None:
        """Trains one pass over the rows in their order; `update` holds where it began. Interrupted as `run` is."""
        self.update = update
        if self.position.batch == 0:
            self._snapshots.forget_offered()
        with noticed_interrupts(self._stop):
            if not update.done:
                self._pass(self._stream(), 0, f"update {update.number}")
            self.end_update()

    def end_update(self) -> None:
        """Publishes what is not published, and saves that the update is done."""
        assert self.update is not None
        # `done` goes into the commit of the last publish: after it there is nothing left to train.
        self.update = replace(self.update, done=True)
        if self._snapshots.are_published and self.position.step > self.position.published_step:
            self.publish()
        else:
            self.save()

    def evaluate(self) -> Evaluation | None:
        """Returns the scores of the validation rows as the model is now; None without such rows."""
        if self._valid is None:
            return None
        advice = "make the layers of `model` narrower, or train on a GPU with more memory"
        with out_of_memory(self.device, "the evaluation", advice):
            return evaluate(self.model, self._valid, self._flow.maker, self._display, ranks=self.ranks)

    def save(self, snapshots: tuple[str, ...] = ()) -> Path:
        """Writes a commit. snapshots: ids of the snapshots that are published from this very state."""
        self.track.flush()
        self._join_labels()
        self._give_times_to_first()
        if self.ranks.are_several:
            self.rank_times.gather()
        state = self.state(snapshots)
        base = self._log.base
        moved = base is None or base.state.position.step != self.position.step
        if moved:
            self._learning.check_weights(self.position.step, self.checkpoint)
        self.before_commit()
        commit = self._log.save(state, self.tables, (self.model, self.dense_optimizer) if moved else None)
        self.freshness.reached("committed")
        if state.publishing is None:
            # Nothing was published that erased ids could be removed from.
            for name, table in self.tables.items():
                table.forget_removed(commit.tables[name].stamp)
        return commit.folder

    def _give_times_to_first(self) -> None:
        if self.ranks.are_several:
            of_all = self.ranks.gather(self.times.to_json_value())
            self.times = TrainedTimes.joined(of_all if self.ranks.is_first else [])

    def _join_labels(self) -> None:
        self.position = replace(self.position, labels=joined_ranges(self.ranks.gather(self.position.labels)))

    def state(self, snapshots: tuple[str, ...] = ()) -> TrainingState:
        """Returns what a commit holds beside weights and rows."""
        return TrainingState(
            position=self.position,
            settings=self._settings,
            column_types=self.config.column_types,
            data_fingerprint=self._rows.fingerprint,
            history=[asdict(entry) for entry in self.history],
            update=self.update,
            publishing=self._snapshots.to_json_value(),
            snapshots=snapshots,
            best_epoch=self.verdict.best_epoch,
            stopped=self.stopped,
            streams=self.streams,
            events=self.times.to_json_value(),
            drift=self._snapshots.drift_to_json_value(),
            loss_scale={} if self._learning.loss_scale is None else self._learning.loss_scale.to_json_value(),
        )

    def publish(self, kind: WantedKind = "auto") -> Path:
        """Publishes the state as it is now and returns the folder of the version or delta."""
        rebase = "" if self.update is None else self.update.rebase
        self._give_times_to_first()
        with on_host(self.model, self.device):
            names = self._snapshots.prepare(kind, rebase or None, self.times)
            self.position = replace(self.position, published_step=self.position.step, published_rows=self.position.rows)
            if self.update is not None:
                self.update = replace(self.update, rebase="")
            self.save(names)
            folder = self._snapshots.write()
        self.freshness.reached("published")
        return folder

    def published_path(self) -> Path | None:
        """Returns the folder of the newest snapshot; None where it has to be published anew."""
        return self._snapshots.published_path()

    def settle(self) -> None:
        """Saves that nothing is pending, after the last publish of a run."""
        base = self._log.base
        if base is not None and self._snapshots.is_unsettled(base.state.publishing):
            self.save()

    @property
    def is_due(self) -> bool:
        """True if the policy asks for a delta now."""
        return self._snapshots.is_due(self.position)

    def _publish_if_due(self) -> bool:
        due, risen = self.is_due, self._snapshots.drift
        if risen is not None:
            self.drifts += 1
            self._display.say(f"the loss has risen from {risen[0]:.4f} to {risen[1]:.4f}: a delta is due")
        if due:
            self.publish()
        return due

    def _stream(self) -> RowStream:
        return self._flow.stream(in_order=self.update is not None)

    def _pass(self, stream: RowStream, epoch: int, what: str) -> None:
        start = self.position
        self._display.begin(what, stream.batches, start.batch)
        self.model.train()
        if start.step > start.published_step:
            self._publish_if_due()  # it was due at the step that Ctrl-C interrupted
        began = time.monotonic()
        with self._flow.ahead(stream, epoch, start.batch) as batches:
            step_began = time.perf_counter()
            self.rank_times.begin()
            for batch in self.with_rows(batches):
                self.take(batch, start.seconds + time.monotonic() - began)
                self.rank_times.end()
                if self._learning.stops or (not self.ranks.are_several and self._stop.is_set()):
                    self.save()
                    raise self._interrupt()
                self.publish_or_save()
                step_ended = time.perf_counter()
                self.stages.step(step_ended - step_began)
                step_began = step_ended
                self.rank_times.begin()

    def take(self, batch: Batch, seconds: float) -> None:
        """Trains one batch, and counts it. seconds: of training, with this batch."""
        whole = self._whole_rows(batch)
        loss = self._step(batch)
        self.position = replace(
            self.position,
            batch=self.position.batch + 1,
            step=self.position.step + 1,
            rows=self.position.rows + whole,
            loss_sum=self.position.loss_sum + loss * whole,
            seconds=seconds,
            labels=widened(self.position.labels, batch.labels, self.config.targets.tasks),
        )
        self._snapshots.trained(loss, whole)
        self.times.add(batch.times_ms)
        self.freshness.add(batch.times_ms if batch.whole_times_ms is None else batch.whole_times_ms)
        self.track.step(self.position.step, whole, loss, self._learning.optimizers)
        self._snapshots.offer(batch.columns)

    def publish_or_save(self) -> bool:
        """Publishes behind a step if it is due, or else saves a commit if one is; returns whether it published."""
        every = self.config.training.checkpoint_every_steps
        if self._publish_if_due():
            return True
        if every and self.position.step % every == 0:
            self.save()
        return False

    def with_rows(self, batches: Iterable[Batch]) -> Iterable[Batch]:
        """Yields batches; what `held` says of their rows in memory."""
        self._display.note = self._note
        if self.memory is None:
            return batches
        return self.memory.held(batches, BatchIds(self.config.spec))

    @property
    def hbm(self) -> HbmFigures | None:
        """Says what a GPU keeps of the rows; None where it keeps none."""
        return None if self._learning.hbm is None else self._learning.hbm.figures()

    def _note(self) -> str:
        """Returns what the progress bar shows of the stages and of the memory."""
        report = self.stages.report()
        held_up = "" if report is None else f"  held up by {report.short()}"
        on_gpu = device_report(self.device)
        held_up += "" if on_gpu is None else f"  {on_gpu.short()}"
        return held_up if self.memory is None else f"{held_up}  {self.memory.figures().short()}"

    def profile(self) -> ProfileReport | None:
        """Returns the work of the stages of the steps so far, and of the ranks; None before the first step.

        Called by all ranks.
        """
        report = self.stages.report()
        if report is None or not self.ranks.are_several:
            return report
        return replace(report, ranks=self.rank_times.gather())

    def _whole_rows(self, batch: Batch) -> int:
        """Returns the rows of the batch at all ranks."""
        if not self.ranks.are_several:
            return batch.rows
        return batch.whole_rows or self._flow.rows_of(self.position.batch)

    def _step(self, batch: Batch) -> float:
        whole, stop = self._whole_rows(batch), self._stop.is_set()
        loss, logits = self._learning.take(batch, self.position.step, self.checkpoint, whole_rows=whole, stop=stop)
        self._display.step(loss, batch.labels, logits)
        return loss

    def _finish_epoch(self) -> None:
        training = self.config.training
        epoch = self.position.epoch + 1
        loss = self.position.loss_sum / self._rows.rows
        figures = EpochReport(epoch, loss)
        due = epoch == training.epochs or (training.eval_every > 0 and epoch % training.eval_every == 0)
        result = self.evaluate() if due else None
        if result is not None:
            metrics = result.metrics
            figures = EpochReport(epoch, loss, first_figure(metrics, "auc"), first_figure(metrics, "log_loss"), metrics)
        self.history.append(figures)
        self._display.say(figures.text())
        ranks = self.rank_times.epoch() if self.ranks.are_several else []
        if ranks:
            self._display.say(short_line(ranks))
        self._join_labels()
        if epoch == 1:
            for text in self.warnings:
                self._display.say(f"warning: {text}")
        self.track.epoch(self.position.step, figures, self.stages, self.tables, ranks)
        self.position = replace(self.position, epoch=epoch, batch=0, loss_sum=0.0)
        self.save()
        if any(self.ranks.gather(self._stop.is_set())):
            raise self._interrupt()

    def _interrupt(self) -> KeyboardInterrupt:
        return KeyboardInterrupt(
            f"stopped after step {self.position.step}; the state is in {self.checkpoint}. "
            f"Run the same {'training' if self.update is None else 'update'} with resume (--resume) to go on"
        )
