"""Checkpoints that TensorFlow wrote (write_tf_checkpoints.py): embedding variables, partitions, checksums."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage._pages import crc32c
from storage.errors import EmberlineError, InvalidInput, NotFound, Unsupported
from storage.importing import KINDS, FileTable, ImportOptions
from storage.importing.tf_index import _bounded, read_index, slice_key
from tests.support.examples import examples
from tests.support.importing.files import content

SAVED = Path(__file__).parent / "tf"


def read(path: Path, **options: Any) -> list[FileTable]:
    """Opens tables."""
    return KINDS["tf-checkpoint"].open([path], ImportOptions(**options))


def expected(ids: np.ndarray, dim: int) -> np.ndarray:
    """Returns the rows that were written."""
    return (ids[:, None] % 97 + np.arange(dim)[None, :] / 8).astype(np.float32)


def test_embedding_variables_of_deeprec_keep_ids_and_frequencies() -> None:
    tables = {table.name: table for table in read(SAVED / "ev")}
    assert {name: (table.rows, table.dim) for name, table in tables.items()} == {
        "item": (3, 2),
        "user_embedding": (40, 4),
    }
    ids, rows, counts = content(tables["user_embedding"])
    np.testing.assert_array_equal(np.sort(ids), np.arange(40) * 2**40 - 7)
    np.testing.assert_array_equal(rows, expected(ids, 4))
    assert counts is not None
    assert counts[:14].tolist() == list(range(1, 15))
    assert [text.partition(":")[0] for text in tables["user_embedding"].left_out] == ["keys_filtered", "versions"]


@pytest.mark.parametrize(
    ("name", "table", "shape"),
    [("plain", "input_city_embedding_weights", (300, 4)), ("keras", "model_user_embedding", (20, 3))],
)
def test_plain_variables_are_numbered_and_their_slices_put_together(
    name: str, table: str, shape: tuple[int, int]
) -> None:
    (found,) = read(SAVED / name)
    assert (found.name, found.rows, found.dim) == (table, *shape)
    assert [text.partition(",")[0] for text in found.left_out] == (["partition_strategy"] if name == "plain" else [])
    ids, rows, _ = content(found)
    np.testing.assert_array_equal(ids, np.arange(shape[0]))
    np.testing.assert_array_equal(rows, expected(ids, shape[1]))


def test_any_tensor_of_rows_can_be_named() -> None:
    (dense,) = read(SAVED / "ev", only=("dense_kernel",))
    assert (dense.rows, dense.dim) == (4, 2)
    with pytest.raises(InvalidInput, match="did you mean 'item'"):
        read(SAVED / "ev", only=("itme",))
    with pytest.raises(NotFound, match="the checkpoints in it are: ev, keras, plain; name one"):
        read(SAVED)


@pytest.mark.parametrize(
    ("start", "length"),
    [(0, 1), (63, 64), (64, 8191), (8192, 2**20), (2**20, 2**27), (2**34, 2**41), (2**48, 2**55 - 1)],
)
def test_keys_of_slices_grow_with_their_places(start: int, length: int) -> None:
    here, next_ = ((start, length), (0, 4)), ((start + 1, length), (0, 4))
    assert slice_key("a", here) < slice_key("a", next_)


def copied(folder: Path) -> Path:
    """Returns a copy of the checkpoint of embedding variables."""
    for file in SAVED.glob("ev.*"):
        shutil.copy(file, folder)
    return folder / "ev"


def test_a_byte_that_changed_is_noticed(tmp_path: Path) -> None:
    prefix = copied(tmp_path)
    file = tmp_path / "ev.data-00000-of-00001"
    data = bytearray(file.read_bytes())
    entry = read_index(tmp_path / "ev.index").entries[b"item-values"]
    data[entry.offset + 3] ^= 1
    file.write_bytes(data)
    with pytest.raises(InvalidInput, match=r"ev\.data-00000-of-00001: the checksum of 'item-values' differs"):
        read(prefix)
    data[entry.offset + 3] ^= 1
    file.write_bytes(data[: entry.offset + 3])
    with pytest.raises(InvalidInput, match="it is cut off"):
        read(prefix)
    file.unlink()
    with pytest.raises(NotFound, match=r"ev\.data-00000-of-00001: there is no such file.* a shard is missing"):
        read(prefix)


def write_index(path: Path, entries: dict[str, bytes]) -> None:
    """Writes an index with these messages by name, as a table of one block."""

    def block(pairs: list[tuple[bytes, bytes]]) -> bytes:
        assert all(len(key) < 128 and len(value) < 128 for key, value in pairs)
        data = b"".join(bytes([0, len(key), len(value)]) + key + value for key, value in pairs)
        data += struct.pack("<II", 0, 1) + b"\x00"
        crc = crc32c(data)
        return data + struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)

    def handle(offset: int, data: bytes) -> bytes:
        size = len(data) - 5
        return bytes([offset & 127 | 128, offset >> 7, size & 127 | 128, size >> 7])

    content = block([(b"", b"\x08\x01"), *((name.encode(), entries[name]) for name in sorted(entries))])
    index = block([(b"z", handle(0, content))])
    footer = (handle(0, b"12345") + handle(len(content), index)).ljust(40, b"\x00")
    path.write_bytes(content + index + footer + struct.pack("<Q", 0xDB4775248B80FB57))


def test_an_incremental_checkpoint_of_deeprec_is_refused_as_what_it_is(tmp_path: Path) -> None:
    # Tensors of int64 [1] and float32 [1, 2].
    ids, rows = (
        b"\x08\x09\x12\x04\x12\x02\x08\x01\x28\x08",
        b"\x08\x01\x12\x08\x12\x02\x08\x01\x12\x02\x08\x02\x20\x08\x28\x08",
    )
    np.array([7], np.int64).tofile(tmp_path / "full.data-00000-of-00001")
    with (tmp_path / "full.data-00000-of-00001").open("ab") as file:
        np.ones((1, 2), np.float32).tofile(file)
    write_index(tmp_path / "full.index", {"user-keys": ids, "user-values": rows})
    (table,) = read(tmp_path / "full")
    np.testing.assert_array_equal(content(table)[0], [7])
    write_index(tmp_path / "changed.index", {"user-sparse_incr_keys": ids, "user-sparse_incr_values": rows})
    with pytest.raises(Unsupported, match=r"changed\.index: is an incremental checkpoint of DeepRec.* with --delta"):
        read(tmp_path / "changed")


@settings(max_examples=examples(200), deadline=None)
@given(data=st.data())
def test_a_damaged_index_is_refused_and_never_anything_else(
    tmp_path_factory: pytest.TempPathFactory, data: Any
) -> None:
    content = bytearray((SAVED / "ev.index").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content) - 1))
        if data.draw(st.booleans()):
            content[place] = data.draw(st.integers(0, 255))
        else:
            del content[place : place + data.draw(st.integers(1, 20))]
    path = tmp_path_factory.mktemp("damaged") / "ev.index"
    path.write_bytes(content)
    try:
        found = read_index(path)
    except EmberlineError as error:
        assert "ev.index" in str(error)  # noqa: PT017  it may also be as it was
    else:
        assert found == read_index(SAVED / "ev.index")


def message(dtype: int, *shape: int, offset: int = 0, size: int = 0) -> bytes:
    """Returns a tensor's entry of an index; numbers below 128."""
    dims = b"".join(b"\x12\x02\x08" + bytes([each]) for each in shape)
    return bytes([8, dtype, 0x12, len(dims)]) + dims + bytes([0x20, offset, 0x28, size])


def test_hash_tables_are_no_embedding_variables(tmp_path: Path) -> None:
    np.arange(12, dtype=np.float32).tofile(tmp_path / "m.data-00000-of-00001")
    write_index(
        tmp_path / "m.index",
        {
            "vocabulary-keys": message(7, 2),  # texts
            "vocabulary-values": message(9, 2),
            "numbers-keys": message(9, 1, size=8),
            "numbers-values": message(9, 1, size=8),
            "item_emb": message(1, 3, 4, size=48),
        },
    )
    (table,) = read(tmp_path / "m")
    assert (table.name, table.rows, table.dim) == ("item_emb", 3, 4)


def test_variables_whose_names_become_one_are_refused_and_not_left_out(tmp_path: Path) -> None:
    np.arange(4, dtype=np.float32).tofile(tmp_path / "m.data-00000-of-00001")
    write_index(tmp_path / "m.index", {"a/emb": message(1, 1, 4, size=16), "a_emb": message(1, 1, 2, size=8)})
    with pytest.raises(InvalidInput, match="'a/emb' and 'a_emb' would both be called 'a_emb'"):
        read(tmp_path / "m")
    options = ImportOptions(only=("a/emb",))
    (table,) = options.chosen(KINDS["tf-checkpoint"].open([tmp_path / "m"], options))
    assert (table.name, table.dim) == ("a_emb", 4)


def test_an_index_cannot_take_memory_without_end() -> None:
    pairs = ((b"k" * 1000, b"") for _ in range(1 << 20))
    with pytest.raises(InvalidInput, match="far more memory than it has bytes"):
        _bounded(pairs, 1 << 20)
