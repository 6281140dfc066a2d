"""Compares two answers output by output and row by row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from storage.errors import InvalidInput

# A value that is not finite on one side alone is so far from the other one; a sum of differences stays a number.
_MOST = 1e6

Outputs = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Comparison:
    """The differences of two answers to the same rows."""

    #: (B,): by row, the largest difference over all outputs, divided by the size of the value where that is above 1.
    apart: np.ndarray
    tolerance: float
    #: By output: the largest difference, scaled alike, and the rows above the tolerance.
    by_output: Mapping[str, tuple[float, int]]

    @property
    def differs(self) -> np.ndarray:
        """The rows that differ, (B,) bool."""
        return self.apart > self.tolerance

    @property
    def count(self) -> int:
        """The number of rows that differ."""
        return int(self.differs.sum())

    @property
    def largest(self) -> float:
        """The largest difference."""
        return float(self.apart.max(initial=0.0))

    @property
    def total(self) -> float:
        """The sum of the differences above the tolerance."""
        return float(self.apart[self.differs].sum())


def compare(old: Outputs, new: Outputs, tolerance: float) -> Comparison:
    """Compares outputs of the same names; a single output with a single one. Raises InvalidInput where they do not
    fit.
    """
    pairs = paired(old, new)
    by_output: dict[str, tuple[float, int]] = {}
    worst: np.ndarray | None = None
    for name, theirs in pairs.items():
        ours = new[name]
        left, right = _flat(theirs), _flat(ours)
        if left.shape != right.shape:
            raise InvalidInput(
                f"output {name!r} is {list(theirs.shape)} of the old server, {list(ours.shape)} of the new"
            )
        with np.errstate(invalid="ignore"):  # of infinite values, which are alike or not
            apart = np.abs(left - right) / np.maximum(1.0, np.abs(right))
        apart[(left == right) | (np.isnan(left) & np.isnan(right))] = 0.0
        apart = np.minimum(np.nan_to_num(apart, nan=_MOST), _MOST).max(axis=1, initial=0.0)
        by_output[name] = float(apart.max(initial=0.0)), int((apart > tolerance).sum())
        worst = apart if worst is None else np.maximum(worst, apart)
    assert worst is not None
    return Comparison(worst, tolerance, by_output)


def paired(old: Outputs, new: Outputs) -> dict[str, np.ndarray]:
    """Returns the old outputs that the new side has, too, by its names. Raises InvalidInput where there are none."""
    old = _numbers(old)
    if len(old) == 1 and len(new) == 1:
        return {next(iter(new)): next(iter(old.values()))}
    common = {name: values for name, values in old.items() if name in new}
    if not common:
        raise InvalidInput(
            f"the old server's outputs are {list(old)}, the new ones {list(new)}; pair them with --output OURS=THEIRS",
            field="output",
        )
    return common


def unpaired(old: Outputs, new: Outputs) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the names of outputs that are not compared: of the old server, and of the new model."""
    known = _numbers(old)
    texts = tuple(name for name in old if name not in known)
    if len(known) == 1 and len(new) == 1:
        return texts, ()
    return (*texts, *(name for name in known if name not in new)), tuple(name for name in new if name not in known)


def _numbers(outputs: Outputs) -> Outputs:
    """Returns the outputs that are no text, which is not compared."""
    return {name: values for name, values in outputs.items() if values.dtype != object}


def _flat(values: np.ndarray) -> np.ndarray:
    return np.asarray(values, np.float64).reshape(len(values), -1)
