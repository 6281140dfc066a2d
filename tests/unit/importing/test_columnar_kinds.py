"""Parquet, safetensors and numpy files become tables, and those that cannot are refused by name."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage.checkpoint.tensors import write_tensors
from storage.errors import EmberlineError, InvalidInput
from storage.importing import KINDS, FileTable, ImportOptions
from storage.importing.arrays import as_counts
from tests.support.importing.files import content

IDS = np.array([9, -4, 2**62, 0, 7], np.int64)
ROWS = np.arange(15, dtype=np.float32).reshape(5, 3)
COUNTS = np.array([1, 0, 5, 70, 2], np.int64)


def read(kind: str, *paths: Path, **options: object) -> list[FileTable]:
    """Opens files of a kind."""
    return KINDS[kind].open([Path(path) for path in paths], ImportOptions(**options))  # type: ignore[arg-type]


def parquet(path: Path, ids: np.ndarray = IDS, rows: np.ndarray = ROWS, fixed: bool = True) -> Path:
    """Writes a Parquet file."""
    dim = rows.shape[1]
    flat = pa.array(rows.reshape(-1))
    offsets = np.arange(0, len(flat) + 1, dim, dtype=np.int32)
    lists = pa.FixedSizeListArray.from_arrays(flat, dim) if fixed else pa.ListArray.from_arrays(offsets, flat)
    pq.write_table(pa.table({"embedding": lists, "uid": ids, "n": np.resize(COUNTS, len(ids))}), path)
    return path


@pytest.mark.parametrize("fixed", [True, False])
def test_parquet_columns_become_a_table(tmp_path: Path, fixed: bool) -> None:
    path = parquet(tmp_path / "user.parquet", fixed=fixed)
    (table,) = read("parquet", path, id="uid", row="embedding", count="n")
    ids, rows, counts = content(table)
    assert (table.name, table.dim, table.rows) == ("user", 3, 5)
    np.testing.assert_array_equal(ids, IDS)
    np.testing.assert_array_equal(rows, ROWS)
    np.testing.assert_array_equal(counts, COUNTS)


@pytest.mark.parametrize(("bad", "said"), [(-3, "-3"), (np.nan, "nan")])
def test_counts_below_zero_are_refused_and_large_ones_are_the_largest(tmp_path: Path, bad: float, said: str) -> None:
    counts = np.array([0, 1e30, np.inf, 2**32 - 1, 2**33], np.float32)
    np.testing.assert_array_equal(as_counts(counts, what="t"), np.array([0, *[2**32 - 1] * 4], np.uint32))
    counts[3] = bad
    columns = {"uid": IDS, "embedding": list(ROWS), "n": counts}
    pq.write_table(pa.table(columns), tmp_path / "user.parquet")
    (table,) = read("parquet", tmp_path / "user.parquet", id="uid", row="embedding", count="n")
    with pytest.raises(InvalidInput, match=f"table 'user', .*: a count is {said}.*, expected 0 or more"):
        content(table)


def test_each_path_is_a_table_and_with_a_name_all_are_parts_of_one(tmp_path: Path) -> None:
    (tmp_path / "items").mkdir()
    first = parquet(tmp_path / "items" / "part-0.parquet")
    parquet(tmp_path / "items" / "part-1.parquet", IDS + 100)
    options = {"id": "uid", "row": "embedding"}
    two = read("parquet", tmp_path / "items", Path(f"user={first}"), **options)
    assert [(table.name, table.rows) for table in two] == [("items", 10), ("user", 5)]
    (one,) = read("parquet", first, tmp_path / "items" / "part-1.parquet", table="both", **options)
    assert len(content(one)[0]) == 10
    with pytest.raises(InvalidInput, match="are both called 'items'"):
        read("parquet", tmp_path / "items", Path(f"items={first}"), **options)


def test_safetensors_of_any_writer_become_a_table(tmp_path: Path) -> None:
    path = tmp_path / "item.safetensors"
    header = {
        "__metadata__": {"format": "pt"},
        "keys": {"dtype": "I64", "shape": [5], "data_offsets": [30, 70]},
        "vectors": {"dtype": "F16", "shape": [5, 3], "data_offsets": [0, 30]},
        "unused": {"dtype": "F8_E5M2", "shape": [2], "data_offsets": [70, 72]},
    }
    text = json.dumps(header).encode()
    body = ROWS.astype(np.float16).tobytes() + IDS.tobytes() + b"xx"
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)
    (table,) = read("safetensors", path, id="keys", row="vectors")
    ids, rows, _ = content(table)
    np.testing.assert_array_equal(ids, IDS)
    np.testing.assert_array_equal(rows, ROWS)


@pytest.mark.parametrize("packed", ["savez", "savez_compressed", "npy"])
def test_numpy_files_become_a_table(tmp_path: Path, packed: str) -> None:
    place = tmp_path / "item.npz"
    if packed == "npy":
        place = tmp_path / "item"
        place.mkdir()
        np.save(place / "ids.npy", IDS)
        np.save(place / "rows.npy", ROWS.astype(">f8"))
    else:
        getattr(np, packed)(place, ids=IDS, rows=ROWS)
    (table,) = read("numpy", place, defaults={"item": 0.25})
    ids, rows, _ = content(table)
    np.testing.assert_array_equal(ids, IDS)
    np.testing.assert_array_equal(rows, ROWS)
    assert str(table.absent) == "constant(0.25)"


def test_numpy_arrays_larger_than_a_block_are_read_in_parts(tmp_path: Path) -> None:
    ids = np.arange(2**17, dtype=np.int64)
    rows = np.repeat(ids[:, None], 64, axis=1).astype(np.float32)
    np.savez(tmp_path / "item.npz", ids=ids, rows=rows)
    (table,) = read("numpy", tmp_path / "item.npz")
    assert len(list(table.blocks())) > 1
    np.testing.assert_array_equal(content(table)[1], rows)


def _cut(path: Path, count: int) -> Path:
    path.write_bytes(path.read_bytes()[:-count])
    return path


def _numpy(path: Path, **arrays: np.ndarray) -> Path:
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return path


def _tensors(path: Path, **arrays: np.ndarray) -> Path:
    write_tensors(path, arrays)
    return path


NULLS = pa.table({"id": pa.array([1, None]), "row": pa.array([[1.0], [2.0]])})
TEXT = pa.table({"id": ["a", "b"], "row": pa.array([[1.0], [2.0]])})
RAGGED = pa.table({"id": [1, 2], "row": pa.array([[1.0, 2.0], [2.0]])})

WRONG: dict[str, Callable[[Path], tuple[str, Any, dict[str, Any], str]]] = {
    "no such column": lambda to: ("parquet", parquet(to / "a.parquet"), {}, r"there is no 'id'.*uid.*--id names it"),
    "a near name": lambda to: ("parquet", parquet(to / "a.parquet"), {"id": "uidd"}, "did you mean 'uid'"),
    "cut parquet": lambda to: ("parquet", _cut(parquet(to / "a.parquet"), 20), {}, "a.parquet: .*cut off"),
    "null id": lambda to: ("parquet", (NULLS, to / "a.parquet"), {}, "1 nulls"),
    "text": lambda to: ("parquet", (TEXT, to / "a.parquet"), {}, "string where integers were expected"),
    "ragged": lambda to: ("parquet", (RAGGED, to / "a.parquet"), {}, "the row of id 2 has 1 values, expected 2"),
    "another dim": lambda to: (
        "numpy",
        _numpy(to / "a.npz", ids=IDS, rows=ROWS),
        {"dims": {"": 4}},
        "have 3 values, expected 4",
    ),
    "lengths": lambda to: ("numpy", _numpy(to / "a.npz", ids=IDS[:4], rows=ROWS), {}, "4 ids and 5 rows"),
    "cut npz": lambda to: ("numpy", _cut(_numpy(to / "a.npz", ids=IDS, rows=ROWS), 30), {}, "a.npz: .*cut off"),
    "objects": lambda to: (
        "numpy",
        _numpy(to / "a.npz", ids=np.array([{}, {}], dtype=object), rows=ROWS[:2]),
        {},
        "Python objects",
    ),
    "fortran": lambda to: ("numpy", _numpy(to / "a.npz", ids=IDS, rows=np.asfortranarray(ROWS)), {}, "Fortran"),
    "integer rows": lambda to: ("numpy", _numpy(to / "a.npz", ids=IDS, rows=ROWS.astype(int)), {}, "rows of int64"),
    "no folder": lambda to: ("numpy", to / "none", {}, "none: there is no such file"),
    "empty folder": lambda to: ("parquet", to, {}, "no Parquet files"),
    "no safetensors": lambda to: ("safetensors", parquet(to / "a.safetensors"), {}, "is no safetensors file"),
    "cut tensors": lambda to: (
        "safetensors",
        _cut(_tensors(to / "a.safetensors", ids=IDS, rows=ROWS), 1),
        {},
        "ends behind the file, which is cut off",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_imported_is_refused_by_file_and_reason(tmp_path: Path, case: str) -> None:
    kind, given, options, said = WRONG[case](tmp_path)
    if isinstance(given, tuple):
        pq.write_table(*given)
        given = given[1]
    if case == "cut parquet":
        options = {"id": "uid", "row": "embedding"}
    with pytest.raises(EmberlineError, match=re.compile(said, re.DOTALL)):
        [content(table) for table in read(kind, given, **options)]


@pytest.mark.parametrize("name", ["имя", "", "a b", "-a"])
def test_a_name_that_no_table_can_have_is_refused(tmp_path: Path, name: str) -> None:
    np.savez(tmp_path / "user.npz", ids=IDS, rows=ROWS)
    with pytest.raises(InvalidInput, match=r"a table cannot be called"):
        KINDS["numpy"].open([Path(f"{name}={tmp_path}/user.npz")], ImportOptions())


def test_rows_of_one_number_and_shapes_below_zero_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "user.npz", ids=IDS, rows=ROWS[:, 0])
    with pytest.raises(InvalidInput, match=r"rows in .*user.npz are \[n\], expected \[n, dim\]"):
        read("numpy", tmp_path / "user.npz")
    header = str({"descr": "<i8", "fortran_order": False, "shape": (-5,)}).encode().ljust(117) + b"\n"
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "ids.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    np.save(tmp_path / "shards" / "rows.npy", ROWS[:0])
    with pytest.raises(InvalidInput, match=r"int64 \[-5\], expected numbers"):
        read("numpy", tmp_path / "shards")


def _parts(kind: str, folder: Path, names: list[str]) -> None:
    for number, name in enumerate(names):
        ids, rows = IDS + 100 * number, ROWS
        if kind == "parquet":
            parquet(folder / f"{name}.parquet", ids, rows)
        elif kind == "numpy":
            np.savez(folder / f"{name}.npz", ids=ids, rows=rows)
        else:
            tensors: dict[str, np.ndarray] = {"ids": ids, "rows": rows}
            if kind == "state-dict":
                tensors = {f"emb{number}.weight": rows}
            write_tensors(folder / f"{name}.safetensors", tensors)


@pytest.mark.parametrize("kind", ["parquet", "numpy", "safetensors", "state-dict"])
@pytest.mark.parametrize("first", [0, 1])
def test_a_missing_part_of_several_is_named(tmp_path: Path, kind: str, first: int) -> None:
    folder = tmp_path / "item"
    folder.mkdir()
    names = [f"item-{number:05d}-of-00003" for number in range(first, first + 3)]
    _parts(kind, folder, names)
    columns = {"id": "uid", "row": "embedding"} if kind == "parquet" else {}
    options = {"only": tuple(f"emb{number}" for number in range(3))} if kind == "state-dict" else columns
    assert sum(table.rows for table in read(kind, folder, **options)) == 15
    files = sorted(folder.iterdir())
    for file in (files[1], files[-1] if first == 0 else files[0]):
        data = file.read_bytes()
        file.unlink()
        with pytest.raises(InvalidInput, match=f"item: the file {file.name} is missing; by their names they are 3"):
            read(kind, folder, **options)
        file.write_bytes(data)
    files[-1 if first else 0].unlink()
    said = "item-00000-of-00003.* or item-00003-of-00003.* is missing"
    with pytest.raises(InvalidInput, match=said):
        read(kind, folder, **options)
