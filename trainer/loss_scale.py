"""Scales the loss under fp16, whose small gradients would be 0: torch.amp.GradScaler, with the rows of tables.

A step whose gradients are not finite, of weights or of rows, changes neither, and lowers the scale.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor


class LossScale:
    """Scales the loss, and takes the scale out of the gradients of weights. Those of rows get it as a factor.

    initial: the scale of the first step, as torch has it.
    """

    def __init__(self, device: torch.device, initial: float = 2.0**16) -> None:
        self._scaler = torch.amp.GradScaler(device.type, init_scale=initial)

    def scaled(self, loss: Tensor) -> Tensor:
        """Returns the loss to differentiate."""
        found: Tensor = self._scaler.scale(loss)
        return found

    @property
    def inverse(self) -> float:
        """The factor that takes the scale out of gradients."""
        return 1.0 / float(self._scaler.get_scale())

    def unscale(self, optimizer: torch.optim.Optimizer, weights: Iterable[Tensor], rows_squares: float) -> None:
        """Takes the scale out of the gradients of weights.

        rows_squares: the sum of squares of the gradients of rows; where it is not finite, the step will be left out.
        """
        if not math.isfinite(rows_squares):
            with torch.no_grad():
                for weight in weights:
                    if weight.grad is not None:
                        weight.grad.fill_(math.inf)
                        break
        self._scaler.unscale_(optimizer)

    def step(self, optimizer: torch.optim.Optimizer) -> bool:
        """Steps weights whose gradients are finite, and sets the next scale; returns whether it stepped."""
        before = self._scaler.get_scale()
        self._scaler.step(optimizer)
        self._scaler.update()
        return bool(self._scaler.get_scale() >= before)

    def to_json_value(self) -> dict[str, float]:
        """Returns what a commit keeps, as JSON values."""
        state = self._scaler.state_dict()
        return {"scale": float(state["scale"]), "growth_tracker": int(state["_growth_tracker"])}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes what a commit holds; nothing of one of a run in another precision."""
        if state:
            content = {"scale": state["scale"], "_growth_tracker": state["growth_tracker"]}
            self._scaler.load_state_dict({**self._scaler.state_dict(), **content})
