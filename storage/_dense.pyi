"""
Dense graphs as steps of our own kernels; storage.checkpoint.fused is its Python side.
"""

from collections.abc import Sequence

import numpy
import numpy.typing

def isa() -> str:
    """Returns the instruction set that plans are bound for."""

def set_isa(name: str) -> None:
    """
    Sets the instruction set of plans that are bound from now on, for tests.
    """

def isas() -> list[str]:
    """
    Returns the instruction sets that this processor has, the best one last.
    """

def has_tiles() -> bool:
    """
    Returns whether layers that may be rounded are computed in bfloat16, by AMX.
    """

class Plan:
    """An immutable plan; any number of threads may run it."""

class PlanBuilder:
    """
    Collects values, weights and steps. A part of a value is (value, offset); widths are in floats.
    """

    def __init__(self) -> None: ...
    def add_value(self, kind: int, width: int) -> int: ...
    def add_weights(self, in_: int, out: int, is_rounded: bool) -> int: ...
    def add_index(self, n: int, length: int) -> int: ...
    def linear(
        self, from_: tuple[int, int], to: tuple[int, int], in_: int, out: int, count: int, weights: int, activation: int
    ) -> None: ...
    def pairs(
        self, vectors: Sequence[tuple[int, int]], to: tuple[int, int], dim: int, width: int, index: int
    ) -> None: ...
    def copy(self, from_: tuple[int, int], to: tuple[int, int], width: int) -> None: ...
    def activate(self, from_: tuple[int, int], to: tuple[int, int], width: int, activation: int) -> None: ...
    def combine(
        self, a: tuple[int, int], b: tuple[int, int], to: tuple[int, int], width: int, operation: int
    ) -> None: ...
    def sum(self, from_: tuple[int, int], to: tuple[int, int], outer: int, middle: int, inner: int) -> None: ...
    def build(self) -> Plan:
        """
        Returns the plan. Raises ValueError for a step that reads or writes outside its values.
        """

class BoundPlan:
    """
    A plan with the weights of one snapshot; any number of threads may run it.
    """

    def __init__(
        self,
        plan: Plan,
        linears: Sequence[tuple[numpy.typing.NDArray[numpy.float32], numpy.typing.NDArray[numpy.float32] | None]],
        indices: Sequence[numpy.typing.NDArray[numpy.int64]],
        constants: Sequence[numpy.typing.NDArray[numpy.float32]],
    ) -> None:
        """
        Copies the weights into the order in which the kernels read them. linears: a matrix (out, in) and a bias.
        """

    def run(
        self,
        rows: int,
        inputs: Sequence[int],
        outputs: Sequence[int],
        users: int = 0,
        user_of_row: int = 0,
        of_users: Sequence[int] = (),
    ) -> None:
        """
        Runs the plan over `rows` rows. Arguments are addresses of contiguous arrays that the caller has checked.
        """

    @property
    def bytes(self) -> int:
        """Bytes of the packed weights."""
