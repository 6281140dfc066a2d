"""Defines the module that a reader of a foreign file returns, with the inputs that the file declares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class DeclaredInput:
    """An input as the file declares it."""

    name: str
    dtype: torch.dtype
    #: Without the batch, which comes first. None: the file leaves the size open.
    shape: tuple[int | None, ...]


# How far outputs may differ from the original's, times the largest value of the output if that is above 1: other
# kernels round otherwise, and half precision as a whole.
TOLERANCE, HALF_TOLERANCE = 1e-4, 2e-2

#: Computes the original's outputs by name for inputs by name.
Original = Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]


@dataclass(frozen=True)
class Converted:
    """A network of another system as a module."""

    #: forward(batch) takes a mapping of input names to tensors and returns one of output names.
    module: nn.Module
    inputs: tuple[DeclaredInput, ...]
    #: Runs the file in its own system; None where that is not possible, for the reason `uncompared`.
    original: Original | None = None
    uncompared: str = ""
    #: How far outputs may differ from the original's.
    tolerance: float = TOLERANCE

    def outputs(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Runs the module on a batch."""
        with torch.no_grad():
            found: dict[str, Tensor] = self.module(dict(batch))
        return found
