"""First values of embedding rows, and what ids without a row read as: functions of seed and id alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from storage.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# The method of Box and Muller on uniform values of 32 bits gives no larger one.
_LARGEST_NORMAL = math.sqrt(-2.0 * math.log(2.0**-32))

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

    @property
    def largest(self) -> float:
        """Returns the largest magnitude that a value can have."""
        return abs(self.scale) * {"normal": _LARGEST_NORMAL, "truncated_normal": 2.0}.get(self.kind, 1.0)

    def native(self) -> tuple[str, float]:
        """Returns kind and scale as the C++ tables take them."""
        return ("constant" if self.kind == "zeros" else self.kind), self.scale


ZEROS = Initializer()


@dataclass(frozen=True)
class AbsentRows:
    """Makes the rows that ids without one read as, zeros by default; they follow from seed and id alone.

    seed: a uint64 that starts the hashes of the kinds that draw values; 0 for the others, so that equal rows are equal
    objects. `of` sees to that. Raises ConfigError for a seed that is none.
    """

    initializer: Initializer = ZEROS
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**64:
            raise ConfigError(f"absent rows: the seed is {self.seed}, expected 0 or more and below 2**64", field="seed")

    @classmethod
    def of(cls, initializer: Initializer, seed: int = 0) -> AbsentRows:
        """Returns the rows of an initializer; the seed is left out where nothing is drawn."""
        if initializer.is_zero:
            return ABSENT_ZEROS
        return cls(initializer, 0 if initializer.kind == "constant" else seed)

    @property
    def is_zero(self) -> bool:
        """Returns whether every value is 0."""
        return self.initializer.is_zero

    def __str__(self) -> str:
        return "zeros" if self.is_zero else f"{self.initializer.kind}({self.initializer.scale:g})"

    def native(self) -> tuple[str, float, int] | None:
        """Returns kind, scale and seed as C++ lookups take them; None for zeros."""
        return None if self.is_zero else (*self.initializer.native(), self.seed)

    def rows(self, ids: NDArray[np.int64], dim: int) -> NDArray[np.float32]:
        """Returns the rows of ids (N,): (N, dim) float32, before they are rounded to a row type."""
        from storage._table import absent_rows

        return absent_rows(*self.initializer.native(), self.seed, dim, ids)


ABSENT_ZEROS = AbsentRows()
