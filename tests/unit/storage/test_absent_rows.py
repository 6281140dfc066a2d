"""Ids without a row read as their table or feature says: in a store at every budget, in manifests, and on no GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage.checkpoint import PublishedVersion, Shard, open_version, write_delta
from storage.checkpoint.manifest import AbsentEntry
from storage.checkpoint.signed import MANIFEST
from storage.errors import CheckpointError, ConfigError, StoreError, UnsafeArtifact
from storage.features import Feature, Jagged
from storage.initializers import ABSENT_ZEROS, AbsentRows, Initializer
from storage.rows import RowCodec
from storage.specs import ROW_TYPES, LookupSpec, TableSpec
from storage.tiers.tiered import TieredStore
from tests.reference.initial import absent_row
from tests.support.storage.delta_parts import delta_parts, delta_table, rewrite
from tests.support.storage.tier_rows import Delta, Rows, Tables, applied, budgets, make_delta, make_rows, tables_of

DIMS = {"user": 4, "item": 8}
ABSENT = {
    "user": AbsentRows.of(Initializer("normal", 0.4), 0xFEDC_BA98_7654_3210),
    "item": AbsentRows.of(Initializer("constant", -0.7)),
}
OWN = AbsentRows.of(Initializer("truncated_normal", 0.3), 8)
SPECS = (
    LookupSpec("a", "user", "none", 2),
    LookupSpec("b", "item", "none", 2),
    LookupSpec("c", "item", "mean"),
    LookupSpec("d", "user", "weighted"),
    LookupSpec("e", "item", "sum", absent=OWN),
    LookupSpec("f", "user", "none", 1, ABSENT_ZEROS),
)


class AbsentTables(Rows):
    """Tables in memory, of one row type, whose absent ids read as something."""

    def __init__(self, rows: Rows, row_type: str, absent: dict[str, AbsentRows] = ABSENT) -> None:
        super().__init__(rows.content, shard_rows=rows.shard_rows)
        self.row_type, self.absent = row_type, absent

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        return tuple(replace(spec, row_type=self.row_type, absent=self.absent[spec.name]) for spec in super().tables)

    def shards(self, table: str) -> Iterator[Shard]:
        yield from encoded(super().shards(table), RowCodec(self.row_type, DIMS[table]))


@dataclass
class TypedDelta(Delta):
    row_type: str = "fp32"

    @property
    def tables(self) -> tuple[TableSpec, ...]:
        return tuple(replace(spec, row_type=self.row_type) for spec in super().tables)

    def shards(self, table: str) -> Iterator[Shard]:
        yield from encoded(super().shards(table), RowCodec(self.row_type, DIMS[table]))


def encoded(shards: Iterator[Shard], codec: RowCodec) -> Iterator[Shard]:
    for shard in shards:
        yield Shard(shard.ids, codec.encode(shard.rows), shard.freq, codec)


def entry_of(absent: AbsentRows) -> dict[str, Any] | None:
    entry = AbsentEntry.of(absent)
    return None if entry is None else entry.model_dump()


def check_lookups(store: TieredStore, tables: Tables, row_type: str, mask: int = 0) -> None:
    """Compares a lookup of every feature with rows that plain Python makes; absent ids are a half of all."""
    rng = np.random.default_rng(3)
    result_of: list[Jagged] = []
    for spec in SPECS:
        ids = np.array([*rng.choice([*tables[spec.table]], 60), *rng.integers(10**6, 10**12, 60)], np.int64)
        rng.shuffle(ids)
        offsets = np.sort(np.array([0, *rng.integers(0, 120, 39), 120]))
        weights = rng.standard_normal(120).astype(np.float32) if spec.pooling == "weighted" else None
        result_of.append(Jagged(ids, offsets, weights))
    result = store.plan(SPECS).lookup(40, result_of, mask=mask)
    for spec, bags, output, found in zip(SPECS, result_of, result.outputs, result.masks, strict=True):
        known, codec = tables[spec.table], RowCodec(row_type, DIMS[spec.table])
        absent = entry_of(ABSENT[spec.table] if spec.absent is None else spec.absent)
        made = {i: known[i] if i in known else absent_row(absent, codec.dim, i) for i in bags.values.tolist()}
        row = {i: codec.decode(codec.encode(values[None].astype(np.float32)))[0] for i, values in made.items()}
        for bag in range(40):
            ids = bags.values[bags.offsets[bag] : bags.offsets[bag + 1]].tolist()
            if spec.pooling == "none":
                assert found is not None
                ids = ids[: spec.length]
                padding = np.zeros((spec.length - len(ids), codec.dim))
                want: Any = np.concatenate([*(row[i][None] for i in ids), padding])
                assert found[bag].tolist() == [int(i in known) for i in ids] + [0] * len(padding)
            else:
                factors = [1.0] * len(ids) if bags.weights is None else bags.weights[bags.offsets[bag] :]
                total = sum(
                    (factor * row[i].astype(np.float64) for i, factor in zip(ids, factors, strict=False)),
                    np.zeros(codec.dim),
                )
                want = total / len(ids) if spec.pooling == "mean" and ids else total
            np.testing.assert_allclose(output[bag], want, rtol=2e-5, atol=2e-6)
    assert result.counts.absent > 100
    assert result.counts.unresolved == 0


@pytest.mark.parametrize("row_type", ROW_TYPES)
@pytest.mark.parametrize("budget", ["all", "a tenth"])
def test_a_store_reads_absent_ids_through_deltas_merges_and_reopenings(
    tmp_path: Path, row_type: str, budget: str
) -> None:
    rows = AbsentTables(make_rows(5), row_type)
    rng = np.random.default_rng(1)
    tables = tables_of(rows)
    limit = budgets(rows)[budget]
    with TieredStore.open(tmp_path / "store", rows.tables, dram_bytes=limit) as store:
        store.load(rows)
        check_lookups(store, tables, row_type)
        mask, now, numbers = 0, tables, []
        for spill in (False, True):
            plain = make_delta(now, DIMS, rng)
            delta = TypedDelta(plain.snapshot, plain.rows, plain.gone, row_type=row_type)
            numbers.append((store.stage(delta, spill=spill), delta.snapshot))
            mask |= 1 << numbers[-1][0]
            removed = {name: [i for i in delta.gone[name].tolist() if i in now[name]] for name in now}
            now = applied(now, delta)
            check_lookups(store, now, row_type, mask)
            check_removed(store, removed, row_type, mask)
        check_lookups(store, tables, row_type)
        for number, snapshot in numbers:
            store.merge(number, at=snapshot)
        check_lookups(store, now, row_type)
        check_removed(store, removed, row_type, 0)
        store.check_integrity()
    with TieredStore.open(tmp_path / "store", rows.tables, dram_bytes=limit) as store:
        store.load(rows)
        check_lookups(store, now, row_type)


def check_removed(store: TieredStore, removed: dict[str, list[int]], row_type: str, mask: int) -> None:
    assert any(removed.values())
    for number, name in enumerate(("user", "item")):
        ids = np.array(removed[name], np.int64)
        plan = store.plan([SPECS[number]])
        found = plan.lookup(len(ids), [Jagged(ids, np.arange(len(ids) + 1))], mask=mask)
        codec = RowCodec(row_type, DIMS[name])
        want = codec.decode(codec.encode(ABSENT[name].rows(ids, codec.dim)))
        np.testing.assert_array_equal(found.outputs[0][:, 0], want)
        assert not found.outputs[0][:, 1].any()


@pytest.mark.parametrize("kind", ["constant", "uniform", "normal", "truncated_normal"])
def test_rows_are_those_of_the_description(kind: Any) -> None:
    ids = np.array([-(2**63), -1, 0, 1, 77, 2**63 - 1])
    absent = AbsentRows.of(Initializer(kind, 0.1), 2**64 - 3)
    want = [absent_row(entry_of(absent), 9, int(i)) for i in ids]
    np.testing.assert_allclose(absent.rows(ids, 9), want, rtol=3e-7)


def test_equal_rows_are_equal_objects() -> None:
    assert AbsentRows.of(Initializer("normal", 0.0), 5) == AbsentRows.of(Initializer("zeros")) == ABSENT_ZEROS
    assert AbsentRows.of(Initializer("constant", 1.0), 5) == AbsentRows.of(Initializer("constant", 1.0), 6)
    assert AbsentRows.of(Initializer("normal", 1.0), 5) != AbsentRows.of(Initializer("normal", 1.0), 6)
    with pytest.raises(ConfigError, match=r"seed is 18446744073709551616"):
        AbsentRows.of(Initializer("normal", 1.0), 2**64)


@pytest.mark.parametrize(
    ("absent", "row_type"),
    [
        (Initializer("constant", 65_505.0), "fp16"),
        (Initializer("normal", 1e4), "fp16"),
        (Initializer("truncated_normal", 1.8e38), "int8"),
        (Initializer("uniform", 1e39), "fp32"),
    ],
)
def test_absent_rows_that_a_row_type_cannot_hold_are_refused(absent: Initializer, row_type: str) -> None:
    with pytest.raises(ConfigError, match=rf"table 't': absent rows are .*; {row_type} holds"):
        TableSpec("t", 4, row_type, absent=AbsentRows.of(absent, 1))


def test_a_store_takes_no_version_or_feature_that_reads_otherwise(tmp_path: Path) -> None:
    rows = AbsentTables(make_rows(5), "fp16")
    with TieredStore.open(tmp_path / "store", rows.tables, dram_bytes=None) as store:
        store.load(rows)
        with pytest.raises(ConfigError, match=r"feature 'x': absent rows are constant\(1e\+06\)"):
            store.plan([LookupSpec("x", "user", absent=AbsentRows.of(Initializer("constant", 1e6)))])
        other = AbsentTables(make_rows(5), "fp16", {**ABSENT, "user": ABSENT_ZEROS})
        with pytest.raises(StoreError, match=r"table 'user' read as zeros, in the store as normal\(0.4\)"):
            store.adopt(other)


def version_with(copy_version: Callable[[], Path], absent: dict[str, Any] | None) -> PublishedVersion:
    path = copy_version()
    rewrite(path, lambda content: content["tables"][0].update({} if absent is None else {"absent": absent}))
    return open_version(path)


NORMAL = {"type": "normal", "scale": 0.5, "seed": "00000000000000ff"}


def test_a_manifest_carries_them_for_its_deltas_too(copy_version: Callable[[], Path]) -> None:
    version = version_with(copy_version, NORMAL)
    absent = AbsentRows.of(Initializer("normal", 0.5), 255)
    assert [spec.absent for spec in version.tables] == [absent, ABSENT_ZEROS]
    assert b'"absent"' not in (version_with(copy_version, None).path / MANIFEST).read_bytes()
    empty = delta_table("empty", 2, np.empty(0, np.int64), np.empty(0, np.int64))
    with pytest.raises(CheckpointError, match=r"are to read as zeros, in the version they read as normal\(0.5\)"):
        write_delta(version.path, **delta_parts(version))
    assert not list((version.path / "deltas").glob("*"))
    tables = [delta_table(version.tables[0].name, version.tables[0].dim, absent=absent), empty]
    assert write_delta(version.path, **delta_parts(version, tables=tables)).is_dir()


@pytest.mark.parametrize(
    ("absent", "words"),
    [
        ({**NORMAL, "type": "cauchy"}, "type"),
        ({**NORMAL, "seed": "ff"}, "seed"),
        ({**NORMAL, "seed": ""}, "normal of scale .* is written by no publisher"),
        ({**NORMAL, "scale": 0.0}, "normal of scale .* is written by no publisher"),
        ({**NORMAL, "scale": -1.0}, "expected 0 or more"),
        ({**NORMAL, "scale": 1e38}, "fp32 holds"),
        ({**NORMAL, "hook": 1}, "hook"),
        (
            {"type": "constant", "scale": 1.0, "seed": "00000000000000ff"},
            "constant of scale .* is written by no publisher",
        ),
    ],
)
def test_a_manifest_that_says_something_else_is_refused(
    copy_version: Callable[[], Path], absent: dict[str, Any], words: str
) -> None:
    with pytest.raises(UnsafeArtifact, match=words):
        version_with(copy_version, absent)


def feature(**changes: Any) -> Feature:
    return Feature.model_validate({"name": "f", "inputs": ["x"], "output": "ids", "table": "t", **changes})


def test_a_feature_says_it_only_where_it_differs() -> None:
    assert "absent" not in feature().model_dump(mode="json")
    assert feature().absent_rows is None
    own = feature(absent={"type": "uniform", "scale": 0.5, "seed": 3})
    assert own.absent_rows == AbsentRows.of(Initializer("uniform", 0.5), 3)
    assert Feature.model_validate_json(own.model_dump_json()) == own
    assert feature(absent={"type": "zeros"}).absent_rows == ABSENT_ZEROS


@pytest.mark.parametrize(
    ("absent", "words"),
    [
        ({"type": "normal"}, "needs a scale other than 0"),
        ({"type": "constant", "scale": 1.0, "seed": 2}, "has no seed, got 2"),
        ({"type": "zeros", "scale": 1.0}, "zeros has no scale"),
        ({"type": "uniform", "scale": 1.0, "sead": 2}, "did you mean 'seed'"),
        ({"type": "uniform", "scale": 1.0, "seed": -1}, "greater than or equal to 0"),
    ],
)
def test_a_feature_with_impossible_absent_rows_is_refused(absent: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        feature(absent=absent)


def test_dense_features_have_none() -> None:
    with pytest.raises(ValueError, match="is dense"):
        feature(output="dense", table="", absent={"type": "zeros"})
