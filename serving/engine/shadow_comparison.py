"""Compares the scores and times of a shadow with those of the main arm, request by request, in bounded memory.

Both arms scored the same requests, so a difference is one of the models, not of the traffic. n: rows of a request.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from serving.engine.live_guard import rank_correlation

# The most values that are compared of an output with many values in a row, as in the live guard.
MAX_COLUMNS = 8
# Values that a sample keeps; its 99th percentile then lies between the 98.7th and the 99.3rd nearly always.
_SAMPLE = 4096
# Scores that differ by less than this share of the largest may have another order by rounding alone.
_ROUNDING = 1e-6
# Ranks cost as much as all else, so they are compared in some requests only.
_RANKED_EVERY = 4
# With fewer rows, ranks say nothing.
_RANKED_ROWS = 3


class Sample:
    """Keeps a uniform sample of all values that it was given. Not thread-safe."""

    def __init__(self, rng: np.random.Generator, capacity: int = _SAMPLE) -> None:
        self._rng = rng
        self._kept = np.empty(capacity)
        self.seen = 0

    def add(self, values: np.ndarray) -> None:
        """Adds values, (n,). Reservoir sampling (Vitter's algorithm R), for all of them at once."""
        capacity = len(self._kept)
        room = max(0, min(len(values), capacity - self.seen))
        self._kept[self.seen : self.seen + room] = values[:room]
        later = values[room:]
        if len(later):
            drawn = self._rng.random(len(later)) * (self.seen + room + 1 + np.arange(len(later)))
            places = drawn.astype(np.int64)
            taken = places < capacity
            self._kept[places[taken]] = later[taken]
        self.seen += len(values)

    def quantile(self, share: float) -> float | None:
        """Returns a quantile of the values; None without values."""
        kept = self._kept[: min(self.seen, len(self._kept))]
        return float(np.quantile(kept, share)) if len(kept) else None


@dataclass(frozen=True)
class OutputFigures:
    """Says how one output of the shadow differs from the main arm's."""

    output: str
    rows: int
    #: Scores of the shadow that are no numbers; they are left out of all other figures.
    not_finite: int
    mean_shift: float
    mean_absolute_shift: float
    p99_absolute_shift: float
    #: The standard deviation of the main arm's scores.
    spread: float
    #: Whether all scores of the main arm lie in 0 to 1.
    is_unit: bool
    #: Sum of the shadow's scores over that of the main arm's; None where the latter has scores below 0 or only zeros.
    calibration: float | None
    #: Mean share of the main arm's top K that is among the shadow's; None where no request had more than K rows.
    overlap: float | None
    overlap_requests: int
    #: Mean of Spearman's rank correlation within a request; None where no request had different scores.
    rank_correlation: float | None

    @property
    def relative_shift(self) -> float:
        """Returns the mean absolute shift: absolute for scores in 0 to 1, else in standard deviations of the scores."""
        if self.is_unit or self.mean_absolute_shift == 0:
            return self.mean_absolute_shift
        return self.mean_absolute_shift / self.spread if self.spread > 0 else float("inf")


class OutputComparison:
    """Collects what `OutputFigures` is made of. Not thread-safe."""

    def __init__(self, output: str, top_k: int, rng: np.random.Generator) -> None:
        self._output, self._top_k = output, top_k
        self._shifts = Sample(rng)
        self._rows = self._not_finite = 0
        self._least, self._largest = np.inf, -np.inf
        # The first score is taken off before squares are summed, so that a large mean costs no precision.
        self._origin = 0.0
        self._sums = np.zeros(5)  # main - origin, its square, candidate, shift, absolute shift; of all rows
        self._overlaps = self._correlations = 0.0
        self._overlap_requests = self._ranked_requests = self._seen = 0

    def add(self, main: np.ndarray, shadow: np.ndarray) -> None:
        """Adds the scores of one request. main: (n,) finite float64, shadow: (n,) float64."""
        sound = np.isfinite(shadow)
        self._not_finite += int(len(shadow) - sound.sum())
        main, shadow = main[sound], shadow[sound]
        if len(main) == 0:
            return
        if self._rows == 0:
            self._origin = float(main[0])
        self._rows += len(main)
        self._least, self._largest = min(self._least, float(main.min())), max(self._largest, float(main.max()))
        centred, shift = main - self._origin, shadow - main
        self._sums += (centred.sum(), (centred**2).sum(), shadow.sum(), shift.sum(), np.abs(shift).sum())
        self._shifts.add(np.abs(shift))
        time.sleep(0)  # lets a request that waits for the interpreter's lock have it
        if len(main) > self._top_k:
            self._overlaps += top_overlap(main, shadow, self._top_k)
            self._overlap_requests += 1
        self._seen += 1
        if self._seen % _RANKED_EVERY != 1 or len(main) < _RANKED_ROWS:
            return
        time.sleep(0)
        if np.ptp(main) > _ROUNDING * np.abs(main).max():
            self._correlations += rank_correlation(main, shadow)
            self._ranked_requests += 1

    def figures(self) -> OutputFigures | None:
        """Returns the figures so far; None before the first row."""
        if self._rows == 0 and self._not_finite == 0:
            return None
        rows = max(1, self._rows)
        centred, square, shadow, shift, absolute = (float(value) for value in self._sums)
        main = centred + self._origin * self._rows
        spread = np.sqrt(max(0.0, square / rows - (centred / rows) ** 2))
        return OutputFigures(
            self._output,
            self._rows,
            self._not_finite,
            shift / rows,
            absolute / rows,
            self._shifts.quantile(0.99) or 0.0,
            float(spread),
            self._rows > 0 and self._least >= 0.0 and self._largest <= 1.0,
            shadow / main if self._rows and self._least >= 0.0 and main > 0 else None,
            self._overlaps / self._overlap_requests if self._overlap_requests else None,
            self._overlap_requests,
            self._correlations / self._ranked_requests if self._ranked_requests else None,
        )


@dataclass(frozen=True)
class Timing:
    """Says how long the arms took, in milliseconds. A figure is None before there is one."""

    #: What clients waited for the main arm's answers to the compared requests.
    main_p50_ms: float | None
    main_p99_ms: float | None
    #: What the shadow computed for one of them, on one thread.
    shadow_p50_ms: float | None
    shadow_p99_ms: float | None
    #: Median of the shadow's time over the main arm's, and how many requests both computed on that thread for it.
    slowdown: float | None
    pairs: int


@dataclass(frozen=True)
class ComparisonFigures:
    """Holds everything that was compared so far."""

    requests: int
    rows: int
    failures: int
    #: The last failure of the shadow; "" for none.
    failure: str
    outputs: tuple[OutputFigures, ...]
    timing: Timing
    #: Why outputs of the main arm have no figures, because the shadow has none like them.
    incomparable: tuple[str, ...] = ()


class Comparison:
    """Compares two arms since it was made. Thread-safe."""

    def __init__(self, top_k: int, seed: int = 0) -> None:
        self._top_k = top_k
        self._lock = threading.Lock()
        self._rng = np.random.default_rng(seed)
        self._requests = self._rows = self._failures = 0
        self._failure = ""
        self._outputs: dict[str, OutputComparison] = {}
        self._incomparable: dict[str, str] = {}
        self._main_ms, self._shadow_ms = Sample(self._rng), Sample(self._rng)
        self._slowdowns = Sample(self._rng)

    def failed(self, error: str) -> None:
        """Counts a request that the shadow could not score."""
        with self._lock:
            self._failures += 1
            self._failure = error

    def compared(
        self,
        outputs: Sequence[tuple[str, np.ndarray, np.ndarray | None]],
        *,
        main_ns: int,
        shadow_ns: int,
        again_ns: int | None = None,
    ) -> None:
        """Adds one request.

        outputs: name, scores of the main arm, and of the shadow, (n, ...) each; None for an output that it has not.
        main_ns: what its client waited. shadow_ns: what the shadow computed. again_ns: what the main arm's snapshot
        computed on the same thread.
        """
        with self._lock:
            self._requests += 1
            self._rows += len(outputs[0][1]) if outputs else 0
            for name, main, shadow in outputs:
                if shadow is None or main.shape != shadow.shape:
                    self._incomparable[name] = _why_incomparable(name, main, shadow)
                    continue
                for label, before, after in score_columns(name, main, shadow):
                    if label not in self._outputs:
                        self._outputs[label] = OutputComparison(label, self._top_k, self._rng)
                    self._outputs[label].add(before, after)
            self._main_ms.add(np.array([main_ns / 1e6]))
            self._shadow_ms.add(np.array([shadow_ns / 1e6]))
            if again_ns:
                self._slowdowns.add(np.array([shadow_ns / again_ns]))

    def figures(self) -> ComparisonFigures:
        """Returns everything so far."""
        with self._lock:
            found = (each.figures() for each in self._outputs.values())
            timing = Timing(
                self._main_ms.quantile(0.5),
                self._main_ms.quantile(0.99),
                self._shadow_ms.quantile(0.5),
                self._shadow_ms.quantile(0.99),
                self._slowdowns.quantile(0.5),
                self._slowdowns.seen,
            )
            outputs = tuple(each for each in found if each is not None)
            incomparable = tuple(self._incomparable.values())
            return ComparisonFigures(
                self._requests, self._rows, self._failures, self._failure, outputs, timing, incomparable
            )


def score_columns(output: str, main: np.ndarray, shadow: np.ndarray) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Returns the first columns of an output, each with its label and its values (n,) float64 in both arms.

    Both have the same shape. An output that is no number has none.
    """
    if main.dtype.kind not in "fiu" or shadow.dtype.kind not in "fiu" or not len(main):
        return []
    width = main[0].size
    before, after = (values.reshape(len(main), width).astype(np.float64) for values in (main, shadow))
    return [
        (output if width == 1 else f"{output}[{column}]", before[:, column], after[:, column])
        for column in range(min(width, MAX_COLUMNS))
    ]


def _why_incomparable(output: str, main: np.ndarray, shadow: np.ndarray | None) -> str:
    if shadow is None:
        return f"the shadow has no output {output!r}"
    return f"output {output!r} has the shape {[-1, *main.shape[1:]]}, and {[-1, *shadow.shape[1:]]} in the shadow"


def top_overlap(main: np.ndarray, shadow: np.ndarray, top_k: int) -> float:
    """Returns the share of the shadow's top K rows that are among the main arm's top K. main, shadow: (n,), n > K.

    Equal scores have no order: every row that equals the main arm's K-th is among its top K, and of the shadow's rows
    that equal its K-th the mean counts. So scores that are all the same are not taken for a good order.
    """
    best = main >= _edge(main, top_k) - _ROUNDING * np.abs(main).max()
    edge, tolerance = _edge(shadow, top_k), _ROUNDING * np.abs(shadow).max()
    above = shadow > edge + tolerance
    tied = ~above & (shadow >= edge - tolerance)
    return float((best[above].sum() + (top_k - above.sum()) * best[tied].mean()) / top_k)


def _edge(values: np.ndarray, top_k: int) -> float:
    """Returns the K-th largest value."""
    place = len(values) - top_k
    return float(np.partition(values, place)[place])
