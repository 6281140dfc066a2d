"""First values of embedding rows, and what ids without a row read as: functions of seed and id alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from storage.errors import ConfigError

InitializerKind = Literal["zeros", "constant", "uniform", "normal", "truncated_normal"]


@dataclass(frozen=True)
class Initializer:
    """Values of a row.

    scale: the constant; half the width of uniform, which is [-scale, scale); the standard deviation of normal, and of
    truncated_normal, which lies within two of them. zeros have none. Raises ConfigError for anything else.
    """

    kind: InitializerKind = "zeros"
    scale: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in get_args(InitializerKind):
            expected = ", ".join(get_args(InitializerKind))
            raise ConfigError(f"initializer: expected {expected}, got {self.kind!r}", field="initializer")
        if not math.isfinite(self.scale) or (self.kind != "constant" and self.scale < 0):
            raise ConfigError(f"initializer {self.kind}: scale is {self.scale}, expected 0 or more", field="scale")
        if self.kind == "zeros" and self.scale != 0:
            raise ConfigError("initializer zeros has no scale; use constant", field="scale")

    @property
    def is_zero(self) -> bool:
        """Returns whether every value is 0."""
        return self.scale == 0

    def native(self) -> tuple[str, float]:
        """Returns kind and scale as the C++ tables take them."""
        return ("constant" if self.kind == "zeros" else self.kind), self.scale


ZEROS = Initializer()
