"""A program is the computation of a graph without its weights, shared by all snapshots that have the same graph."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from storage.checkpoint.halves import GraphHalves, split_graph
from storage.checkpoint.program import TORCH_LOCK
from storage.checkpoint.stacked_inputs import StackedInputs, stack_inputs
from storage.errors import Unsupported

# Takes a graph's arguments, weights and inputs, in its order; returns its outputs in theirs. Thread-safe.
Forward = Callable[..., Sequence[Any]]
# Makes a Forward from a graph. Raises Unsupported when it cannot.
Runner = Callable[[fx.GraphModule], Forward]


class PackingForward(ABC):
    """A Forward that runs faster once it has packed its weights, for as long as these do not change."""

    @abstractmethod
    def pack(self, arguments: Sequence[Any]) -> Forward:
        """Returns a Forward that takes the same arguments and ignores their weights: it has packed these.

        arguments: the weights in their places; what stands in the places of inputs is not read.
        """

    def __call__(self, *arguments: Any) -> Sequence[Any]:
        return self.pack(arguments)(*arguments)


def packed(forward: Forward, arguments: Sequence[Any]) -> Forward:
    """Returns a Forward for these weights, packed where that makes it faster."""
    return forward.pack(arguments) if isinstance(forward, PackingForward) else forward


@dataclass(frozen=True)
class Candidate:
    """A runner and the result of its comparison."""

    name: str
    #: Median microseconds of a run, by rows of the batch.
    us: Mapping[int, float]
    #: The reason that it could not be kept, "" where it could.
    why_not: str = ""


def eager(module: fx.GraphModule) -> Forward:
    """Makes the reference for every other runner, which calls one operator after the other from Python."""
    forward: Forward = module.forward
    return forward


@dataclass(frozen=True)
class RunnableHalves:
    """The two halves of a graph as functions; `halves` says which arguments they take."""

    halves: GraphHalves
    user: Forward
    item: Forward


@dataclass(frozen=True)
class StackedProgram:
    """A program that takes stacked inputs; `inputs` says which inputs and weights of another one they are."""

    inputs: StackedInputs
    program: GraphProgram


class GraphProgram:
    """Holds a graph's computation. Thread-safe.

    `forward` runs the whole graph by the runner of the last `use`, and `runner` is that runner's name. `candidates` are
    the runners that were compared, and their results; it is empty before a comparison.
    """

    def __init__(
        self,
        module: fx.GraphModule,
        slots: Sequence[int],
        rounded: frozenset[int] = frozenset(),
        rounded_to: torch.dtype = torch.bfloat16,
    ) -> None:
        """Starts with the eager runner.

        slots: the argument of each input; the others are weights. rounded: the arguments that it takes as `rounded_to`.
        """
        self.module = module
        self.rounded = rounded
        self.rounded_to = rounded_to
        self.runner = "eager"
        self.candidates: Sequence[Candidate] = ()
        self.forward = eager(module)
        self._make: Runner = eager
        self._slots = tuple(slots)
        self._halves: dict[tuple[int, ...], RunnableHalves | None] = {}
        #: The same computation with stacked inputs, once it was compared with this one; None before, and where they
        #: differ.
        self.stacked: StackedProgram | None = None

    def use(self, name: str, make: Runner, forward: Forward | None = None) -> None:
        """Runs the graph by this runner from now on.

        forward: result of `make` for the whole graph, where it is known. Raises Unsupported; then nothing has changed.
        """
        whole = forward or make(self.module)
        with TORCH_LOCK:
            halves = {
                key: None if found is None else _runnable(found.halves, make) for key, found in self._halves.items()
            }
            self.forward, self.runner, self._make, self._halves = whole, name, make, halves

    def known_halves(self) -> list[RunnableHalves]:
        """Returns the halves that `halves` has been asked for."""
        return [found for found in list(self._halves.values()) if found is not None]

    def halves(self, user: Sequence[int]) -> RunnableHalves | None:
        """Returns the graph split where the user's side ends; None where it cannot be. user: numbers of those
        inputs.
        """
        key = tuple(user)
        if key not in self._halves:
            with TORCH_LOCK:
                item = [slot for index, slot in enumerate(self._slots) if index not in key]
                found = split_graph(self.module, [self._slots[index] for index in key], item)
                self._halves[key] = None if found is None else _runnable(found, self._make)
        return self._halves[key]

    def stack(self, pooled: Collection[int]) -> StackedProgram | None:
        """Returns the graph with stacked inputs, run from Python; None where it stacks none.

        pooled: numbers of the inputs that lookups write.
        """
        with TORCH_LOCK:
            found = stack_inputs(self.module, self._slots, pooled)
        if found is None:
            return None
        rounded = frozenset(slot for slot, weight in enumerate(found.weights) if weight in self.rounded)
        return StackedProgram(found, GraphProgram(found.module, found.slots, rounded, self.rounded_to))


def _runnable(halves: GraphHalves, make: Runner) -> RunnableHalves:
    """Makes the halves by a runner; they are called from Python where it takes the whole graph but not both of them."""
    try:
        return RunnableHalves(halves, make(halves.user), make(halves.item))
    except Unsupported:
        return RunnableHalves(halves, eager(halves.user), eager(halves.item))
