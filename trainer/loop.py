"""The training loop: steps, epochs, evaluation, checkpoints, and a clean stop on Ctrl-C."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from storage.errors import ConfigError, InvalidInput
from trainer.checkpoint import Position, TrainingState, save_checkpoint
from trainer.config import DenseOptimizerConfig, SparseOptimizerConfig, TrainConfig
from trainer.data import Batch, BatchMaker, ParquetRows, Prefetcher, RowStream
from trainer.embedding import EmbeddingTable, SparseAdagrad, SparseOptimizer, SparseSGD
from trainer.evaluate import evaluate
from trainer.models import RankingModel
from trainer.progress import Display
from trainer.report import EpochReport, finite_or_none


class TrainingLoop:
    """Trains `model` over `rows`, from `position` on. The generator of torch must be seeded, or restored, before."""

    def __init__(
        self,
        config: TrainConfig,
        model: RankingModel,
        tables: Mapping[str, EmbeddingTable],
        rows: ParquetRows,
        valid: ParquetRows | None,
        output: Path,
        display: Display,
    ) -> None:
        self.config = config
        self.model = model
        self.tables = tables
        self.dense_optimizer = dense_optimizer(config.optimizer.dense, model)
        self.sparse_optimizer = sparse_optimizer(config.optimizer.sparse, tables)
        self.position = Position()
        self.history: list[EpochReport] = []
        self.checkpoint: Path | None = None
        self._rows = rows
        self._valid = valid
        self._output = output
        self._display = display
        self._maker = BatchMaker(config.spec, config.label)
        self._stop = threading.Event()

    def restore(self, state: TrainingState, folder: Path) -> None:
        """Continues where `state` ended; weights, rows and optimizer are in place already."""
        self.position = state.position
        self.history = [EpochReport(**entry) for entry in state.history]
        self.checkpoint = folder

    def run(self) -> None:
        """Trains the epochs that are left. Raises KeyboardInterrupt after Ctrl-C, when the checkpoint is written."""
        training = self.config.training
        with _interrupts(self._stop):
            while self.position.epoch < training.epochs:
                self._epoch()
                self._finish_epoch()
        if self.checkpoint is None:
            self.save()

    def save(self) -> Path:
        """Writes a training checkpoint."""
        state = TrainingState(
            self.position,
            self.config.training_digest(),
            self._rows.fingerprint,
            [asdict(entry) for entry in self.history],
        )
        self.checkpoint = save_checkpoint(self._output, state, self.model, self.dense_optimizer, self.tables)
        return self.checkpoint

    def _epoch(self) -> None:
        training = self.config.training
        stream = RowStream(
            self._rows,
            training.batch_size,
            shuffle_rows=training.shuffle_rows if training.shuffle else None,
            seed=training.seed,
        )
        start = self.position
        self._display.begin(f"epoch {start.epoch + 1}/{training.epochs}", stream.batches, start.batch)
        batches = (self._maker.batch(table) for table in stream.epoch(start.epoch, skip_batches=start.batch))
        self.model.train()
        began = time.monotonic()
        with Prefetcher(batches) as prefetched:
            for batch in prefetched:
                loss = self._step(batch)
                self.position = replace(
                    self.position,
                    batch=self.position.batch + 1,
                    step=self.position.step + 1,
                    rows=self.position.rows + batch.rows,
                    loss_sum=self.position.loss_sum + loss * batch.rows,
                    seconds=start.seconds + time.monotonic() - began,
                )
                every = training.checkpoint_every_steps
                if self._stop.is_set():
                    self._interrupted()
                if every and self.position.step % every == 0:
                    self.save()

    def _step(self, batch: Batch) -> float:
        self.dense_optimizer.zero_grad()
        self.sparse_optimizer.zero_grad()
        logits = self.model.logits(batch.inputs)
        loss = functional.binary_cross_entropy_with_logits(logits, batch.labels)
        value = float(loss.detach())
        if not math.isfinite(value):
            raise self._not_finite(batch, value)
        loss.backward()  # type: ignore[no-untyped-call]
        self.dense_optimizer.step()
        self.sparse_optimizer.step()
        self._display.step(value, batch.labels, logits)
        return value

    def _finish_epoch(self) -> None:
        training = self.config.training
        epoch = self.position.epoch + 1
        loss = self.position.loss_sum / self._rows.rows
        figures = EpochReport(epoch, loss)
        due = epoch == training.epochs or (training.eval_every > 0 and epoch % training.eval_every == 0)
        if due and self._valid is not None:
            result = evaluate(self.model, self._valid, self._maker, self._display)
            figures = EpochReport(epoch, loss, finite_or_none(result.auc), result.log_loss)
        self.history.append(figures)
        self._display.say(_line(figures))
        self.position = replace(self.position, epoch=epoch, batch=0, loss_sum=0.0)
        self.save()
        if self._stop.is_set():
            self._say_how_to_resume()
            raise KeyboardInterrupt

    def _interrupted(self) -> None:
        self.save()
        self._say_how_to_resume()
        raise KeyboardInterrupt

    def _say_how_to_resume(self) -> None:
        self._display.say(
            f"stopped after step {self.position.step}; the state is in {self.checkpoint}. "
            f"Run the same training with resume (--resume) and output {self._output} to go on"
        )

    def _not_finite(self, batch: Batch, loss: float) -> Exception:
        for group in self.config.spec.dense_groups:
            bad = ~torch.isfinite(batch.inputs[group])
            if bad.any():
                row, column = (int(index) for index in bad.nonzero()[0])
                return InvalidInput(
                    f"step {self.position.step + 1}: the dense group {group!r} holds a value that is not finite "
                    f"(row {row} of the batch, column {column}); clean the column, or clip it in `transforms`",
                    field=group,
                )
        return ConfigError(
            f"step {self.position.step + 1}: the loss is {loss}; lower optimizer.dense.lr or optimizer.sparse.lr, or "
            f"bring large dense features to scale (log, clip, affine); last good state: {self.checkpoint or 'none'}",
            field="optimizer",
        )


def dense_optimizer(config: DenseOptimizerConfig, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of torch.optim for the dense weights of a model."""
    kinds: dict[str, Any] = {
        "Adam": torch.optim.Adam,
        "AdamW": torch.optim.AdamW,
        "SGD": torch.optim.SGD,
        "Adagrad": torch.optim.Adagrad,
    }
    optimizer: torch.optim.Optimizer = kinds[config.type](
        model.parameters(), lr=config.lr, weight_decay=config.weight_decay, fused=True
    )
    return optimizer


def sparse_optimizer(config: SparseOptimizerConfig, tables: Mapping[str, EmbeddingTable]) -> SparseOptimizer:
    """The fused optimizer for the tables."""
    if config.type == "adagrad":
        return SparseAdagrad(tables.values(), lr=config.lr, eps=config.eps)
    return SparseSGD(tables.values(), lr=config.lr)


@contextmanager
def _interrupts(stop: threading.Event) -> Iterator[None]:
    """The first Ctrl-C sets `stop`, the second acts as usual. Python allows this in the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)

    def on_interrupt(number: int, frame: Any) -> None:
        stop.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _line(figures: EpochReport) -> str:
    parts = [f"epoch {figures.epoch}", f"loss {figures.loss:.5f}"]
    if figures.log_loss is not None:
        parts.append(f"valid log-loss {figures.log_loss:.5f}")
        parts.append(f"valid auc {figures.auc:.5f}" if figures.auc is not None else "valid auc: one class only")
    return "  ".join(parts)
