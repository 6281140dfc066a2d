"""Says in one word, with the reason, how a shadow compares with the main arm."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from serving.engine.shadow_comparison import ComparisonFigures, OutputFigures
from serving.model_config.options import ModelOptions

VerdictKind = Literal["loading", "not enough requests", "equal", "shifted", "slower", "fails"]
VERDICTS: tuple[VerdictKind, ...] = ("loading", "not enough requests", "equal", "shifted", "slower", "fails")
# With fewer requests that both arms computed, times are not judged.
_TIMED_PAIRS = 20


@dataclass(frozen=True)
class Verdict:
    """A verdict with its reason: the figure, the bound, and the option that sets it."""

    kind: VerdictKind
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.reason}" if self.reason else self.kind


def verdict(figures: ComparisonFigures, options: ModelOptions) -> Verdict:
    """Judges what was compared. A failure, or a score that is no number, decides at once."""
    if figures.failures:
        tried = figures.failures + figures.requests
        return Verdict("fails", f"{figures.failures} of {tried} requests, the last: {figures.failure}")
    for output in figures.outputs:
        if output.not_finite:
            rows = output.rows + output.not_finite
            return Verdict("fails", f"output {output.output!r}: {output.not_finite} of {rows} scores are no numbers")
    if figures.requests < options.shadow_min_requests:
        needed = options.shadow_min_requests
        return Verdict("not enough requests", f"{figures.requests}, at least {needed} are needed (shadow_min_requests)")
    shifts = [*figures.incomparable, *(reason for output in figures.outputs for reason in _shifts(output, options))]
    if shifts:
        return Verdict("shifted", "; ".join(shifts))
    timing = figures.timing
    if timing.slowdown is not None and timing.pairs >= _TIMED_PAIRS and timing.slowdown > options.shadow_max_slowdown:
        return Verdict(
            "slower",
            f"a request takes {timing.slowdown:.2f} times as long as on the main arm, at most "
            f"{options.shadow_max_slowdown:g} is allowed (shadow_max_slowdown)",
        )
    parts = [_equal(output) for output in figures.outputs]
    if timing.slowdown is not None:
        parts.append(f"{timing.slowdown:.2f} times the time")
    return Verdict("equal", f"within {'; '.join(parts)}" if figures.outputs else "no output holds numbers")


def _shifts(output: OutputFigures, options: ModelOptions) -> Iterator[str]:
    name = f"output {output.output!r}"
    if output.relative_shift > options.shadow_max_shift:
        yield (
            f"{name}: mean absolute shift {output.relative_shift:.3g}{_unit(output)}, at most "
            f"{options.shadow_max_shift:g} is allowed (shadow_max_shift)"
        )
    if output.overlap is not None and output.overlap < options.shadow_min_overlap:
        yield (
            f"{name}: overlap of the top rows {output.overlap:.3f}, at least {options.shadow_min_overlap:g} is "
            "expected (shadow_min_overlap)"
        )
    if output.is_unit and output.calibration is not None:
        off = abs(output.calibration - 1.0)
        if off > options.shadow_max_miscalibration:
            yield (
                f"{name}: the sum of its scores is {output.calibration:.4g} times the main arm's, at most "
                f"{options.shadow_max_miscalibration:g} off 1 is allowed (shadow_max_miscalibration)"
            )


def _equal(output: OutputFigures) -> str:
    text = f"{output.output} {output.relative_shift:.3g}{_unit(output)}"
    return text if output.overlap is None else f"{text}, overlap {output.overlap:.3f}"


def _unit(output: OutputFigures) -> str:
    return "" if output.is_unit else " std"
