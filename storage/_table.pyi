"""
Embedding tables in DRAM, lookups over them, and tables that train. The core is storage/native/table.
"""

import numpy
import numpy.typing

def isa() -> str:
    """The instruction set that the loops of this module use."""

def isas() -> list[str]:
    """Those that this processor and this build have, the best one last."""

def numa_nodes() -> list[int]:
    """
    The nodes that have memory; over more than one, tables are dealt out in turn.
    """

def set_isa(name: str) -> None:
    """
    For tests: all sets give the same bits. Raises ValueError for one that is not there.
    """

def row_bytes(row_type: str, dim: int) -> int:
    """
    Bytes of an encoded row of `dim` values. row_type: fp32, fp16, bf16 or int8.
    """

def encode_rows(row_type: str, rows: numpy.typing.NDArray[numpy.float32]) -> numpy.typing.NDArray[numpy.uint8]:
    """
    rows (n, dim) -> (n, row_bytes). Raises ValueError for a value that is not finite, where int8 cannot hold it.
    """

def decode_rows(
    row_type: str, dim: int, encoded: numpy.typing.NDArray[numpy.uint8]
) -> numpy.typing.NDArray[numpy.float32]:
    """encoded (n, row_bytes) -> rows (n, dim)."""

class CapacityExceeded(RuntimeError):  # noqa: N818
    pass

class RowSource:
    """
    Where a Lookup reads the rows of one table: a Table, or a table's share of a cache.
    """

class Table(RowSource):
    """
    Rows of one embedding table in DRAM, by int64 id. Readers take no lock; one writer at a time.

    dim: values of a row. extra: float32 values behind them, of fp32 rows. capacity_rows: 0 grows without bound.
    row_type: how rows are held, fp32, fp16, bf16 or int8. Rows given as float32 are encoded, rows given as uint8
    (n, row_bytes) are taken as encoded already; for fp32 these are the same bytes.
    Arrays are C-contiguous and of the exact dtype. Raises TypeError or ValueError that names the argument.
    """

    def __init__(self, dim: int, *, extra: int = 0, capacity_rows: int = 0, row_type: str = "fp32") -> None: ...
    @property
    def dim(self) -> int: ...
    @property
    def extra(self) -> int: ...
    @property
    def row_type(self) -> str: ...
    @property
    def row_bytes(self) -> int:
        """Bytes of an encoded row, `extra` included."""

    @property
    def capacity_rows(self) -> int: ...
    def size(self) -> int:
        """Rows in the table."""

    def memory_bytes(self) -> int:
        """Bytes of memory that index, rows and counters take."""

    def find(
        self,
        ids: numpy.typing.NDArray[numpy.int64],
        out: numpy.typing.NDArray[numpy.float32],
        found: numpy.typing.NDArray[numpy.uint8],
        threads: int = 1,
    ) -> int:
        """
        ids (n,), out (n, dim) and found (n,) written in place; absent rows are zeros. Returns the number found.

        threads: at most, 1 to 64; one for each 2,048 ids.
        """

    def insert_or_assign(
        self,
        ids: numpy.typing.NDArray[numpy.int64],
        rows: numpy.typing.NDArray[numpy.float32] | numpy.typing.NDArray[numpy.uint8],
        freq: numpy.typing.NDArray[numpy.uint8] | None = None,
    ) -> None:
        """
        ids (n,), rows (n, dim + extra) or encoded, freq (n,) logarithmic use counts as export_batch gives them.

        Raises CapacityExceeded at the first id that does not fit; those before it are in.
        """

    def insert_and_evict(
        self,
        ids: numpy.typing.NDArray[numpy.int64],
        rows: numpy.typing.NDArray[numpy.float32] | numpy.typing.NDArray[numpy.uint8],
    ) -> int:
        """
        As a cache: leaves rows that are there; when full, admits an id that is hotter than the row it displaces.

        Returns the number admitted.
        """

    def assign(
        self,
        ids: numpy.typing.NDArray[numpy.int64],
        rows: numpy.typing.NDArray[numpy.float32] | numpy.typing.NDArray[numpy.uint8],
    ) -> int:
        """
        Replaces rows that are there, leaves out the others. Returns the number replaced.
        """

    def erase(self, ids: numpy.typing.NDArray[numpy.int64]) -> int:
        """Returns the number erased."""

    def reserve(self, rows: int) -> None:
        """Makes room in the index for this many rows in all."""

    def export_batch(
        self, cursor: int, limit: int
    ) -> tuple[
        int, numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.float32], numpy.typing.NDArray[numpy.uint8]
    ]:
        """
        At most `limit` rows from cursor on, 0 first: next cursor (-1 at the end), ids, rows (m, dim + extra), freq.

        Every row comes once if nothing is inserted between the calls.
        """

    def export_encoded(
        self, cursor: int, limit: int
    ) -> tuple[
        int, numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.uint8], numpy.typing.NDArray[numpy.uint8]
    ]:
        """As export_batch, with the rows as they are held: uint8 (m, row_bytes)."""

    def check_integrity(self) -> None:
        """
        Raises RuntimeError that says which rule of the table is broken. Slow; for tests.
        """

class Cache:
    """
    Rows of one size, of many tables that compete for them by one policy. Readers take no lock.

    row_bytes: bytes of an encoded row. capacity_rows: rows in all. tables: how many tables there are.
    Raises ValueError that names the argument.
    """

    def __init__(self, row_bytes: int, capacity_rows: int, tables: int) -> None: ...
    @property
    def row_bytes(self) -> int: ...
    @property
    def capacity_rows(self) -> int: ...
    @property
    def tables(self) -> int: ...
    def size(self) -> int:
        """Rows in the cache."""

    def memory_bytes(self) -> int:
        """Bytes of memory that index, rows, counts and estimates take."""

    @staticmethod
    def bytes_of(row_bytes: int, capacity_rows: int, tables: int) -> int:
        """What memory_bytes() is at most, once the cache is full."""

    @staticmethod
    def capacity_for(row_bytes: int, bytes: int, tables: int) -> int:
        """The most rows that fit in so many bytes; 0 where none does."""

    def rows_of(self, table: int) -> int:
        """Rows of one table."""

    def lookups_of(self, table: int) -> int:
        """Ids of one table that were looked up."""

    def hits_of(self, table: int) -> int:
        """Those of them that were there."""

    def mark_complete(self, table: int) -> None:
        """Says that all rows of a table are in."""

    def clear_complete(self, table: int) -> None:
        """Takes that back."""

    def is_complete(self, table: int) -> bool:
        """
        Whether the table is marked and no row of it was let go since. To be asked after a miss.
        """

    def evicted_of(self, table: int) -> int:
        """
        Rows of a table that were let go since it was marked, or since the beginning.
        """

    def resize(self, capacity_rows: int) -> None:
        """
        Another capacity, while readers and writers go on. The coldest rows go first; on return the
        memory is given back.

        While it runs, the old and the new index are both held.
        """

    def absorb(self) -> None:
        """
        Counts the uses that readers told. Writes do so too; for a cache that is read for long without one.
        """

    def hot_ids(
        self, limit: int
    ) -> tuple[
        numpy.typing.NDArray[numpy.uint32], numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.uint8]
    ]:
        """
        The hottest ids, hottest first, at most `limit`: tables (m,), ids (m,), logarithmic use counts (m,).
        """

    def curve(
        self, table: int | None = None
    ) -> tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.float64]]:
        """
        The hit rate at growing numbers of rows, as estimated from recent lookups: rows (k,),
        hit rates (k,), 0 rows first.

        Of all tables, or of one by the rows that it has itself. Empty until lookups worth 16 times
        the capacity were seen.
        """

    def curve_parts(
        self,
    ) -> tuple[
        numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.float64], numpy.typing.NDArray[numpy.float64]
    ]:
        """
        `curve` of all tables, and the hit rates of eighths of the sampled ids, each alone: rows (k,), hit rates (k,),
        hit rates (8 * k,), one eighth after the other.
        """

    def predict(self, capacity_rows: int, table: int | None = None) -> float | None:
        """
        The hit rate of all lookups, or of one table's, with so many rows in all. None until enough was seen.
        """

    def stats(self) -> dict[str, int]:
        """Counts since the beginning, by name."""

    def check_integrity(self) -> None:
        """
        Raises RuntimeError that says which rule of the cache is broken. Slow; for tests.
        """

class CacheTable(RowSource):
    """
    One table's share of a Cache, with the verbs of Table.

    table: its number in the cache. A row of dim values as row_type takes the cache's row_bytes.
    Rows are float32 (n, dim), encoded on the way, or uint8 (n, row_bytes), encoded already.
    """

    def __init__(self, cache: Cache, table: int, dim: int, row_type: str = "fp32") -> None: ...
    @property
    def table(self) -> int: ...
    @property
    def dim(self) -> int: ...
    @property
    def row_type(self) -> str: ...
    @property
    def row_bytes(self) -> int: ...
    def size(self) -> int:
        """Rows of this table."""

    def find(
        self,
        ids: numpy.typing.NDArray[numpy.int64],
        out: numpy.typing.NDArray[numpy.float32],
        found: numpy.typing.NDArray[numpy.uint8],
    ) -> int:
        """
        ids (n,), out (n, dim) and found (n,) written in place; absent rows are zeros. Returns the number found.
        """

    def insert_or_assign(
        self,
        ids: numpy.typing.NDArray[numpy.int64],
        rows: numpy.typing.NDArray[numpy.float32] | numpy.typing.NDArray[numpy.uint8],
        freq: numpy.typing.NDArray[numpy.uint8] | None = None,
    ) -> None:
        """
        Puts rows in whether or not the ids are there; a full cache lets its coldest rows go.
        freq (n,): logarithmic counts.

        Raises CapacityExceeded when the cache has room for no row at all.
        """

    def insert_and_evict(
        self,
        ids: numpy.typing.NDArray[numpy.int64],
        rows: numpy.typing.NDArray[numpy.float32] | numpy.typing.NDArray[numpy.uint8],
        freq: numpy.typing.NDArray[numpy.uint8] | None = None,
    ) -> int:
        """
        Leaves rows that are there; when full, admits an id that is hotter than the row it displaces.
        Counts one use of each id that is not there; freq (n,): logarithmic counts that are known of them
        beside. Returns the number admitted.
        """

    def assign(
        self,
        ids: numpy.typing.NDArray[numpy.int64],
        rows: numpy.typing.NDArray[numpy.float32] | numpy.typing.NDArray[numpy.uint8],
    ) -> int:
        """
        Replaces rows that are there, leaves out the others. Returns the number replaced.
        """

    def erase(self, ids: numpy.typing.NDArray[numpy.int64]) -> int:
        """Returns the number erased."""

    def export_batch(
        self, cursor: int, limit: int
    ) -> tuple[
        int, numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.float32], numpy.typing.NDArray[numpy.uint8]
    ]:
        """
        At most `limit` rows from cursor on, 0 first: next cursor (-1 at the end), ids, rows (m, dim), freq.

        Every row comes once if nothing is inserted or resized between the calls.
        """

    def export_encoded(
        self, cursor: int, limit: int
    ) -> tuple[
        int, numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.uint8], numpy.typing.NDArray[numpy.uint8]
    ]:
        """As export_batch, with the rows as they are held: uint8 (m, row_bytes)."""

class CardSet:
    """
    Changes for a card, as cuda/publish.cuh orders them: rows, emptied, grace, ids, words.

    A place comes at most once in a list.
    """

    @property
    def rows(self) -> numpy.typing.NDArray[numpy.int64]:
        """(r, 2): slot, number in staged."""

    @property
    def staged(self) -> numpy.typing.NDArray[numpy.uint8]:
        """(r, row_bytes)."""

    @property
    def emptied(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        (m, 2): line * 8 + 4 + place, word. Places that lose their owner, and words of owners whose row
        changed.
        """

    @property
    def ids(self) -> numpy.typing.NDArray[numpy.int64]:
        """(k, 2): line * 8 + place, id. New owners."""

    @property
    def words(self) -> numpy.typing.NDArray[numpy.int64]:
        """(k, 2): line * 8 + 4 + place, word. Of the new owners."""

    def put_rows(
        self,
        start: int,
        entries: numpy.typing.NDArray[numpy.int64],
        rows: numpy.typing.NDArray[numpy.uint8],
        threads: int = 1,
    ) -> None:
        """
        Rows from `start` on, as many as there is room for, written in place: entries (n, 2): slot, number;
        rows (n, stride) in the order of their numbers, with zeros behind each.
        """

class CardCache:
    """
    The host's side of a cache in a card's memory: what is there, where, and which changes the card lacks.

    row_bytes: bytes of an encoded row. capacity_rows: rows in all. tables: of all numbers there are.
    One thread at a time. Raises ValueError that names the argument.
    """

    def __init__(self, row_bytes: int, capacity_rows: int, tables: int) -> None: ...
    @property
    def row_bytes(self) -> int: ...
    @property
    def capacity_rows(self) -> int: ...
    @property
    def tables(self) -> int: ...
    @property
    def slots(self) -> int:
        """The highest slot; the lowest is 1."""

    @property
    def line_count(self) -> int: ...
    @property
    def changed_rows(self) -> int:
        """Rows in the set that is being collected."""

    @property
    def free_slots(self) -> int:
        """Rows that may still come in or be replaced in this set."""

    def size(self) -> int:
        """Entries of all tables, with those that share a row or ask the host."""

    def rows_of(self, table: int) -> int:
        """Entries of one table, with those that share a row or ask the host."""

    def free(self) -> int:
        """Rows that could be offered now and come in without an eviction."""

    @property
    def reserved(self) -> int:
        """As reserve keeps it."""

    def memory_bytes(self) -> int:
        """Bytes of the host's memory."""

    @staticmethod
    def bytes_of(capacity_rows: int) -> int:
        """What memory_bytes() is at most while no changes are collected."""

    def insert(
        self,
        table: int,
        ids: numpy.typing.NDArray[numpy.int64],
        rows: numpy.typing.NDArray[numpy.uint8],
        freq: numpy.typing.NDArray[numpy.uint8] | None = None,
        pinned: bool = False,
    ) -> numpy.typing.NDArray[numpy.bool_]:
        """
        Puts rows in or replaces them; the coldest that are not pinned go for want of room. Returns (n,)
        which are in.

        rows (n, row_bytes). freq (n,): logarithmic use counts. pinned: stays until it is erased, and at its
        place; what is pinned remains so. A row is not in where no slot is free in this set, or where all that
        stand at the places of its id are pinned. One that should have been replaced, and finds no slot, is gone,
        or asks the host if it is pinned.
        """

    def insert_absent(
        self,
        table: int,
        ids: numpy.typing.NDArray[numpy.int64],
        rows: numpy.typing.NDArray[numpy.uint8],
        threads: int = 1,
    ) -> numpy.typing.NDArray[numpy.bool_]:
        """
        As insert, pinned, for ids that come once and have no entry; by several threads. Returns (n,) which are
        in.

        rows (n, stride) is the set's from now on: rows may be moved there, and nobody else changes it until the
        set is on the card.
        """

    def offer(
        self,
        table: int,
        ids: numpy.typing.NDArray[numpy.int64],
        rows: numpy.typing.NDArray[numpy.uint8],
        freq: numpy.typing.NDArray[numpy.uint8] | None = None,
        asked: bool = False,
    ) -> int:
        """
        Leaves ids that are there; when full, admits one that is hotter than the row it displaces.
        Returns the number admitted.

        Counts one use of each id that is not there. asked: `ask` has counted it.
        """

    def ask(self, table: int, ids: numpy.typing.NDArray[numpy.int64]) -> numpy.typing.NDArray[numpy.bool_]:
        """
        Counts one use of each id that is not there. Returns (n,) which of them would be admitted now.
        """

    def insert_ask_host(self, table: int, ids: numpy.typing.NDArray[numpy.int64]) -> numpy.typing.NDArray[numpy.bool_]:
        """
        Pinned entries that end a search on the card as a miss; one with a row gives it up. Returns (n,)
        which are in: one is not where all that stand at the places of its id are pinned.
        """

    def assign(
        self, table: int, ids: numpy.typing.NDArray[numpy.int64], rows: numpy.typing.NDArray[numpy.uint8]
    ) -> int:
        """
        Replaces rows that are there. Returns the number replaced.

        Where no slot is free in this set, the old row is gone, or asks the host if it is pinned.
        """

    def adopt(self, source: int, target: int, ids: numpy.typing.NDArray[numpy.int64], threads: int = 1) -> int:
        """
        Target's entries take the rows of source's; where target has none, there is one now if the index has a
        place for it without an eviction. Returns how many did.

        The row is in use until both are gone. Where source asks the host, target's entry is erased. Source's may
        be erased when the set is complete, not before: within a set nothing has an order for lookups.

        threads: more than one for ids that come once.
        """

    def erase(self, table: int, ids: numpy.typing.NDArray[numpy.int64], threads: int = 1) -> int:
        """
        Returns the number erased.

        threads: more than one for ids that come once.
        """

    def erase_table(self, table: int, threads: int = 1) -> int:
        """Erases all of a table. Returns the number erased."""

    def reserve(self, rows: int) -> None:
        """
        Keeps room for so many rows, at most all, that free and offer leave alone, and insert and insert_absent
        take.
        """

    def find(
        self, table: int, ids: numpy.typing.NDArray[numpy.int64], threads: int = 1
    ) -> numpy.typing.NDArray[numpy.uint32]:
        """
        Slots (n,): 0 where there is no entry, 0xFFFFFFFF where it asks the host.

        threads, here and elsewhere: at most, 1 to 64; one for each 2,048 ids.
        """

    def contains_any(
        self, table: int, base_tables: int, ids: numpy.typing.NDArray[numpy.int64]
    ) -> numpy.typing.NDArray[numpy.bool_]:
        """
        Whether there is an entry under table modulo base_tables, or under a number that differs from it by
        a multiple of base_tables: (n,). Entries that ask the host count.
        """

    def hot_ids(
        self, limit: int, base_tables: int
    ) -> tuple[
        numpy.typing.NDArray[numpy.uint32], numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.uint8]
    ]:
        """
        The hottest ids of the tables below base_tables, hottest first, at most `limit`: tables (m,),
        ids (m,), logarithmic use counts (m,).
        """

    def lines(self) -> numpy.typing.NDArray[numpy.uint8]:
        """
        The index as the card has it after the last complete set: (line_count * 64,). Words have no counts.
        """

    def take_set(self, threads: int = 1) -> CardSet:
        """
        What changed since the last set. Raises RuntimeError while that one is not complete.
        """

    def complete_set(self) -> None:
        """
        The set is on the card, and no lookup from before is running: slots that left with it are free.

        Raises RuntimeError when none is taken.
        """

    def note_uses(
        self, marks: numpy.typing.NDArray[numpy.uint8], weight: int, base_tables: int = 1, parts: int = 1, part: int = 0
    ) -> None:
        """
        marks (slots + 1,): each row whose mark is not 0 was used `weight` times.

        parts, part: of how many cards that share rows this is which; rows of other parts are left out, of which
        `use` tells. base_tables: how many tables there are; entries under a number that differs by a multiple of
        it are rows of the same table.
        """

    def use(self, table: int, ids: numpy.typing.NDArray[numpy.int64]) -> None:
        """Counts one use of each id that is there, so often as it comes."""

    @staticmethod
    def parts_of(table: int, ids: numpy.typing.NDArray[numpy.int64], parts: int) -> numpy.typing.NDArray[numpy.uint8]:
        """
        Which of so many cards that share rows has each id of a table: (n,), from 0 on.
        """

    def pass_lookups(self, lookups: int, hits: int) -> None:
        """
        So many ids were looked up, so many of them found on the card: use counts age.
        """

    def stats(self) -> dict[str, int]:
        """Counts since the beginning, by name."""

    def check_integrity(self) -> None:
        """
        Raises RuntimeError that says which rule of the cache is broken. Slow; for tests.
        """

class OverlayTable:
    """
    Staged deltas over one table: what overlay 0 to 62 says of an id, seen by a mask of them.

    Of an id's entries the one staged last covers the others. Readers take no lock; one writer at a time.
    """

    def __init__(self, dim: int, *, row_type: str = "fp32") -> None: ...
    @property
    def dim(self) -> int: ...
    @property
    def row_type(self) -> str: ...
    def size(self) -> int:
        """Ids that any overlay says something of."""

    def entries(self, overlay: int) -> int:
        """Entries of one overlay: rows, removed and spilled ids."""

    def memory_bytes(self) -> int:
        """Bytes of memory that index, chains, rows and remembered ids take."""

    def stage(
        self,
        overlay: int,
        ids: numpy.typing.NDArray[numpy.int64],
        rows: numpy.typing.NDArray[numpy.float32] | numpy.typing.NDArray[numpy.uint8] | None,
        kind: int,
    ) -> None:
        """
        Puts ids (n,) on top of what is staged. kind: 0 row, with rows (n, dim) or encoded;
        1 removed, 2 spilled, with None.

        All or nothing. Raises ValueError for an id that the overlay has already, CapacityExceeded.
        """

    def discard(self, overlay: int, limit: int = 0) -> int:
        """
        Drops the overlay's entries wherever they stand, at most `limit` of them, the last staged first; 0: all.

        Returns how many were dropped. The number may be staged anew when no mask in use has its bit.
        """

    def find(
        self,
        mask: int,
        ids: numpy.typing.NDArray[numpy.int64],
        out: numpy.typing.NDArray[numpy.float32],
        states: numpy.typing.NDArray[numpy.uint8],
        overlays: numpy.typing.NDArray[numpy.uint8],
    ) -> int:
        """
        What the newest overlay in the mask says of ids (n,), written in place: out (n, dim), zeros without a row;
        states (n,) 0 not covered, 1 row, 2 removed, 3 spilled; overlays (n,), 255 where not covered.

        Returns the number covered.
        """

    def copy_rows(
        self,
        mask: int,
        ids: numpy.typing.NDArray[numpy.int64],
        rows: numpy.typing.NDArray[numpy.uint8],
        at: numpy.typing.NDArray[numpy.int64],
        states: numpy.typing.NDArray[numpy.uint8],
        threads: int = 1,
    ) -> int:
        """
        As find, with the rows as they are held: those that there are, one behind the other in rows (n, stride), with
        zeros behind each, and whose they are, at (n,). Returns how many. More than one thread gives them in any order.
        """

    def ids(self, overlay: int) -> tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.uint8]]:
        """
        ids (n,) of an overlay in the order in which they were staged, and their kinds (n,).
        """

    def check_integrity(self) -> None:
        """
        Raises RuntimeError that says which rule of the chains is broken. Slow; for tests.
        """

class Lookup:
    """
    The lookups of one lane over shared tables, in one call for all features. Not thread-safe.

    features: (table index, pooling 0 sum 1 mean 2 none 3 weighted, length of an unpooled one), one each.
    overlays: one a table, or None. Calls go begin, supply for each table with missing ids, finish.
    """

    def __init__(
        self, tables: list[RowSource], features: list[tuple[int, int, int]], overlays: list[OverlayTable] | None = None
    ) -> None: ...
    def begin(
        self,
        batch: int,
        values: list[numpy.typing.NDArray[numpy.int64]],
        offsets: list[numpy.typing.NDArray[numpy.int64]],
        outputs: list[numpy.typing.NDArray[numpy.float32]],
        masks: list[numpy.typing.NDArray[numpy.uint8] | None],
        mask: int = 0,
        weights: list[numpy.typing.NDArray[numpy.float32] | None] | None = None,
        threads: int = 1,
    ) -> int:
        """
        values[f] (N,), offsets[f] (B + 1,); outputs[f] (B, dim), or (B, length, dim) with masks[f] (B, length), written
        in place, by finish where rows are missing. mask: bit i makes overlay i visible. weights[f] (N,) of a weighted
        feature, else None. threads: at most, 1 to 64; one for each 2,048 ids.

        Returns how many distinct ids are missing.
        """

    def prepare(
        self,
        batch: int,
        values: list[numpy.typing.NDArray[numpy.int64]],
        offsets: list[numpy.typing.NDArray[numpy.int64]],
        outputs: list[numpy.typing.NDArray[numpy.float32]],
        masks: list[numpy.typing.NDArray[numpy.uint8] | None],
        weights: list[numpy.typing.NDArray[numpy.float32] | None] | None = None,
    ) -> None:
        """
        Checks and keeps the arrays of a call that is made again and again: between the calls their contents change, and
        offsets may end anywhere within values.
        """

    def begin_prepared(self, mask: int = 0, threads: int = 1) -> int:
        """As begin, over the arrays of prepare."""

    def missing(self, table: int) -> numpy.typing.NDArray[numpy.int64]:
        """The missing ids of a table, each once."""

    def missing_sources(self, table: int) -> numpy.typing.NDArray[numpy.uint8]:
        """
        Where the rows of missing(table) lie: the overlay that spilled it, or 255 for the base. An overlay may be merged
        since: what it no longer has, the base has.
        """

    def supply(
        self,
        table: int,
        rows: numpy.typing.NDArray[numpy.float32] | numpy.typing.NDArray[numpy.uint8],
        state: numpy.typing.NDArray[numpy.uint8],
    ) -> None:
        """
        rows (m, dim), or encoded (m, row_bytes), and state (m,) for the ids of missing(table), copied: 0 absent,
        1 found, 2 unresolved.
        """

    def finish(self) -> tuple[int, int, int, int, int]:
        """
        Completes the outputs. Returns occurrences of ids: answered by the tables, supplied, absent, unresolved,
        answered by overlays. What an overlay removed is absent.
        """

    def table_totals(self) -> numpy.typing.NDArray[numpy.uint64]:
        """
        What the last finish gave, by table: (T, 5), columns as finish returns them.
        """

class TrainingTable:
    """
    A table that trains: rows appear when an id was seen often enough, and are stepped in place.

    slots: float32 values of the optimizer a row (dim for Adagrad, 0 for SGD). init_scale: new rows are
    uniform in [-init_scale, init_scale), by seed and id alone. admit_after: occurrences that make a row.
    tiered: a part of the rows lies in a store, and the caller brings them before they are trained.
    """

    def __init__(
        self, dim: int, *, slots: int, seed: int, init_scale: float, admit_after: int, tiered: bool = False
    ) -> None: ...
    @property
    def dim(self) -> int: ...
    @property
    def slots(self) -> int: ...
    def size(self) -> int:
        """Rows in the table."""

    def memory_bytes(self) -> int:
        """Bytes of memory that index, rows and counters take."""

    def lookup(
        self,
        ids: numpy.typing.NDArray[numpy.int64],
        out: numpy.typing.NDArray[numpy.float32],
        train: bool,
        initial_slot: float,
        side_ids: numpy.typing.NDArray[numpy.int64] | None = None,
        side_rows: numpy.typing.NDArray[numpy.float32] | None = None,
    ) -> int:
        """
        out (n, dim), zeros for ids without a row. train: counts occurrences and creates the rows that are due.

        side_ids (k,), side_rows (k, dim): rows of ids that have none here, for this call alone.
        Returns the occurrences that have a row.
        """

    def pool(
        self,
        values: numpy.typing.NDArray[numpy.int64],
        offsets: numpy.typing.NDArray[numpy.int64],
        mode: int,
        out: numpy.typing.NDArray[numpy.float32],
        train: bool,
        initial_slot: float,
        side_ids: numpy.typing.NDArray[numpy.int64] | None = None,
        side_rows: numpy.typing.NDArray[numpy.float32] | None = None,
    ) -> int:
        """
        As lookup, pooled by bags: out (B, dim). mode: 0 sum, 1 mean over the ids given, those without a row included.
        """

    @staticmethod
    def pool_backward(
        offsets: numpy.typing.NDArray[numpy.int64], mode: int, grad: numpy.typing.NDArray[numpy.float32]
    ) -> numpy.typing.NDArray[numpy.float32]:
        """
        The gradient (N, dim) of each id from those of the bags, grad (B, dim).
        """

    def adagrad(
        self, ids: numpy.typing.NDArray[numpy.int64], grads: numpy.typing.NDArray[numpy.float32], lr: float, eps: float
    ) -> int:
        """
        Adds the gradients (n, dim) of equal ids in order, then steps each row once; ids without a row are dropped.

        Returns the rows stepped.
        """

    def sgd(self, ids: numpy.typing.NDArray[numpy.int64], grads: numpy.typing.NDArray[numpy.float32], lr: float) -> int:
        """As adagrad, without optimizer values."""

    def export_rows(
        self,
    ) -> tuple[
        numpy.typing.NDArray[numpy.int64],
        numpy.typing.NDArray[numpy.float32],
        numpy.typing.NDArray[numpy.float32],
        numpy.typing.NDArray[numpy.uint32],
        numpy.typing.NDArray[numpy.uint32],
    ]:
        """
        ids (n,) ascending, rows (n, dim), optimizer values (n, slots), occurrences (n,), stamps (n,).
        """

    def export_ids(
        self, ids: numpy.typing.NDArray[numpy.int64]
    ) -> tuple[
        numpy.typing.NDArray[numpy.float32],
        numpy.typing.NDArray[numpy.float32],
        numpy.typing.NDArray[numpy.uint32],
        numpy.typing.NDArray[numpy.uint32],
    ]:
        """
        rows (n, dim), optimizer values (n, slots), occurrences (n,), stamps (n,); ValueError for an id without a row.
        """

    def export_counts(self) -> tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.uint32]]:
        """ids (n,) ascending and occurrences (n,) of ids that have no row yet."""

    def restore(
        self,
        ids: numpy.typing.NDArray[numpy.int64],
        rows: numpy.typing.NDArray[numpy.float32],
        slots: numpy.typing.NDArray[numpy.float32],
        counts: numpy.typing.NDArray[numpy.uint32],
        stamps: numpy.typing.NDArray[numpy.uint32],
    ) -> None:
        """
        Puts back what export_rows gave, over rows that are there. Stamps are at most the table's own: set_stamp first.
        """

    def restore_counts(
        self, ids: numpy.typing.NDArray[numpy.int64], counts: numpy.typing.NDArray[numpy.uint32]
    ) -> None:
        """
        Puts back what export_counts or waiting_since gave; a count of 0 takes the id out.
        """

    def restore_removed(
        self, ids: numpy.typing.NDArray[numpy.int64], stamps: numpy.typing.NDArray[numpy.uint32]
    ) -> None:
        """Puts back what removed gave; ids that have a row are left out."""

    def erase(self, ids: numpy.typing.NDArray[numpy.int64]) -> int:
        """
        Forgets rows, optimizer values and counts; an id seen again is new. Returns how many had a row.
        """

    @property
    def stamp(self) -> int: ...
    def advance(self) -> int:
        """Closes the stamp and returns it; later changes carry the next one."""

    def set_stamp(self, stamp: int) -> None:
        """Raises ValueError for a stamp below the table's own."""

    def changed_since(self, stamp: int) -> numpy.typing.NDArray[numpy.int64]:
        """
        Ids (n,) ascending of rows created, stepped or looked up in training after a stamp.
        """

    def expired(self, stamp: int) -> numpy.typing.NDArray[numpy.int64]:
        """Ids (n,) ascending of rows that changed last at that stamp or before."""

    def removed_since(self, stamp: int) -> numpy.typing.NDArray[numpy.int64]:
        """Ids (n,) ascending that were erased after a stamp and have no row now."""

    def removed(self) -> tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.uint32]]:
        """
        ids (n,) ascending that were erased and have no row now, and the stamps (n,) at which.
        """

    def forget_removed(self, upto_stamp: int) -> None:
        """
        Ids that were erased at that stamp or before are as if they had never been.
        """

    def waiting_since(self, stamp: int) -> tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.uint32]]:
        """
        ids (n,) ascending without a row whose count changed after a stamp, and counts (n,); 0: it has a row now, or was
        erased. The stamp must be one of the last 64.
        """

    @property
    def record_bytes(self) -> int:
        """
        Bytes of a row in a store: count and stamp (u32 each), weights and optimizer values (float32).
        """

    def begin(self) -> None:
        """
        Begins a batch: rows that the batch before held may leave, and settled ids are asked for again.
        """

    def unknown(
        self, ids: numpy.typing.NDArray[numpy.int64], hold: bool
    ) -> tuple[numpy.typing.NDArray[numpy.int64], int]:
        """
        Ids (k,), each once, of which only the store can tell; and how many different ids have no row here.

        hold: the rows that are here stay until begin().
        """

    def settle(self, ids: numpy.typing.NDArray[numpy.int64]) -> int:
        """
        Until begin(), the store has nothing of these ids. Returns how many they are.
        """

    def bring(self, ids: numpy.typing.NDArray[numpy.int64], records: numpy.typing.NDArray[numpy.uint8]) -> None:
        """
        Takes in rows of the store, records (n, record_bytes); rows that are here already stay as they are.
        """

    def bring_bare(
        self,
        ids: numpy.typing.NDArray[numpy.int64],
        counts: numpy.typing.NDArray[numpy.uint32],
        waiting: numpy.typing.NDArray[numpy.uint32],
        removed: numpy.typing.NDArray[numpy.uint32],
    ) -> None:
        """
        Takes in ids without a row: counts, stamps of their last change, stamps of an erasure; 0 is none.
        """

    def coldest(self, n: int) -> numpy.typing.NDArray[numpy.int64]:
        """
        Ids ascending, at most n, of the rows that were used least; none that is held.
        """

    def held(self) -> int:
        """Rows that are held."""

    def pack(
        self, ids: numpy.typing.NDArray[numpy.int64]
    ) -> tuple[
        numpy.typing.NDArray[numpy.uint8],
        numpy.typing.NDArray[numpy.uint32],
        numpy.typing.NDArray[numpy.uint32],
        numpy.typing.NDArray[numpy.uint8],
    ]:
        """
        records (n, record_bytes), stamps (n,), the stamps (n,) in the store's copies (0: none), and dirty (n,): 1
        where the copy is not the row.
        """

    def encode(
        self,
        rows: numpy.typing.NDArray[numpy.float32],
        slots: numpy.typing.NDArray[numpy.float32],
        counts: numpy.typing.NDArray[numpy.uint32],
        stamps: numpy.typing.NDArray[numpy.uint32],
    ) -> numpy.typing.NDArray[numpy.uint8]:
        """The records (n, record_bytes) of rows that restore would take."""

    def let_go(self, ids: numpy.typing.NDArray[numpy.int64]) -> int:
        """Drops rows that the store has taken. Returns how many ids were given."""

    def forget(self, ids: numpy.typing.NDArray[numpy.int64]) -> int:
        """
        The store was given rows of these ids, which have none here: drops their counts and erasures.
        """

    def pack_bare(
        self,
    ) -> tuple[
        numpy.typing.NDArray[numpy.int64],
        numpy.typing.NDArray[numpy.uint32],
        numpy.typing.NDArray[numpy.uint32],
        numpy.typing.NDArray[numpy.uint32],
    ]:
        """
        All ids without a row: counts, stamps of their last change, stamps of an erasure. Behind them ids that lost
        their count lately: count 0, erasure 0. Both parts ascending.
        """

    def drop_bare(self) -> None:
        """Drops what pack_bare gave, which the store has taken."""

    def bare_size(self) -> int:
        """Ids without a row here."""

    def waiting_size(self) -> int:
        """Ids here that were seen and have no row."""

    def row_ids(self) -> numpy.typing.NDArray[numpy.int64]:
        """Ids (n,) ascending of the rows here."""

    def has_row(self, ids: numpy.typing.NDArray[numpy.int64]) -> numpy.typing.NDArray[numpy.uint8]:
        """1 where an id has a row here."""

    def has_waited(self, ids: numpy.typing.NDArray[numpy.int64]) -> numpy.typing.NDArray[numpy.uint8]:
        """1 where the last change of an id's count is known here."""

    def written(self, ids: numpy.typing.NDArray[numpy.int64]) -> numpy.typing.NDArray[numpy.uint32]:
        """The stamps in the store's copies of rows that are here; 0 for none."""
