"""One training step: the gradients of a batch, and the update of weights and rows."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from storage.errors import ConfigError, InvalidInput
from trainer.config import TrainConfig
from trainer.data import Batch, DeviceBatches, WholeBatch
from trainer.dense_part import DensePart
from trainer.dense_sums import sum_with_facts
from trainer.devices import device_report, out_of_memory, transfers_of
from trainer.embedding import EmbeddingTable, HbmRows, clip_gradients
from trainer.loss_scale import LossScale
from trainer.model_config import OwnModelConfig
from trainer.models import RankingModel
from trainer.models.own_code import own_errors
from trainer.optimizers import Schedule, dense_optimizer, sparse_optimizer
from trainer.rank_times import RankTimes
from trainer.ranks import Ranks
from trainer.step_profile import StepProfile

_HOST = torch.device("cpu")


def step_random(seed: int, step: int, rank: int) -> int:
    """Returns the seed of the random numbers that a rank draws in a step."""
    return int(np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint64)[0] >> np.uint64(1))


def seed_step(seed: int) -> None:
    """Seeds torch's generators for a step.

    torch.manual_seed does the same, and keeps a call with its stack for each kind of device that is not in use: 3 ms a
    step, and memory that is never freed.
    """
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed)


def _check_memory(hbm_bytes: int, device: torch.device) -> None:
    report = device_report(device)
    if report is not None and hbm_bytes >= report.memory_bytes:
        raise ConfigError(
            f"training.hbm_bytes: expected less than the memory of {device}, {report.memory_bytes:,} bytes, of which "
            f"the model and its batches need a part; got {hbm_bytes:,}",
            field="training.hbm_bytes",
        )


class TrainingStep:
    """Takes the steps of a training, with its optimizers and their learning rates.

    profile: gets the work of stages. ranks: those that take the steps together, each with its rows of a batch. times:
    gets how long the last step took each of them. device: that of the model's weights. On a GPU a step asks for its
    forward and backward pass at once, and the host waits for the loss, and then for the gradients of rows alone: the
    dense weights are stepped while the host updates rows.
    """

    def __init__(
        self,
        config: TrainConfig,
        model: RankingModel,
        tables: Mapping[str, EmbeddingTable],
        profile: StepProfile,
        ranks: Ranks | None = None,
        times: RankTimes | None = None,
        device: torch.device = _HOST,
    ) -> None:
        self.dense_optimizer = dense_optimizer(config.optimizer.dense, model)
        self.sparse_optimizer = sparse_optimizer(config.optimizer.sparse, tables)
        self.optimizers = {"dense": self.dense_optimizer, "sparse": self.sparse_optimizer}
        self.schedule = Schedule(config.optimizer.schedule, self.dense_optimizer, self.sparse_optimizer)
        self._config = config
        self._ranks = ranks or Ranks()
        self._times = times or RankTimes(self._ranks, lambda: 0.0, print)
        #: True when a rank was asked to stop before the last step ended.
        self.stops = False
        self._model = model
        self._evicts = any(table.evicts for table in tables.values())
        self._profile = profile
        self._device = device
        self._by = transfers_of(device)
        hbm_bytes = config.training.hbm_bytes
        #: The rows that the GPU keeps; None: none.
        self.hbm: HbmRows | None = None
        if hbm_bytes is not None and self._by is not None:
            _check_memory(hbm_bytes, device)
            self.hbm = HbmRows(tables.values(), hbm_bytes, device, self._by)
        #: Brings batches to the device ahead of their step.
        self.batches = DeviceBatches(device)
        self._dense = DensePart(model, config.training, device)
        #: Under fp16.
        self.loss_scale = LossScale(device) if config.training.precision == "fp16" else None

    def take(
        self, batch: Batch, number: int, last_good: Path | None, *, whole_rows: int, stop: bool = False
    ) -> tuple[float, torch.Tensor]:
        """Learns from a batch and returns its loss, that of the rows of all ranks, and the logits of its own.

        number: steps before this one. whole_rows: rows of the batch at all ranks. stop: this rank was asked to stop.
        Raises InvalidInput or ConfigError when the loss is not finite, and changes nothing then. last_good: the commit
        that the error names.
        """
        profile = self._profile
        began, looked_up = time.perf_counter(), profile.lookup_seconds
        self.dense_optimizer.zero_grad()
        self.sparse_optimizer.zero_grad()
        if self.hbm is not None:
            with out_of_memory(self._device, f"rows to keep at step {number + 1}", "lower training.hbm_bytes"):
                self.hbm.before_step(number)
        if self._ranks.are_several or self._device.type != "cpu":
            # Dropout draws other numbers at each rank, which a resumed run draws again; so it does those of a GPU.
            seed_step(step_random(self._config.training.seed, number, self._ranks.rank))
        share = batch.rows / whole_rows
        with self._explained(number):
            self._take_buffers()
            with self._dense.used():
                loss, logits = self._model.learn(self._part(batch, whole_rows), self._config.targets)
            arriving = None if self._by is None else self._by.to_host([loss.detach()])
            wanted = loss * share if self._ranks.are_several else loss
            wanted = wanted if self.loss_scale is None else self.loss_scale.scaled(wanted)
            wanted.backward()  # type: ignore[no-untyped-call]
            # A mean over no rows is not a number, and has no gradient.
            value = float(loss.detach() if arriving is None else arriving.wait()[0]) if batch.rows else 0.0
            if not math.isfinite(value):
                raise self._not_finite(batch, logits, value, number, last_good)
        value, self.stops = self._summed(value, share, stop)
        looked_up = profile.lookup_seconds - looked_up
        profile.add("dense", time.perf_counter() - began - looked_up)
        with self._memory(number):
            self._update(batch, number)
        return value, logits

    def _part(self, batch: Batch, whole_rows: int) -> Batch:
        """Returns the batch on the device of the step, as a part of that of all ranks."""
        placed = self.batches.placed(batch)
        if not self._ranks.are_several:
            return placed
        return replace(placed, whole=WholeBatch(self._ranks, batch.rows, whole_rows))

    @contextmanager
    def _explained(self, number: int) -> Iterator[None]:
        """Says whose error it is that the block raises: of the model's code, of torch's compiler, of a full GPU."""
        with own_errors(self._model, f"step {number + 1}"), self._memory(number), self._dense.explained():
            yield

    def _memory(self, number: int) -> AbstractContextManager[None]:
        more = "" if self.hbm is None else ", or lower training.hbm_bytes"
        advice = (
            f"lower training.batch_size (it is {self._config.training.batch_size:,}), choose training.precision bf16, "
            f"make the layers of `model` narrower{more}"
        )
        return out_of_memory(self._device, f"step {number + 1}", advice)

    def _summed(self, loss: float, share: float, stop: bool) -> tuple[float, bool]:
        """Adds up the dense gradients of the ranks; returns the loss of their rows, and whether one was asked to stop.

        share: that of this rank in the rows of the batch.
        """
        if not self._ranks.are_several:
            return loss, stop
        own = [loss * share, float(stop), *self._times.facts()]
        summed, stops, *told = sum_with_facts(self._model.parameters(), own, self._ranks)
        self._times.receive(told)
        return summed, bool(stops)

    def _take_buffers(self) -> None:
        """Lets a step begin with the buffers of the first rank, such as the statistics of batches, as a resumed one."""
        own = isinstance(self._config.model, OwnModelConfig)
        buffers = [each for each in self._model.buffers() if each.is_floating_point()] if own else []
        if not self._ranks.are_several or not buffers:
            return
        flat = torch.cat([each.reshape(-1).double().cpu() for each in buffers])
        self._ranks.sum(flat if self._ranks.is_first else flat.zero_())
        for each, part in zip(buffers, torch.split(flat, [each.numel() for each in buffers]), strict=True):
            each.copy_(part.view_as(each))

    def _update(self, batch: Batch, number: int) -> None:
        self.schedule.set(number)
        profile, clip_norm, loss_scale = self._profile, self._config.optimizer.clip_norm, self.loss_scale
        scale = 1.0 if loss_scale is None else loss_scale.inverse
        if clip_norm or loss_scale is not None:
            with profile.stage("dense"):
                self.sparse_optimizer.wait()
        with profile.stage("update"):
            squares = self._rows_squares() if clip_norm or loss_scale is not None else 0.0
            if loss_scale is not None:
                loss_scale.unscale(self.dense_optimizer, self._model.parameters(), squares)
            if clip_norm:
                scale *= clip_gradients(clip_norm, self._model.parameters(), squares * scale * scale)
            steps = True
            if loss_scale is None:
                self.dense_optimizer.step()
            else:
                steps = loss_scale.step(self.dense_optimizer)
        with profile.stage("dense"):
            self.sparse_optimizer.wait()  # a GPU may still work on the step
        with profile.stage("update"):
            if steps:
                self.sparse_optimizer.step(scale=scale, seconds=self._seconds(batch, number))
            else:
                self.sparse_optimizer.zero_grad()

    def _rows_squares(self) -> float:
        """Returns the sum of squares of the gradients of rows, those of all ranks."""
        squares = torch.tensor(self.sparse_optimizer.squared_norm(), dtype=torch.float64)
        self._ranks.sum(squares)
        return float(squares)

    def _seconds(self, batch: Batch, number: int) -> float | None:
        """Returns the time of a batch for eviction; None: the wall clock."""
        column, seconds = self._config.training.time_column, batch.seconds
        if self._ranks.are_several and self._evicts:  # at all ranks at the same step
            now = seconds if column is not None else time.time()
            seconds = self._ranks.largest(-math.inf if now is None else now)
            seconds = seconds if math.isfinite(seconds) else None
        if column is not None and seconds is None and batch.rows:
            raise InvalidInput(
                f"step {number + 1}: no row of the batch has a time in the column {column!r}; leave such rows out",
                field="training.time_column",
            )
        return seconds

    def check_weights(self, number: int, last_good: Path | None) -> None:
        """Raises ConfigError when a dense weight is not finite after `number` steps."""
        for name, weight in self._model.named_parameters():
            if not bool(torch.isfinite(weight).all()):
                raise ConfigError(
                    f"step {number}: the weight {name!r} is not finite any more; lower optimizer.dense.lr, or bring "
                    f"large dense features to scale (log, clip, affine); last good state: {last_good or 'none'}",
                    field="optimizer",
                )

    def _not_finite(
        self, batch: Batch, logits: torch.Tensor, loss: float, number: int, last_good: Path | None
    ) -> Exception:
        for group in self._config.spec.dense_groups:
            bad = ~torch.isfinite(batch.inputs[group])
            if bad.any():
                row, column = (int(index) for index in bad.nonzero()[0])
                return InvalidInput(
                    f"step {number + 1}: the dense group {group!r} holds a value that is not finite "
                    f"(row {row} of the batch, column {column}); clean the column, or clip it in `transforms`",
                    field=group,
                )
        found = logits.detach()
        wrong = (~torch.isfinite(found)).nonzero()
        of_logits = ""
        if len(wrong):
            row, head = wrong[0].tolist()
            kind = type(self._model).__name__
            of_logits = f", as {kind}.logits gave {float(found[row, head])} (row {row} of the batch, value {head})"
        return ConfigError(
            f"step {number + 1}: the loss is {loss}{of_logits}; lower optimizer.dense.lr or optimizer.sparse.lr, or "
            f"bring large dense features to scale (log, clip, affine); last good state: {last_good or 'none'}",
            field="optimizer",
        )
