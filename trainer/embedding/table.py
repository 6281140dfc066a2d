"""One trained table: rows by id in C++, and the gradients that wait for the optimizer's step.

N ids, D dim, B bags.
"""

from __future__ import annotations

import hashlib
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from storage._table import TrainingTable
from storage.errors import ConfigError
from storage.specs import POOLINGS, TableSpec

Ids = NDArray[np.int64]
Rows = NDArray[np.float32]


class EmbeddingTable:
    """A dynamic table of float32 rows: an id gets its row when it was seen `admit_after` times in training.

    dim: values of a row. optimizer: decides how many optimizer values lie behind a row. init_scale: a new row is
    uniform in [-init_scale, init_scale), the same for the same seed, table and id. initial_accumulator: Adagrad's
    start. Ids without a row read as zeros. One thread at a time. Raises ConfigError for a name or size that cannot be
    stored.
    """

    def __init__(
        self,
        name: str,
        dim: int,
        *,
        optimizer: Literal["adagrad", "sgd"] = "adagrad",
        seed: int = 0,
        init_scale: float = 0.05,
        admit_after: int = 1,
        initial_accumulator: float = 0.1,
    ) -> None:
        TableSpec(name, dim)
        if optimizer not in ("adagrad", "sgd"):
            raise ConfigError(
                f"table {name!r}: optimizer is {optimizer!r}, expected adagrad or sgd", field=f"tables.{name}.optimizer"
            )
        self.name = name
        self.dim = dim
        self.optimizer = optimizer
        self._initial_slot = initial_accumulator if optimizer == "adagrad" else 0.0
        self._native = TrainingTable(
            dim,
            slots=dim if optimizer == "adagrad" else 0,
            seed=_mixed_seed(seed, name),
            init_scale=init_scale,
            admit_after=admit_after,
        )
        self._waiting: list[tuple[Ids, Rows]] = []

    def __repr__(self) -> str:
        return f"EmbeddingTable({self.name!r}, dim={self.dim}, rows={self.size()})"

    def size(self) -> int:
        """Rows that exist."""
        return int(self._native.size())

    def memory_bytes(self) -> int:
        """Bytes held by rows, optimizer values and index."""
        return int(self._native.memory_bytes())

    def lookup(self, ids: Ids, *, train: bool) -> Rows:
        """ids (N,) -> (N, D), zeros for ids without a row. train: counts the ids and creates the rows that are due."""
        out = np.empty((len(ids), self.dim), dtype=np.float32)
        self._native.lookup(ids, out, train, self._initial_slot)
        return out

    def pool(self, values: Ids, offsets: Ids, pooling: str, *, train: bool) -> Rows:
        """Bags of values (N,), offsets (B + 1,) -> (B, D), summed in the order of the ids; see `lookup`.

        pooling: "sum", or "mean" over the ids given. An id without a row adds zero.
        """
        out = np.empty((len(offsets) - 1, self.dim), dtype=np.float32)
        self._native.pool(values, offsets, POOLINGS.index(pooling), out, train, self._initial_slot)
        return out

    def add_gradients(self, ids: Ids, gradients: Rows) -> None:
        """Keeps d(loss)/d(row), (N, D), until the optimizer's next step or `drop_gradients`."""
        self._waiting.append((ids, gradients))

    def take_gradients(self) -> tuple[Ids, Rows]:
        """All gradients kept so far, in the order in which they came, and none are kept any more."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return np.empty(0, dtype=np.int64), np.empty((0, self.dim), dtype=np.float32)
        if len(waiting) == 1:
            return waiting[0]
        return np.concatenate([ids for ids, _ in waiting]), np.concatenate([rows for _, rows in waiting])

    def drop_gradients(self) -> None:
        """Forgets the gradients kept so far."""
        self._waiting = []

    def adagrad(self, ids: Ids, gradients: Rows, *, lr: float, eps: float) -> int:
        """Sums the gradients of equal ids, then steps each row once. Returns the rows that took a step."""
        return int(self._native.adagrad(ids, gradients, lr, eps))

    def sgd(self, ids: Ids, gradients: Rows, *, lr: float) -> int:
        """As `adagrad`, without optimizer values."""
        return int(self._native.sgd(ids, gradients, lr))

    def export_rows(self) -> tuple[Ids, Rows, Rows, NDArray[np.uint32]]:
        """ids (N,) ascending, rows (N, D), optimizer values (N, slots), how often each id was seen (N,)."""
        ids, rows, slots, counts, _ = self._native.export_rows()
        return ids, rows, slots, counts

    def export_counts(self) -> tuple[Ids, NDArray[np.uint32]]:
        """Ids that were seen and have no row yet, ascending, and how often."""
        ids, counts = self._native.export_counts()
        return ids, counts

    def restore(self, ids: Ids, rows: Rows, slots: Rows, counts: NDArray[np.uint32]) -> None:
        """Puts back what `export_rows` gave."""
        self._native.restore(ids, rows, slots, counts, np.ones(len(ids), np.uint32))

    def restore_counts(self, ids: Ids, counts: NDArray[np.uint32]) -> None:
        """Puts back what `export_counts` gave."""
        self._native.restore_counts(ids, counts)


def _mixed_seed(seed: int, name: str) -> int:
    # Two tables of one model must not give an id the same first row.
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return int.from_bytes(digest[:8], "little")
