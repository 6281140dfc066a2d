"""One trained table: rows by id in C++, and the gradients that wait for the optimizer's step.

N ids, D dim, S optimizer values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from storage._table import RowGradients, TableGradients, TrainingTable
from storage.checkpoint.fingerprint import MASK, removed_fingerprint, rows_fingerprint
from storage.checkpoint.table_kinds import DYNAMIC, TableKind
from storage.errors import ConfigError
from storage.features import Feature, FeatureEngine, FeatureSpec, InputSpec, column_from_numpy
from storage.features.transforms import Transform
from storage.initializers import ZEROS, AbsentRows, Initializer
from storage.rows import RowCodec
from storage.specs import TableSpec
from trainer.admission import BloomAdmission
from trainer.embedding.hbm_group import HbmTable
from trainer.embedding.memory import RowMemory
from trainer.embedding.owners import owners
from trainer.eviction import Eviction, Evictor
from trainer.ranks import Ranks

Ids = NDArray[np.int64]
Rows = NDArray[np.float32]
Counts = NDArray[np.uint32]

SparseRule = Literal[
    "sgd",
    "momentum",
    "adagrad",
    "rowwise_adagrad",
    "adagrad_decay",
    "adam",
    "adamw",
    "rowwise_adam",
    "lamb",
    "ftrl",
]
DEFAULT_ROWS = Initializer("uniform", 0.05)
_ROWS_AT_ONCE = 1 << 16


class EmbeddingTable:
    """A dynamic table of float32 rows: an id gets its row when it was seen `admit_after` times in training.

    dim: values of a row. optimizer: decides which optimizer values lie behind a row. rows: first values of a row, the
    same for the same seed, table and id. absent: what an id without a row reads as, in training and in serving.
    admission: counts ids without a row in a filter, None exactly. eviction: when rows go, None never; an optimizer's
    step does the work. initial_accumulator: start of Adagrad's and FTRL's sums. Every change carries a stamp, so that
    later changes can be listed. memory: bounds the DRAM of the tables that share it; what does not fit lies on SSD, and
    nothing else changes. static_rows: above 0, the ids below it have rows from the start, and no other id ever has one.
    transforms: make ids of rows of the ids that layers are given, and are published so. kind: what a manifest says of
    the table. Not thread-safe. Raises ConfigError for a name or size that cannot be stored.
    """

    def __init__(
        self,
        name: str,
        dim: int,
        *,
        optimizer: SparseRule = "adagrad",
        seed: int = 0,
        rows: Initializer = DEFAULT_ROWS,
        absent: Initializer = ZEROS,
        admit_after: int = 1,
        admission: BloomAdmission | None = None,
        eviction: Eviction | None = None,
        initial_accumulator: float = 0.1,
        memory: RowMemory | None = None,
        static_rows: int = 0,
        transforms: Sequence[Transform] = (),
        kind: TableKind = DYNAMIC,
        ranks: Ranks | None = None,
    ) -> None:
        mixed = _mixed_seed(seed, name)
        #: What ids without a row read as.
        self.absent = AbsentRows.of(absent, mixed)
        TableSpec(name, dim, absent=self.absent)
        if optimizer not in get_args(SparseRule):
            raise ConfigError(
                f"table {name!r}: optimizer is {optimizer!r}, expected one of {', '.join(get_args(SparseRule))}",
                field=f"tables.{name}.optimizer",
            )
        if admission is not None:
            admission.check(admit_after)
        self.name = name
        self.dim = dim
        self.optimizer = optimizer
        self.initial_accumulator = initial_accumulator
        self.admit_after = admit_after
        #: The ranks among which the rows are divided; layers bring those of other ranks, and the rest is about its own.
        self.ranks = ranks or Ranks()
        bloom = None
        if admission is not None:
            bloom = (admission.expected_ids, admission.false_rate, self.ranks.rank, self.ranks.size)
        options: dict[str, Any] = {
            "optimizer": optimizer,
            "initial_accumulator": initial_accumulator,
            "seed": mixed,
            "rows": rows.native(),
            "absent": absent.native(),
            "admit_after": admit_after,
            "bloom": bloom,
            "evicts": eviction is not None,
            "fixed": static_rows > 0,
        }
        self._native: TrainingTable = (
            TrainingTable(dim, **options) if memory is None else memory.table(name, dim, **options)
        )
        # Every id reads as its first row there, without one.
        self._first = partial(
            TrainingTable,
            dim,
            optimizer=optimizer,
            initial_accumulator=initial_accumulator,
            seed=mixed,
            rows=rows.native(),
            absent=rows.native(),
        )
        largest = self.ranks.largest if self.ranks.are_several else None
        self._evictor = None if eviction is None else Evictor(eviction, _Evicted(self), self._native.tick, largest)
        self.kind = kind
        self.transforms = tuple(transforms)
        self._waiting: list[TableGradients | RowGradients] = []
        self._expected: list[Callable[[], None]] = []
        self.forgotten = 0
        self._saved: int | None = None
        self._hbm: HbmTable | None = None
        #: Whether a GPU may keep rows.
        self.may_leave_host = True
        if static_rows > 0:
            self._make_rows(static_rows)

    def __repr__(self) -> str:
        return f"EmbeddingTable({self.name!r}, dim={self.dim}, rows={self.size()})"

    @property
    def native(self) -> TrainingTable:
        """The rows, of which a part may lie on SSD. What a GPU has trained of them is written back first."""
        if self._hbm is not None:
            self._hbm.settle()
        return self._native

    @property
    def unsettled(self) -> TrainingTable:
        """The rows, with old values for those that a GPU keeps."""
        return self._native

    @property
    def hbm(self) -> HbmTable | None:
        """The rows that a GPU keeps; None: it keeps none."""
        return self._hbm

    def keep_on(self, hbm: HbmTable | None) -> None:
        """Notes where a GPU keeps rows from now on; None: nowhere. Those that are kept so far are written back."""
        self.leave_device()
        self._hbm = hbm

    def leave_device(self) -> TrainingTable:
        """Writes back what a GPU has trained, which keeps no row from then on, and returns the rows: to change them."""
        native = self.native
        if self._hbm is not None:
            self._hbm.forget(None)
        return native

    @property
    def slots(self) -> int:
        """Number S of optimizer values behind a row."""
        return self._native.slots

    def size(self) -> int:
        """Number of rows."""
        return int(self._native.size())

    def waiting(self) -> int:
        """Number of ids that were seen and have no row yet; with a filter, an estimate of those without a row."""
        return self._native.waiting_size()

    def rows_on_ssd(self) -> int:
        """Number of rows that are not in DRAM."""
        return self._native.tier_figures()["rows_outside"] if self._native.is_tiered else 0

    def memory_bytes(self) -> int:
        """Bytes of DRAM held by rows, optimizer values, index and counts."""
        return int(self._native.memory_bytes())

    def lookup(self, ids: Ids, *, train: bool) -> Rows:
        """Maps ids (N,) to rows (N, D); ids without a row read as `absent`.

        train: counts the ids and creates the rows that are due.
        """
        out = np.empty((len(ids), self.dim), dtype=np.float32)
        (self.leave_device() if train else self.native).lookup(ids, out, train)
        return out

    def read(self, ids: Ids) -> tuple[Rows, NDArray[np.uint8]]:
        """Maps ids (N,) to rows (N, D), as `lookup` does without training, and to whether each has a row (N,)."""
        rows = np.empty((len(ids), self.dim), np.float32)
        return rows, self.native.lookup_counted(ids, np.ones(len(ids), np.uint32), rows, False)

    def row_ids(self, ids: Ids) -> Ids:
        """Maps ids (N,) as layers are given them to the ids (N,) of rows, as the server's feature engine does."""
        if not self.transforms or not len(ids):
            return ids
        return self._engine.run({"id": column_from_numpy("INT64", ids[:, None])}, len(ids)).ids["id"].values

    @cached_property
    def _engine(self) -> FeatureEngine:
        feature = Feature(name="id", inputs=("id",), transforms=self.transforms, output="ids", table=self.name)
        inputs = (InputSpec(name="id", dtype="INT64", nulls="error"),)
        return FeatureEngine(FeatureSpec(inputs=inputs, features=(feature,)))

    def first_rows(self, ids: Ids) -> Rows:
        """Returns the rows (N, D) that ids (N,) begin with. The table is neither read nor changed."""
        out = np.empty((len(ids), self.dim), dtype=np.float32)
        self._first().lookup(ids, out, False)
        return out

    def first_slots(self) -> Rows:
        """Returns the optimizer values (S,) that a row begins with."""
        table, ids = self._first(), np.zeros(1, np.int64)
        table.lookup(ids, np.empty((1, self.dim), np.float32), True)
        slots: Rows = table.export_ids(ids)[1][0]
        return slots

    def _make_rows(self, count: int) -> None:
        for start in range(0, count, _ROWS_AT_ONCE):
            ids = np.arange(start, min(count, start + _ROWS_AT_ONCE), dtype=np.int64)
            ids = ids[owners(ids, self.ranks.size) == self.ranks.rank]
            # A dynamic table makes rows of ids that it sees; these here are rows of ids that nobody saw.
            made = self._first()
            made.lookup(ids, np.empty((len(ids), self.dim), np.float32), True)
            _, values, slots, counts, stamps, ticks = made.export_rows()
            self._native.restore(ids, values, slots, np.zeros_like(counts), stamps, ticks)

    def add_gradients(self, ids: Ids, gradients: Rows) -> None:
        """Keeps d(loss)/d(row), (N, D), until the optimizer's next step or `drop_gradients`."""
        native = self.leave_device()
        self.gradients()  # those that came before are added first
        self._waiting.append(RowGradients(native, ids, gradients))

    def keep_gradients(self, gradients: TableGradients | RowGradients) -> None:
        """Keeps what a lookup got for this table until the optimizer's next step or `drop_gradients`."""
        self._waiting.append(gradients)

    def expect_gradients(self, keep: Callable[[], None]) -> None:
        """Notes gradients that are on their way from a GPU or a rank: `keep` waits for them and calls `keep_gradients`.

        It is called once, when this table, or another one of the same lookup, is asked for its gradients.
        """
        self._expected.append(keep)

    def take_gradients(self) -> list[TableGradients | RowGradients]:
        """Returns all gradients kept so far, in the order in which they came, and forgets them."""
        waiting = self.gradients()
        self._waiting = []
        return waiting

    def gradients(self) -> list[TableGradients | RowGradients]:
        """Returns all gradients kept so far, in the order in which they came. Waits for those on their way."""
        while self._expected:
            self._expected.pop(0)()
        return self._waiting

    @property
    def has_gradients(self) -> bool:
        """True if gradients wait for the optimizer's step, or are on their way."""
        of_kept = self._hbm is not None and self._hbm.group.has_gradients
        return bool(self._waiting or self._expected or of_kept)

    def drop_gradients(self) -> None:
        """Forgets the gradients kept so far."""
        self.gradients()  # those on their way belong to other tables too, which keep theirs
        self._waiting = []
        if self._hbm is not None:
            self._hbm.group.drop_gradients()

    @property
    def tick(self) -> int:
        """The tick that uses of rows carry now."""
        return int(self._native.tick)

    @property
    def steps(self) -> int:
        """Steps of the optimizer so far, on which Adam and its kin depend."""
        return int(self._native.steps)

    def set_steps(self, steps: int) -> None:
        """Sets the steps of the optimizer, as those of a run that is resumed."""
        self._native.steps = steps

    @property
    def evicts(self) -> bool:
        """True if rows go by eviction."""
        return self._evictor is not None

    def after_step(self, seconds: float) -> int:
        """Evicts a piece of the rows that are due, after the optimizer's step. Returns how many rows went.

        seconds: a time that goes on, of a clock or of the events that are trained on.
        """
        return 0 if self._evictor is None else self._evictor.after_step(self.steps, seconds)

    def eviction_state(self) -> dict[str, Any]:
        """Returns what a commit keeps of ticks and of eviction, as JSON values."""
        return {"tick": self._native.tick, "evictor": self._evictor and self._evictor.to_json_value()}

    def restore_eviction(self, state: dict[str, Any]) -> None:
        """Puts back what `eviction_state` gave. Raises KeyError or TypeError for anything else.

        A table that evicts for the first time counts from then on.
        """
        self._native.set_tick(state["tick"])
        if self._evictor is not None:
            empty = Evictor(self._evictor.eviction, _Evicted(self), state["tick"]).to_json_value()
            self._evictor.restore(state["tick"], state["evictor"] or empty)

    @property
    def stamp(self) -> int:
        """The number that changes carry from now on; 1 at the start."""
        return int(self._native.stamp)

    def advance(self) -> int:
        """Closes the stamp and returns it; later changes carry the next one."""
        # A row that a GPU keeps is noted as changed by its lookup, and not by the step.
        return int((self.leave_device() if self.has_gradients else self.native).advance())

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

    def has_changes(self, since: int) -> bool:
        """Returns whether a row changed or an id was erased after a stamp."""
        return len(self.changed_since(since)) > 0 or len(self.removed_since(since)) > 0

    def published_rows(self, since: int = 0) -> tuple[Ids, Rows, Counts]:
        """Returns ids (N,) ascending, rows (N, D) and counts (N,) of what changed after a stamp: all rows for 0."""
        if since == 0:
            ids, rows, _, counts, *_ = self.export_rows()
            return ids, rows, counts
        ids = self.changed_since(since)
        rows, _, counts, *_ = self.export_ids(ids)
        return ids, rows, counts

    def waiting_since(self, stamp: int) -> tuple[Ids, Counts]:
        """Returns ids (N,) without a row whose count changed after a stamp, and the counts; 0: not waiting.

        The stamp is one of the last 64.
        """
        return self._native.waiting_since(stamp)

    def expired(self, stamp: int) -> Ids:
        """Returns ids (N,) ascending of rows that changed last at that stamp or before."""
        return self._native.expired(stamp)

    def erase_expired(self, stamp: int) -> int:
        """Erases the rows that changed last at that stamp or before. Returns how many they were."""
        return self.erase(self.expired(stamp))

    def erase(self, ids: Ids) -> int:
        """Forgets rows, optimizer values and counts; an id seen again is new. Returns how many had a row."""
        if self._hbm is not None:
            self._hbm.forget(ids)
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

    def export_ids(self, ids: Ids) -> tuple[Rows, Rows, Counts, Counts, Counts]:
        """Returns rows (N, D), optimizer values (N, S), counts (N,), stamps (N,) and ticks (N,) of the last use.

        Raises ValueError for an id without a row.
        """
        return self.native.export_ids(ids)

    def export_rows(self) -> tuple[Ids, Rows, Rows, Counts, Counts, Counts]:
        """Returns ids (N,) ascending, rows (N, D), optimizer values (N, S), counts, stamps and ticks (N,) each."""
        return self.native.export_rows()

    def export_counts(self) -> tuple[Ids, Counts]:
        """Returns ids that were seen and have no row yet, ascending, and their counts."""
        return self._native.export_counts()

    @property
    def filter_shape(self) -> tuple[int, int, int]:
        """Blocks of 512 counters, counters of an id and bits of a counter of the filter; zeros without one."""
        return self._native.filter_shape

    def filter_pages(self, since: int) -> tuple[Counts, NDArray[np.uint8]]:
        """Returns the pages (P,) of the filter that changed after a stamp, and their content (P, 512).

        When most pages are wanted, the content is not copied and changes with the filter.
        """
        pages, view = self._native.filter_pages(since), self._native.filter_view()
        if 2 * len(pages) >= len(view) and not self.ranks.are_several:
            return np.arange(len(view), dtype=np.uint32), view
        return pages, self._native.filter_content(pages)

    def restore_filter(self, pages: Counts, content: NDArray[np.uint8], bits: int, stamp: int) -> None:
        """Puts back what `filter_pages` gave. bits: of a counter then. stamp: that of the changes."""
        self._native.restore_filter(pages, content, bits, stamp)

    def restore(
        self, ids: Ids, rows: Rows, slots: Rows, counts: Counts, stamps: Counts, ticks: Counts | None = None
    ) -> None:
        """Puts back what `export_rows` gave; call `set_stamp` first. ticks: None says that they are used now."""
        used = np.full(len(ids), self._native.tick, np.uint32) if ticks is None else ticks
        self.leave_device().restore(ids, rows, slots, counts, stamps, used)

    def restore_counts(self, ids: Ids, counts: Counts) -> None:
        """Puts back what `export_counts` or `waiting_since` gave."""
        self._native.restore_counts(ids, counts)

    def restore_removed(self, ids: Ids, stamps: Counts) -> None:
        """Puts back what `removed` gave; ids that have a row are left out."""
        self._native.restore_removed(ids, stamps)


class _Evicted:
    """A table as its evictor has it."""

    def __init__(self, table: EmbeddingTable) -> None:
        self._table = table

    def size(self) -> int:
        return self._table.size()

    def set_tick(self, tick: int) -> None:
        self._table.unsettled.set_tick(tick)

    def idle(self, part: int, unused: int, norm_after: int, norm_upto: int, norm: float) -> Ids:
        native = self._table.native if norm > 0.0 else self._table.unsettled
        return native.idle(part, unused, norm_after, norm_upto, norm)

    def erase(self, ids: Ids) -> int:
        return self._table.erase(ids)


def _mixed_seed(seed: int, name: str) -> int:
    # Two tables of one model must not give an id the same first row.
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return int.from_bytes(digest[:8], "little")
