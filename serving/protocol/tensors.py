"""Defines a decoded request: tensors whose claimed shapes were checked against the received data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from storage.errors import InvalidInput, Unsupported

if TYPE_CHECKING:
    from serving.protocol.regions import RegionPart
    from storage.features import BytesValues

MAX_RANK = 8
MAX_ID_LENGTH = 1024
_SCALARS = (bool, int, float, str)


@dataclass(slots=True)
class WireTensor:
    """Holds one input tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    #: Flat, with as many elements as `shape` says.
    values: np.ndarray | BytesValues
    #: (n,) bool, True where JSON has null; None where it has none.
    nulls: np.ndarray | None = None


@dataclass(slots=True)
class RequestedOutput:
    """Describes one output that the caller asked for."""

    #: Its position in the model's outputs.
    index: int
    binary: bool
    #: The number of largest values to return instead of all; 0 for all.
    classes: int = 0
    #: The shared memory that it is written to; None for the response.
    part: RegionPart | None = None


@dataclass(slots=True)
class InferRequest:
    """Is a decoded request to a model."""

    tensors: dict[str, WireTensor]
    outputs: list[RequestedOutput]
    id: str = ""
    #: How long it may wait in the queue; 0 for no limit of its own.
    timeout_us: int = 0
    #: 1 is the first, 0 the model's default.
    priority: int = 0
    parameters: Mapping[str, Any] = field(default_factory=dict)


def checked_shape(name: str, shape: Sequence[Any]) -> tuple[tuple[int, ...], int]:
    """Returns the shape as a tuple and its product, which may be of any size: compare it before allocating.

    Raises InvalidInput if the shape is not a list of non-negative integers.
    """
    if not 1 <= len(shape) <= MAX_RANK:
        raise InvalidInput(
            f"input {name!r}: shape has {len(shape)} dimensions, expected the batch first and at most {MAX_RANK}",
            field=name,
        )
    for size in shape:
        if type(size) is not int or not 0 <= size < 2**63:
            raise InvalidInput(
                f"input {name!r}: shape must hold non-negative integers, got {str(size)[:40]!r}", field=name
            )
    return tuple(shape), math.prod(shape)


def element_count_error(name: str, shape: Sequence[int], expected: int, got: int) -> InvalidInput:
    """Returns the error for a tensor with more or fewer elements than its shape says."""
    return InvalidInput(
        f"input {name!r}: shape {list(shape)} needs {expected} elements, the request holds {got}", field=name
    )


def byte_count_error(name: str, dtype: str, shape: Sequence[int], expected: int, got: int) -> InvalidInput:
    """Returns the error for a binary tensor with more or fewer bytes than its shape says."""
    return InvalidInput(
        f"input {name!r}: {dtype} {list(shape)} needs {expected} bytes, the request holds {got}", field=name
    )


def check_parameters(where: str, parameters: Mapping[str, Any]) -> None:
    """Refuses parameters that are not scalars, or that this server does not support."""
    for key, value in parameters.items():
        if value is not None and type(value) not in _SCALARS:
            raise InvalidInput(
                f"{where}: parameter {key!r} must be a string, number or bool, got {type(value).__name__}", field=key
            )
        if key == "sequence_id" and value not in (0, "", None):
            raise Unsupported(f"{where}: sequences are not supported; remove sequence_id")


def request_timeout_us(parameters: Mapping[str, Any]) -> int:
    """Returns the request parameter `timeout` in microseconds. Raises InvalidInput."""
    return _whole_number(parameters, "timeout", "a number of microseconds", 2**63)


def request_priority(parameters: Mapping[str, Any]) -> int:
    """Returns the request parameter `priority`: 1 is the first, 0 the model's default. Raises InvalidInput."""
    return _whole_number(parameters, "priority", "a whole number", 2**64)


def _whole_number(parameters: Mapping[str, Any], name: str, what: str, below: int) -> int:
    value = parameters.get(name, 0)
    if type(value) is str and value.isdecimal() and value.isascii() and len(value) < 21:
        value = int(value)
    if type(value) is not int or not 0 <= value < below:
        raise InvalidInput(
            f"parameter {name!r} must be {what}, 0 or more, got {str(value)[:40]!r}",
            field=name,
        )
    return value


def checked_id(value: Any) -> str:
    """Returns the request's id. Raises InvalidInput when it is not a short string."""
    if type(value) is not str:
        raise InvalidInput(f"'id' must be a string, got {type(value).__name__}", field="id")
    if len(value) > MAX_ID_LENGTH:
        raise InvalidInput(f"'id' has {len(value)} characters, at most {MAX_ID_LENGTH} are taken", field="id")
    return value
