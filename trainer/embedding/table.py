"""One trained table: rows by id in C++, and the gradients that wait for the optimizer's step.

N ids, D dim, B bags.
"""

from __future__ import annotations

import hashlib
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from storage._table import TrainingTable
from storage.checkpoint.fingerprint import MASK, removed_fingerprint, rows_fingerprint
from storage.errors import ConfigError
from storage.rows import RowCodec
from storage.specs import POOLINGS, TableSpec
from storage.tiers.training.export import TieredTrainingTable
from trainer.embedding.memory import RowMemory

Ids = NDArray[np.int64]
Rows = NDArray[np.float32]
Counts = NDArray[np.uint32]


class EmbeddingTable:
    """A dynamic table of float32 rows: an id gets its row when it was seen `admit_after` times in training.

    dim: values of a row. optimizer: decides how many optimizer values lie behind a row. init_scale: a new row is
    uniform in [-init_scale, init_scale), the same for the same seed, table and id. initial_accumulator: Adagrad's
    start. Ids without a row read as zeros. Every change carries a stamp, so that later changes can be listed. memory:
    bounds the DRAM of the tables that share it; what does not fit lies on SSD, and nothing else changes. Not
    thread-safe. Raises ConfigError for a name or size that cannot be stored.
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
        memory: RowMemory | None = None,
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
        slots = dim if optimizer == "adagrad" else 0
        mixed = _mixed_seed(seed, name)
        self._native: TrainingTable | TieredTrainingTable = (
            TrainingTable(dim, slots=slots, seed=mixed, init_scale=init_scale, admit_after=admit_after)
            if memory is None
            else memory.table(name, dim, slots=slots, seed=mixed, init_scale=init_scale, admit_after=admit_after)
        )
        self._waiting: list[tuple[Ids, Rows]] = []
        self.forgotten = 0
        self._saved: int | None = None

    def __repr__(self) -> str:
        return f"EmbeddingTable({self.name!r}, dim={self.dim}, rows={self.size()})"

    def size(self) -> int:
        """Number of rows."""
        return int(self._native.size())

    def waiting(self) -> int:
        """Number of ids that were seen and have no row yet."""
        native = self._native
        return native.waiting_size() if isinstance(native, TrainingTable) else native.waiting()

    def rows_on_ssd(self) -> int:
        """Number of rows that are not in DRAM."""
        return self._native.rows_outside if isinstance(self._native, TieredTrainingTable) else 0

    def memory_bytes(self) -> int:
        """Bytes of DRAM held by rows, optimizer values, index and counts."""
        return int(self._native.memory_bytes())

    def lookup(self, ids: Ids, *, train: bool) -> Rows:
        """Maps ids (N,) to rows (N, D), zeros for ids without a row.

        train: counts the ids and creates the rows that are due.
        """
        out = np.empty((len(ids), self.dim), dtype=np.float32)
        self._native.lookup(ids, out, train, self._initial_slot)
        return out

    def pool(self, values: Ids, offsets: Ids, pooling: str, *, train: bool) -> Rows:
        """Pools bags of values (N,), offsets (B + 1,) to (B, D), summed in the order of the ids; see `lookup`.

        pooling: "sum", or "mean" over the ids given. An id without a row adds zero.
        """
        out = np.empty((len(offsets) - 1, self.dim), dtype=np.float32)
        self._native.pool(values, offsets, POOLINGS.index(pooling), out, train, self._initial_slot)
        return out

    def add_gradients(self, ids: Ids, gradients: Rows) -> None:
        """Keeps d(loss)/d(row), (N, D), until the optimizer's next step or `drop_gradients`."""
        self._waiting.append((ids, gradients))

    def take_gradients(self) -> tuple[Ids, Rows]:
        """Returns all gradients kept so far, in the order in which they came, and forgets them."""
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
        """Steps as `adagrad` does, without optimizer values."""
        return int(self._native.sgd(ids, gradients, lr))

    @property
    def stamp(self) -> int:
        """The number that changes carry from now on; 1 at the start."""
        return int(self._native.stamp)

    def advance(self) -> int:
        """Closes the stamp and returns it; later changes carry the next one."""
        return int(self._native.advance())

    def set_stamp(self, stamp: int) -> None:
        """Sets the stamp of later changes. Raises ValueError for one below the table's own."""
        self._native.set_stamp(stamp)

    def changed_since(self, stamp: int) -> Ids:
        """Returns ids (N,) ascending of rows that were created, stepped or looked up in training after a stamp."""
        return self._native.changed_since(stamp)

    def removed_since(self, stamp: int) -> Ids:
        """Returns ids (N,) ascending that were erased after a stamp and have no row now."""
        return self._native.removed_since(stamp)

    def rows_fingerprint(self, row_type: str = "fp32", since: int = 0) -> int:
        """The fingerprint of the rows that changed after a stamp, of all rows by default, as `row_type` stores them.

        The rows are read by `lookup`, as the module reads them, a bounded piece at a time. So it says what the table
        has, whatever becomes of arrays that were exported.
        """
        codec = RowCodec(row_type, self.dim)
        ids = self.changed_since(since)
        parts = (ids[piece] for piece in codec.pieces(len(ids)))
        return sum(rows_fingerprint(part, codec.encode(self.lookup(part, train=False))) for part in parts) & MASK

    def changes_fingerprint(self, row_type: str, since: int) -> int:
        """The fingerprint of what a delta holds of the table: rows that changed after a stamp, ids that went."""
        return (self.rows_fingerprint(row_type, since) + removed_fingerprint(self.removed_since(since))) & MASK

    def waiting_since(self, stamp: int) -> tuple[Ids, Counts]:
        """Returns ids (N,) without a row whose count changed after a stamp, and the counts; 0: not waiting.

        The stamp is one of the last 64.
        """
        return self._native.waiting_since(stamp)

    def expired(self, stamp: int) -> Ids:
        """Returns ids (N,) ascending of rows that changed last at that stamp or before."""
        return self._native.expired(stamp)

    def erase(self, ids: Ids) -> int:
        """Forgets rows, optimizer values and counts; an id seen again is new. Returns how many had a row."""
        return int(self._native.erase(ids))

    def removed(self) -> tuple[Ids, Counts]:
        """Returns ids (N,) ascending that were erased and have no row now, and the stamps at which they were erased."""
        return self._native.removed()

    def forget_removed(self, stamp: int) -> None:
        """Forgets the ids that were erased at this stamp or before, when no caller will ask for them again.

        What no training checkpoint holds yet is kept until one does: a row must not come back on resume.
        """
        self.forgotten = max(self.forgotten, stamp)
        self._native.forget_removed(stamp if self._saved is None else min(stamp, self._saved))

    def saved(self, stamp: int) -> None:
        """Notes that a training checkpoint holds every change up to this stamp."""
        self._saved = stamp
        self._native.forget_removed(min(self.forgotten, stamp))

    def export_ids(self, ids: Ids) -> tuple[Rows, Rows, Counts, Counts]:
        """Returns rows (N, D), optimizer values (N, slots), counts (N,), stamps (N,).

        Raises ValueError for an id without a row.
        """
        return self._native.export_ids(ids)

    def export_rows(self) -> tuple[Ids, Rows, Rows, Counts, Counts]:
        """Returns ids (N,) ascending, rows (N, D), optimizer values (N, slots), counts (N,), stamps (N,)."""
        return self._native.export_rows()

    def export_counts(self) -> tuple[Ids, Counts]:
        """Returns ids that were seen and have no row yet, ascending, and their counts."""
        return self._native.export_counts()

    def restore(self, ids: Ids, rows: Rows, slots: Rows, counts: Counts, stamps: Counts) -> None:
        """Puts back what `export_rows` gave; call `set_stamp` first."""
        self._native.restore(ids, rows, slots, counts, stamps)

    def restore_counts(self, ids: Ids, counts: Counts) -> None:
        """Puts back what `export_counts` or `waiting_since` gave."""
        self._native.restore_counts(ids, counts)

    def restore_removed(self, ids: Ids, stamps: Counts) -> None:
        """Puts back what `removed` gave; ids that have a row are left out."""
        self._native.restore_removed(ids, stamps)


def _mixed_seed(seed: int, name: str) -> int:
    # Two tables of one model must not give an id the same first row.
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return int.from_bytes(digest[:8], "little")
