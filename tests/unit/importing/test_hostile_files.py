"""Files that would take memory without end, never end, or are other than they say: refused by name."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from storage.errors import EmberlineError, InvalidInput, UnsafeArtifact
from storage.forgetting.served_logs import is_log
from storage.importing import KINDS, FileTable, ImportOptions
from storage.importing.unpickling import read_pickle
from tests.support.importing.files import content

IDS = np.array([9, -4, 7], np.int64)
ROWS = np.arange(6, dtype=np.float32).reshape(3, 2)


def read(kind: str, path: Path, **options: Any) -> list[FileTable]:
    """Opens the tables of a path, and reads all of them."""
    tables = KINDS[kind].open([path], ImportOptions(**options))
    for table in tables:
        content(table)
    return tables


def tensors(path: Path, entries: dict[str, tuple[str, list[int], list[int]]], data: bytes) -> Path:
    """Writes a safetensors file with any header."""
    header = {name: {"dtype": d, "shape": s, "data_offsets": o} for name, (d, s, o) in entries.items()}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


@pytest.mark.parametrize(
    ("rows", "size", "said"),
    [
        ([16, 40], 40, "the tensors 'ids' and 'rows' overlap: one ends at byte 24, the other begins at 16"),
        ([32, 56], 56, "no tensor has the bytes from 24 on, and 'rows' begins at 32"),
        ([24, 48], 50, "2 bytes lie behind the last tensor"),
    ],
)
def test_tensors_that_do_not_fill_their_file_are_refused(tmp_path: Path, rows: list[int], size: int, said: str) -> None:
    entries = {"ids": ("I64", [3], [0, 24]), "rows": ("F32", [3, 2], rows)}
    with pytest.raises(UnsafeArtifact, match=f"a.safetensors: .*{said}"):
        read("safetensors", tensors(tmp_path / "a.safetensors", entries, bytes(size)))


def test_a_tensor_of_a_dtype_that_holds_no_rows_is_not_left_out(tmp_path: Path) -> None:
    torch.save(
        {"user_emb.weight": torch.ones(3, 2), "item_emb.weight": torch.ones(3, 2).to(torch.float8_e4m3fn)},
        tmp_path / "m.pt",
    )
    with pytest.raises(InvalidInput, match=r"m\.pt: the tensor 'item_emb.weight' is float8_e4m3fn, expected one of"):
        read("state-dict", tmp_path / "m.pt")
    (table,) = read("state-dict", tmp_path / "m.pt", only=("user_emb",))
    assert table.rows == 3
    entries = {"ids": ("I64", [3], [0, 24]), "rows": ("I8", [3, 2], [24, 30])}
    with pytest.raises(InvalidInput, match="the tensor 'rows' is I8, expected one of"):
        read("safetensors", tensors(tmp_path / "a.safetensors", entries, bytes(30)))


def test_a_state_dict_without_checksums_is_read_and_one_with_wrong_ones_is_not(tmp_path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        torch.save({"user_emb.weight": torch.from_numpy(ROWS)}, tmp_path / "m.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    (table,) = read("state-dict", tmp_path / "m.pt")
    np.testing.assert_array_equal(content(table)[1], ROWS)
    torch.save({"user_emb.weight": torch.from_numpy(ROWS)}, tmp_path / "m.pt")
    data = (tmp_path / "m.pt").read_bytes()
    # The number of rows, in the pickle of names and shapes.
    (tmp_path / "m.pt").write_bytes(data.replace(b"K\x03K\x02", b"K\x02K\x02"))
    with pytest.raises(InvalidInput, match=r"m\.pt: the checksum of m/data\.pkl differs"):
        read("state-dict", tmp_path / "m.pt")


def test_a_pickle_cannot_take_memory_or_time_without_end(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="an object has the number 4294967294"):
        read_pickle(b"\x80\x02}r\xfe\xff\xff\xff.", {})
    pairs = b"\x80\x02}" + b"K\x00" + b"2\x86" * 60 + b"K\x01s."
    with pytest.raises(InvalidInput, match="it stands for too many values"):
        read_pickle(pairs, {})
    copies = b"\x80\x02](" + b"N" * 1000 + b"eq\x00" + b"cbuiltins\nlist\nq\x01" + b"h\x01h\x00\x85R" * 1000 + b"."
    with pytest.raises(InvalidInput, match="its calls copy more values than it has bytes"):
        read_pickle(copies, {("builtins", "list"): list})
    nested: Any = {}
    for _ in range(60):
        nested = {"a": nested, "b": nested}
    with zipfile.ZipFile(tmp_path / "m.pt", "w") as archive:
        archive.writestr("m/data.pkl", pickle.dumps(nested, protocol=2))
    with pytest.raises(InvalidInput, match=r"m\.pt: it holds too many entries"):
        read("state-dict", tmp_path / "m.pt")


def test_an_archive_of_numpy_cannot_take_memory_without_end(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("ids.npy", b"\x93NUMPY\x02\x00" + (64 << 20).to_bytes(4, "little") + b" " * (64 << 20))
    with pytest.raises(InvalidInput, match=r"a\.npz, array 'ids': is no \.npy array: its header has 67,108,864 bytes"):
        read("numpy", tmp_path / "a.npz")
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (3, 1 << 40)})
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("rows.npy", header.getvalue())
        with archive.open("ids.npy", "w") as file:
            np.save(file, IDS)
    with pytest.raises(InvalidInput, match=r"a\.npz: rows of 1,099,511,627,776 values, expected 1 to 4,096"):
        read("numpy", tmp_path / "a.npz")


@pytest.mark.parametrize("damage", [(-60, b"\xff" * 8), (30, b"\x00" * 40), (-200, b"\x01\x00")])
def test_a_damaged_archive_is_named(tmp_path: Path, damage: tuple[int, bytes]) -> None:
    np.savez_compressed(tmp_path / "a.npz", ids=np.arange(500), rows=np.random.default_rng(0).random((500, 2)))
    data = bytearray((tmp_path / "a.npz").read_bytes())
    at = damage[0] % len(data)
    data[at : at + len(damage[1])] = damage[1]
    (tmp_path / "a.npz").write_bytes(data)
    with pytest.raises(InvalidInput, match=r"a\.npz"):
        read("numpy", tmp_path / "a.npz")


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("parquet", ("a.parquet",)),
        ("safetensors", ("a.safetensors",)),
        ("numpy", ("ids.npy", "rows.npy")),
        ("numpy", ("a.npz",)),
        ("hps", ("key", "emb_vector")),
        ("state-dict", ("a.pt",)),
        ("dcp", (".metadata",)),
        ("dynamicemb", ("t_emb_keys.rank_0.world_size_1", "t_emb_values.rank_0.world_size_1")),
        ("torcheasyrec", ("sparse_embeddings-00-of-01.npz",)),
        ("torcheasyrec", ("a.parquet",)),
        ("tf-checkpoint", ("a.index",)),
        ("tfra", ("t-keys", "t-values")),
    ],
)
def test_pipes_and_links_to_nothing_are_refused(tmp_path: Path, kind: str, names: tuple[str, ...]) -> None:
    for make in (os.mkfifo, lambda path: path.symlink_to("nowhere")):
        for name in names:
            (tmp_path / name).unlink(missing_ok=True)
            make(tmp_path / name)
        with pytest.raises(EmberlineError, match=str(tmp_path)):
            read(kind, tmp_path)
        with pytest.raises(EmberlineError, match=str(tmp_path)):
            read(kind, tmp_path / names[0])


def test_shards_behind_links_are_read_and_links_in_a_circle_end(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    IDS.tofile(tmp_path / "disk" / "t_emb_keys.rank_0.world_size_1")
    ROWS.tofile(tmp_path / "disk" / "t_emb_values.rank_0.world_size_1")
    (tmp_path / "dump").mkdir()
    (tmp_path / "dump" / "ebc").symlink_to(tmp_path / "disk")
    (tmp_path / "disk" / "up").symlink_to(tmp_path / "dump")
    (table,) = read("dynamicemb", tmp_path / "dump")
    assert table.rows == 3


def test_columns_in_a_dictionary_are_read(tmp_path: Path) -> None:
    ids = pa.array(IDS).dictionary_encode()
    rows = pa.FixedSizeListArray.from_arrays(pa.array(ROWS.reshape(-1)), 2)
    pq.write_table(pa.table({"id": ids, "row": rows}), tmp_path / "t.parquet")
    (table,) = read("parquet", tmp_path / "t.parquet")
    np.testing.assert_array_equal(content(table)[0], IDS)


def test_parquet_with_names_that_are_no_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"id": [1], "row": [[1.0]], "zzzz": [1]}), path, store_schema=False)
    path.write_bytes(path.read_bytes().replace(b"zzzz", b"\xff\xfe\xff\xfe"))
    with pytest.raises(InvalidInput, match=r"t\.parquet: is no Parquet file, or it is cut off"):
        read("parquet", path)
    assert not is_log(path)


def test_parquet_that_is_damaged_is_named(tmp_path: Path) -> None:
    rows = pa.FixedSizeListArray.from_arrays(pa.array(ROWS.reshape(-1)), 2)
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"id": IDS, "row": rows}), path, write_page_checksum=True, compression="none")
    data = bytearray(path.read_bytes())
    data[data.index(ROWS[2].tobytes())] ^= 1  # a value of a row
    path.write_bytes(data)
    with pytest.raises(InvalidInput, match=r"t\.parquet: cannot be read: .*CRC"):
        read("parquet", path)
    data[-20] ^= 255
    path.write_bytes(data)
    with pytest.raises(InvalidInput, match=r"t\.parquet: "):
        read("parquet", path)


@pytest.mark.parametrize("name", ["имя", "käse", ".hidden"])
def test_a_file_whose_name_no_table_can_have_asks_for_another(tmp_path: Path, name: str) -> None:
    np.savez(tmp_path / f"{name}.npz", ids=IDS, rows=ROWS)
    with pytest.raises(InvalidInput, match=r"a table cannot be called .*write TABLE=.*npz, or --table"):
        read("numpy", tmp_path / f"{name}.npz")
    assert read("numpy", tmp_path / f"{name}.npz", table="name")[0].name == "name"
    with pytest.raises(InvalidInput, match=r"a table cannot be called 'a\.b'"):
        read("numpy", tmp_path / f"{name}.npz", table="a.b")


def test_a_row_group_as_large_as_the_file_takes_the_memory_of_a_block(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).random((200_000, 64), np.float32)
    values = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), 64)
    pq.write_table(pa.table({"id": np.arange(len(rows)), "row": values}), tmp_path / "t.parquet", row_group_size=10**6)
    del values
    (table,) = KINDS["parquet"].open([tmp_path / "t.parquet"], ImportOptions())
    before = pa.total_allocated_bytes()
    assert max(pa.total_allocated_bytes() - before for _ in table.blocks()) < rows.nbytes
