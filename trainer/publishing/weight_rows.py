"""Reads the rows of a plain torch layer out of its weight, piece by piece: the ids are the row numbers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from storage.checkpoint import Shard
from storage.checkpoint.row_streams import RowStream
from storage.initializers import ABSENT_ZEROS, AbsentRows
from storage.rows import RowCodec
from storage.specs import TableSpec


class WeightRows:
    """The rows of a weight (N, D) float32, on any device. Nothing is copied but what is asked for.

    hidden: an id whose row is left out, as a bag leaves out its padding id; None for none.
    """

    def __init__(self, name: str, weight: torch.Tensor, hidden: int | None = None) -> None:
        self.name = name
        self.dim = int(weight.shape[1])
        self._weight = weight
        self._hidden = hidden

    @property
    def absent(self) -> AbsentRows:
        """The rows that ids without one read as."""
        return ABSENT_ZEROS

    def size(self) -> int:
        """Number of rows."""
        return len(self._weight) - (self._hidden is not None)

    def find(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Maps ids (n,) int64 to rows (n, D) float32, zeros where there is none, and found (n,) bool."""
        found = (ids >= 0) & (ids < len(self._weight))
        if self._hidden is not None:
            found &= ids != self._hidden
        rows = np.zeros((len(ids), self.dim), np.float32)
        rows[found] = _rows(self._weight[torch.from_numpy(ids[found]).to(self._weight.device)])
        return rows, found

    def stream(self, row_type: str) -> RowStream:
        """Returns all rows as `row_type` stores them, with a use count of 0."""
        codec = RowCodec(row_type, self.dim)

        def read() -> Iterator[Shard]:
            for piece in codec.pieces(len(self._weight)):
                ids = np.arange(piece.start, piece.stop, dtype=np.int64)
                rows = _rows(self._weight[piece])
                if self._hidden is not None:
                    keep = ids != self._hidden
                    ids, rows = ids[keep], rows[keep]
                yield Shard(ids, codec.encode(rows), np.zeros(len(ids), np.uint8), codec)

        return RowStream(TableSpec(self.name, self.dim, row_type, self.size()), read)


def _rows(weight: torch.Tensor) -> np.ndarray:
    rows: np.ndarray = weight.detach().cpu().contiguous().numpy()
    return rows
