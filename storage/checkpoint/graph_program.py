"""What a graph computes, without its weights: one program for all snapshots that have the same graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from storage.checkpoint.halves import GraphHalves, split_graph
from storage.checkpoint.program import TORCH_LOCK
from storage.errors import Unsupported

# Takes a graph's arguments, weights and inputs, in its order; gives its outputs in theirs. Any thread.
Forward = Callable[..., Sequence[Any]]
# Makes that function of a graph. Raises Unsupported when it cannot.
Runner = Callable[[fx.GraphModule], Forward]


@dataclass(frozen=True)
class Candidate:
    """A runner and what came of it.

    us: median of a run, by rows of the batch. why_not: it could not be kept, "" where it could.
    """

    name: str
    us: Mapping[int, float]
    why_not: str = ""


def eager(module: fx.GraphModule) -> Forward:
    """One operator after the other, called from Python: what every other runner is compared with."""
    forward: Forward = module.forward
    return forward


@dataclass(frozen=True)
class RunnableHalves:
    """The two halves as functions; which arguments they take, `halves` says."""

    halves: GraphHalves
    user: Forward
    item: Forward


class GraphProgram:
    """Any thread. forward: the whole graph, by the runner that was told last. runner: its name.

    candidates: the runners that were compared, and how each did; empty as long as none were.
    """

    def __init__(
        self,
        module: fx.GraphModule,
        slots: Sequence[int],
        rounded: frozenset[int] = frozenset(),
        rounded_to: torch.dtype = torch.bfloat16,
    ) -> None:
        """slots: the argument of each input; the others are weights. rounded: those that it takes as `rounded_to`."""
        self.module = module
        self.rounded = rounded
        self.rounded_to = rounded_to
        self.runner = "eager"
        self.candidates: Sequence[Candidate] = ()
        self.forward = eager(module)
        self._make: Runner = eager
        self._slots = tuple(slots)
        self._halves: dict[tuple[int, ...], RunnableHalves | None] = {}

    def use(self, name: str, make: Runner, forward: Forward | None = None) -> None:
        """From now on the graph is run so. forward: what `make` gave for the whole graph, where that is known.

        Raises Unsupported; then nothing has changed.
        """
        whole = forward or make(self.module)
        with TORCH_LOCK:
            halves = {
                key: None if found is None else _runnable(found.halves, make) for key, found in self._halves.items()
            }
            self.forward, self.runner, self._make, self._halves = whole, name, make, halves

    def halves(self, user: Sequence[int]) -> RunnableHalves | None:
        """The graph split where the user's side ends; None where it cannot be. user: numbers of those inputs."""
        key = tuple(user)
        if key not in self._halves:
            with TORCH_LOCK:
                item = [slot for index, slot in enumerate(self._slots) if index not in key]
                found = split_graph(self.module, [self._slots[index] for index in key], item)
                self._halves[key] = None if found is None else _runnable(found, self._make)
        return self._halves[key]


def _runnable(halves: GraphHalves, make: Runner) -> RunnableHalves:
    """The halves by a runner; called from Python where it takes the whole graph but not both of them."""
    try:
        return RunnableHalves(halves, make(halves.user), make(halves.item))
    except Unsupported:
        return RunnableHalves(halves, eager(halves.user), eager(halves.item))
