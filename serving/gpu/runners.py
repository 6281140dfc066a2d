"""Chooses the runner of the dense graph on a GPU: compared when a version is loaded, and the fastest is kept."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import fx

from serving.gpu.context import ExecutionContext
from serving.gpu.device_model import DeviceModel
from serving.pipeline.runners import describe, largest_difference
from storage.checkpoint import DenseGraph
from storage.checkpoint.graph_program import Candidate, Forward, Runner, eager
from storage.checkpoint.program import TORCH_LOCK
from storage.errors import DeviceError, DeviceLost, Unsupported

logger = logging.getLogger("emberline.serving")

# Batches of each runner before it is measured, and measured batches, of which the median counts.
_WARM, _MEASURED = 3, 21
_ROWS = 64


def compiled(module: fx.GraphModule) -> Forward:
    """Compiles the graph with torch's compiler, for any batch: fewer kernels than operators, because it fuses them."""
    # There is one program for all sizes: a batch of one row has its own, whatever is requested.
    found: Forward = torch.compile(module, dynamic=True, fullgraph=True, options={"triton.cudagraphs": False})
    return found


# Runners by name, as in the option `runners`. The first is what the others are compared with.
RUNNERS: Mapping[str, Runner] = {"eager": eager, "compile": compiled}


def choose_runner(
    model: DeviceModel, context: ExecutionContext, graph: DenseGraph, names: Sequence[str], tolerance: float
) -> None:
    """Makes later graphs capture the fastest of the runners that agree with the eager one.

    graph: has weights to compute with. Runners are compared by the mean over two sizes of the time relative to the
    eager runner's, from packed inputs to results. Raises DeviceError.
    """
    sizes = sorted({min(_ROWS, model.inputs.max_rows), model.inputs.max_rows})
    reference = eager(model.module)
    expected, base = _measure(model, context, graph, "eager", reference, sizes)
    found: list[tuple[Candidate, Forward]] = [(Candidate("eager", base), reference)] if "eager" in names else []
    for name in names:
        if name == "eager":
            continue
        try:
            # The compiler is not made for several threads, and warns about its own parts.
            with TORCH_LOCK, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                forward = RUNNERS[name](model.module)
                outputs, times = _measure(model, context, graph, name, forward, sizes)
        except DeviceLost:
            raise
        except (Unsupported, DeviceError, RuntimeError, OSError, ImportError) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
            found.append((Candidate(name, {}, reason), reference))
            continue
        differs = max(largest_difference(one, other) for one, other in zip(outputs, expected, strict=True))
        why_not = "" if differs <= tolerance else f"its outputs differ by {differs:.3g}"
        found.append((Candidate(name, {} if why_not else times, why_not), forward))
    good = [pair for pair in found if not pair[0].why_not] or [(Candidate("eager", base), reference)]
    best, forward = min(good, key=lambda pair: sum(pair[0].us[size] / base[size] for size in sizes))
    context.forget_graphs()
    model.use(best.name, forward)
    model.candidates = [candidate for candidate, _ in found]
    logger.info(
        "%s: on %s the graph is run by %r; %s", model.name, model.driver.info, best.name, describe(model.candidates)
    )


def _measure(
    model: DeviceModel, context: ExecutionContext, graph: DenseGraph, name: str, forward: Forward, sizes: Sequence[int]
) -> tuple[list[np.ndarray], dict[int, float]]:
    """Returns outputs for made-up inputs, the same for each runner; and microseconds of a batch, by its rows."""
    context.forget_graphs()
    model.use(name, forward)
    rng = np.random.default_rng(0)
    outputs: list[np.ndarray] = []
    times: dict[int, float] = {}
    for size in sizes:
        took: list[int] = []
        for turn in range(_WARM + _MEASURED):
            for view in context.begin(size):
                # Small numbers fit whatever an input means; one that indexes something stays in any range.
                view[...] = rng.random(view.shape) if view.dtype.kind == "f" else 0
            started = time.perf_counter_ns()
            with model.weight_slots.pinned(graph) as weight_slot:
                made = context.finish(weight_slot)
            if turn >= _WARM:
                took.append(time.perf_counter_ns() - started)
        outputs += made
        times[size] = sorted(took)[_MEASURED // 2] / 1000
    return outputs, times
