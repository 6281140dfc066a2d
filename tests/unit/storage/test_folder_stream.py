"""A folder as a stream: each row is read once, in one order, whatever comes late, is half written or goes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.feather as pf
import pyarrow.orc as po
import pyarrow.parquet as pq
import pytest

from storage.data import BlockIndex, DataOptions, Wanted
from storage.data.streams import Position, open_stream
from storage.data.streams.folder import FolderSource
from storage.errors import ConfigError


def source(folder: Path, **options: object) -> FolderSource:
    options_of = DataOptions.model_validate(options)
    found = open_stream(folder, Wanted((), keep=("id",)), options_of, BlockIndex(folder.parent / "index"))
    assert isinstance(found, FolderSource)
    return found


def table(first: int, rows: int) -> pa.Table:
    return pa.table({"id": range(first, first + rows)})


def read(stream: FolderSource, seconds: float = 0.6) -> tuple[list[int], Position | None]:
    """Returns the ids that come until nothing does for some time, and the position behind the last."""
    found: list[int] = []
    position = None
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        piece = stream.read(100)
        if piece is None:
            time.sleep(0.02)
            continue
        found += piece.table["id"].to_pylist()
        position = piece.after(piece.table.num_rows)
    return found, position


def put(path: Path, first: int, rows: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table(first, rows), path, row_group_size=4)


def rest(path: Path) -> None:
    """Makes a file look as if it had been written some time ago."""
    os.utime(path, (time.time() - 60, time.time() - 60))


def test_files_come_in_the_order_of_their_names_and_late_ones_when_they_come(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    put(folder / "day=1" / "b.parquet", 10, 5)
    put(folder / "day=1" / "a.parquet", 0, 10)
    put(folder / "day=2" / "a.parquet", 20, 5)
    stream = source(folder)
    stream.seek(None, "earliest")
    assert read(stream)[0] == [*range(10), *range(10, 15), *range(20, 25)]
    put(folder / "day=1" / "aa.parquet", 30, 2)
    found, position = read(stream)
    assert found == [30, 31]
    assert position is not None
    assert sorted(position["done"]) == ["day=1/a.parquet", "day=1/aa.parquet", "day=1/b.parquet", "day=2/a.parquet"]


def test_it_continues_behind_any_row(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    for number in range(3):
        put(folder / f"{number}.parquet", 10 * number, 10)
    whole = source(folder)
    whole.seek(None, "earliest")
    positions: list[Position] = []
    while (piece := whole.read(100)) is not None:
        positions += [piece.after(row + 1) for row in range(piece.table.num_rows)]
    assert len(positions) == 30
    for row, position in enumerate(positions):
        resumed = source(folder)
        resumed.seek(position, "earliest")
        found = []
        while (piece := resumed.read(100)) is not None:
            found += piece.table["id"].to_pylist()
        assert found == list(range(row + 1, 30))


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("a.parquet", pq.write_table),
        ("a.orc", po.write_table),
        ("a.arrow", lambda rows, path: pf.write_feather(rows, str(path), compression="uncompressed")),
    ],
)
def test_a_file_without_its_end_is_waited_for(
    tmp_path: Path, name: str, write: Callable[[pa.Table, Path], None]
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    write(table(0, 50), tmp_path / name)
    content = (tmp_path / name).read_bytes()
    put(folder / "b.parquet", 100, 3)
    (folder / name).write_bytes(content[:-9])
    stream = source(folder)
    stream.seek(None, "earliest")
    assert read(stream)[0] == [100, 101, 102]
    assert stream.is_expecting
    (folder / name).write_bytes(content)
    assert read(stream)[0] == list(range(50))
    assert not stream.is_expecting


def test_text_is_read_when_it_has_rested_and_names_of_unfinished_files_are_left(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "old.csv").write_text("id\n1\n2\n")
    rest(folder / "old.csv")
    (folder / "new.csv").write_text("id\n3\n")
    for name in (".hidden.csv", "_SUCCESS", "x.csv.tmp", "y.parquet.part", "empty.csv"):
        (folder / name).write_text("" if name == "empty.csv" else "id\n9\n")
    (folder / "notes.pdf").write_bytes(b"%PDF")
    stream = source(folder)
    stream.seek(None, "earliest")
    assert read(stream, 0.3)[0] == [1, 2]
    assert stream.is_expecting
    rest(folder / "new.csv")
    assert read(stream)[0] == [3]
    (folder / "x.csv.tmp").rename(folder / "x.csv")
    rest(folder / "x.csv")
    assert read(stream)[0] == [9]


def test_latest_leaves_out_what_is_there(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    put(folder / "a.parquet", 0, 10)
    stream = source(folder)
    stream.seek(None, "latest")
    put(folder / "b.parquet", 10, 3)
    assert read(stream)[0] == [10, 11, 12]


def test_files_that_were_read_may_go_and_may_not_change(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    put(folder / "a.parquet", 0, 10)
    put(folder / "b.parquet", 10, 10)
    stream = source(folder)
    stream.seek(None, "earliest")
    assert len(read(stream)[0]) == 20
    (folder / "a.parquet").unlink()
    put(folder / "c.parquet", 20, 1)
    assert read(stream)[0] == [20]
    put(folder / "b.parquet", 10, 300)
    with pytest.raises(ConfigError, match=r"b\.parquet: had .* bytes when it was read, and has .* now"):
        read(stream)


def test_the_rest_of_a_file_that_is_gone_is_missed(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    put(folder / "a.parquet", 0, 10)
    stream = source(folder)
    stream.seek(None, "earliest")
    piece = stream.read(100)
    assert piece is not None
    (folder / "a.parquet").unlink()
    with pytest.raises(ConfigError, match=r"a\.parquet: 3 rows of this file .* it is gone; put it back"):
        source(folder).seek(piece.after(3), "earliest")


def test_a_damaged_file_is_an_error_or_is_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.parquet").write_bytes(b"PAR1 no footer PAR1")
    put(folder / "b.parquet", 0, 2)
    stream = source(folder)
    stream.seek(None, "earliest")
    with pytest.raises(ConfigError, match=r"a\.parquet: not a readable Parquet file"):
        read(stream)
    stream = source(folder, on_damaged="skip")
    stream.seek(None, "earliest")
    assert read(stream)[0] == [0, 1]
