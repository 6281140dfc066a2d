"""Tests a store whose tables have several row types: at every budget, through deltas, merges, spills and reopenings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage.checkpoint import Shard
from storage.checkpoint.fingerprint import table_fingerprint
from storage.errors import CheckpointError, StoreError
from storage.features import Jagged
from storage.rows import RowCodec
from storage.specs import ROW_TYPES, LookupSpec, TableSpec
from storage.tiers.tiered import TieredStore
from tests.support.storage.tier_rows import Delta, Rows, Tables, applied, budgets, make_delta, make_rows, tables_of

SPECS = (
    LookupSpec("a", "user", "none", 1),
    LookupSpec("b", "item", "none", 1),
    LookupSpec("c", "item", "mean"),
    LookupSpec("d", "user", "weighted"),
)
# A row of dim 5 is padded in every type but fp32 and, with int8, by three bytes.
DIMS = {"user": 5, "item": 8}


class TypedRows(Rows):
    """Tables in memory whose stored rows each have a type of their own."""

    def __init__(self, rows: Rows, types: dict[str, str]) -> None:
        super().__init__(rows.content, shard_rows=rows.shard_rows)
        self.types = types

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        return tuple(TableSpec(spec.name, spec.dim, self.types[spec.name], spec.rows) for spec in super().tables)

    def codec(self, table: str) -> RowCodec:
        return RowCodec(self.types[table], DIMS[table])

    def shards(self, table: str) -> Iterator[Shard]:
        for shard in super().shards(table):
            yield Shard(shard.ids, self.codec(table).encode(shard.rows), shard.freq, self.codec(table))

    def stored(self) -> Tables:
        """Returns the rows as the stored ones decode."""
        return {name: rounded(self.codec(name), known) for name, known in tables_of(self).items()}


@dataclass
class TypedDelta(Delta):
    types: dict[str, str] = field(default_factory=dict)

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        return tuple(TableSpec(spec.name, spec.dim, self.types[spec.name], spec.rows) for spec in super().tables)

    def shards(self, table: str) -> Iterator[Shard]:
        codec = RowCodec(self.types[table], DIMS[table])
        for shard in super().shards(table):
            yield Shard(shard.ids, codec.encode(shard.rows), shard.freq, codec)


def rounded(codec: RowCodec, known: dict[int, np.ndarray]) -> dict[int, np.ndarray]:
    return {i: codec.decode(codec.encode(row[None]))[0] for i, row in known.items()}


def typed(row_type: str) -> TypedRows:
    types = {"user": row_type, "item": "bf16" if row_type == "int8" else "int8"}
    rows = make_rows(4)
    ids, _, freq = rows.content["user"]
    rows.content["user"] = (ids, np.random.default_rng(9).standard_normal((len(ids), 5)).astype(np.float32), freq)
    return TypedRows(rows, types)


def delta_of(rows: TypedRows, tables: Tables, rng: np.random.Generator) -> TypedDelta:
    plain = make_delta(tables, DIMS, rng)
    return TypedDelta(plain.snapshot, plain.rows, plain.gone, types=rows.types)


def ask(store: TieredStore, tables: Tables, rng: np.random.Generator, mask: int = 0) -> None:
    """Checks every row bit for bit in plans that pool nothing, and pooled rows within rounding."""
    plan = store.plan(SPECS)
    for name in ("user", "item"):
        known = tables[name]
        ids = np.array([*known, *rng.integers(-600, 600, 40)], np.int64)
        rng.shuffle(ids)
        ids = ids[:200]
        offsets = np.arange(len(ids) + 1)
        weights = rng.standard_normal(len(ids)).astype(np.float32)
        asked = [Jagged(ids, offsets, weights if spec.pooling == "weighted" else None) for spec in SPECS]
        result = plan.lookup(len(ids), asked, mask=mask)
        zero = np.zeros(DIMS[name], np.float32)
        wanted = np.array([known.get(i, zero) for i in ids.tolist()])
        unpooled, pooled = (0, 3) if name == "user" else (1, 2)
        np.testing.assert_array_equal(result.outputs[unpooled][:, 0], wanted)
        flags = result.masks[unpooled]
        assert flags is not None
        assert flags[:, 0].tolist() == [i in known for i in ids.tolist()]
        np.testing.assert_array_equal(result.outputs[pooled], wanted * (weights[:, None] if name == "user" else 1))


@pytest.mark.slow
@pytest.mark.parametrize("row_type", ROW_TYPES)
@pytest.mark.parametrize("budget", list(budgets(make_rows(5))))
def test_rows_of_every_type_come_back_as_they_were_stored(tmp_path: Path, row_type: str, budget: str) -> None:
    rows = typed(row_type)
    rng = np.random.default_rng(1)
    tables = rows.stored()
    options: dict[str, Any] = {"dram_bytes": budgets(rows)[budget]}
    with TieredStore.open(tmp_path / "store", rows.tables, **options) as store:
        store.load(rows)
        for _ in range(2):
            ask(store, tables, rng)
            store.drain()
        shown: list[tuple[int, Tables, TypedDelta]] = []
        mask, now = 0, tables
        for spill in (False, True, None):
            delta = delta_of(rows, now, rng)
            number = store.stage(delta, spill=spill)
            mask |= 1 << number
            now = {name: rounded(rows.codec(name), known) for name, known in applied(now, delta).items()}
            shown.append((number, now, delta))
            ask(store, now, rng, mask)
            ask(store, tables, rng)
            for name in DIMS:
                ids, changed = delta.rows[name]
                stored = rows.codec(name).encode(changed)
                assert store.fingerprint(number, name) == table_fingerprint(ids, stored, delta.gone[name])
        for number, after, delta in shown:
            store.merge(number, at=delta.snapshot)
            ask(store, now, rng, mask)
            ask(store, after, rng)
            store.drain()
            ask(store, after, rng)
        at = store.at
    with TieredStore.open(tmp_path / "store", rows.tables, **options) as store:
        store.load(rows)
        assert store.at == at
        ask(store, now, rng)


def test_a_delta_of_another_row_type_is_refused(tmp_path: Path) -> None:
    rows = typed("int8")
    with TieredStore.open(tmp_path / "store", rows.tables, dram_bytes=None) as store:
        store.load(rows)
        wrong = delta_of(rows, rows.stored(), np.random.default_rng(2))
        wrong.types = {**rows.types, "user": "fp16"}
        with pytest.raises(CheckpointError, match=r"'user'.*fp16.*int8"):
            store.stage(wrong)
        assert store.overlay_stats() == {}


def test_a_store_of_another_row_type_is_loaded_anew(tmp_path: Path) -> None:
    first = typed("fp32")
    with TieredStore.open(tmp_path / "store", first.tables, dram_bytes=None) as store:
        store.load(first)
    for row_type in ("fp16", "bf16", "int8", "fp32"):
        rows = typed(row_type)
        with TieredStore.open(tmp_path / "store", rows.tables, dram_bytes=0) as store:
            store.load(rows)
            ask(store, rows.stored(), np.random.default_rng(3))
    with (
        TieredStore.open(tmp_path / "store", first.tables, dram_bytes=None) as store,
        pytest.raises(StoreError, match=r"'user' are int8, the store's are fp32"),
    ):
        store.load(typed("int8"))
