"""The steps that a dense graph is lowered to.

Each value has a fixed number of floats for each row of the batch. Steps read and write parts of values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum


class Kind(IntEnum):
    """Says where a value comes from. The numbers are those of storage/native/dense/plan.h."""

    INPUT = 0
    #: One row a user; each row of the batch takes its user's.
    OF_USER = 1
    #: The same for every row, made of weights.
    CONSTANT = 2
    SCRATCH = 3
    OUTPUT = 4


class Activation(IntEnum):
    """A function of one value. The numbers are those of storage/native/dense/kernels.h."""

    NONE = 0
    RELU = 1
    SIGMOID = 2
    TANH = 3
    SILU = 4


class Operation(IntEnum):
    """A function of two values. The numbers are those of storage/native/dense/kernels.h."""

    ADD = 0
    SUBTRACT = 1
    MULTIPLY = 2


@dataclass(frozen=True)
class Value:
    """`width` floats for each row."""

    kind: Kind
    width: int


@dataclass(frozen=True)
class Part:
    """Floats of a value's row, from `offset` on."""

    value: int
    offset: int


@dataclass(frozen=True)
class Linear:
    """to = activation(source * weight + bias), for `count` stretches of a row, one behind the other."""

    source: Part
    to: Part
    width: int
    out: int
    count: int
    #: Place among the weights of linear layers.
    weights: int
    activation: Activation = Activation.NONE


@dataclass(frozen=True)
class Pairs:
    """Writes what an index takes of the products of all pairs of vectors."""

    vectors: tuple[Part, ...]
    to: Part
    dim: int
    width: int
    #: Place among the indices.
    index: int


@dataclass(frozen=True)
class Copy:
    """to = source."""

    source: Part
    to: Part
    width: int


@dataclass(frozen=True)
class Activate:
    """to = activation(source)."""

    source: Part
    to: Part
    width: int
    activation: Activation


@dataclass(frozen=True)
class Combine:
    """to = left operation right."""

    left: Part
    right: Part
    to: Part
    width: int
    operation: Operation


@dataclass(frozen=True)
class Sum:
    """Sums `source`, (outer, middle, inner), over its middle."""

    source: Part
    to: Part
    outer: int
    middle: int
    inner: int


Step = Linear | Pairs | Copy | Activate | Combine | Sum


@dataclass(frozen=True)
class Layer:
    """Weights of a linear layer, by their places among the graph's constants."""

    weight: int
    #: None for no bias.
    bias: int | None
    width: int
    out: int
    #: Whether the weight is (width, out) rather than (out, width).
    is_transposed: bool
    #: Whether its products may be computed in bfloat16.
    is_rounded: bool


@dataclass(frozen=True)
class PairIndex:
    """An index into the products of all pairs of `n` vectors."""

    #: Place among the graph's constants.
    constant: int
    n: int
    length: int


@dataclass(frozen=True)
class Steps:
    """A graph as steps. `values` that are given come in the order of the graph's inputs, outputs in that of its own."""

    values: tuple[Value, ...]
    layers: tuple[Layer, ...]
    indices: tuple[PairIndex, ...]
    steps: tuple[Step, ...]


def reads(step: Step) -> tuple[Part, ...]:
    """Returns the parts that a step reads."""
    if isinstance(step, Pairs):
        return step.vectors
    if isinstance(step, Combine):
        return (step.left, step.right)
    return (step.source,)


def moved(step: Step, move: Callable[[Part], Part]) -> Step:
    """Returns a step with other parts."""
    if isinstance(step, Pairs):
        return replace(step, vectors=tuple(map(move, step.vectors)), to=move(step.to))
    if isinstance(step, Combine):
        return replace(step, left=move(step.left), right=move(step.right), to=move(step.to))
    return replace(step, source=move(step.source), to=move(step.to))
