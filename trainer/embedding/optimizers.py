"""Optimizers of the tables. They step in C++ on the gradients that backward() left at the tables.

g is the gradient of a row, summed over all places in the batch where its id stands. Only rows with a gradient take a
step; what is called lazy elsewhere. Formulas are in storage/native/training/optimizer.h.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import numpy as np
import torch

from storage._table import squared_norm, step_tables
from storage.errors import ConfigError
from trainer.embedding.hbm_group import HbmGroup
from trainer.embedding.table import EmbeddingTable, Rows, SparseRule
from trainer.embedding.uncompiled import uncompiled


@uncompiled
class SparseOptimizer(torch.optim.Optimizer):
    """Base of the optimizers of tables, one step for each row that has a gradient.

    It is a torch optimizer with one group of options, so schedulers of torch.optim.lr_scheduler change its `lr`. All of
    a row's optimizer values lie in the row, and the steps so far at the tables: a checkpoint of the tables has the
    optimizer's state. weight_decay: L2 penalty, of which only rows with a gradient pay. row_clip: the largest norm of a
    row's gradient; 0 is none. Raises ConfigError for a table that was made for another optimizer, and for options out
    of range.
    """

    rule: ClassVar[SparseRule]

    def __init__(
        self,
        tables: Iterable[EmbeddingTable],
        lr: float,
        *,
        weight_decay: float = 0.0,
        row_clip: float = 0.0,
        **numbers: float,
    ) -> None:
        options = {"lr": lr, "weight_decay": weight_decay, "row_clip": row_clip, **numbers}
        for name, value in options.items():
            if not math.isfinite(value) or value < 0:
                raise ConfigError(f"{self.rule}: {name} is {value}, expected 0 or more", field=name)
        self.tables = _made_for(self.rule, tables)
        super().__init__([torch.zeros((), requires_grad=True)], options)

    @property
    def lr(self) -> float:
        """The learning rate of the next step."""
        return float(self.param_groups[0]["lr"])

    def step(  # type: ignore[override]
        self, closure: Callable[[], float] | None = None, *, scale: float = 1.0, seconds: float | None = None
    ) -> int:
        """Updates the rows and forgets the gradients; then tables evict what is due. Returns how many rows took a step.

        scale: gradients are multiplied by it first. seconds: the time, for eviction by age; None: the wall clock.
        """
        if closure is not None:
            raise ConfigError(f"{self.rule}: steps take no closure", field="closure")
        gradients = [table.take_gradients() for table in self.tables]
        natives, options = [table.unsettled for table in self.tables], self._options(scale)
        stepped = step_tables(natives, gradients, self.rule, options, torch.get_num_threads())
        stepped += sum(group.step(self.rule, options) for group in self._kept())
        now = time.time() if seconds is None else seconds
        for table in self.tables:
            table.after_step(now)
        return stepped

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets gradients that no step has used."""
        for table in self.tables:
            table.drop_gradients()

    def wait(self) -> None:
        """Waits for gradients on their way from a GPU. `step` and `squared_norm` do so too."""
        for table in self.tables:
            table.gradients()

    def squared_norm(self) -> float:
        """Returns the sum of squares of all gradients that the next step would use: for clipping by a global norm."""
        gradients = [table.gradients() for table in self.tables]
        on_host = squared_norm([table.unsettled for table in self.tables], gradients, torch.get_num_threads())
        return on_host + sum(group.squared_norm() for group in self._kept())

    def _kept(self) -> list[HbmGroup]:
        """Returns the rows that a GPU keeps of the tables."""
        return list(dict.fromkeys(table.hbm.group for table in self.tables if table.hbm is not None))

    def slots_for(self, table: EmbeddingTable, rows: Rows) -> Rows:
        """Returns optimizer values (N, S) with which rows (N, D) from elsewhere can go on as they are."""
        return np.tile(table.first_slots(), (len(rows), 1))

    def _options(self, scale: float) -> dict[str, float]:
        group = self.param_groups[0]
        return {**{name: value for name, value in group.items() if name in self.defaults}, "scale": scale}


class SparseSGD(SparseOptimizer):
    """Plain gradient descent: row -= lr * g."""

    rule: ClassVar[SparseRule] = "sgd"

    def __init__(
        self, tables: Iterable[EmbeddingTable], lr: float = 0.05, *, weight_decay: float = 0.0, row_clip: float = 0.0
    ) -> None:
        super().__init__(tables, lr, weight_decay=weight_decay, row_clip=row_clip)


class SparseMomentum(SparseOptimizer):
    """Gradient descent with momentum: m = momentum * m + g; row -= lr * m, as in torch.optim.SGD."""

    rule: ClassVar[SparseRule] = "momentum"

    def __init__(
        self,
        tables: Iterable[EmbeddingTable],
        lr: float = 0.05,
        *,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        row_clip: float = 0.0,
    ) -> None:
        super().__init__(tables, lr, weight_decay=weight_decay, row_clip=row_clip, momentum=momentum)


class SparseAdagrad(SparseOptimizer):
    """Adagrad: a += g * g; row -= lr * g / (sqrt(a) + eps).

    Source: Duchi, Hazan, Singer, "Adaptive subgradient methods for online learning and stochastic optimization", 2011;
    eps outside the root, as in torch.optim.Adagrad.
    """

    rule: ClassVar[SparseRule] = "adagrad"

    def __init__(
        self,
        tables: Iterable[EmbeddingTable],
        lr: float = 0.05,
        eps: float = 1e-8,
        *,
        weight_decay: float = 0.0,
        row_clip: float = 0.0,
    ) -> None:
        super().__init__(tables, lr, weight_decay=weight_decay, row_clip=row_clip, eps=eps)


class SparseRowwiseAdagrad(SparseAdagrad):
    """Adagrad with one sum a row: a += mean(g * g). It takes one value a row instead of D."""

    rule: ClassVar[SparseRule] = "rowwise_adagrad"


class SparseAdagradDecay(SparseOptimizer):
    """Adagrad whose sums are multiplied by `decay` after each `decay_steps` steps, down to their start at least.

    It keeps rows learning that are stepped for months. A row's sum is decayed when the row is stepped next.
    """

    rule: ClassVar[SparseRule] = "adagrad_decay"

    def __init__(
        self,
        tables: Iterable[EmbeddingTable],
        lr: float = 0.05,
        eps: float = 1e-8,
        *,
        decay: float = 0.9,
        decay_steps: int = 100_000,
        weight_decay: float = 0.0,
        row_clip: float = 0.0,
    ) -> None:
        if not 0.0 < decay <= 1.0:
            raise ConfigError(f"{self.rule}: decay is {decay}, expected above 0 and at most 1", field="decay")
        if decay_steps < 1:
            raise ConfigError(f"{self.rule}: decay_steps is {decay_steps}, expected 1 or more", field="decay_steps")
        super().__init__(tables, lr, weight_decay=weight_decay, row_clip=row_clip, eps=eps, decay=decay)
        self.decay_steps = decay_steps
        starts = {table.initial_accumulator for table in self.tables}
        if len(starts) > 1:
            raise ConfigError(f"{self.rule}: the tables have several initial_accumulators", field="tables")
        self._initial = starts.pop() if starts else 0.0

    def _options(self, scale: float) -> dict[str, float]:
        done = self.tables[0].steps if self.tables else 0
        return {**super()._options(scale), "initial": self._initial, "period": done // self.decay_steps}


class SparseAdam(SparseOptimizer):
    """Adam: moving averages m of g and v of g * g; row -= lr * m' / (sqrt(v') + eps), m', v' corrected for the start.

    Source: Kingma, Ba, "Adam: a method for stochastic optimization", 2015. Rows without a gradient keep m and v, as in
    torch.optim.SparseAdam.
    """

    rule: ClassVar[SparseRule] = "adam"

    def __init__(
        self,
        tables: Iterable[EmbeddingTable],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        *,
        weight_decay: float = 0.0,
        row_clip: float = 0.0,
    ) -> None:
        for name, beta in zip(("beta1", "beta2"), betas, strict=True):
            if not 0.0 <= beta < 1.0:
                raise ConfigError(f"{self.rule}: {name} is {beta}, expected 0 or more and below 1", field="betas")
        super().__init__(
            tables, lr, weight_decay=weight_decay, row_clip=row_clip, beta1=betas[0], beta2=betas[1], eps=eps
        )


class SparseAdamW(SparseAdam):
    """Adam with decoupled weight decay: row -= lr * weight_decay * row before the step.

    Source: Loshchilov, Hutter, "Decoupled weight decay regularization", 2019.
    """

    rule: ClassVar[SparseRule] = "adamw"


class SparseRowwiseAdam(SparseAdam):
    """Adam with one v a row, of mean(g * g): half of Adam's memory."""

    rule: ClassVar[SparseRule] = "rowwise_adam"


class SparseLamb(SparseAdam):
    """Adam's step with weight decay, brought to the norm of the row: for large batches.

    Source: You et al., "Large batch optimization for deep learning", 2020.
    """

    rule: ClassVar[SparseRule] = "lamb"


class SparseFtrl(SparseOptimizer):
    """FTRL-Proximal: l1 above 0 makes values exactly 0.

    A row's first step replaces what the row began with. Source: McMahan et al., "Ad click prediction: a view from the
    trenches", 2013.
    """

    rule: ClassVar[SparseRule] = "ftrl"

    def __init__(
        self,
        tables: Iterable[EmbeddingTable],
        lr: float = 0.05,
        *,
        beta: float = 0.0,
        l1: float = 0.0,
        l2: float = 0.0,
        row_clip: float = 0.0,
    ) -> None:
        super().__init__(tables, lr, row_clip=row_clip, beta=beta, l1=l1, l2=l2)

    def slots_for(self, table: EmbeddingTable, rows: Rows) -> Rows:
        slots = super().slots_for(table, rows)
        squares = slots[:, : table.dim]
        group = self.param_groups[0]
        # The next step computes a row from z alone, so z is what gives the row that is there.
        pull = rows * ((group["beta"] + np.sqrt(squares)) / group["lr"] + group["l2"])
        slots[:, table.dim :] = -pull - np.sign(rows) * group["l1"]
        return slots


def optimizer_classes() -> dict[SparseRule, type[SparseOptimizer]]:
    """Returns every optimizer by its rule."""
    classes = (
        SparseSGD,
        SparseMomentum,
        SparseAdagrad,
        SparseRowwiseAdagrad,
        SparseAdagradDecay,
        SparseAdam,
        SparseAdamW,
        SparseRowwiseAdam,
        SparseLamb,
        SparseFtrl,
    )
    return {each.rule: each for each in classes}


def _made_for(rule: str, tables: Iterable[EmbeddingTable]) -> list[EmbeddingTable]:
    unique = list(dict.fromkeys(tables))
    for table in unique:
        if table.optimizer != rule:
            raise ConfigError(
                f"table {table.name!r} was made for {table.optimizer}; make it with optimizer={rule!r}",
                field=f"tables.{table.name}.optimizer",
            )
    return unique


def global_clip(clip_norm: float, dense: Iterable[torch.Tensor], sparse: SparseOptimizer) -> float:
    """Scales the gradients of `dense` in place so that the norm of all gradients together is at most `clip_norm`.

    Returns the factor for the step of `sparse`. Where several ranks have the tables, all of them call it, with the sums
    of the gradients of `dense`.
    """
    squares = torch.tensor(sparse.squared_norm(), dtype=torch.float64)
    if sparse.tables:
        sparse.tables[0].ranks.sum(squares)
    return clip_gradients(clip_norm, dense, float(squares))


def clip_gradients(clip_norm: float, dense: Iterable[torch.Tensor], sparse_squares: float) -> float:
    """Does what `global_clip` does, where `sparse_squares` is the sum of squares of all gradients of rows."""
    gradients: list[Any] = [each.grad for each in dense if each.grad is not None]
    squares = [each.detach().double().square().sum() for each in gradients]
    # At once, because each value that is read from a GPU waits for it.
    total = (sum(torch.stack(squares).tolist()) if squares else 0.0) + sparse_squares
    norm = math.sqrt(total)
    if norm <= clip_norm or norm == 0.0:
        return 1.0
    factor = clip_norm / norm
    for each in gradients:
        each.mul_(factor)
    return factor
