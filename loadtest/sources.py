"""Makes the requests of a load test from rows of files: at random, with ids of another popularity, of one user."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from loadtest.ids import DrawnIds
from loadtest.rows import InputMetadata, Tensor, input_table, request_tensors

#: Seconds after which ids drift a little.
STRETCH_S = 10.0
#: Stretches at most; of a longer test, each is longer.
MOST_STRETCHES = 60
# Rows that are converted together.
_ROWS_AT_ONCE = 32_768


@dataclass(frozen=True)
class Wanted:
    """Describes the requests that are made."""

    #: Rows of a request.
    items: int = 32
    #: Different requests.
    distinct: int = 2000
    seed: int = 1
    #: Rows of the data that are read.
    rows: int = 100_000
    #: Popularity of the ids; "": as in the data.
    ids: str = ""
    #: Share of the hot ids that become others within a minute.
    drift: float = 0.0
    #: Inputs that are sent with one row, because all rows of a request are about one user.
    user_inputs: tuple[str, ...] = ()

    def stretches(self, seconds: float) -> tuple[int, float]:
        """Returns into how many stretches of time a test is divided, and the seconds of each; 1 and 0 without drift."""
        if not self.drift:
            return 1, 0.0
        length = max(STRETCH_S, seconds / MOST_STRETCHES)
        return max(1, math.ceil(seconds / length)), length


class RowRequests:
    """Requests made of the rows of files. Raises ValueError naming a column or an input that is wrong."""

    def __init__(self, data: str, inputs: Sequence[InputMetadata], wanted: Wanted) -> None:
        self._inputs, self._wanted = inputs, wanted
        names = [entry.name for entry in inputs]
        for name in wanted.user_inputs:
            if name not in names:
                raise ValueError(f"--user-inputs: the model has no input {name!r}; it has {', '.join(names)}")
        self._table = input_table(data, inputs, wanted.rows)
        self._ids = DrawnIds(self._table, inputs, wanted.ids, wanted.seed) if wanted.ids else None

    def describe(self) -> str:
        """Returns in words what is sent."""
        parts = [f"{self._wanted.items} rows a request, drawn from {self._table.num_rows:,} rows"]
        if self._ids is not None:
            counts = ", ".join(f"{name} {count:,}" for name, count in self._ids.distinct.items())
            parts.append(f"ids by {self._wanted.ids} ({counts} different ones)")
        if self._wanted.drift:
            parts.append(f"{self._wanted.drift:.0%} of the hot ids become others each minute")
        if self._wanted.user_inputs:
            parts.append(f"one row of {', '.join(self._wanted.user_inputs)} a request")
        return "; ".join(parts)

    def stretches(self, seconds: float) -> Iterator[Iterator[list[Tensor]]]:
        """Yields the requests of each stretch of a test of so many seconds."""
        rng = np.random.default_rng(self._wanted.seed)
        count, length = self._wanted.stretches(seconds)
        each = max(1, math.ceil(self._wanted.distinct / count))
        for number in range(count):
            if number and self._ids is not None:
                self._ids.drift(min(1.0, self._wanted.drift * length / 60))
            yield self._requests(rng, each)

    def _requests(self, rng: np.random.Generator, count: int) -> Iterator[list[Tensor]]:
        items = self._wanted.items
        at_once = max(1, _ROWS_AT_ONCE // items)
        for start in range(0, count, at_once):
            requests = min(at_once, count - start)
            rows = self._table.take(pa.array(rng.integers(0, self._table.num_rows, requests * items)))
            if self._ids is not None:
                rows = self._ids.replace(rows)
            tensors = request_tensors(self._inputs, rows)
            lengths = {each.name.removesuffix(".lengths"): each.values for each in tensors if _is_lengths(each)}
            for number in range(requests):
                yield [self._part(each, lengths.get(each.name), number * items) for each in tensors]

    def _part(self, tensor: Tensor, lengths: np.ndarray[Any, Any] | None, begin: int) -> Tensor:
        """Returns the rows of one request; its lists are as wide as its longest one."""
        is_user = tensor.name.removesuffix(".valid").removesuffix(".lengths") in self._wanted.user_inputs
        end = begin + (1 if is_user else self._wanted.items)
        values = tensor.values[begin:end]
        if lengths is not None:
            values = values[:, : int(lengths[begin:end].max(initial=0))]
        return Tensor(tensor.name, tensor.dtype, values)


def _is_lengths(tensor: Tensor) -> bool:
    return tensor.name.endswith(".lengths")
