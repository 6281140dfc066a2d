"""Decides whether a graph takes stacked inputs: only if its outputs stay the same, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from serving.pipeline.runners import RUNNERS, largest_difference
from storage.checkpoint import DenseGraph
from storage.errors import Unsupported

# Returns the inputs of the graph that it is given, for one batch; they hold until the next call.
Inputs = Callable[[DenseGraph], Sequence[torch.Tensor]]


def use_stacked(graph: DenseGraph, batches: Sequence[Inputs]) -> str:
    """Makes the graph's program take stacked inputs from now on, by its own runner; returns why not, "" when it does.

    batches: batches of several sizes, on which both are compared.
    """
    program = graph.program
    found = program.stack(graph.pooled)
    if found is None:
        return "it stacks no pooled features"
    try:
        found.program.use(program.runner, RUNNERS[program.runner])
    except Unsupported as error:
        return str(error)
    stacked = graph.stacked_by(found)
    for inputs in batches:
        expected = [output.numpy().copy() for output in graph.run(inputs(graph))]
        try:
            got = [output.numpy() for output in stacked.run(inputs(stacked))]
        except RuntimeError as error:
            return str(error).strip().splitlines()[0][:200]
        worst = max(largest_difference(*pair) for pair in zip(got, expected, strict=True))
        if worst != 0:
            return f"its outputs differ by {worst:.3g}"
    program.stacked = found
    return ""
