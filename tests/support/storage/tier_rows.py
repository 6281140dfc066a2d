"""Makes tables and deltas in memory with the interfaces of published ones, and computes what lookups must return."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from storage.checkpoint.tables import Shard
from storage.features import Jagged
from storage.specs import LookupSpec, TableSpec
from storage.tiers.slabs import slab_bytes
from storage.tiers.tiered import LookupResult, TieredStore

FEATURES = (
    LookupSpec("a", "user", "sum"),
    LookupSpec("b", "item", "mean"),
    LookupSpec("c", "item", "none", 3),
    LookupSpec("d", "user", "none", 1),
)


class Rows:
    """Tables in memory with the interface of a published version."""

    path = Path("rows")

    def __init__(self, content: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]], *, shard_rows: int = 64) -> None:
        self.content = content
        self.shard_rows = shard_rows
        self.reads = 0  # reads by the thread that made this; a store's own threads may read beside it
        self._maker = threading.get_ident()
        self.equals: str | None = None

    @property
    def snapshot(self) -> str:
        return hashlib.sha256("".join(map(self.table_digest, sorted(self.content))).encode()).hexdigest()[:32]

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        return tuple(TableSpec(n, rows.shape[1], rows=len(ids)) for n, (ids, rows, _) in self.content.items())

    def shards(self, table: str) -> Iterator[Shard]:
        self.reads += threading.get_ident() == self._maker
        ids, rows, freq = self.content[table]
        for start in range(0, max(1, len(ids)), self.shard_rows):
            part = slice(start, start + self.shard_rows)
            yield Shard(ids[part], rows[part], freq[part])

    def uses(self, table: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        ids, _, freq = self.content[table]
        for start in range(0, len(ids), self.shard_rows):
            part = slice(start, start + self.shard_rows)
            yield ids[part], freq[part]

    def table_digest(self, table: str) -> str:
        return hashlib.sha256(b"".join(array.tobytes() for array in self.content[table])).hexdigest()

    def dict(self, table: str) -> dict[int, np.ndarray]:
        ids, rows, _ = self.content[table]
        return dict(zip(ids.tolist(), rows, strict=True))

    def bytes(self) -> int:
        return sum(slab_bytes(spec.row_bytes, spec.rows, 1) for spec in self.tables)


def make_rows(seed: int, users: int = 40, items: int = 300, **options: Any) -> Rows:
    rng = np.random.default_rng(seed)

    def table(count: int, dim: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        near = np.arange(-count, count)
        far = rng.integers(-(2**63), 2**63 - 1, count)
        edges = np.array([-(2**63), 2**63 - 1])
        ids = np.unique(np.concatenate([rng.choice(near, count - count // 2, replace=False), far[: count // 2], edges]))
        rows = rng.standard_normal((len(ids), dim)).astype(np.float32)
        return ids, rows, rng.integers(0, 256, len(ids)).astype(np.uint8)

    return Rows({"user": table(users, 4), "item": table(items, 8)}, **options)


def budgets(rows: Rows) -> dict[str, int | None]:
    return {"all": None, "enough": rows.bytes(), "a tenth": rows.bytes() // 10, "a handful": 200}


def reference(rows: Rows, specs: Sequence[LookupSpec], ids: Sequence[Jagged]) -> list[np.ndarray]:
    results = []
    for spec, bags in zip(specs, ids, strict=True):
        known = rows.dict(spec.table)
        dim = rows.content[spec.table][1].shape[1]
        batch = len(bags.offsets) - 1
        out = np.zeros((batch, spec.length, dim) if spec.pooling == "none" else (batch, dim))
        for b in range(batch):
            bag = bags.values[bags.offsets[b] : bags.offsets[b + 1]].tolist()
            if spec.pooling == "none":
                for position, i in enumerate(bag[: spec.length]):
                    out[b, position] = known.get(i, 0)
            else:
                out[b] = sum((known.get(i, np.zeros(dim)).astype(np.float64) for i in bag), np.zeros(dim))
                if spec.pooling == "mean" and bag:
                    out[b] /= len(bag)
        results.append(out)
    return results


def check(rows: Rows, specs: Sequence[LookupSpec], ids: Sequence[Jagged], result: LookupResult) -> None:
    occurrences = absent = 0
    for index, (spec, want) in enumerate(zip(specs, reference(rows, specs, ids), strict=True)):
        known = rows.dict(spec.table)
        assert result.outputs[index].dtype == np.float32
        np.testing.assert_allclose(result.outputs[index], want, rtol=1e-5, atol=1e-6)
        bags = [
            ids[index].values[a:b].tolist() for a, b in zip(ids[index].offsets, ids[index].offsets[1:], strict=False)
        ]
        if spec.pooling == "none":
            bags = [bag[: spec.length] for bag in bags]
            mask, lengths = result.masks[index], result.lengths[index]
            assert mask is not None
            assert lengths is not None
            assert lengths.dtype == np.int64
            assert lengths.tolist() == [len(bag) for bag in bags]
            for b, bag in enumerate(bags):
                padded = [int(i in known) for i in bag] + [0] * (spec.length - len(bag))
                assert mask[b].tolist() == padded
        else:
            assert result.masks[index] is None
            assert result.lengths[index] is None
        occurrences += sum(map(len, bags))
        absent += sum(i not in known for bag in bags for i in bag)
    counts = result.counts
    assert counts.absent == absent
    assert counts.unresolved == 0
    assert counts.overlay + counts.dram + counts.ssd + counts.absent == occurrences


def jagged(bags: Sequence[Sequence[int]]) -> Jagged:
    values = np.array([i for bag in bags for i in bag], np.int64)
    return Jagged(values, np.concatenate([[0], np.cumsum([len(bag) for bag in bags])]).astype(np.int64))


def random_ids(rows: Rows, batch: int, rng: np.random.Generator) -> list[Jagged]:
    result = []
    for spec in FEATURES:
        pool = np.concatenate([rows.content[spec.table][0], rng.integers(-500, 500, 50)])
        result.append(jagged([rng.choice(pool, rng.integers(0, 6)).tolist() for _ in range(batch)]))
    return result


def open_store(folder: Path, rows: Rows, budget: int | None, **options: Any) -> TieredStore:
    store = TieredStore.open(folder, rows.tables, dram_bytes=budget, **options)
    store.load(rows)
    return store


EDGE_IDS = (-(2**63), -(2**63) + 1, -1, 0, 1, 2**63 - 2, 2**63 - 1)
Tables = dict[str, dict[int, np.ndarray]]


@dataclass
class Delta:
    """A delta in memory."""

    snapshot: str
    #: table -> ids ascending and rows
    rows: dict[str, tuple[np.ndarray, np.ndarray]]
    #: table -> ids ascending
    gone: dict[str, np.ndarray] = field(default_factory=dict)
    path: Path = Path("delta")
    shard_rows: int = 7

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        return tuple(TableSpec(name, rows.shape[1], rows=len(ids)) for name, (ids, rows) in self.rows.items())

    def shards(self, table: str) -> Iterator[Shard]:
        ids, rows = self.rows[table]
        for start in range(0, len(ids), self.shard_rows):
            part = slice(start, start + self.shard_rows)
            yield Shard(ids[part], rows[part], np.zeros(len(ids[part]), np.uint8))

    def removed(self, table: str) -> np.ndarray:
        return self.gone.get(table, np.empty(0, np.int64))


def tables_of(rows: Rows) -> Tables:
    return {name: rows.dict(name) for name in rows.content}


def rows_of(tables: Tables, dims: Mapping[str, int]) -> Rows:
    content = {}
    for name, known in tables.items():
        ids = np.array(sorted(known), np.int64)
        rows = np.array([known[i] for i in ids.tolist()], np.float32).reshape(len(ids), dims[name])
        content[name] = (ids, rows, (np.arange(len(ids)) % 256).astype(np.uint8))
    return Rows(content)


def make_delta(tables: Tables, dims: Mapping[str, int], rng: np.random.Generator, most: int = 30) -> Delta:
    """Changes, adds and removes some rows of each table, often including the extremes of the id range."""
    rows: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    gone: dict[str, np.ndarray] = {}
    for name, known in tables.items():
        pool = np.unique(np.concatenate([np.array([*known, *EDGE_IDS], np.int64), rng.integers(-500, 500, 40)]))
        ids = np.sort(rng.choice(pool, rng.integers(0, min(most, len(pool)) + 1), replace=False))
        leave = rng.random(len(ids)) < 0.3
        rows[name] = (ids[~leave], rng.standard_normal(((~leave).sum(), dims[name])).astype(np.float32))
        gone[name] = ids[leave]
    return Delta(rng.bytes(16).hex(), rows, gone)


def applied(tables: Tables, delta: Delta) -> Tables:
    result = {name: dict(known) for name, known in tables.items()}
    for name, (ids, rows) in delta.rows.items():
        result[name].update(zip(ids.tolist(), rows, strict=True))
        for i in delta.removed(name).tolist():
            result[name].pop(i, None)
    return result
