"""Chooses how the dense graph is run.

Candidates are made when a version is loaded, compared, and the fastest is kept.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from storage.checkpoint import DenseGraph
from storage.checkpoint.fused import fused_function
from storage.checkpoint.graph_program import Candidate, Forward, Runner, eager, packed
from storage.checkpoint.script import script_function
from storage.errors import Unsupported

# Runners by name, as the option `runners` gives them. The others are compared with the first.
RUNNERS: Mapping[str, Runner] = {"eager": eager, "script": script_function, "fused": fused_function}
# Runs of each runner before it is measured, and measured runs, of which the median counts.
_WARM, _MEASURED = 3, 7
# Largest difference that comes from kernels that round differently.
_AGREE = 1e-5


def choose_runner(
    graph: DenseGraph, names: Sequence[str], batches: Sequence[Sequence[torch.Tensor]], tolerance: float
) -> list[Candidate]:
    """Makes the graph's program use the fastest of the runners that agree with the eager one; returns each candidate.

    batches: inputs of the graph, as for `DenseGraph.run`, of several sizes. The runners are compared by the mean over
    sizes of the time relative to the eager runner's.
    """
    program = graph.program
    arguments = [graph.arguments(tensors) for tensors in batches]
    sizes = [len(tensors[0]) for tensors in batches]
    with torch.inference_mode():
        reference = eager(program.module)
        expected = [[output.numpy().copy() for output in reference(*entry)] for entry in arguments]
        base = {size: _median_us(reference, entry) for size, entry in zip(sizes, arguments, strict=True)}
        found: list[tuple[Candidate, Forward]] = []
        for name in names:
            if name == "eager":
                found.append((Candidate(name, base), reference))
                continue
            try:
                forward = RUNNERS[name](program.module)
                bound = packed(forward, arguments[0])
                differs = _largest_difference(bound, arguments, expected)
            except (Unsupported, RuntimeError) as error:
                reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
                found.append((Candidate(name, {}, reason), reference))
                continue
            if not differs <= max(tolerance, _AGREE):
                found.append((Candidate(name, {}, f"its outputs differ by {differs:.3g}"), reference))
                continue
            times = {size: _median_us(bound, entry) for size, entry in zip(sizes, arguments, strict=True)}
            found.append((Candidate(name, times), forward))
    good = [pair for pair in found if not pair[0].why_not] or [(Candidate("eager", base), reference)]
    best, forward = min(good, key=lambda pair: sum(pair[0].us[size] / base[size] for size in sizes))
    program.use(best.name, RUNNERS[best.name], forward)
    return [candidate for candidate, _ in found]


def describe(candidates: Sequence[Candidate]) -> str:
    """Returns a line for the log."""
    words = []
    for each in candidates:
        times = ", ".join(f"{us:.0f} us for {rows} row(s)" for rows, us in sorted(each.us.items()))
        words.append(f"{each.name}: {each.why_not or times}")
    return "; ".join(words)


def _largest_difference(
    forward: Forward, arguments: Sequence[Sequence[object]], expected: Sequence[Sequence[np.ndarray]]
) -> float:
    worst = 0.0
    for entry, outputs in zip(arguments, expected, strict=True):
        for values, reference in zip(forward(*entry), outputs, strict=True):
            worst = max(worst, largest_difference(values.numpy(), reference))
    return worst


def largest_difference(values: np.ndarray, reference: np.ndarray) -> float:
    """Returns the largest difference of two outputs.

    It is infinite where one is not a number, or of another shape or dtype.
    """
    if values.shape != reference.shape or values.dtype != reference.dtype:
        return math.inf
    difference = np.abs(values.astype(np.float64) - reference.astype(np.float64))
    return float(np.nan_to_num(difference, nan=np.inf).max(initial=0.0))


def _median_us(forward: Forward, arguments: Sequence[object]) -> float:
    for _ in range(_WARM):
        forward(*arguments)
    times = []
    for _ in range(_MEASURED):
        started = time.perf_counter_ns()
        forward(*arguments)
        times.append(time.perf_counter_ns() - started)
    return sorted(times)[_MEASURED // 2] / 1000
