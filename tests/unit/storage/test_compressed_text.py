"""Compressed text gives the rows of the text itself, read in any order, and says where it is damaged."""

from __future__ import annotations

import bz2
import errno
import gzip
import os
import pickle
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage.data import BlockIndex, DataOptions, DataRows, Wanted, compressed, convert, find_files
from storage.data.compressed import CompressedPlace
from storage.errors import ConfigError, InvalidInput, StoreError
from storage.features import InputSpec

USER = InputSpec(name="user", dtype="INT64")
CITY = InputSpec(name="city", dtype="BYTES")
BLOCKS = DataOptions(block_rows=700)
TEXT = b"user,city\n" + b"".join(b"%d,city %d\n" % (row, row * 7919 % 1000) for row in range(5000))


def packed(codec: str, data: bytes) -> bytes:
    if codec in ("gz", "bz2"):
        return gzip.compress(data) if codec == "gz" else bz2.compress(data)
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, {"zst": "zstd", "lz4": "lz4"}[codec]) as stream:
        stream.write(data)
    return bytes(sink.getvalue())


def opened(path: Path, index: BlockIndex | None = None, options: DataOptions = BLOCKS) -> DataRows:
    return DataRows.open(path, Wanted((USER, CITY), learns=True), options, index)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compressed, "_CHUNK_BYTES", 1000)


@pytest.mark.parametrize("codec", ["gz", "bz2", "zst", "lz4"])
@pytest.mark.parametrize("pack", [packed, lambda codec, data: packed(codec, data[:999]) + packed(codec, data[999:])])
def test_every_codec_gives_the_blocks_of_the_text_in_any_order(
    tmp_path: Path, codec: str, pack: Callable[[str, bytes], bytes]
) -> None:
    (tmp_path / "plain.csv").write_bytes(TEXT)
    path = tmp_path / f"rows.csv.{codec}"
    path.write_bytes(pack(codec, TEXT))
    plain = opened(tmp_path / "plain.csv")
    for index in (None, BlockIndex(tmp_path / "index")):
        rows = opened(path, index)
        assert [block.block for block in rows.blocks] == [block.block for block in plain.blocks]
        order = [*range(8), *random.Random(1).sample(range(8), 8)]
        for place in order:
            assert rows.blocks[place].read(rows.schema).equals(plain.blocks[place].read(plain.schema))
        assert rows.place_of(4999) == f"{path}: line 5001"
        again = pickle.loads(pickle.dumps(rows.blocks[3]))
        assert again.read(rows.schema).equals(plain.blocks[3].read(plain.schema))


@pytest.mark.parametrize("with_copy", [False, True])
def test_any_bytes_are_read_as_from_the_text(tmp_path: Path, with_copy: bool) -> None:
    path = tmp_path / "rows.csv.gz"
    draw = np.random.default_rng(3)
    data = draw.integers(0, 256, 10_500, dtype=np.uint8).tobytes()
    path.write_bytes(gzip.compress(data))
    (file,) = find_files(path)
    if with_copy:
        file = BlockIndex(tmp_path / "index").in_any_order(file)
    with file.place.open() as source:
        for begin, count in [
            *draw.integers(0, 11_000, (200, 2)).tolist(),
            (0, 0),
            (10_500, 5),
            (11_000, 5),
            (3000, 1000),
        ]:
            assert bytes(source.read_at(count, begin)) == data[begin : begin + count]


def test_reading_forward_decompresses_once_and_holds_few_files_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        (tmp_path / f"{number:02}.csv.gz").write_bytes(gzip.compress(TEXT))
    rows = opened(tmp_path)
    opens = 0
    real = CompressedPlace.decompressed

    def counted(place: CompressedPlace) -> object:
        nonlocal opens
        opens += 1
        return real(place)

    monkeypatch.setattr(CompressedPlace, "decompressed", counted)
    before = len(os.listdir("/proc/self/fd"))
    for block in rows.blocks:
        block.read(rows.schema)
    assert opens == 20
    assert len(os.listdir("/proc/self/fd")) <= before + 8


def test_a_copy_is_made_once_and_again_where_it_is_damaged_or_the_file_has_changed(tmp_path: Path) -> None:
    path, index = tmp_path / "rows.tsv.gz", BlockIndex(tmp_path / "index")
    path.write_bytes(gzip.compress(TEXT.replace(b",", b"\t")))
    whole = opened(path, index).read()
    (copy,) = (tmp_path / "index").glob("*.copy")
    inode = copy.stat().st_ino
    assert opened(path, index).read().equals(whole)
    assert copy.stat().st_ino == inode
    copy.write_bytes(copy.read_bytes()[:-30])
    assert opened(path, index).read().equals(whole)
    path.write_bytes(gzip.compress(b"user\tcity\n1\tBonn\n"))
    assert opened(path, index).read().to_pydict() == {"user": [1], "city": ["Bonn"]}
    index.remove_copies()
    assert {entry.suffix for entry in (tmp_path / "index").iterdir()} == {".json"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (gzip.compress(TEXT)[:-40], "a.csv.gz: not a readable CSV file: Truncated compressed stream"),
        (gzip.compress(TEXT) + b"more", "a.csv.gz: not a readable CSV file: .*incorrect header"),
        (gzip.compress(TEXT)[:-8] + bytes(8), "a.csv.gz: not a readable CSV file: .*incorrect data check"),
        (TEXT, "a.csv.gz: not a readable CSV file: .*incorrect header"),
        (gzip.compress(b""), "a.csv.gz: not a readable CSV file: no line in the first 0 bytes"),
        (b"", r"a.csv.gz: is empty \(0 bytes\)"),
    ],
    ids=["truncated", "more behind it", "other bytes", "not compressed", "nothing in it", "empty"],
)
def test_damaged_files_are_named_or_left_out(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "a.csv.gz").write_bytes(content)
    (tmp_path / "b.csv").write_bytes(TEXT)
    for index in (None, BlockIndex(tmp_path / "index")):
        with pytest.raises(ConfigError, match=words):
            opened(tmp_path, index)
        if content:
            skipping = DataOptions(on_damaged="skip")
            rows = DataRows.open([tmp_path / "a.csv.gz", tmp_path / "b.csv"], Wanted((USER,)), skipping, index)
            assert (rows.rows, len(rows.skipped)) == (5000, 1)


def test_what_is_compressed_and_no_text_is_refused_with_what_to_do(tmp_path: Path) -> None:
    for name, words in {
        "a.parquet.gz": "got a file of the kind PARQUET.GZ; unpack it",
        "a.zip": "got a file of the kind ZIP; unpack it",
        "a.tar.gz": "got a file of the kind TAR.GZ; unpack it",
        "part-0.gz": "got a file of the kind GZ; compressed text has a name that tells its format, such as a.csv.gz",
    }.items():
        path = tmp_path / name
        path.write_bytes(gzip.compress(TEXT))
        with pytest.raises(ConfigError, match=words):
            find_files(path)
    assert opened(tmp_path / "part-0.gz", options=DataOptions(format="csv")).rows == 5000
    (tmp_path / "a.csv").write_bytes(gzip.compress(TEXT))
    with pytest.raises(ConfigError, match=r"a.csv: .*is compressed, which its name does not say; call it a.csv.gz"):
        opened(tmp_path / "a.csv")


def test_a_full_disk_is_no_damaged_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(TEXT))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(compressed, "_write_end", full)
    index, options = BlockIndex(tmp_path / "index"), DataOptions(on_damaged="skip")
    with pytest.raises(
        StoreError, match=r"index: .*a.csv.gz cannot be kept there .* No space left.*; make room, or convert"
    ):
        DataRows.open(tmp_path / "a.csv.gz", Wanted((USER,)), options, index)
    assert not list((tmp_path / "index").iterdir())


def test_compressed_text_becomes_parquet_with_the_types_of_all_its_rows(tmp_path: Path) -> None:
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(TEXT))
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(TEXT + b"1.5,late\n"))
    (tmp_path / "c.libsvm.zst").write_bytes(packed("zst", b"1 3:4\n0 7:1 9:2\n"))
    for name, kind, rows in (("a.csv.gz", "int64", 5000), ("b.csv.gz", "double", 5001)):
        convert(tmp_path / name, tmp_path / "out.parquet", BLOCKS)
        table = pq.read_table(tmp_path / "out.parquet")
        assert (str(table.schema.field("user").type), table.num_rows) == (kind, rows)
    convert(tmp_path / "c.libsvm.zst", tmp_path / "out.parquet")
    assert pq.read_table(tmp_path / "out.parquet")["indices"].to_pylist() == [[3], [7, 9]]
    (tmp_path / "d.csv.gz").write_bytes(gzip.compress(TEXT + b"x,\n"))
    with pytest.raises(InvalidInput, match=r"d.csv.gz: line 5002, column 'user': 'x' is no int64"):
        convert(tmp_path / "d.csv.gz", tmp_path / "out.parquet", DataOptions(types={"user": "int64"}))
