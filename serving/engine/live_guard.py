"""Implements the live guard: refuses a candidate whose scores of recent requests differ much from the current ones.

The golden replay shows that a candidate computes what its trainer computes. The candidate of a faulty trainer passes
it; the guard compares the scores that users get. Its figures are the population stability index over deciles of the
current scores, the shift of the mean, Spearman's rank correlation, and the share of ids without a row. Both snapshots
score the same requests, so chance plays no part in the shifts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from storage.errors import GuardError

if TYPE_CHECKING:
    from serving.engine.replay import Replayed
    from serving.model_config.options import ModelOptions

_BINS = 10
# The most values that are compared of an output with many values in a row.
_MAX_COLUMNS = 8
# If the current scores differ by less than this share of the largest, they have no shape and no order to compare.
_LEAST_SPREAD = 1e-6
# For probabilities: if they differ by less, a harmless shift moves every row into another decile.
_LEAST_UNIT_SPREAD = 0.02
_ROUNDING = 5


@dataclass(frozen=True)
class OutputShift:
    """Says how one output shifts. A figure is None where there is nothing to compare."""

    output: str
    rows: int
    psi: float | None
    mean_shift: float | None
    #: "" where the shift is absolute, "std" where it is in standard deviations.
    shift_unit: str
    correlation: float | None


@dataclass(frozen=True)
class GuardReport:
    """Holds the figures that the guard measured."""

    rows: int = 0
    shifts: tuple[OutputShift, ...] = ()
    #: The share of the ids looked up that have no row in the current snapshot.
    absent_before: float = 0.0
    #: The same share in the candidate.
    absent_after: float = 0.0
    #: Why the guard did not judge; "" when it did.
    skipped: str = ""

    def __str__(self) -> str:
        if self.skipped:
            return f"live guard: no judgement: {self.skipped}"
        parts = [
            f"{shift.output} psi {_shown(shift.psi)}, mean {_shown(shift.mean_shift)}{shift.shift_unit}, "
            f"rank correlation {_shown(shift.correlation)}"
            for shift in self.shifts
        ]
        absent = f"absent ids {self.absent_before:.1%} -> {self.absent_after:.1%}"
        return f"live guard: {self.rows} rows: {'; '.join([*parts, absent])}"


def judge(outputs: Sequence[str], now: Replayed, then: Replayed, options: ModelOptions) -> GuardReport:
    """Compares the scores of the same requests. Raises GuardError naming the bound, the option and the figures.

    outputs: names of the arrays in `now` and `then`; arrays of other shapes than before are not compared.
    """
    rows = len(now.outputs[0]) if now.outputs else 0
    if rows < options.live_guard_min_rows:
        return GuardReport(rows, skipped=f"{rows} rows of recent requests, {options.live_guard_min_rows} are needed")
    absent_before, absent_after = (side.absent / side.ids if side.ids else 0.0 for side in (now, then))
    shifts = tuple(_shifts(outputs, now, then, options.live_guard_min_rows))
    report = GuardReport(rows, shifts, absent_before, absent_after)
    if not shifts:
        return replace(report, skipped=f"fewer than {options.live_guard_min_rows} different scores")
    for shift in shifts:
        _bound(report, shift, "psi", shift.psi, options.live_guard_max_psi)
        size = None if shift.mean_shift is None else abs(shift.mean_shift)
        _bound(report, shift, "mean_shift", size, options.live_guard_max_mean_shift)
        if shift.correlation is not None and not shift.correlation >= options.live_guard_min_correlation:
            raise GuardError(
                f"live guard: output {shift.output!r}: rank correlation {shift.correlation:.3g} with the scores of "
                f"now, at least {options.live_guard_min_correlation:g} is expected (live_guard_min_correlation); "
                f"{report}"
            )
    if absent_after - absent_before > options.live_guard_max_absent_increase:
        raise GuardError(
            f"live guard: {absent_after:.1%} of the ids have no row, {absent_before:.1%} now; an increase of at most "
            f"{options.live_guard_max_absent_increase:.1%} is allowed (live_guard_max_absent_increase); {report}"
        )
    return report


def _bound(report: GuardReport, shift: OutputShift, name: str, value: float | None, most: float) -> None:
    if value is not None and not value <= most:
        unit = shift.shift_unit if name == "mean_shift" else ""
        raise GuardError(
            f"live guard: output {shift.output!r}: {name} {value:.3g}{unit}, at most {most:g} is allowed "
            f"(live_guard_max_{name}); {report}"
        )


def _shifts(outputs: Sequence[str], now: Replayed, then: Replayed, min_rows: int) -> Iterator[OutputShift]:
    for name, before, after in zip(outputs, now.outputs, then.outputs, strict=True):
        if before.shape != after.shape:
            continue
        width = before[0].size
        columns = zip(before.reshape(len(before), width).T, after.reshape(len(after), width).T, strict=True)
        for index, (old, new) in enumerate(list(columns)[:_MAX_COLUMNS]):
            label = name if width == 1 else f"{name}[{index}]"
            shift = compare_scores(label, old.astype(np.float64), new.astype(np.float64), min_rows)
            if shift is not None:
                yield shift


def compare_scores(output: str, now: np.ndarray, then: np.ndarray, min_rows: int) -> OutputShift | None:
    """Returns the shift of one column of scores, (n,) float64 each; None if `now` has fewer than `min_rows` distinct.

    Equal scores in `now` count once, so that a request that is sent again and again does not stand for all traffic.
    Raises GuardError for scores in `then` that are not finite where those in `now` are.
    """
    sound = np.isfinite(now)
    broken = int((sound & ~np.isfinite(then)).sum())
    if broken:
        raise GuardError(f"live guard: output {output!r}: {broken} of {len(now)} rows get scores that are no numbers")
    now, then = now[sound], then[sound]
    largest = float(np.abs(now).max(initial=0.0))
    # Rounded, because the last bits of a row's score depend on the rows that are computed together with it.
    rounded = np.round(now / (largest or 1.0), _ROUNDING)
    where = np.unique(rounded, return_index=True)[1]
    if len(where) < min_rows:
        return None
    now, then = now[where], then[where]
    unit = bool(now.min() >= 0.0 and now.max() <= 1.0)
    spread = float(np.quantile(now, 0.9) - np.quantile(now, 0.1))
    shaped = spread > max(_LEAST_SPREAD * largest, _LEAST_UNIT_SPREAD if unit else 0.0)
    deviation = 1.0 if unit else float(now.std())
    difference = float(then.mean() - now.mean())
    return OutputShift(
        output,
        len(now),
        _psi(now, then) if shaped else None,
        difference / deviation if deviation > 0 else None,
        "" if unit else "std",
        rank_correlation(now, then) if shaped else None,
    )


def _psi(now: np.ndarray, then: np.ndarray) -> float:
    """Returns the population stability index over deciles of `now`; adds half a row to each bin, so none is empty."""
    edges = np.unique(np.quantile(now, np.arange(1, _BINS) / _BINS))
    shares = []
    for values in (now, then):
        counts = np.bincount(np.searchsorted(edges, values, side="right"), minlength=len(edges) + 1) + 0.5
        shares.append(counts / counts.sum())
    return float(((shares[1] - shares[0]) * np.log(shares[1] / shares[0])).sum())


def rank_correlation(now: np.ndarray, then: np.ndarray) -> float:
    """Returns Spearman's rank correlation, with ties at their average rank; 0 when `then` is the same for every row."""
    ranks = [_ranks(now), _ranks(then)]
    before, after = (values - values.mean() for values in ranks)
    scale = float(np.sqrt((before**2).sum() * (after**2).sum()))
    return float((before * after).sum() / scale) if scale > 0 else 0.0


def _ranks(values: np.ndarray) -> np.ndarray:
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    average: np.ndarray = (last - (counts - 1) / 2)[places]
    return average


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
