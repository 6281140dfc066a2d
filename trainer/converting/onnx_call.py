"""Calls of ONNX operators: their values, and the table that operators are registered in.

A value is a tensor, or a numpy array where it is known without a request: a constant, and what is computed from
constants and sizes. An array of sizes may hold torch.SymInt, so that a batch stays dynamic while torch exports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from storage.errors import Unsupported

Value = Tensor | np.ndarray


class Constants(Protocol):
    """Gives the tensor of a constant by its name, or None."""

    def __call__(self, name: str) -> Tensor | None: ...


@dataclass(frozen=True)
class Call:
    """One node with the values of its inputs; None for an input that is left out."""

    #: The operator's name in ONNX.
    operator: str
    #: The operator and the node, for messages.
    where: str
    names: Sequence[str]
    values: Sequence[Value | None]
    attributes: Mapping[str, Any]
    outputs: int
    opset: int
    constants: Constants
    #: What the node keeps from its first run, whose batch has several rows.
    kept: dict[str, Any] = field(default_factory=dict)

    def has(self, position: int) -> bool:
        """Returns whether an input is given."""
        return position < len(self.values) and self.values[position] is not None

    def get(self, name: str, default: Any = None) -> Any:
        """Returns an attribute."""
        return self.attributes.get(name, default)

    def tensor(self, position: int) -> Tensor:
        """Returns an input as a tensor."""
        value = self.values[position]
        if isinstance(value, Tensor):
            return value
        if value is None:
            raise Unsupported(f"{self.where}: input {position} is missing")
        known = self.constants(self.names[position])
        return tensor_of(value) if known is None else known

    def tensors(self) -> list[Tensor]:
        """Returns all inputs as tensors."""
        return [self.tensor(position) for position in range(len(self.values))]

    def optional(self, position: int) -> Tensor | None:
        """Returns an input as a tensor, None where it is left out."""
        return self.tensor(position) if self.has(position) else None

    def host(self, position: int, what: str) -> np.ndarray:
        """Returns an input that has to be known without a request. Raises Unsupported where it is not."""
        value = self.values[position]
        if isinstance(value, np.ndarray):
            return value
        raise Unsupported(f"{self.where}: its {what} depend on values of a request; a published graph has fixed ones")

    def ints(self, position: int, attribute: str, what: str) -> list[int] | None:
        """Returns whole numbers that newer opsets take as an input and older ones as an attribute."""
        if self.has(position):
            return [int(each) for each in self.host(position, what).reshape(-1)]
        found = self.get(attribute)
        return None if found is None else [int(each) for each in found]

    def all_host(self) -> bool:
        """Returns whether every input is known without a request."""
        return all(isinstance(value, np.ndarray) for value in self.values)


@dataclass(frozen=True)
class Operator:
    """run: computes a node's outputs, or the only one. host: inputs that are read without a request."""

    run: Callable[[Call], Any]
    host: frozenset[int] = field(default_factory=frozenset)


OPERATORS: dict[str, Operator] = {}


def operator(*names: str, host: Sequence[int] = ()) -> Callable[[Callable[[Call], Any]], Callable[[Call], Any]]:
    """Registers a function for operators of ONNX."""

    def register(run: Callable[[Call], Any]) -> Callable[[Call], Any]:
        OPERATORS.update({name: Operator(run, frozenset(host)) for name in names})
        return run

    return register


def tensor_of(value: np.ndarray) -> Tensor:
    """Returns an array as a tensor, also one that holds sizes."""
    if value.dtype != object:
        return torch.tensor(value.tolist(), dtype=torch.from_numpy(np.zeros(0, value.dtype)).dtype).reshape(value.shape)
    parts = [torch.full((), each, dtype=torch.int64) for each in value.reshape(-1)]
    return torch.stack(parts).reshape(value.shape)


def sizes(value: Sequence[Any]) -> np.ndarray:
    """Returns sizes as an array: of int64 if all are numbers."""
    plain = all(isinstance(each, int) for each in value)
    return np.array(list(value), np.int64 if plain else object)
