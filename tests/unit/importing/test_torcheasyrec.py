"""Exports of TorchEasyRec with deltas over them: the latest step wins, INT8 is read, and default rows are kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage.errors import EmberlineError, InvalidInput
from storage.importing import KINDS, FileTable, ImportOptions, RowSort

EBC = "model.embedding_group.emb_impls.a.ebc.embedding_bags"
ITEM, CITY = f"{EBC}.item", f"{EBC}.city"
IDS = np.array([2**50, 3, -7], np.int64)


def rows(ids: np.ndarray, seed: float = 0.0) -> np.ndarray:
    """Returns rows of 4 values."""
    return (ids[:, None] % 50 + np.arange(4)[None, :] + seed).astype(np.float32)


def quantised(values: np.ndarray) -> np.ndarray:
    """Returns rows as QUint8RowwiseF16: values, scale, offset."""
    low = values.min(axis=1, keepdims=True).astype(np.float16)
    scale = ((values.max(axis=1, keepdims=True) - low) / 255).astype(np.float16)
    whole = np.clip(np.rint((values - low.astype(np.float32)) / scale.astype(np.float32)), 0, 255).astype(np.uint8)
    return np.concatenate([whole, scale.view(np.uint8), low.view(np.uint8)], axis=1)


def exported(folder: Path, int8: bool = False) -> Path:
    """Writes an export of two ranks: `item` with keys, `city` with numbered rows."""
    folder.mkdir()
    values = rows(IDS)
    arrays = {f"{ITEM}.keys": IDS, f"{ITEM}.values": quantised(values) if int8 else values}
    np.savez(folder / "sparse_dynamic_embedding-00-of-02.npz", **arrays, **{f"{ITEM}.scores": IDS})  # type: ignore[arg-type]
    for rank in range(2):
        np.savez(folder / f"sparse_embeddings-{rank:02d}-of-02.npz", **{CITY: rows(np.arange(5) + 5 * rank)})  # type: ignore[arg-type]
        keyed = {} if rank else {ITEM: {"name": "item", "is_dynamic": True}}
        described = {CITY: {"name": "city", "is_dynamic": False}, **keyed}
        (folder / f"sparse_embeddings-{rank:02d}-of-02.json").write_text(json.dumps(described))
    return folder


def delta(
    path: Path, step: int, fqn: str, ids: list[int], values: np.ndarray, source: str = "model_delta_tracker"
) -> Path:
    """Writes a delta."""
    kind = pa.uint8() if values.dtype == np.uint8 else pa.float32()
    count = len(ids)
    table = {
        "global_step": pa.array([step] * count, pa.int64()),
        "rank": pa.array([0] * count, pa.int32()),
        "world_size": pa.array([1] * count, pa.int32()),
        "feature_name": ["f"] * count,
        "table_fqn": [fqn] * count,
        "key_id": pa.array(ids, pa.int64()),
        "embedding": pa.array(values.tolist(), pa.list_(kind)),
        "source": [source] * count,
    }
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table(table), path)
    return path


def read(folder: Path, *paths: Path, **options: Any) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Returns ids and rows by table, sorted."""
    found: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for table in tables(*paths, **options):
        blocks = [(part.ids.copy(), part.rows.copy()) for part in RowSort(table, 1 << 24, folder).blocks()]
        found[table.name] = np.concatenate([ids for ids, _ in blocks]), np.concatenate([rows for _, rows in blocks])
    return found


def tables(*paths: Path, **options: Any) -> list[FileTable]:
    """Opens tables."""
    return KINDS["torcheasyrec"].open(paths, ImportOptions(**options))


@pytest.mark.parametrize("int8", [False, True])
def test_an_export_has_tables_with_keys_and_tables_of_numbers(tmp_path: Path, int8: bool) -> None:
    found = read(tmp_path, exported(tmp_path / "sparse", int8))
    assert sorted(found) == ["city", "item"]
    np.testing.assert_array_equal(found["item"][0], np.sort(IDS))
    np.testing.assert_allclose(found["item"][1], rows(np.sort(IDS)), atol=0.02 if int8 else 0)
    np.testing.assert_array_equal(found["city"][0], np.arange(10))
    np.testing.assert_array_equal(found["city"][1], rows(np.arange(10)))


def test_deltas_lie_over_the_export_and_the_latest_step_wins(tmp_path: Path) -> None:
    sparse = exported(tmp_path / "sparse")
    deltas = tmp_path / "deltas"
    # The names do not say the order.
    delta(deltas / "b_step_100.parquet", 100, ITEM, [3, 99], rows(np.array([3, 99]), 0.25))
    delta(deltas / "a_step_200.parquet", 200, ITEM, [3, 8], quantised(rows(np.array([3, 8]), 0.5)))
    delta(deltas / "c_step_300.parquet", 300, ITEM, [99], rows(np.array([99])), "zch_evict")
    ids, found = read(tmp_path, sparse, deltas)["item"]
    assert ids.tolist() == [-7, 3, 8, 2**50]
    np.testing.assert_allclose(found[1:3], rows(np.array([3, 8]), 0.5), atol=0.02)
    np.testing.assert_array_equal(found[3], rows(IDS)[0])


def test_a_default_row_is_what_absent_ids_read_as(tmp_path: Path) -> None:
    arrays = {
        f"{ITEM}.keys": IDS,
        f"{ITEM}.values": rows(IDS),
        f"{ITEM}.default_value": np.full((1, 4), 0.5, np.float32),
    }
    np.savez(tmp_path / "sparse_dynamic_embedding-00-of-01.npz", **arrays)  # type: ignore[arg-type]
    assert str(tables(tmp_path)[0].absent) == "constant(0.5)"
    arrays[f"{ITEM}.default_value"] = np.arange(4, dtype=np.float32)[None]
    np.savez(tmp_path / "sparse_dynamic_embedding-00-of-01.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"the values of the default vector differ \(0 to 3\)"):
        tables(tmp_path)
    assert tables(tmp_path, defaults={"item": 0.0})[0].absent.is_zero


def test_what_cannot_be_understood_is_refused(tmp_path: Path) -> None:
    sparse = exported(tmp_path / "sparse")
    (sparse / "sparse_embeddings-01-of-02.npz").unlink()
    with pytest.raises(InvalidInput, match=r"sparse_embeddings-RR-of-02\.npz the ranks \[1\] are missing"):
        tables(sparse)
    for number, (values, source, said) in enumerate(
        (
            (rows(np.array([3])), "unheard of", "rows of source 'unheard of'"),
            (np.ones((1, 9), np.float32), "model_delta_tracker", "have 9 values, those before 4"),
        )
    ):
        bad = delta(tmp_path / f"bad{number}.parquet", 1, ITEM, [3], values, source)
        with pytest.raises(EmberlineError, match=said):
            tables(tmp_path / "sparse" / "sparse_dynamic_embedding-00-of-02.npz", bad)


def test_a_rank_that_is_lost_is_noticed_by_every_kind_of_file(tmp_path: Path) -> None:
    sparse = exported(tmp_path / "sparse")
    for rank in range(2):
        (sparse / f"sparse_embeddings-{rank:02d}-of-02.npz").unlink()
    assert [table.name for table in tables(sparse)] == ["item"]
    (sparse / "sparse_embeddings-01-of-02.json").unlink()
    with pytest.raises(InvalidInput, match=r"sparse_embeddings-RR-of-02\.json the ranks \[1\] are missing"):
        tables(sparse)
    (sparse / "sparse_embeddings-00-of-02.json").unlink()
    with pytest.raises(InvalidInput, match=r"sparse_dynamic_embedding-RR-of-02\.npz the ranks \[1\] are missing"):
        tables(sparse)
    archive = sparse / "sparse_dynamic_embedding-00-of-02.npz"
    (sparse / "sparse_dynamic_embedding-01-of-02.npz").write_bytes(archive.read_bytes())
    assert [table.name for table in tables(sparse)] == ["item"]
    (sparse / "sparse_dynamic_embedding-00-of-03.npz").write_bytes(archive.read_bytes())
    with pytest.raises(InvalidInput, match="holds files of 2 and of 3 ranks, expected one"):
        tables(sparse)


def test_rows_of_more_ranks_than_names_have_digits_for_are_numbered_by_rank(tmp_path: Path) -> None:
    for rank in range(101):
        values = rows(np.arange(rank, rank + 1))
        np.savez(tmp_path / f"sparse_embeddings-{rank:02d}-of-101.npz", **{CITY: values})  # type: ignore[arg-type]
    ids, found = read(tmp_path, tmp_path, tmp_path / "sparse_embeddings-100-of-101.npz")["city"]
    np.testing.assert_array_equal(ids, np.arange(101))
    np.testing.assert_array_equal(found, rows(np.arange(101)))


def test_numbered_rows_of_two_exports_are_not_put_behind_each_other(tmp_path: Path) -> None:
    for day in ("monday", "tuesday"):
        exported(tmp_path / day)
    with pytest.raises(InvalidInput, match=r"city': it is in .*monday and in .*tuesday, and its rows are numbered"):
        tables(tmp_path)


def test_steps_of_32_bits_order_rows_that_go_through_files(tmp_path: Path) -> None:
    ids = list(range(3000))
    paths = [
        delta(tmp_path / f"{step}.parquet", step, ITEM, ids, rows(np.arange(3000), seed=step)) for step in (7, 300)
    ]
    for path in paths:
        table = pq.read_table(path)
        place = table.column_names.index("global_step")
        pq.write_table(table.set_column(place, "global_step", table.column(place).cast(pa.int32())), path)
    (table,) = tables(*paths)
    found = [block.rows.copy() for block in RowSort(table, 1 << 18, tmp_path / "scratch").blocks()]
    np.testing.assert_array_equal(np.concatenate(found), rows(np.arange(3000), seed=300))


def test_a_table_of_evictions_alone_has_the_dim_that_is_given(tmp_path: Path) -> None:
    path = delta(tmp_path / "1.parquet", 1, ITEM, [3], rows(np.array([3])), "evict")
    table = pq.read_table(path)
    nothing = pa.array([None], pa.list_(pa.float32()))
    pq.write_table(table.set_column(table.column_names.index("embedding"), "embedding", nothing), path)
    with pytest.raises(InvalidInput, match="the files hold no row of it; --dim"):
        tables(path)
    (found,) = tables(path, dims={"item": 4})
    sort = RowSort(found, 1 << 24, tmp_path)
    assert [len(block.ids) for block in sort.blocks()] == [0]
    assert (found.dim, sort.removed) == (4, 1)
    pq.write_table(
        table.set_column(table.column_names.index("table_fqn"), "table_fqn", pa.array([None], pa.string())), path
    )
    with pytest.raises(InvalidInput, match=r"1\.parquet: a row has no table_fqn"):
        tables(path)


def test_a_name_that_is_no_text_is_refused_by_file(tmp_path: Path) -> None:
    path = delta(tmp_path / "1.parquet", 1, ITEM, [3], rows(np.array([3])))
    table = pq.read_table(path)
    place = table.column_names.index("table_fqn")
    broken = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff\xfe"]).buffers())
    pq.write_table(table.set_column(place, "table_fqn", broken), path, use_dictionary=False)
    with pytest.raises(InvalidInput, match=r"1\.parquet: a table_fqn or source is no text, it is damaged"):
        tables(path)
