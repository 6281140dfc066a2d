"""Rows that are fetched from their files by place come out as those that are sorted with their blocks."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.errors import InvalidInput, ReadError
from storage.importing import row_files
from storage.importing.arrays import Part, table_of_parts
from storage.importing.by_place import fits_by_place, rows_by_place
from storage.importing.files import RawArray
from storage.importing.options import ImportOptions
from storage.importing.row_files import RowFiles
from storage.importing.sorting import RowSort
from storage.importing.source import FileTable
from tests.support.examples import examples

DIM = 6
WINDOW_BYTES = 50 * 4 * DIM


def row_values(ids: np.ndarray) -> np.ndarray:
    """Returns a row for each id, (n, DIM), the same wherever the id stands."""
    return (ids[:, None] % 1009 + np.arange(DIM)[None, :] * 0.5).astype(np.float32)


def written(folder: Path, parts: list[np.ndarray], rows: list[np.ndarray] | None = None) -> FileTable:
    """Writes a table of raw files, one pair a part."""
    found = []
    for number, ids in enumerate(parts):
        values = row_values(ids) if rows is None else rows[number]
        ids.tofile(folder / f"{number}.ids")
        (folder / f"{number}.rows").write_bytes(b"head" + values.tobytes())
        held = RawArray(folder / f"{number}.rows", "float32", DIM, len(ids), 4)
        found.append(Part(f"part {number}", RawArray.of_file(folder / f"{number}.ids", "int64"), held))
    return table_of_parts("item", found, ImportOptions())


def small(table: FileTable) -> RowFiles:
    """Returns the rows of a table, of which a window has 50."""
    assert table.row_files is not None
    arrays = [RawArray(path, "float32", DIM, (path.stat().st_size - 4) // (4 * DIM), 4) for path in paths(table)]
    return RowFiles(arrays, WINDOW_BYTES)


def paths(table: FileTable) -> list[Path]:
    """Returns the files of the rows."""
    assert table.row_files is not None
    return list(dict.fromkeys(table.row_files.file_of(place) for place in range(table.rows)))


def memory_for(rows: int, per_part: int) -> int:
    """Returns the memory in which so many rows are sorted in parts."""
    return (WINDOW_BYTES + 16 * rows + 2 * per_part * 4 * DIM) * 4 // 3 + 1


@settings(max_examples=examples(40), deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.lists(st.integers(1, 400), min_size=1, max_size=4),
    spread=st.sampled_from([3, 500, 2**62]),
    per_part=st.sampled_from([1, 37, 5000]),
)
def test_rows_by_place_are_those_of_a_sort_of_the_blocks(
    tmp_path_factory: pytest.TempPathFactory, seed: int, sizes: list[int], spread: int, per_part: int
) -> None:
    random = np.random.default_rng(seed)
    folder = tmp_path_factory.mktemp("rows")
    table = written(folder, [random.integers(-spread, spread, size) for size in sizes])
    seen: list[int] = []

    blocks = [
        (block.ids.copy(), block.rows.copy(), block.repeated)
        for block in rows_by_place(table, small(table), memory_for(table.rows, per_part), seen.append)
    ]

    sort = RowSort(table, 1 << 30, folder / "scratch")
    wanted = [(block.ids, block.rows.copy()) for block in sort.blocks()]
    np.testing.assert_array_equal(np.concatenate([ids for ids, _, _ in blocks]), np.concatenate([i for i, _ in wanted]))
    np.testing.assert_array_equal(
        np.concatenate([rows for _, rows, _ in blocks]), np.concatenate([rows for _, rows in wanted])
    )
    assert sum(repeated for _, _, repeated in blocks) == table.rows - sum(len(ids) for ids, _ in wanted)
    assert sum(seen) == table.rows


def test_a_sort_takes_them_where_the_files_do_not_fit_into_its_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = np.random.default_rng(3).permutation(600_000).astype(np.int64)
    table = written(tmp_path, [ids])
    assert table.row_files is not None
    memory = 120 << 20
    assert table.row_files.size_bytes > memory // 12
    scratch = tmp_path / "scratch"
    np.testing.assert_array_equal(
        np.concatenate([block.rows.copy() for block in RowSort(table, memory, scratch).blocks()]),
        row_values(np.arange(600_000)),
    )
    assert not scratch.exists()  # nothing went through files of its own
    monkeypatch.setattr("storage.importing.by_place._available_bytes", lambda: 2 * 600_000 * 4 * DIM - 1)
    assert not fits_by_place(table.row_files, memory)


def test_two_different_rows_of_an_id_are_named_with_their_files(tmp_path: Path) -> None:
    ids = np.array([9, 4, 7], np.int64)
    other = row_values(ids)
    other[1, 0] += 1
    table = written(tmp_path, [ids, ids], [row_values(ids), other])
    with pytest.raises(InvalidInput, match=r"the id 4 has two different rows, one in .*\.rows and one in .*\.rows"):
        list(rows_by_place(table, small(table), 1 << 20, lambda rows: None))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_is_named(tmp_path: Path, value: float) -> None:
    ids = np.array([9, 4, 7], np.int64)
    rows = row_values(ids)
    rows[2, DIM - 1] = value
    table = written(tmp_path, [ids], [rows])
    with pytest.raises(
        InvalidInput, match=re.escape(f"the row of id 7 in {tmp_path / '0.rows'} holds NaN or infinity")
    ):
        list(rows_by_place(table, small(table), 1 << 20, lambda rows: None))


def test_a_file_that_became_shorter_or_is_gone_is_named(tmp_path: Path) -> None:
    table = written(tmp_path, [np.arange(200, dtype=np.int64)])
    files = small(table)
    os.truncate(tmp_path / "0.rows", 1000)
    with pytest.raises(InvalidInput, match=r"0\.rows: it has become shorter while it was read"):
        list(rows_by_place(table, files, 1 << 20, lambda rows: None))
    (tmp_path / "0.rows").unlink()
    with pytest.raises(ReadError, match=r"0\.rows: No such file"):
        list(rows_by_place(table, files, 1 << 20, lambda rows: None))


def test_a_stream_that_is_left_early_ends(tmp_path: Path) -> None:
    table = written(tmp_path, [np.arange(200, dtype=np.int64)[::-1].copy()])
    files = small(table)
    for block in rows_by_place(table, files, memory_for(200, 10), lambda rows: None):
        assert block.ids.tolist() == list(range(10))
        break


def test_only_float32_rows_that_lie_in_files_as_they_are_have_places(tmp_path: Path) -> None:
    ids = np.arange(5, dtype=np.int64)
    row_values(ids).astype(np.float16).tofile(tmp_path / "half")
    row_values(ids).tofile(tmp_path / "whole")
    whole = RawArray.of_file(tmp_path / "whole", "float32", DIM)
    assert RowFiles.of([whole]) is not None
    assert RowFiles.of([whole, RawArray.of_file(tmp_path / "half", "float16", DIM)]) is None
    assert RowFiles.of([RawArray(tmp_path / "whole", "float32", DIM, 4, 2)]) is None  # not aligned
    assert RowFiles.of([ids]) is None


def test_more_files_than_their_numbers_can_tell_apart_are_sorted_as_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_files, "_MOST_WINDOWS", 3)
    assert written(tmp_path, [np.arange(5)] * 3).row_files is not None
    (tmp_path / "more").mkdir()
    assert written(tmp_path / "more", [np.arange(5)] * 4).row_files is None
