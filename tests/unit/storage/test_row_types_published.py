"""Versions and deltas whose tables are stored in several row types: written, read back, tampered with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from storage.checkpoint import Shard, TableData, open_delta, open_version, write_delta
from storage.checkpoint.fingerprint import fingerprint_hex, rows_fingerprint
from storage.checkpoint.signed import MANIFEST
from storage.checkpoint.tensors import TensorFile, write_tensors
from storage.errors import CheckpointError, IntegrityError, ParityError, UnsafeArtifact
from storage.rows import RowCodec
from storage.specs import ROW_TYPES
from tests.support.storage.delta_parts import IDS, delta_parts, delta_table, replace_file, rewrite

Publish = Callable[..., Path]
SHARD = "tables/item.00000-of-00001.safetensors"


def table_of(row_type: str, name: str = "item", dim: int = 4, rows: int = 100) -> TableData:
    rng = np.random.default_rng(5)
    ids = np.unique(rng.integers(-(2**63), 2**63 - 1, rows))
    return TableData(
        name, dim, ids, rng.standard_normal((rows, dim)).astype(np.float32), np.full(rows, 3, np.uint8), row_type
    )


@pytest.mark.slow
@pytest.mark.parametrize("row_type", ROW_TYPES)
@pytest.mark.parametrize("dim", [4, 5])
def test_a_table_is_read_back_as_it_was_stored(publish: Publish, row_type: str, dim: int) -> None:
    item, other = table_of(row_type), table_of(row_type, "other", dim)
    path = publish(tables=[item, other], shard_bytes=1000)
    version = open_version(path)
    assert [spec.row_type for spec in version.tables] == [row_type, row_type]
    for table in (item, other):
        shards = list(version.shards(table.name))
        assert len(shards) > 1
        np.testing.assert_array_equal(np.concatenate([shard.ids for shard in shards]), table.ids)
        np.testing.assert_array_equal(np.concatenate([shard.encoded for shard in shards]), table.encoded)
        decoded = np.concatenate([shard.rows for shard in shards])
        np.testing.assert_array_equal(decoded, table.codec.decode(table.encoded))
        assert shards[0].codec == RowCodec(row_type, table.dim)
        assert not shards[0].ids.flags.writeable
        entry = next(entry for entry in version.manifest.tables if entry.name == table.name)
        assert entry.fingerprint == fingerprint_hex(rows_fingerprint(table.ids, table.encoded))


@pytest.mark.parametrize(("row_type", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_any_reader_of_safetensors_reads_half_precision(publish: Publish, row_type: str, dtype: torch.dtype) -> None:
    table = table_of(row_type, dim=5)
    path = publish(tables=[table_of("fp32"), TableData("odd", 5, table.ids, table.rows, table.freq, row_type)])
    tensors = safetensors.torch.load_file(path / "tables/odd.00000-of-00001.safetensors")
    assert tensors["rows"].dtype == dtype
    np.testing.assert_array_equal(tensors["rows"].float().numpy(), table.codec.decode(table.encoded))


def test_fp32_is_stored_as_it_always_was(publish: Publish, published_tables: list[TableData]) -> None:
    path = publish()
    table = published_tables[0]
    tensors = safetensors.torch.load_file(path / SHARD)
    np.testing.assert_array_equal(tensors["rows"].numpy(), table.rows)
    assert table.encoded.base is not None
    content = json.loads((path / MANIFEST).read_bytes())
    assert content["tables"][0]["row_type"] == "fp32"
    assert content["tables"][0]["fingerprint"] == fingerprint_hex(rows_fingerprint(table.ids, table.rows))


@pytest.mark.parametrize(("row_type", "value"), [("fp16", 65520.0), ("bf16", 3.4e38), ("int8", 3.4028235e38)])
def test_a_value_that_a_row_type_cannot_hold_is_not_published(row_type: str, value: float) -> None:
    table = table_of("fp32")
    rows = table.rows.copy()
    rows[41, 2] = value
    words = rf"table 'item': the row of id {table.ids[41]} holds {value:g}.*{row_type} cannot hold; publish .* as fp32"
    with pytest.raises(CheckpointError, match=words.replace("+", r"\+")):
        TableData("item", 4, table.ids, rows, table.freq, row_type)


@pytest.mark.parametrize("row_type", ROW_TYPES[1:])
def test_a_table_that_claims_another_row_type_is_refused(publish: Publish, row_type: str) -> None:
    path = publish(tables=[table_of("fp32")])
    rewrite(path, lambda content: content["tables"][0].update(row_type=row_type))
    with pytest.raises(UnsafeArtifact, match=f"{SHARD}: expected the tensors"):
        list(open_version(path).shards("item"))


def test_an_unknown_row_type_is_refused(publish: Publish) -> None:
    path = publish(tables=[table_of("fp32")])
    rewrite(path, lambda content: content["tables"][0].update(row_type="fp8"))
    with pytest.raises(UnsafeArtifact, match=r"manifest\.json: tables\.0\.row_type"):
        open_version(path)


def tampered(path: Path, row_type: str, change: Callable[[np.ndarray], object]) -> None:
    """Changes the rows of the shard and signs everything again."""
    file = TensorFile.open(path / SHARD)
    arrays = {name: array.copy() for name, array in file.arrays.items()}
    change(arrays["rows"])
    scratch = path.parent / "scratch"
    write_tensors(scratch, arrays, {"rows": file.dtypes["rows"]})
    data = scratch.read_bytes()
    scratch.unlink()
    assert hashlib.sha256(data).digest() != hashlib.sha256((path / SHARD).read_bytes()).digest()
    replace_file(path, SHARD, data)


@pytest.mark.parametrize("row_type", ROW_TYPES[1:])
def test_rows_that_are_no_numbers_are_refused_by_id(publish: Publish, row_type: str) -> None:
    table = table_of(row_type)
    path = publish(tables=[table])

    def spoil(rows: np.ndarray) -> None:
        if row_type == "int8":
            rows[7, :4] = np.frombuffer(np.float32(np.nan).tobytes(), np.uint8)
        else:
            rows.view(np.uint16)[7, 1] = 0x7F80 if row_type == "bf16" else 0x7C00

    tampered(path, row_type, spoil)
    with pytest.raises(IntegrityError, match=f"table 'item': the row of id {table.ids[7]} in {SHARD} holds NaN or inf"):
        list(open_version(path).shards("item"))


def test_an_int8_row_that_no_encoder_writes_is_refused_by_id(publish: Publish) -> None:
    table = table_of("int8")
    path = publish(tables=[table])

    def spoil(rows: np.ndarray) -> None:
        rows[7, 4:8] = 1

    tampered(path, "int8", spoil)
    with pytest.raises(IntegrityError, match=f"the row of id {table.ids[7]} in {SHARD} is no row that int8 encodes to"):
        list(open_version(path).shards("item"))


@pytest.mark.parametrize("row_type", ROW_TYPES[1:])
def test_a_changed_row_is_noticed_by_the_fingerprint(publish: Publish, row_type: str) -> None:
    table = table_of(row_type)
    path = publish(tables=[table])

    def swap(rows: np.ndarray) -> None:
        rows[[3, 4]] = rows[[4, 3]]

    tampered(path, row_type, swap)
    with pytest.raises(ParityError, match=r"item.*fingerprint"):
        list(open_version(path).shards("item"))


@pytest.mark.slow
@pytest.mark.parametrize("row_type", ROW_TYPES)
def test_a_delta_has_the_row_types_of_its_version(publish: Publish, row_type: str) -> None:
    version = open_version(publish(tables=[table_of(row_type), table_of("fp32", "empty", 2)]))
    changed = delta_table(row_type=row_type)
    empty = delta_table("empty", 2, np.empty(0, np.int64), np.empty(0, np.int64))
    delta = open_delta(write_delta(version.path, **delta_parts(version, tables=[changed, empty])))
    assert delta.tables[0].row_type == row_type
    (shard,) = delta.shards("item")
    np.testing.assert_array_equal(shard.encoded, changed.changed.encoded)
    np.testing.assert_array_equal(shard.ids, IDS)
    for other in ROW_TYPES:
        if other != row_type:
            wrong: dict[str, Any] = {"tables": [delta_table(row_type=other), empty], "sequence": 2}
            words = f"table 'item': the delta's rows are {other}, the version's are {row_type}; .*publish a version"
            with pytest.raises(CheckpointError, match=words):
                write_delta(version.path, **delta_parts(version, **wrong))


def test_parts_of_a_shard_keep_its_row_type() -> None:
    table = table_of("int8")
    shard = Shard(table.ids, table.encoded, table.freq, table.codec)
    for which in (slice(3, 9), np.arange(100) % 7 == 0, np.array([5, 2])):
        part = shard.take(which)
        np.testing.assert_array_equal(part.rows, shard.rows[which])
        assert part.codec == table.codec
    plain = Shard(table.ids, table.rows, table.freq)
    np.testing.assert_array_equal(plain.rows, table.rows)
    assert plain.codec.row_type == "fp32"
