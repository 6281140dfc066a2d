"""Describes a model's tensors on the wire: its raw inputs with their companions, and its outputs."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING

from serving.protocol.dtypes import WIRE_TYPES, accepts
from storage.errors import InvalidInput, Unavailable

if TYPE_CHECKING:
    from storage.checkpoint import GraphOutput
    from storage.features import Column, FeatureSpec, InputSpec

LENGTHS = ".lengths"
VALID = ".valid"


class SignatureChanged(Unavailable):
    """Says that a request's version was replaced by one that takes other inputs, so it must be decoded again."""


@dataclass(frozen=True)
class TensorSignature:
    """Describes one tensor that a request may contain."""

    name: str
    dtype: str
    #: Without the batch; -1 for a dimension of any size.
    dims: tuple[int, ...]
    optional: bool
    #: The raw input that it belongs to.
    raw: str
    #: Its part of that input: "value", "lengths" or "valid".
    role: str

    def check_dtype(self, dtype: str) -> None:
        """Raises InvalidInput when `dtype` cannot feed this tensor."""
        if dtype not in WIRE_TYPES:
            raise InvalidInput(
                f"input {self.name!r}: datatype {dtype!r} is not one of {', '.join(WIRE_TYPES)}", field=self.name
            )
        if not accepts(self.dtype, dtype):
            raise InvalidInput(f"input {self.name!r}: expected datatype {self.dtype}, got {dtype}", field=self.name)


@dataclass(frozen=True)
class OutputSignature:
    """Describes one output."""

    name: str
    dtype: str
    #: Without the batch.
    dims: tuple[int, ...]
    #: The labels of the classes that it scores, where config.pbtxt names them.
    labels: tuple[str, ...] = ()


class ModelSignature:
    """Holds the names, dtypes and shapes of a model's tensors. Immutable."""

    def __init__(
        self,
        model: str,
        raw: Sequence[InputSpec],
        outputs: Sequence[OutputSignature],
        max_batch_size: int,
        *,
        tensors: Sequence[TensorSignature] = (),
        asked: Sequence[OutputSignature] = (),
        needs: Mapping[str, frozenset[str]] = MappingProxyType({}),
        stand_ins: Mapping[str, Column] = MappingProxyType({}),
    ) -> None:
        """Builds a signature from raw inputs, or from tensors for a model that makes no features.

        asked: outputs that are only for requests that name them; their places come behind the others. tensors: the
        inputs of such a model, which are used unchanged. needs: the inputs that each output is computed from, where
        some need not all; stand_ins: a row for inputs that are left out. max_batch_size: 0 for such a model whose
        tensors have no batch.
        """
        self.model = model
        self.raw = tuple(raw)
        self.outputs = tuple(outputs)
        self.asked = tuple(asked)
        self.needs = needs
        self.stand_ins = stand_ins
        self.output_names = tuple(entry.name for entry in outputs)
        self.output_row_bytes = tuple(WIRE_TYPES[entry.dtype].item_bytes * prod(entry.dims) for entry in outputs)
        self.max_batch_size = max_batch_size
        self.inputs: dict[str, TensorSignature] = {entry.name: entry for entry in tensors}
        for entry in raw:
            for wire in entry.wire_inputs():
                role = wire.name.removeprefix(entry.name).removeprefix(".") or "value"
                self._add(TensorSignature(*wire, entry.name, role))

    @classmethod
    def of(
        cls,
        model: str,
        spec: FeatureSpec,
        outputs: Iterable[GraphOutput],
        max_batch_size: int,
        labels: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
        asked: Sequence[OutputSignature] = (),
        needs: Mapping[str, frozenset[str]] = MappingProxyType({}),
        stand_ins: Mapping[str, Column] = MappingProxyType({}),
    ) -> ModelSignature:
        """Builds the signature of a published version. labels: class labels by output, where there are any."""
        results = [OutputSignature(o.name, o.dtype, tuple(o.shape[1:]), labels.get(o.name, ())) for o in outputs]
        names = {result.name for result in results}
        given = [entry for entry in asked if entry.name not in names]
        return cls(model, spec.inputs, results, max_batch_size, asked=given, needs=needs, stand_ins=stand_ins)

    def input(self, name: str) -> TensorSignature:
        """Returns the input of that name. Raises InvalidInput that suggests the nearest name."""
        found = self.inputs.get(name)
        if found is None:
            raise InvalidInput(
                f"model {self.model!r} has no input {_shown(name)}{_nearest(name, self.inputs)}; "
                f"its inputs are {_listed(e.name for e in self.inputs.values() if e.role == 'value')}",
                field=name,
            )
        return found

    def output(self, name: str) -> int:
        """Returns the position of the output of that name. Raises InvalidInput that suggests the nearest name."""
        names = self.output_names + tuple(entry.name for entry in self.asked)
        try:
            return names.index(name)
        except ValueError:
            raise InvalidInput(
                f"model {self.model!r} has no output {_shown(name)}{_nearest(name, names)}; "
                f"its outputs are {_listed(names)}",
                field=name,
            ) from None

    def are_without(self, name: str, outputs: Sequence[str]) -> bool:
        """Returns whether outputs that a request names can all be computed without an input."""
        is_known = name in self.stand_ins and bool(outputs)
        return is_known and all(output in self.needs and name not in self.needs[output] for output in outputs)

    def output_at(self, place: int) -> OutputSignature:
        """Returns the output at a place that `output` returned."""
        own = len(self.outputs)
        return self.outputs[place] if place < own else self.asked[place - own]

    def check_batch(self, batch: int) -> None:
        """Raises InvalidInput when a batch is over the limit."""
        if batch > self.max_batch_size:
            raise InvalidInput(
                f"inference request batch-size must be <= {self.max_batch_size} for {self.model!r}, got {batch}; "
                "send it in parts",
                field="batch",
            )

    def _add(self, entry: TensorSignature) -> None:
        self.inputs.setdefault(entry.name, entry)


def _shown(name: str) -> str:
    return repr(name if len(name) <= 100 else name[:100] + "...")


def _nearest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name[:100], list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _listed(names: Iterable[str]) -> str:
    every = [repr(name) for name in names]
    return ", ".join(every[:20]) + (f" and {len(every) - 20} more" if len(every) > 20 else "")
