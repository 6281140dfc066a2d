"""Implements the backend `identity`: every output is the input at its place, of any dtype and shape.

It is for tests of clients.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from serving.engine.tap import RequestTap
from serving.protocol.signature import ModelSignature
from serving.protocol.tensors import WireTensor
from storage.errors import InvalidInput
from storage.features import BytesValues


@dataclass(frozen=True, slots=True)
class IdentitySnapshot:
    """The snapshot of an identity model. There is none; only the version has a name."""

    version: int
    id: str = ""
    sequence: int = 0


@dataclass(frozen=True, slots=True)
class IdentityAnswer:
    """The answer of an identity model; see serving.control.models.ModelAnswer."""

    outputs: list[np.ndarray]
    snapshot: IdentitySnapshot
    unresolved: int = 0
    stages: None = None

    def asked(self, name: str) -> np.ndarray:
        """Raises KeyError: it has no output but those that every request gets."""
        raise KeyError(name)


class IdentityModel:
    """Answers with its inputs, on whatever event loop asks. See serving.control.models.Model."""

    #: Nobody looks at its requests.
    tap: RequestTap | None = None

    def __init__(
        self, signature: ModelSignature, version: int, delay_s: float, count: Callable[[int, int], None]
    ) -> None:
        """delay_s: how long every answer waits, for tests of timeouts.

        count: called with the rows and nanoseconds of each request.
        """
        self.signature = signature
        self._delay_s = delay_s
        self._count = count
        self._snapshot = IdentitySnapshot(version)

    def answers(self, version: str) -> bool:
        """See Model."""
        return True

    async def answer(self, tensors: Mapping[str, WireTensor]) -> IdentityAnswer:
        """Returns the inputs as outputs. Raises InvalidInput naming the input that is missing or does not fit."""
        started_ns = time.monotonic_ns()
        outputs = _echo(self.signature, tensors)
        rows = outputs[0].shape[0] if self.signature.max_batch_size else 1
        self._count(rows, time.monotonic_ns() - started_ns)
        if self._delay_s:
            await asyncio.sleep(self._delay_s)
        return IdentityAnswer(outputs, self._snapshot)

    def check_load(self) -> None:
        """Does nothing, see Model: it takes every request."""

    async def infer(self, *_: Any, **__: Any) -> IdentityAnswer:
        """Never called, see Model: it has no columns, which `decode_predict` reports."""
        raise AssertionError


def _echo(signature: ModelSignature, tensors: Mapping[str, WireTensor]) -> list[np.ndarray]:
    outputs: list[np.ndarray] = []
    batch, first = -1, ""
    for name, declared in signature.inputs.items():
        tensor = tensors.get(name)
        if tensor is None:
            raise InvalidInput(
                f"input {name!r} ({declared.dtype}) is missing from the request to model {signature.model!r}",
                field=name,
            )
        if tensor.dtype != declared.dtype:
            raise InvalidInput(f"input {name!r}: expected datatype {declared.dtype}, got {tensor.dtype}", field=name)
        if tensor.nulls is not None:
            raise InvalidInput(f"input {name!r}: null is not allowed here", field=name)
        shape = tensor.shape
        if signature.max_batch_size:
            signature.check_batch(shape[0])
            if batch not in (-1, shape[0]):
                raise InvalidInput(
                    f"input {name!r} has a batch of {shape[0]}, but input {first!r} has {batch}", field=name
                )
            batch, first = shape[0], name
            shape = shape[1:]
        if len(shape) != len(declared.dims) or any(
            want not in (-1, got) for want, got in zip(declared.dims, shape, strict=True)
        ):
            expected = ["batch"] * bool(signature.max_batch_size) + [str(size) for size in declared.dims]
            raise InvalidInput(
                f"input {name!r}: expected shape [{', '.join(expected)}], got {list(tensor.shape)}", field=name
            )
        outputs.append(_array(tensor))
    return outputs


def _array(tensor: WireTensor) -> np.ndarray:
    if not isinstance(tensor.values, BytesValues):
        return tensor.values.reshape(tensor.shape)
    elements = np.empty(len(tensor.values), object)
    elements[:] = tensor.values.tolist()
    return elements.reshape(tensor.shape)
