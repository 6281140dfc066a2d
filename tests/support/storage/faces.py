"""Wraps every tier in the same interface, so that one test suite covers all of them.

A face adds nothing to what a tier does: a verb that a tier does not have is not in its `verbs`, and the suite does not
use it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from storage._table import Cache, CacheTable, Table, encode_rows, row_bytes
from storage.checkpoint.tables import Shard
from storage.features import Jagged
from storage.rows import RowCodec
from storage.specs import LookupSpec, TableSpec
from storage.tiers.dram import DramTier
from storage.tiers.ssd.tier import SsdTier
from storage.tiers.tiered import TieredStore
from tests.support.storage.tier_rows import EDGE_IDS

DIM = 4
FIND, PUT, EVICT, ASSIGN, ERASE, EXPORT, SIZE = (
    "find",
    "insert_or_assign",
    "insert_and_evict",
    "assign",
    "erase",
    "export_batch",
    "size",
)
ALL_VERBS = frozenset({FIND, PUT, EVICT, ASSIGN, ERASE, EXPORT, SIZE})


@dataclass
class Face:
    """The verbs of one tier over one table of DIM values a row. reopen: closes it and returns a new face over it."""

    name: str
    verbs: frozenset[str]
    find: Callable[[Any], tuple[np.ndarray, np.ndarray]]
    insert_or_assign: Callable[[Any, Any], object]
    erase: Callable[[Any], int | None]
    assign: Callable[[Any, Any], int] | None = None
    insert_and_evict: Callable[[Any, Any], int] | None = None
    export_batch: Callable[[int, int], tuple[int, np.ndarray, np.ndarray]] | None = None
    size: Callable[[], int] | None = None
    check_integrity: Callable[[], object] = lambda: None
    reopen: Callable[[], Face] | None = None
    close: Callable[[], object] = lambda: None

    def has(self, *verbs: str) -> bool:
        return self.verbs.issuperset(verbs)

    def held(self, limit: int = 1000) -> dict[int, bytes]:
        """Returns everything that `export_batch` returns, each id once."""
        assert self.export_batch is not None
        rows: dict[int, bytes] = {}
        cursor = 0
        while cursor != -1:
            cursor, ids, values = self.export_batch(cursor, limit)
            assert len(ids) == len(values) <= limit
            for i, row in zip(ids.tolist(), values, strict=True):
                assert i not in rows, f"{i} came twice"
                rows[i] = row.tobytes()
        return rows


def _native(table: Table | CacheTable, row_type: str, check_integrity: Callable[[], object]) -> Face:
    """Wraps a native table as it is bound: it writes into the caller's arrays."""

    def find(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rows, found = np.full((len(ids), DIM), np.nan, np.float32), np.full(len(ids), 9, np.uint8)
        assert table.find(ids, rows, found) == np.count_nonzero(found)
        return rows, found

    def export(cursor: int, limit: int) -> tuple[int, np.ndarray, np.ndarray]:
        following, ids, rows, _ = table.export_batch(cursor, limit)
        return following, ids, rows

    def put(ids: np.ndarray, rows: np.ndarray) -> None:
        # Every other call passes rows as they are stored; invalid ones stay invalid.
        as_stored = table.size() % 2 and getattr(rows, "dtype", None) == np.float32 and rows.shape[1:] == (DIM,)
        table.insert_or_assign(ids, encode_rows(row_type, rows) if as_stored else rows)

    return Face(
        f"{type(table).__name__} {row_type}",
        ALL_VERBS,
        find,
        put,
        table.erase,
        table.assign,
        table.insert_and_evict,
        export,
        table.size,
        check_integrity,
    )


def _table(row_type: str) -> Face:
    """Makes a face of the native table, which holds rows of every type."""
    table = Table(DIM, row_type=row_type)
    return _native(table, row_type, table.check_integrity)


def _cache(row_type: str) -> Face:
    """Makes a face of one of three tables that share a cache; another has the same ids, with rows of its own."""
    cache = Cache(row_bytes(row_type, DIM), 300_000, 3)
    other = CacheTable(cache, 2, DIM, row_type)
    crowd = np.concatenate([np.array(EDGE_IDS), np.arange(-400, 400)])
    theirs = np.full((len(crowd), DIM), 127, np.float32)
    other.insert_or_assign(np.unique(crowd), theirs[: len(np.unique(crowd))])

    def check() -> None:
        cache.check_integrity()
        rows, found = np.empty((len(crowd), DIM), np.float32), np.empty(len(crowd), np.uint8)
        other.find(crowd, rows, found)
        assert found.all()
        assert (rows == 127).all()

    return _native(CacheTable(cache, 1, DIM, row_type), row_type, check)


def _dram(capacity: int) -> Face:
    """Makes a face of the DRAM tier as the store uses it."""
    tier = DramTier(DIM, capacity_rows=capacity)

    def export(cursor: int, limit: int) -> tuple[int, np.ndarray, np.ndarray]:
        following, ids, rows, freq = tier.export_batch(cursor, limit)
        assert freq.shape == ids.shape
        return following, ids, rows

    return Face(
        "dram",
        ALL_VERBS,
        tier.find,
        tier.insert_or_assign,
        tier.erase,
        tier.assign,
        tier.insert_and_evict,
        export,
        tier.size,
        tier.check_integrity,
    )


def _ssd(path: Path) -> Face:
    tier = SsdTier.open(path)
    table = 3

    def reopen() -> Face:
        tier.close()
        return _ssd(path)

    def find(ids: Any) -> tuple[np.ndarray, np.ndarray]:
        rows, found = tier.find(table, ids, DIM * 4)
        return rows.view(np.float32), found

    def export_batch(cursor: int, limit: int) -> tuple[int, np.ndarray, np.ndarray]:
        following, ids, rows = tier.export_batch(table, cursor, limit, DIM * 4)
        return following, ids, rows.view(np.float32)

    return Face(
        "ssd",
        ALL_VERBS - {EVICT, SIZE},
        find,
        lambda ids, rows: tier.insert_or_assign(table, ids, rows),
        lambda ids: tier.erase(table, ids),
        lambda ids, rows: tier.assign(table, ids, rows),
        export_batch=export_batch,
        reopen=reopen,
        close=tier.close,
    )


class _Empty:
    """A version of two tables without a row: the store's table is the second."""

    path = Path("empty")
    snapshot = "0" * 32
    equals: str | None = None

    def __init__(self, row_type: str) -> None:
        self.tables = (TableSpec("other", 2), TableSpec("t", DIM, row_type))

    def shards(self, table: str) -> Iterator[Shard]:
        return iter(())

    def uses(self, table: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        return iter(())

    def table_digest(self, table: str) -> str:
        return f"no rows of {table}"


class _Change:
    """A delta of one table."""

    path = Path("change")

    def __init__(self, number: int, row_type: str, ids: np.ndarray, rows: np.ndarray, gone: np.ndarray) -> None:
        self.snapshot = f"{number:032x}"
        self.tables = (TableSpec("t", DIM, row_type, rows=len(ids)),)
        self._ids, self._rows, self._gone = ids, rows, gone
        self._codec = RowCodec(row_type, DIM)

    def shards(self, table: str) -> Iterator[Shard]:
        for start in range(0, len(self._ids), 1000):
            part = slice(start, start + 1000)
            encoded = self._codec.encode(np.ascontiguousarray(self._rows[part]))
            yield Shard(self._ids[part], encoded, np.zeros(len(encoded), np.uint8), self._codec)

    def removed(self, table: str) -> np.ndarray:
        return self._gone


def _store(path: Path, budget: int | None, merged: bool, row_type: str = "fp32") -> Face:
    """Makes a face of a tiered store: a write is a delta that is staged, and merged or left as an overlay."""
    version = _Empty(row_type)
    store = TieredStore.open(path, version.tables, dram_bytes=budget)
    store.load(version)
    plan = store.plan([LookupSpec("x", "t", "none", 1)])
    state = {"mask": 0, "count": 0}

    def find(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        result = plan.lookup(len(ids), [Jagged(ids, np.arange(len(ids) + 1))], mask=state["mask"])
        assert result.counts.unresolved == 0
        flags = result.masks[0]
        assert flags is not None
        return result.outputs[0][:, 0], flags[:, 0]

    def change(ids: np.ndarray, rows: np.ndarray, gone: np.ndarray) -> None:
        state["count"] += 1
        delta = _Change(state["count"], row_type, ids, rows, gone)
        number = store.stage(delta, spill=state["count"] % 3 == 0)
        if merged or len(store.overlay_stats()) > 50:
            oldest = next(iter(store.overlay_stats()))
            store.merge(oldest, at=f"{oldest:032x}")
        state["mask"] |= 1 << number

    def reopen() -> Face:
        oldest = next(iter(store.overlay_stats()), None)
        while oldest is not None:
            store.merge(oldest, at=f"{oldest:032x}")
            oldest = next(iter(store.overlay_stats()), None)
        store.close()
        return _store(path, budget, merged, row_type)

    def check() -> None:
        for tier, overlays in zip(store.dram, store.overlay_tables, strict=True):
            tier.check_integrity()
            overlays.check_integrity()

    def put(ids: np.ndarray, rows: np.ndarray) -> None:
        # A delta has each id once and in order; its maker, not the store, lets the last of equal ids win.
        if len(ids) == 0:
            return
        last = len(ids) - 1 - np.unique(ids[::-1], return_index=True)[1]
        change(ids[last], rows[last], ids[:0])

    def erase(ids: np.ndarray) -> int:
        there = np.unique(ids[find(ids)[1] == 1])
        change(there[:0], np.empty((0, DIM), np.float32), there)
        return len(there)

    return Face(
        "store",
        frozenset({FIND, PUT, ERASE}),
        find,
        put,
        erase,
        check_integrity=check,
        reopen=reopen,
        close=store.close,
    )


MAKERS: dict[str, Callable[[Path], Face]] = {
    "dram": lambda path: _dram(0),
    "dram, bounded": lambda path: _dram(200_000),
    "table, fp16": lambda path: _table("fp16"),
    "table, bf16": lambda path: _table("bf16"),
    "table, int8": lambda path: _table("int8"),
    "cache": lambda path: _cache("fp32"),
    "cache, int8": lambda path: _cache("int8"),
    "ssd": lambda path: _ssd(path / "ssd"),
    "store, everything in DRAM": lambda path: _store(path / "all", None, True),
    "store, 100 KB": lambda path: _store(path / "some", 100_000, True),
    "store, 400 B": lambda path: _store(path / "few", 400, True),
    "store, no DRAM": lambda path: _store(path / "none", 0, True),
    "store, int8 in DRAM": lambda path: _store(path / "int8", None, True, "int8"),
    "store, bf16, 2 KB": lambda path: _store(path / "bf16", 2_000, True, "bf16"),
    "store, fp16 on the disk": lambda path: _store(path / "fp16", 0, True, "fp16"),
    "store, int8 overlays": lambda path: _store(path / "int8_overlays", 0, False, "int8"),
    "store, overlays": lambda path: _store(path / "overlays", 0, False),
}
