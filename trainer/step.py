"""One training step: the gradients of a batch, and the update of weights and rows."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path

import torch

from storage.errors import ConfigError, InvalidInput
from trainer.config import TrainConfig
from trainer.data import Batch
from trainer.embedding import EmbeddingTable, global_clip
from trainer.models import RankingModel
from trainer.models.own_code import own_errors
from trainer.optimizers import Schedule, dense_optimizer, sparse_optimizer
from trainer.step_profile import StepProfile


class TrainingStep:
    """Takes the steps of a training, with its optimizers and their learning rates. profile: gets the work of stages."""

    def __init__(
        self, config: TrainConfig, model: RankingModel, tables: Mapping[str, EmbeddingTable], profile: StepProfile
    ) -> None:
        self.dense_optimizer = dense_optimizer(config.optimizer.dense, model)
        self.sparse_optimizer = sparse_optimizer(config.optimizer.sparse, tables)
        self.optimizers = {"dense": self.dense_optimizer, "sparse": self.sparse_optimizer}
        self.schedule = Schedule(config.optimizer.schedule, self.dense_optimizer, self.sparse_optimizer)
        self._config = config
        self._model = model
        self._profile = profile

    def take(self, batch: Batch, number: int, last_good: Path | None) -> tuple[float, torch.Tensor]:
        """Learns from a batch and returns its loss and logits. number: steps before this one.

        Raises InvalidInput or ConfigError when the loss is not finite, and changes nothing then. last_good: the commit
        that the error names.
        """
        profile = self._profile
        began, looked_up = time.perf_counter(), profile.lookup_seconds
        self.dense_optimizer.zero_grad()
        self.sparse_optimizer.zero_grad()
        with own_errors(self._model, f"step {number + 1}"):
            loss, logits = self._model.learn(batch, self._config.targets)
            value = float(loss.detach())
            if not math.isfinite(value):
                raise self._not_finite(batch, logits, value, number, last_good)
            loss.backward()  # type: ignore[no-untyped-call]
        looked_up = profile.lookup_seconds - looked_up
        profile.add("dense", time.perf_counter() - began - looked_up)
        with profile.stage("update"):
            self._update(batch, number)
        return value, logits

    def _update(self, batch: Batch, number: int) -> None:
        self.schedule.set(number)
        clip_norm = self._config.optimizer.clip_norm
        scale = global_clip(clip_norm, self._model.parameters(), self.sparse_optimizer) if clip_norm else 1.0
        self.dense_optimizer.step()
        self.sparse_optimizer.step(scale=scale, seconds=self._seconds(batch, number))

    def _seconds(self, batch: Batch, number: int) -> float | None:
        """Returns the time of a batch for eviction; None: the wall clock."""
        column = self._config.training.time_column
        if column is not None and batch.seconds is None:
            raise InvalidInput(
                f"step {number + 1}: no row of the batch has a time in the column {column!r}; leave such rows out",
                field="training.time_column",
            )
        return batch.seconds

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
