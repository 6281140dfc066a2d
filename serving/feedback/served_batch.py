"""Holds requests that were answered, until they are looked at.

Arrow is not needed for that: its import starts a thread, and the supervisor, which forks, imports this module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from serving.engine.recent import columns_bytes, copied, rows_of
from serving.protocol.signature import ModelSignature
from storage.features import Column


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """Is one request of a batch that was answered."""

    id: str
    #: It is in every sample of a share above this.
    point: float
    #: Its rows in the batch.
    start: int
    stop: int
    arrived_us: int


@dataclass(frozen=True, slots=True)
class ServedBatch:
    """Holds requests that were answered together. Nobody writes to its arrays any more."""

    #: Columns and outputs of the whole batch, and its rows.
    columns: Mapping[str, Column]
    outputs: Sequence[np.ndarray]
    batch: int
    requests: Sequence[ServedRequest]
    #: Of the version that answered.
    signature: ModelSignature
    #: The snapshot that answered, such as 1.17, and the arm.
    snapshot: str
    arm: str
    size_bytes: int

    @property
    def rows(self) -> int:
        """Returns the rows of its requests together."""
        return sum(each.stop - each.start for each in self.requests)

    def parts(self, share: float) -> list[ServedBatch]:
        """Returns those of its requests that a sample has, in memory of their own where they are few of many."""
        chosen = [each for each in self.requests if each.point < share]
        rows = sum(each.stop - each.start for each in chosen)
        if 2 * rows > self.batch:
            return [replace(self, requests=chosen)]
        return [self._alone(each) for each in chosen]

    def _alone(self, one: ServedRequest) -> ServedBatch:
        rows = one.stop - one.start
        columns = copied(rows_of(self.columns, self.batch, one.start, one.stop))
        outputs = [values[one.start : one.stop].copy() for values in self.outputs]
        size = columns_bytes(columns) + sum(values.nbytes for values in outputs)
        moved = replace(one, start=0, stop=rows)
        return replace(self, columns=columns, outputs=outputs, batch=rows, requests=(moved,), size_bytes=size)

    def ranges(self) -> list[tuple[int, int]]:
        """Returns the rows of its requests in the batch, those that touch one another together."""
        found: list[tuple[int, int]] = []
        for each in self.requests:
            if found and found[-1][1] == each.start:
                found[-1] = (found[-1][0], each.stop)
            else:
                found.append((each.start, each.stop))
        return found
