"""
Embedding tables in DRAM, lookups over them, and tables that train. The core is storage/native/table.
"""

from collections.abc import Sequence
from typing import Final

import numpy
import numpy.typing

def isa() -> str:
    """Returns the instruction set that the loops of this module use."""

def isas() -> list[str]:
    """
    Returns the instruction sets that this processor and this build have, the best one last.
    """

def numa_nodes() -> list[int]:
    """
    Returns the nodes that have memory; over more than one, tables are dealt out in turn.
    """

def set_isa(name: str) -> None:
    """
    Sets the instruction set, for tests: all sets give the same bits. Raises ValueError for one that is not
    available.
    """

def row_bytes(row_type: str, dim: int) -> int:
    """
    Returns the bytes of an encoded row of `dim` values. row_type: fp32, fp16, bf16 or int8.
    """

def encode_rows(row_type: str, rows: numpy.typing.NDArray[numpy.float32]) -> numpy.typing.NDArray[numpy.uint8]:
    """
    Encodes rows (n, dim) as (n, row_bytes). Raises ValueError for a value that is not finite, where int8 cannot
    hold it.
    """

def decode_rows(
    row_type: str, dim: int, encoded: numpy.typing.NDArray[numpy.uint8]
) -> numpy.typing.NDArray[numpy.float32]:
    """Decodes encoded rows (n, row_bytes) to (n, dim)."""

def absent_rows(
    kind: str, scale: float, seed: int, dim: int, ids: numpy.typing.NDArray[numpy.int64]
) -> numpy.typing.NDArray[numpy.float32]:
    """
    Returns what ids (n,) without a row read as, (n, dim), before any rounding.
    """

def move_rows(
    source: numpy.typing.NDArray[numpy.float32],
    places: numpy.typing.NDArray[numpy.int64],
    out: numpy.typing.NDArray[numpy.float32],
    targets: numpy.typing.NDArray[numpy.int64],
) -> int | None:
    """
    Sets out[targets[i]] = source[places[i]] for rows (dim). Returns the first i whose row holds NaN or
    infinity, None without one. Raises ValueError for a row number that is not there.
    """

def rows_fingerprint(
    ids: numpy.typing.NDArray[numpy.int64],
    rows: numpy.typing.NDArray[numpy.uint8],
    keys: numpy.typing.NDArray[numpy.uint64],
) -> int:
    """
    Returns the sum of the rows' terms modulo 2^64, as storage.checkpoint.fingerprint defines it. rows:
    (n, 4 * words) as they are stored. keys: (words,).
    """

def first_not_finite(rows: numpy.typing.NDArray[numpy.float32]) -> int | None:
    """
    Returns the index of the first row (n, dim) that holds NaN or infinity; None when none does.
    """

def not_finite(values: numpy.typing.NDArray[numpy.float32 | numpy.uint16], bf16: bool) -> tuple[bool, bool]:
    """
    Returns whether values (n,) hold NaN, and infinity. bf16: they are the bits of bfloat16 as uint16.
    """

class CapacityExceeded(RuntimeError):  # noqa: N818
    pass

class RowSource:
    """
    The rows of one table that a Lookup reads: a Table, or a table's share of a cache.
    """

class Table(RowSource):
    """
    Rows of one embedding table in DRAM, by int64 id. Readers take no lock; one writer at a time.

    dim: values of a row. extra: float32 values behind them, of fp32 rows. capacity_rows: 0 grows without bound.
    row_type: encoding of the rows, fp32, fp16, bf16 or int8. Rows given as float32 are encoded, rows given as uint8
    (n, row_bytes) are taken as encoded already; for fp32 these are the same bytes. Arrays are C-contiguous and of
    the exact dtype. Raises TypeError or ValueError that names the argument.
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
        """Returns the number of rows in the table."""

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
        Looks up ids (n,); out (n, dim) and found (n,) are written in place, absent rows as zeros. Returns the number
        found.

        threads: number of threads at most, 1 to 64; one for each 2,048 ids.
        """

    def insert_or_assign(
        self,
        ids: numpy.typing.NDArray[numpy.int64],
        rows: numpy.typing.NDArray[numpy.float32] | numpy.typing.NDArray[numpy.uint8],
        freq: numpy.typing.NDArray[numpy.uint8] | None = None,
    ) -> None:
        """
        Writes rows (n, dim + extra) or encoded of ids (n,), with freq (n,), logarithmic use counts as in export_batch.

        Raises CapacityExceeded at the first id that does not fit; those before it are in.
        """

    def insert_and_evict(
        self,
        ids: numpy.typing.NDArray[numpy.int64],
        rows: numpy.typing.NDArray[numpy.float32] | numpy.typing.NDArray[numpy.uint8],
    ) -> int:
        """
        Inserts rows as a cache: leaves existing rows; when full, admits an id that is hotter than the row it displaces.

        Returns the number admitted.
        """

    def assign(
        self,
        ids: numpy.typing.NDArray[numpy.int64],
        rows: numpy.typing.NDArray[numpy.float32] | numpy.typing.NDArray[numpy.uint8],
    ) -> int:
        """
        Replaces existing rows, leaves out the other ids. Returns the number replaced.
        """

    def erase(self, ids: numpy.typing.NDArray[numpy.int64]) -> int:
        """Erases rows. Returns the number erased."""

    def reserve(self, rows: int) -> None:
        """Makes room in the index for this many rows in all."""

    def export_batch(
        self, cursor: int, limit: int
    ) -> tuple[
        int, numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.float32], numpy.typing.NDArray[numpy.uint8]
    ]:
        """
        Exports at most `limit` rows from cursor on, 0 first.

        Returns next cursor (-1 at the end), ids, rows (m, dim + extra), freq. Every row comes once if nothing is
        inserted between the calls.
        """

    def export_encoded(
        self, cursor: int, limit: int
    ) -> tuple[
        int, numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.uint8], numpy.typing.NDArray[numpy.uint8]
    ]:
        """
        Exports as export_batch does, with the rows as they are encoded: uint8 (m, row_bytes).
        """

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
        """Returns the most that memory_bytes() can be, once the cache is full."""

    @staticmethod
    def capacity_for(row_bytes: int, bytes: int, tables: int) -> int:
        """Returns the most rows that fit in so many bytes; 0 where none does."""

    def rows_of(self, table: int) -> int:
        """Returns the rows of one table."""

    def lookups_of(self, table: int) -> int:
        """Returns how many ids of one table were looked up."""

    def hits_of(self, table: int) -> int:
        """Returns how many of these lookups were hits."""

    def mark_complete(self, table: int) -> None:
        """Marks a table as complete: all its rows are in."""

    def clear_complete(self, table: int) -> None:
        """Removes the mark."""

    def is_complete(self, table: int) -> bool:
        """
        Returns whether the table is marked and no row of it was evicted since. Call it after a miss.
        """

    def evicted_of(self, table: int) -> int:
        """
        Returns how many rows of a table were evicted since it was marked, or since the beginning.
        """

    def resize(self, capacity_rows: int) -> None:
        """
        Changes the capacity while readers and writers continue. The coldest rows are evicted first; on return the
        memory is freed.

        While it runs, the old and the new index are both held.
        """

    def absorb(self) -> None:
        """
        Counts the uses that readers reported. Writes do so too; this is for a cache that is read for long without one.
        """

    def hot_ids(
        self, limit: int
    ) -> tuple[
        numpy.typing.NDArray[numpy.uint32], numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.uint8]
    ]:
        """
        Returns the hottest ids, hottest first, at most `limit`: tables (m,), ids (m,), logarithmic use counts (m,).
        """

    def curve(
        self, table: int | None = None
    ) -> tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.float64]]:
        """
        Returns the hit rate at growing numbers of rows, as estimated from recent lookups: rows (k,), hit rates (k,), 0
        rows first.

        The curve is that of all tables, or of one by its own rows. Empty until lookups worth 16 times the capacity were
        seen.
        """

    def curve_parts(
        self,
    ) -> tuple[
        numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.float64], numpy.typing.NDArray[numpy.float64]
    ]:
        """
        Returns `curve` of all tables, and the hit rates of eighths of the sampled ids, each alone.

        The arrays are rows (k,), hit rates (k,), hit rates (8 * k,), one eighth after the other.
        """

    def predict(self, capacity_rows: int, table: int | None = None) -> float | None:
        """
        Predicts the hit rate of all lookups, or of one table's, at a capacity. None until enough was seen.
        """

    def stats(self) -> dict[str, int]:
        """Returns counts since the beginning, by name."""

    def check_integrity(self) -> None:
        """
        Raises RuntimeError that says which rule of the cache is broken. Slow; for tests.
        """

class CacheTable(RowSource):
    """
    One table's share of a Cache, with the verbs of Table.

    table: its number in the cache. A row of dim values as row_type takes the cache's row_bytes. Rows are float32
    (n, dim), encoded on the way, or uint8 (n, row_bytes), encoded already.
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
        Looks up ids (n,); out (n, dim) and found (n,) are written in place, absent rows as zeros. Returns the number
        found.
        """

    def insert_or_assign(
        self,
        ids: numpy.typing.NDArray[numpy.int64],
        rows: numpy.typing.NDArray[numpy.float32] | numpy.typing.NDArray[numpy.uint8],
        freq: numpy.typing.NDArray[numpy.uint8] | None = None,
    ) -> None:
        """
        Writes rows whether or not the ids are there; a full cache evicts its coldest rows.

        freq (n,): logarithmic counts. Raises CapacityExceeded when the cache has room for no row at all.
        """

    def insert_and_evict(
        self,
        ids: numpy.typing.NDArray[numpy.int64],
        rows: numpy.typing.NDArray[numpy.float32] | numpy.typing.NDArray[numpy.uint8],
        freq: numpy.typing.NDArray[numpy.uint8] | None = None,
    ) -> int:
        """
        Leaves existing rows; when full, admits an id that is hotter than the row it displaces.

        Counts one use of each absent id; freq (n,): known logarithmic counts of them, added to it. Returns the number
        admitted.
        """

    def assign(
        self,
        ids: numpy.typing.NDArray[numpy.int64],
        rows: numpy.typing.NDArray[numpy.float32] | numpy.typing.NDArray[numpy.uint8],
    ) -> int:
        """
        Replaces existing rows, leaves out the other ids. Returns the number replaced.
        """

    def erase(self, ids: numpy.typing.NDArray[numpy.int64]) -> int:
        """Erases rows. Returns the number erased."""

    def export_batch(
        self, cursor: int, limit: int
    ) -> tuple[
        int, numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.float32], numpy.typing.NDArray[numpy.uint8]
    ]:
        """
        Exports at most `limit` rows from cursor on, 0 first.

        Returns next cursor (-1 at the end), ids, rows (m, dim), freq. Every row comes once if nothing is inserted or
        resized between the calls.
        """

    def export_encoded(
        self, cursor: int, limit: int
    ) -> tuple[
        int, numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.uint8], numpy.typing.NDArray[numpy.uint8]
    ]:
        """
        Exports as export_batch does, with the rows as they are encoded: uint8 (m, row_bytes).
        """

class GpuSet:
    """
    Changes for a GPU, as cuda/publish.cuh orders them: rows, emptied, grace, ids, words.

    A place comes at most once in a list.
    """

    @property
    def rows(self) -> numpy.typing.NDArray[numpy.int64]:
        """Entries (r, 2): slot, number in staged."""

    @property
    def staged(self) -> numpy.typing.NDArray[numpy.uint8]:
        """Staged rows (r, row_bytes)."""

    @property
    def emptied(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        Entries (m, 2): bucket * 8 + 4 + place, word. Places that lose their owner; words of owners whose row changed.
        """

    @property
    def ids(self) -> numpy.typing.NDArray[numpy.int64]:
        """Entries (k, 2): bucket * 8 + place, id, of new owners."""

    @property
    def words(self) -> numpy.typing.NDArray[numpy.int64]:
        """Entries (k, 2): bucket * 8 + 4 + place, word, of the new owners."""

    def put_rows(
        self,
        start: int,
        entries: numpy.typing.NDArray[numpy.int64],
        rows: numpy.typing.NDArray[numpy.uint8],
        threads: int = 1,
    ) -> None:
        """
        Writes rows from `start` on, as many as there is room for, in place.

        entries (n, 2): slot, number; rows (n, stride) in the order of their numbers, with zeros behind each.
        """

class GpuCache:
    """
    The host's side of a cache in GPU memory: what is there, where, and which changes the GPU lacks.

    row_bytes: bytes of an encoded row. capacity_rows: rows in all. tables: number of all table numbers. Not
    thread-safe. Raises ValueError that names the argument.
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
    def bucket_count(self) -> int: ...
    @property
    def changed_rows(self) -> int:
        """Number of rows in the set that is being collected."""

    @property
    def free_slots(self) -> int:
        """Number of rows that may still come in or be replaced in this set."""

    def size(self) -> int:
        """
        Returns the entries of all tables, with those that share a row or ask the host.
        """

    def rows_of(self, table: int) -> int:
        """
        Returns the entries of one table, with those that share a row or ask the host.
        """

    def free(self) -> int:
        """
        Returns how many rows could be offered now and come in without an eviction.
        """

    @property
    def reserved(self) -> int:
        """Rows that `reserve` keeps free."""

    def memory_bytes(self) -> int:
        """Returns the bytes of host memory."""

    @staticmethod
    def bytes_of(capacity_rows: int) -> int:
        """
        Returns the most that memory_bytes() can be while no changes are collected.
        """

    def insert(
        self,
        table: int,
        ids: numpy.typing.NDArray[numpy.int64],
        rows: numpy.typing.NDArray[numpy.uint8],
        freq: numpy.typing.NDArray[numpy.uint8] | None = None,
        pinned: bool = False,
    ) -> numpy.typing.NDArray[numpy.bool_]:
        """
        Writes rows; the coldest ones that are not pinned are evicted for want of room. Returns (n,) which are in.

        rows (n, row_bytes). freq (n,): logarithmic use counts. pinned: the entry stays until it is erased, at its
        place; a pinned entry remains pinned. A row is not in where no slot is free in this set, or where all entries at
        the places of its id are pinned. One that should have been replaced, and finds no slot, is gone, or asks the
        host if it is pinned.
        """

    def insert_absent(
        self,
        table: int,
        ids: numpy.typing.NDArray[numpy.int64],
        rows: numpy.typing.NDArray[numpy.uint8],
        threads: int = 1,
    ) -> numpy.typing.NDArray[numpy.bool_]:
        """
        Inserts as `insert` does, pinned, for ids that come once and have no entry; by several threads.

        Returns (n,) which are in. rows (n, stride) belongs to the set from now on: rows may be moved there, and the
        caller must not change it until the set is on the GPU.
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
        Leaves existing ids; when full, admits one that is hotter than the row it displaces. Returns the number
        admitted.

        Counts one use of each absent id. asked: `ask` has counted it.
        """

    def ask(self, table: int, ids: numpy.typing.NDArray[numpy.int64]) -> numpy.typing.NDArray[numpy.bool_]:
        """
        Counts one use of each absent id. Returns (n,) which of them would be admitted now.
        """

    def insert_ask_host(self, table: int, ids: numpy.typing.NDArray[numpy.int64]) -> numpy.typing.NDArray[numpy.bool_]:
        """
        Inserts pinned entries that end a search on the GPU as a miss; one with a row gives it up.

        Returns (n,) which are in: one is not where all entries at the places of its id are pinned.
        """

    def assign(
        self, table: int, ids: numpy.typing.NDArray[numpy.int64], rows: numpy.typing.NDArray[numpy.uint8]
    ) -> int:
        """
        Replaces existing rows. Returns the number replaced.

        Where no slot is free in this set, the old row is gone, or asks the host if it is pinned.
        """

    def adopt(self, source: int, target: int, ids: numpy.typing.NDArray[numpy.int64], threads: int = 1) -> int:
        """
        Gives target's entries the rows of source's; where target has none, one is made if the index has a place for it
        without an eviction. Returns how many were.

        The row is in use until both are gone. Where source asks the host, target's entry is erased. Source's may be
        erased when the set is complete, not before: within a set nothing has an order for lookups.

        threads: more than one for ids that come once.
        """

    def erase(self, table: int, ids: numpy.typing.NDArray[numpy.int64], threads: int = 1) -> int:
        """
        Erases ids. Returns the number erased.

        threads: more than one for ids that come once.
        """

    def erase_table(self, table: int, threads: int = 1) -> int:
        """Erases all of a table. Returns the number erased."""

    def reserve(self, rows: int) -> None:
        """
        Keeps room for `rows` rows, at most all, which free and offer leave alone, and insert and insert_absent use.
        """

    def find(
        self, table: int, ids: numpy.typing.NDArray[numpy.int64], threads: int = 1
    ) -> numpy.typing.NDArray[numpy.uint32]:
        """
        Returns slots (n,): 0 where there is no entry, 0xFFFFFFFF where it asks the host.

        threads, here and elsewhere: number of threads at most, 1 to 64; one for each 2,048 ids.
        """

    def contains_any(
        self, table: int, base_tables: int, ids: numpy.typing.NDArray[numpy.int64]
    ) -> numpy.typing.NDArray[numpy.bool_]:
        """
        Returns (n,) whether there is an entry under table, or under a number that differs from it by a multiple of
        base_tables.

        Entries that ask the host count.
        """

    def hot_ids(
        self, limit: int, base_tables: int
    ) -> tuple[
        numpy.typing.NDArray[numpy.uint32], numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.uint8]
    ]:
        """
        Returns the hottest ids of the tables below base_tables, hottest first, at most `limit`: tables (m,), ids (m,),
        logarithmic use counts (m,).
        """

    def buckets(self) -> numpy.typing.NDArray[numpy.uint8]:
        """
        Returns the index as the GPU has it after the last complete set: (bucket_count * 64,). Words have no counts.
        """

    def take_set(self, threads: int = 1) -> GpuSet:
        """
        Returns the changes since the last set. Raises RuntimeError while that one is not complete.
        """

    def complete_set(self) -> None:
        """
        Completes the set: it is on the GPU, and no lookup from before is running, so slots that left with it are free.

        Raises RuntimeError when none is taken.
        """

    def note_uses(
        self, marks: numpy.typing.NDArray[numpy.uint8], weight: int, base_tables: int = 1, parts: int = 1, part: int = 0
    ) -> None:
        """
        Counts marks (slots + 1,): each row whose mark is not 0 was used `weight` times.

        parts, part: number of GPUs that share rows, and this one's number; rows of other parts are left out, which
        `use` counts. base_tables: number of tables; entries under a number that differs by a multiple of it are rows of
        the same table.
        """

    def use(self, table: int, ids: numpy.typing.NDArray[numpy.int64]) -> None:
        """Counts one use of each existing id, as often as it comes."""

    @staticmethod
    def parts_of(table: int, ids: numpy.typing.NDArray[numpy.int64], parts: int) -> numpy.typing.NDArray[numpy.uint8]:
        """
        Returns (n,) the part of each id of a table, from 0 on, among `parts` GPUs that share rows.
        """

    def pass_lookups(self, lookups: int, hits: int) -> None:
        """
        Ages use counts: `lookups` ids were looked up, `hits` of them found on the GPU.
        """

    def stats(self) -> dict[str, int]:
        """Returns counts since the beginning, by name."""

    def check_integrity(self) -> None:
        """
        Raises RuntimeError that says which rule of the cache is broken. Slow; for tests.
        """

class OverlayTable:
    """
    Staged deltas over one table: the entries of overlays 0 to 62 for an id, seen by a mask of them.

    The entry of an id that was staged last covers its others. Readers take no lock; one writer at a time.
    """

    def __init__(self, dim: int, *, row_type: str = "fp32") -> None: ...
    @property
    def dim(self) -> int: ...
    @property
    def row_type(self) -> str: ...
    def size(self) -> int:
        """Returns the number of ids that any overlay has an entry for."""

    def entries(self, overlay: int) -> int:
        """Returns the entries of one overlay: rows, removed and spilled ids."""

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
        Stages ids (n,) on top of earlier ones. kind: 0 row, with rows (n, dim) or encoded; 1 removed, 2 spilled, with
        None.

        All ids are staged or none. Raises ValueError for an id that the overlay has already, CapacityExceeded.
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
        Finds the entry of the newest overlay in the mask for ids (n,), written in place.

        out (n, dim), zeros without a row; states (n,) 0 not covered, 1 row, 2 removed, 3 spilled; overlays (n,), 255
        where not covered. Returns the number covered.
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
        Finds as `find` does, and copies existing encoded rows, one behind the other, to rows (n, stride), with zeros
        behind each.

        at (n,): index of each row's id. Returns the number of rows. More than one thread gives them in any order.
        """

    def ids(self, overlay: int) -> tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.uint8]]:
        """
        Returns ids (n,) of an overlay in the order in which they were staged, and their kinds (n,).
        """

    def check_integrity(self) -> None:
        """
        Raises RuntimeError that says which rule of the chains is broken. Slow; for tests.
        """

class Lookup:
    """
    The lookups of one session over shared tables, in one call for all features. Not thread-safe.

    features: (table index, pooling 0 sum 1 mean 2 none 3 weighted, length of an unpooled one), one each. overlays:
    one a table, or None. absent: what ids without a row read as, (kind, scale, seed) or None for zeros, one a feature.
    falls_back: numbers of features whose absent ids the caller may give other rows for. Calls go begin, supply
    for each table with missing ids, finish; where features fall back, settle and fall_back come before finish.
    """

    def __init__(
        self,
        tables: list[RowSource],
        features: list[tuple[int, int, int]],
        overlays: list[OverlayTable] | None = None,
        absent: list[tuple[str, float, int] | None] | None = None,
        falls_back: list[int] | None = None,
    ) -> None: ...
    def begin(
        self,
        batch: int,
        values: list[numpy.typing.NDArray[numpy.int64]],
        offsets: list[numpy.typing.NDArray[numpy.int64]],
        outputs: Sequence[numpy.typing.NDArray[numpy.float32]],
        masks: Sequence[numpy.typing.NDArray[numpy.uint8] | None],
        mask: int = 0,
        weights: list[numpy.typing.NDArray[numpy.float32] | None] | None = None,
        threads: int = 1,
    ) -> int:
        """
        Looks up a batch: values[f] (N,), offsets[f] (B + 1,); outputs[f] (B, dim), or (B, length, dim) with masks[f]
        (B, length).

        Outputs are written in place, by finish where rows are missing. What belongs to one bag is C-contiguous; bags
        may lie apart, as in some columns of a larger array. outputs and masks are lists or tuples, and tuples that were
        given for the last batch too, of the same size, are not checked again. mask: bit i makes overlay i visible.
        weights[f] (N,) of a weighted feature, else None. threads: number of threads at most, 1 to 64; one for each
        2,048 ids.

        Returns how many distinct ids are missing.
        """

    def missing(self, table: int) -> numpy.typing.NDArray[numpy.int64]:
        """Returns the missing ids of a table, each once."""

    def missing_sources(self, table: int) -> numpy.typing.NDArray[numpy.uint8]:
        """
        Returns where the rows of missing(table) lie: the overlay that spilled it, or 255 for the base.

        An overlay may be merged since: the base has the rows that it no longer has.
        """

    def supply(
        self,
        table: int,
        rows: numpy.typing.NDArray[numpy.float32] | numpy.typing.NDArray[numpy.uint8],
        state: numpy.typing.NDArray[numpy.uint8],
    ) -> None:
        """
        Supplies rows (m, dim), or encoded (m, row_bytes), and state (m,) for the ids of missing(table), copied.

        A state is 0 absent, 1 found, 2 unresolved, which reads as zeros.
        """

    def settle(self) -> int:
        """
        Finds the absent ids of features that fall back, after `supply`. Returns how many there are.
        """

    def absent_places(self, feature: int) -> numpy.typing.NDArray[numpy.int64]:
        """
        Returns places (m,) of the absent ids among the values of a feature, after `settle`.
        """

    def unresolved_places(self, feature: int) -> numpy.typing.NDArray[numpy.int64]:
        """
        Returns places of the unresolved ids among the values of a feature, after `settle`.
        """

    def fall_back(
        self, feature: int, rows: numpy.typing.NDArray[numpy.float32], has_row: numpy.typing.NDArray[numpy.uint8]
    ) -> None:
        """
        Gives rows (m, dim) for the absent ids of a feature, copied; has_row (m,) is 0 where there is none.
        """

    def finish(self) -> tuple[int, int, int, int, int]:
        """
        Completes the outputs. Returns occurrences of ids: answered by the tables, supplied, absent, unresolved,
        answered by overlays. An id that an overlay removed is absent.
        """

    def table_totals(self, columns: int = 5) -> numpy.typing.NDArray[numpy.uint64]:
        """
        Returns the results of the last finish by table: (T, columns), the first ones as finish returns them, then
        zeros.
        """

class TrainingTable:
    """
    A table that trains: rows appear when an id was seen often enough, and are stepped in place.

    optimizer: decides the float32 values behind a row. initial_accumulator: Adagrad's and FTRL's start.
    rows, absent: initializers, as (kind, scale), of new rows, and of what an id without a row reads as; the kinds
    are constant, uniform, normal and truncated_normal, and values follow from seed and id alone. admit_after:
    occurrences that make a row. bloom: expected distinct ids, false rate, rank and ranks of a filter that counts
    ids of this rank without a row; None counts them exactly. evicts: rows are kept by parts, for idle(). fixed: no
    id gets a row but by `restore`, and ids without one are not counted.
    """

    def __init__(
        self,
        dim: int,
        *,
        optimizer: str = "sgd",
        initial_accumulator: float = 0.0,
        seed: int = 0,
        rows: tuple[str, float] = ("uniform", 0.05000000074505806),
        absent: tuple[str, float] = ("constant", 0.0),
        admit_after: int = 1,
        bloom: tuple[int, float, int, int] | None = None,
        evicts: bool = False,
        fixed: bool = False,
    ) -> None: ...
    @property
    def dim(self) -> int: ...
    @property
    def slots(self) -> int: ...
    @property
    def steps(self) -> int:
        """Steps of the optimizer so far, on which Adam and its kin depend."""

    @steps.setter
    def steps(self, arg: int, /) -> None: ...
    def set_admit_after(self, admit_after: int) -> None:
        """Sets the occurrences that make a row, for ids that have none yet."""

    def size(self) -> int:
        """Returns the number of rows in the table."""

    def memory_bytes(self) -> int:
        """Bytes of memory that index, rows and counters take."""

    def lookup(
        self, ids: numpy.typing.NDArray[numpy.int64], out: numpy.typing.NDArray[numpy.float32], train: bool
    ) -> int:
        """
        Looks up rows: out (n, dim); ids without a row read as `absent`. train: counts occurrences and creates the
        rows that are due. Returns the occurrences that have a row.
        """

    def lookup_counted(
        self,
        ids: numpy.typing.NDArray[numpy.int64],
        counts: numpy.typing.NDArray[numpy.uint32],
        out: numpy.typing.NDArray[numpy.float32],
        train: bool,
    ) -> numpy.typing.NDArray[numpy.uint8]:
        """
        Looks up rows as `lookup` does, of ids (n,) that stand for counts (n,) occurrences each.

        Returns 1 for each of them that has a row, and 0 for the others.
        """

    def export_rows(
        self,
    ) -> tuple[
        numpy.typing.NDArray[numpy.int64],
        numpy.typing.NDArray[numpy.float32],
        numpy.typing.NDArray[numpy.float32],
        numpy.typing.NDArray[numpy.uint32],
        numpy.typing.NDArray[numpy.uint32],
        numpy.typing.NDArray[numpy.uint32],
    ]:
        """
        Returns ids (n,) ascending, rows (n, dim), optimizer values (n, slots), occurrences (n,), stamps (n,) and
        ticks (n,) of the last use.
        """

    def export_ids(
        self, ids: numpy.typing.NDArray[numpy.int64]
    ) -> tuple[
        numpy.typing.NDArray[numpy.float32],
        numpy.typing.NDArray[numpy.float32],
        numpy.typing.NDArray[numpy.uint32],
        numpy.typing.NDArray[numpy.uint32],
        numpy.typing.NDArray[numpy.uint32],
    ]:
        """
        Returns rows (n, dim), optimizer values (n, slots), occurrences (n,), stamps (n,), ticks (n,); ValueError
        for an id without a row.
        """

    def export_counts(self) -> tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.uint32]]:
        """
        Returns ids (n,) ascending and occurrences (n,) of ids that have no row yet.
        """

    def most_seen(self, n: int) -> tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.uint32]]:
        """
        Returns ids and occurrences of the rows in DRAM that were seen most, at most n, the most frequent first.
        """

    def write(
        self,
        ids: numpy.typing.NDArray[numpy.int64],
        rows: numpy.typing.NDArray[numpy.float32],
        slots: numpy.typing.NDArray[numpy.float32],
    ) -> None:
        """
        Gives rows the values that a copy elsewhere has: rows (n, dim), optimizer values (n, slots). Neither use nor
        change is noted; ids without a row are left out.
        """

    def restore(
        self,
        ids: numpy.typing.NDArray[numpy.int64],
        rows: numpy.typing.NDArray[numpy.float32],
        slots: numpy.typing.NDArray[numpy.float32],
        counts: numpy.typing.NDArray[numpy.uint32],
        stamps: numpy.typing.NDArray[numpy.uint32],
        ticks: numpy.typing.NDArray[numpy.uint32],
    ) -> None:
        """
        Puts back what export_rows returned, over existing rows. Stamps are at most the table's own: call set_stamp
        first.
        """

    def restore_counts(
        self, ids: numpy.typing.NDArray[numpy.int64], counts: numpy.typing.NDArray[numpy.uint32]
    ) -> None:
        """
        Puts back what export_counts or waiting_since returned; a count of 0 removes the id.
        """

    def restore_removed(
        self, ids: numpy.typing.NDArray[numpy.int64], stamps: numpy.typing.NDArray[numpy.uint32]
    ) -> None:
        """Puts back what removed returned; ids that have a row are left out."""

    def erase(self, ids: numpy.typing.NDArray[numpy.int64]) -> int:
        """
        Forgets rows, optimizer values and counts; an id seen again is new. Returns how many had a row.
        """

    @property
    def stamp(self) -> int: ...
    def advance(self) -> int:
        """Closes the stamp and returns it; later changes carry the next one."""

    def set_stamp(self, stamp: int) -> None:
        """Sets the stamp. Raises ValueError for a stamp below the table's own."""

    def changed_since(self, stamp: int) -> numpy.typing.NDArray[numpy.int64]:
        """
        Returns ids (n,) ascending of rows created, stepped or looked up in training after a stamp.
        """

    def expired(self, stamp: int) -> numpy.typing.NDArray[numpy.int64]:
        """
        Returns ids (n,) ascending of rows that changed last at that stamp or before.
        """

    def removed_since(self, stamp: int) -> numpy.typing.NDArray[numpy.int64]:
        """
        Returns ids (n,) ascending that were erased after a stamp and have no row now.
        """

    def removed(self) -> tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.uint32]]:
        """
        Returns ids (n,) ascending that were erased and have no row now, and the stamps (n,) of their erasure.
        """

    def forget_removed(self, upto_stamp: int) -> None:
        """Forgets that ids were erased, for erasures at that stamp or before."""

    def waiting_since(self, stamp: int) -> tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.uint32]]:
        """
        Returns ids (n,) ascending without a row whose count changed after a stamp, and counts (n,).

        A count of 0: the id has a row now, or was erased. The stamp must be one of the last 64.
        """

    def attach(self, name: str, budget: RowBudget, folder: str) -> None:
        """
        Lets rows leave DRAM for a file without a name in a folder, when the budget needs their memory.

        The table must be empty. Afterwards changed_since, expired, removed, removed_since, waiting_since,
        export_rows and export_counts are about what is in DRAM; outside_rows and outside_bare give the rest.
        Raises ConfigError when the budget does not hold the table's filter.
        """

    @property
    def is_tiered(self) -> bool:
        """Tells whether rows may lie outside DRAM."""

    @property
    def record_bytes(self) -> int:
        """
        Number of bytes of a row in the file: count, stamp and tick (u32 each), weights and optimizer values (float32).
        """

    def tier_figures(self) -> dict[str, int]:
        """
        Returns rows_in_dram, rows_outside and file_bytes, and since the table was made rows fetched, waits for
        the disk, rows that left DRAM, and rows written.
        """

    def outside_rows(
        self, first: int, after: int, upto: int, records: bool
    ) -> tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.uint8], int]:
        """
        Returns ids (n,) in no order of rows outside DRAM that changed last at a stamp in (after, upto].

        Begins at a page of the file; the last value is the page to go on from, 0 at the end. records: with
        records (n, record_bytes), otherwise (0, record_bytes).
        """

    def outside_bare(
        self, first: int, waiting_after: int | None, removed_after: int | None
    ) -> tuple[
        numpy.typing.NDArray[numpy.int64],
        numpy.typing.NDArray[numpy.uint32],
        numpy.typing.NDArray[numpy.uint32],
        numpy.typing.NDArray[numpy.uint32],
        int,
    ]:
        """
        Returns ids without a row outside DRAM, in no order: counts, stamps of their last change, stamps of an
        erasure; 0 is none.

        Pages where no count changed after waiting_after and no id was erased after removed_after are left out,
        unless both are None. The last value is as outside_rows gives it.
        """

    def waiting_size(self) -> int:
        """
        Returns the number of ids that were seen and have no row; with a filter, an estimate.
        """

    def row_ids(self) -> numpy.typing.NDArray[numpy.int64]:
        """Returns ids (n,) ascending of the rows in DRAM."""

    def has_waited(self, ids: numpy.typing.NDArray[numpy.int64]) -> numpy.typing.NDArray[numpy.uint8]:
        """Returns 1 where DRAM knows the last change of an id's count."""

    @property
    def evicts(self) -> bool: ...
    @property
    def tick(self) -> int: ...
    def set_tick(self, tick: int) -> None:
        """
        Sets the number that later uses carry, 1 at the start. Raises ValueError for a smaller one than before.
        """

    PARTS: Final[int] = ...
    """The parts into which ids are divided by their hash."""

    def idle(
        self, part: int, unused: int, norm_after: int, norm_upto: int, norm: float
    ) -> numpy.typing.NDArray[numpy.int64]:
        """
        Returns ids (n,) ascending of idle rows in one part: those used last at tick `unused` or before, and those
        used last at a tick in (norm_after, norm_upto] whose Euclidean norm is below `norm`.
        """

    @property
    def filter_shape(self) -> tuple[int, int, int]:
        """
        Blocks of 512 counters, counters of an id, and bits of a counter; zeros without a filter.
        """

    @property
    def filter_bytes(self) -> int: ...
    def filter_ids(self) -> float:
        """Returns an estimate of the distinct ids that the filter has seen."""

    def filter_rate(self) -> float:
        """
        Returns the share of unseen ids that have a count in the filter as it is now, by its estimated ids.
        """

    def filter_pages(self, since: int) -> numpy.typing.NDArray[numpy.uint32]:
        """
        Returns the pages (p,) ascending of the filter that changed after a stamp.
        """

    def filter_content(self, pages: numpy.typing.NDArray[numpy.uint32]) -> numpy.typing.NDArray[numpy.uint8]:
        """Returns a copy (p, 512) of pages of the filter."""

    def filter_view(self) -> numpy.typing.NDArray[numpy.uint8]:
        """
        Returns all pages (p, 512) without a copy, read-only; they change with the filter.
        """

    def restore_filter(
        self,
        pages: numpy.typing.NDArray[numpy.uint32],
        content: numpy.typing.NDArray[numpy.uint8],
        bits: int,
        stamp: int,
    ) -> None:
        """
        Puts back pages (p,) and their content (p, 512) of a filter of the same shape, which changed at a stamp.

        bits: of its counters; counts that are too large for those of this table become their largest.
        """

class RowBudget:
    """
    A budget of DRAM that training tables share: rows, optimizer values, index and counts.
    """

    def __init__(self, dram_bytes: int) -> None: ...
    @property
    def dram_bytes(self) -> int: ...
    @property
    def kept_bytes(self) -> int:
        """Gives what every table can have, whatever the others took."""

    def begin_batch(self) -> bool:
        """
        Begins a batch of all tables. Returns whether reading ahead is worth it: batches waited for the disk.
        """

def begin_tables(tables: Sequence[TrainingTable]) -> None:
    """
    Begins a batch of attached tables: rows that the batch before used may leave DRAM.
    """

def read_ahead(tables: Sequence[TrainingTable], ids: list[numpy.typing.NDArray[numpy.int64]]) -> None:
    """
    Asks the kernel to read what the files of attached tables have of ids (n,) each, without waiting.
    """

class TableGradients:
    """The gradients that one table got from a lookup."""

    @property
    def ids(self) -> numpy.typing.NDArray[numpy.int64]: ...

class RowGradients:
    """Gradients (n, dim) of single rows."""

    def __init__(
        self, table: TrainingTable, ids: numpy.typing.NDArray[numpy.int64], grads: numpy.typing.NDArray[numpy.float32]
    ) -> None: ...
    @property
    def ids(self) -> numpy.typing.NDArray[numpy.int64]: ...

class BatchLookup:
    """
    One lookup of several features of several tables, and the gradients that come back for it.

    features: (place in tables, pooling 0 sum, 1 mean, 2 none or 3 weighted, length of pooling none) each. An id
    that repeats in a batch is read once. absent: (kind, scale, seed) for a feature whose ids without a row do not
    read as its table says, else None. chains: for a feature whose ids without a row read other rows first, the
    levels, (number of another feature, whether its ids are parallel) each, the mean row (D,) or None, and the share
    of ids with a row that read the chain too.
    hidden: numbers of features that are levels alone: not counted, without output. It keeps what it is given
    until the next call.
    """

    def __init__(
        self,
        tables: Sequence[TrainingTable],
        features: Sequence[tuple[int, int, int]],
        absent: list[tuple[str, float, int] | None] | None = None,
        chains: list[tuple[list[tuple[int, bool]], numpy.typing.NDArray[numpy.float32] | None, float] | None]
        | None = None,
        hidden: list[int] = ...,
    ) -> None: ...
    @property
    def width(self) -> int:
        """Values of all pooled features together."""

    def run(
        self,
        values: list[numpy.typing.NDArray[numpy.int64]],
        offsets: list[numpy.typing.NDArray[numpy.int64]],
        weights: list[numpy.typing.NDArray[numpy.float32] | None],
        batch: int,
        pooled: numpy.typing.NDArray[numpy.float32] | None,
        sequences: list[numpy.typing.NDArray[numpy.float32]],
        train: bool,
        threads: int,
        stand_in_seed: int | None = None,
    ) -> None:
        """
        Writes pooled (B, width), features side by side, and sequences (B, L, D) each.

        values (N,), offsets (B + 1,), weights (N,) of a feature of pooling weighted. stand_in_seed: draws the ids
        that read their chain although they have a row.
        """

    def ask(
        self,
        values: list[numpy.typing.NDArray[numpy.int64]],
        offsets: list[numpy.typing.NDArray[numpy.int64]],
        weights: list[numpy.typing.NDArray[numpy.float32] | None],
        batch: int,
        ranks: int,
        threads: int,
    ) -> tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.uint8], numpy.typing.NDArray[numpy.int64]]:
        """
        Returns what a batch asks of each rank, for AskedRows: how many ids, by rank and table (ranks * tables,),
        the messages to all ranks one after the other, and their bytes (ranks,). No table is read.

        With `pool` it does what `run` does, for rows that lie in other processes. Arguments as for `run`.
        """

    def find(
        self,
        values: list[numpy.typing.NDArray[numpy.int64]],
        offsets: list[numpy.typing.NDArray[numpy.int64]],
        weights: list[numpy.typing.NDArray[numpy.float32] | None],
        batch: int,
        train: bool,
        threads: int,
    ) -> None:
        """Finds the rows of the ids, for DeviceRows. Arguments as for `run`."""

    @property
    def asked_values(self) -> int:
        """Values of all rows that `ask` asked for."""

    @property
    def asked_ids(self) -> int:
        """Different ids that `ask` asked for."""

    def pool(
        self,
        rows: numpy.typing.NDArray[numpy.float32],
        flags: numpy.typing.NDArray[numpy.uint8] | None,
        pooled: numpy.typing.NDArray[numpy.float32] | None,
        sequences: list[numpy.typing.NDArray[numpy.float32]],
        threads: int,
    ) -> None:
        """
        Writes what `run` writes, of what the ranks answer: rows (asked_values,), in the order of the messages.

        flags (asked_ids,): 0 for an id without a row; None: all have one.
        """

    def sum_gradients(self, out: numpy.typing.NDArray[numpy.float32], threads: int) -> None:
        """
        Writes the sum of the gradients of each id, out (asked_values,), after `set_gradients`.

        Raises ValueError when an id has none.
        """

    def set_gradients(
        self,
        pooled: numpy.typing.NDArray[numpy.float32] | None,
        sequences: list[numpy.typing.NDArray[numpy.float32] | None],
        threads: int,
    ) -> None:
        """Takes the gradients of what `run` wrote; None: there are none."""

    def levels(self, feature: int) -> numpy.typing.NDArray[numpy.uint8]:
        """
        Returns the level that each used id of a feature read: 0 its own row, then those of its chain, the mean,
        and last what it reads as without any. Empty when every id has a row.
        """

    def gradients(self, table: int) -> TableGradients:
        """Returns what one table got, by its place."""

class AskedRows:
    """
    The rows that ranks ask of this one for a batch, and the gradients that come back for them.

    It keeps gradients until the next call.
    """

    def __init__(self, tables: Sequence[TrainingTable]) -> None: ...
    def find(
        self,
        messages: numpy.typing.NDArray[numpy.uint8],
        bytes: numpy.typing.NDArray[numpy.int64],
        numbers: numpy.typing.NDArray[numpy.int64],
        train: bool,
        threads: int,
    ) -> None:
        """
        Reads what ranks asked by BatchLookup.ask, their messages one after the other, and finds the rows.

        bytes (ranks,), numbers (ranks * tables,) of ids. train: counts the ids and creates the rows that are due.
        Raises ValueError for a message that is cut.
        """

    @property
    def values(self) -> int:
        """Values of all rows that were asked for."""

    def write(self, out: numpy.typing.NDArray[numpy.float32], threads: int) -> None:
        """Writes the rows to out (values,), those of the first rank first."""

    def flags(self) -> numpy.typing.NDArray[numpy.uint8]:
        """
        Returns 1 for each id that was asked for and has a row, and 0 for the others.
        """

    def set_gradients(self, grads: numpy.typing.NDArray[numpy.float32], threads: int) -> None:
        """Takes the gradients (values,) of the rows."""

    def gradients(self, table: int) -> TableGradients:
        """Returns what one table got, by its place."""

def step_tables(
    tables: list[TrainingTable],
    gradients: list[list[TableGradients | RowGradients]],
    rule: str,
    options: dict[str, float],
    threads: int,
) -> int:
    """
    Steps every row that has a gradient, once. options: numbers of the rule by name. Returns the rows stepped.
    """

def squared_norm(
    tables: list[TrainingTable], gradients: list[list[TableGradients | RowGradients]], threads: int
) -> float:
    """
    Returns the sum of squares of the gradients of all rows that a step would change.
    """

class KeptIds:
    """The rows of a table that a GPU keeps: ids, and their places there."""

    def __init__(self) -> None: ...
    def put(self, ids: numpy.typing.NDArray[numpy.int64], places: numpy.typing.NDArray[numpy.int32]) -> None:
        """Keeps ids (n,) at places (n,)."""

    def erase(self, ids: numpy.typing.NDArray[numpy.int64]) -> None:
        """Forgets ids, kept or not."""

    def clear(self) -> None:
        """Forgets all ids."""

    def size(self) -> int:
        """Returns the number of ids that are kept."""

class DeviceRows:
    """
    The rows of a batch as a GPU gets them, each once, and their gradients.

    lookup: one whose `find` was called, which is not called again before the step. groups: by table; tables of a
    group have one dim D. kept: by table, None for one of which the GPU keeps no row. The matrix of a group has the
    kept rows first, then the others, then one of zeros.
    """

    def __init__(
        self, lookup: BatchLookup, groups: Sequence[int], kept: list[KeptIds | None], threads: int
    ) -> None: ...
    def kept(self, group: int) -> numpy.typing.NDArray[numpy.int32]:
        """
        Returns the places of the kept rows of a group, in the order of its matrix.
        """

    def others(self, group: int) -> int:
        """Returns how many rows of a group are not kept."""

    def ids(self, features: Sequence[int]) -> int:
        """Returns how many ids these pooled features have together."""

    def write(self, out: list[numpy.typing.NDArray[numpy.float32]], threads: int) -> None:
        """Writes the rows that are not kept: out (others, D) by group."""

    def write_bags(
        self,
        features: Sequence[int],
        places: numpy.typing.NDArray[numpy.int32],
        offsets: numpy.typing.NDArray[numpy.int32],
        weights: numpy.typing.NDArray[numpy.float32] | None,
        threads: int,
    ) -> None:
        """
        Writes the bags of features of one group, side by side: those of the first line of the batch first.

        places (ids,) in the matrix, offsets (B * features + 1,), weights (ids,) of pooling weighted.
        """

    def write_sequence(self, feature: int, places: numpy.typing.NDArray[numpy.int32]) -> None:
        """
        Writes places (B, L) in the matrix of the ids of a feature of pooling none.
        """

    def sums(
        self, group: int, gradients: list[tuple[int, int, bool]], threads: int
    ) -> tuple[
        numpy.typing.NDArray[numpy.int32],
        numpy.typing.NDArray[numpy.float32] | None,
        list[numpy.typing.NDArray[numpy.int32]],
    ]:
        """
        Returns what the gradients of the rows of a group, kept and others, are sums of.

        gradients: by feature, in which row of a matrix of gradients that of its first bag lies, how many rows on
        that of the next, and whether it has any; those of the places of a sequence follow each other. Terms: rows
        (n,) of that matrix, factors (n,), None when all are 1. Levels: where the sums of each begin, and the end;
        those of the last are the rows'.
        """

    def is_used(self, group: int, used: list[bool]) -> numpy.typing.NDArray[numpy.uint8]:
        """
        Returns 1 for the rows of a group, kept and others, of features that are used, and 0 for the rest.
        """

    def take_gradients(self, grads: list[numpy.typing.NDArray[numpy.float32]], used: list[bool], threads: int) -> None:
        """
        Leaves the gradients of the rows that are not kept with the lookup: grads (others, D) by group.

        used: by feature; ids of the others alone take no step.
        """

def pair_products(
    first: numpy.typing.NDArray[numpy.float32] | None,
    rest: numpy.typing.NDArray[numpy.float32],
    out: numpy.typing.NDArray[numpy.float32],
    threads: int,
) -> None:
    """
    Dot products of all pairs of vectors, first (B, D) and rest (B, n, D) -> out (B, D + pairs).

    A row of out is the first vector, then the products, ordered by the larger number of a pair.
    """

def pair_gradients(
    first: numpy.typing.NDArray[numpy.float32] | None,
    rest: numpy.typing.NDArray[numpy.float32],
    grad: numpy.typing.NDArray[numpy.float32],
    first_grad: numpy.typing.NDArray[numpy.float32] | None,
    rest_grad: numpy.typing.NDArray[numpy.float32],
    threads: int,
) -> None:
    """
    Writes the gradients of first and rest, from that of what pair_products wrote.
    """
