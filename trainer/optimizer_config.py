"""The part of the training configuration about optimizers: of the dense weights, of the tables, and their rates."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from storage.features.strict_model import StrictModel
from trainer.config_errors import tag_unless_given

Rate = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
Probability = Annotated[float, Field(ge=0.0, lt=1.0)]
NotNegative = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


class DenseOptimizerConfig(StrictModel):
    """Configuration of the torch.optim optimizer for the dense weights."""

    type: Literal["Adam", "AdamW", "SGD", "Adagrad"] = "Adam"
    lr: Rate = 1e-3
    weight_decay: float = Field(default=0.0, ge=0.0, allow_inf_nan=False)


class _SparseConfig(StrictModel):
    lr: Rate = 0.05
    #: The largest norm of the gradient of a row; 0 is none.
    row_clip: NotNegative = 0.0


class SgdConfig(_SparseConfig):
    """Plain gradient descent."""

    type: Literal["sgd"]
    weight_decay: NotNegative = 0.0


class MomentumConfig(_SparseConfig):
    """Gradient descent with momentum."""

    type: Literal["momentum"]
    momentum: Probability = 0.9
    weight_decay: NotNegative = 0.0


class AdagradConfig(_SparseConfig):
    """Adagrad, with one sum a value or, rowwise, one a row."""

    type: Literal["adagrad", "rowwise_adagrad"] = "adagrad"
    eps: NotNegative = 1e-8
    initial_accumulator: NotNegative = 0.1
    weight_decay: NotNegative = 0.0


class AdagradDecayConfig(_SparseConfig):
    """Adagrad whose sums shrink to `decay` of them after each `decay_steps` steps."""

    type: Literal["adagrad_decay"]
    eps: NotNegative = 1e-8
    initial_accumulator: NotNegative = 0.1
    decay: float = Field(default=0.9, gt=0.0, le=1.0)
    decay_steps: int = Field(default=100_000, ge=1)
    weight_decay: NotNegative = 0.0


class AdamConfig(_SparseConfig):
    """Adam and its kin."""

    type: Literal["adam", "adamw", "rowwise_adam", "lamb"]
    lr: Rate = 1e-3
    betas: tuple[Probability, Probability] = (0.9, 0.999)
    eps: NotNegative = 1e-8
    weight_decay: NotNegative = 0.0


class FtrlConfig(_SparseConfig):
    """FTRL-Proximal."""

    type: Literal["ftrl"]
    initial_accumulator: NotNegative = 0.1
    beta: NotNegative = 0.0
    l1: NotNegative = 0.0
    l2: NotNegative = 0.0


#: The fused optimizer of the tables; `type` is adagrad unless it is given.
SparseOptimizerConfig = Annotated[
    Annotated[
        SgdConfig | MomentumConfig | AdagradConfig | AdagradDecayConfig | AdamConfig | FtrlConfig,
        Field(discriminator="type"),
    ],
    tag_unless_given("type", "adagrad"),
]


class ScheduleConfig(StrictModel):
    """Describes how the learning rates of both optimizers go on: a factor by the number of steps.

    It rises from 0 over `warmup_steps`. Then it stays 1, or goes on to `end` over `steps` further ones: in a line,
    along half a cosine, or exponentially; after that it stays.
    """

    type: Literal["constant", "linear", "cosine", "exponential"] = "constant"
    warmup_steps: int = Field(default=0, ge=0)
    steps: int = Field(default=0, ge=0)
    end: float = Field(default=0.1, ge=0.0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _possible(self) -> ScheduleConfig:
        if self.type != "constant" and self.steps == 0:
            raise ValueError(f"schedule {self.type} needs steps: over how many steps it goes to `end`")
        if self.type == "exponential" and self.end == 0.0:
            raise ValueError("schedule exponential never ends at 0; give `end` a value above 0")
        return self

    def factor(self, step: int) -> float:
        """Returns the factor for a step; the first is 0."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        if self.type == "constant":
            return 1.0
        done = min(1.0, (step - self.warmup_steps) / self.steps)
        if self.type == "exponential":
            return float(self.end**done)
        left = 1.0 - done if self.type == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
        return self.end + (1.0 - self.end) * left


class OptimizerConfig(StrictModel):
    """Optimizers of the dense weights and of the tables."""

    #: The torch.optim optimizer for the dense weights.
    dense: DenseOptimizerConfig = DenseOptimizerConfig()
    #: The fused optimizer for the tables.
    sparse: SparseOptimizerConfig = AdagradConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    #: The largest norm of all gradients together, dense and sparse; 0 is none.
    clip_norm: NotNegative = 0.0
