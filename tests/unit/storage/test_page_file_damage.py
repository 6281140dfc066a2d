"""A page file with any byte changed, or of any other length, gives the written rows or an error that names it."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from storage._pages import ABSENT, FOUND, UNRESOLVED, CorruptPageError, PageFile, PageReader, PageWriter

ROW_BYTES = 32
IDS = np.unique(
    np.concatenate([[-(2**63), -(2**63) + 1, -1, 0, 1, 2**63 - 2, 2**63 - 1], np.arange(-3000, 3000, 37) ** 3])
).astype(np.int64)
ROWS = np.random.default_rng(1).integers(0, 256, (len(IDS), ROW_BYTES)).astype(np.uint8)
ASKED = np.concatenate([IDS, IDS[:-1] + 1, [5, -5]])
MISSING = ~np.isin(ASKED, IDS)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "t.pages"
    writer = PageWriter(str(path), table=3, row_bytes=ROW_BYTES)
    writer.append(IDS, ROWS)
    writer.finish()
    return path


def read(reader: PageReader, file: PageFile, timeout_s: float | None = None) -> tuple[np.ndarray, np.ndarray]:
    rows, states = np.full((len(ASKED), file.row_bytes), 77, np.uint8), np.full(len(ASKED), 9, np.uint8)
    reader.read([(file, ASKED, rows, states)], timeout_s)
    return rows, states


def check(rows: np.ndarray, states: np.ndarray) -> None:
    np.testing.assert_array_equal(states, np.where(MISSING, ABSENT, FOUND))
    np.testing.assert_array_equal(rows[~MISSING], ROWS[np.searchsorted(IDS, ASKED[~MISSING])])
    assert (rows[MISSING] == 77).all()


def opened_and_read(reader: PageReader, path: Path) -> str:
    """Returns what is wrong with the file, or "" when reads, the scan and the search for problems find all right."""
    try:
        file = PageFile.open(str(path))
        check(*read(reader, file))
        ids, rows = file.scan(-(2**63), len(IDS) + 10)
    except CorruptPageError as error:
        return str(error)
    np.testing.assert_array_equal(ids, IDS)
    np.testing.assert_array_equal(rows, ROWS)
    assert file.problems(0, file.pages) == []
    return ""


def test_any_byte_changed_is_found_or_harmless(written: Path) -> None:
    reader = PageReader()
    sound = written.read_bytes()
    assert opened_and_read(reader, written) == ""
    with PageFileWriter(written) as file:
        seen: dict[str, int] = {}
        for place in range(len(sound)):
            file.put(place, bytes([sound[place] ^ 0x10]))
            said = opened_and_read(reader, written)
            assert not said or str(written) in said
            # The bytes without a checksum are those that pad a sector.
            if not said:
                assert sound[place] == 0, f"byte {place} may be changed unseen"
            seen[said.partition(": ")[2][:20]] = seen.get(said.partition(": ")[2][:20], 0) + 1
            file.put(place, sound[place : place + 1])
    assert len(seen) > 4, seen  # Header, directory, filters and pages each reported damage.


def test_any_length_but_its_own_is_refused(written: Path) -> None:
    reader = PageReader()
    sound = written.read_bytes()
    for size in [*range(0, 200, 7), *range(200, len(sound), 509), len(sound) - 1, len(sound) + 1, len(sound) + 4096]:
        written.write_bytes(sound[:size] if size <= len(sound) else sound + bytes(size - len(sound)))
        assert str(written) in opened_and_read(reader, written), f"{size} bytes of {len(sound)} were taken"


def test_a_file_cut_off_while_it_is_open_is_an_error_of_its_page(written: Path) -> None:
    reader = PageReader()
    file = PageFile.open(str(written))
    with written.open("r+b") as cut:
        cut.truncate(5000)
    with pytest.raises(CorruptPageError, match=f"{written}.*page"):
        read(reader, file)


def test_pages_of_another_place_or_file_are_not_taken(tmp_path: Path, written: Path) -> None:
    other = tmp_path / "other.pages"
    writer = PageWriter(str(other), table=3, row_bytes=ROW_BYTES)
    writer.append(IDS, ROWS[::-1].copy())
    writer.finish()
    reader = PageReader()
    with PageFileWriter(written) as file:
        sound = written.read_bytes()
        file.put(4096, other.read_bytes()[4096:8192])  # The page is sound in itself, and has the same ids.
        assert "page 0" in opened_and_read(reader, written)
        file.put(4096, sound[8192:12288])
        assert "page 0" in opened_and_read(reader, written)


@pytest.mark.parametrize("io", ["auto", "threads"])
def test_many_threads_with_and_without_deadlines_read_their_own_rows(written: Path, io: str) -> None:
    reader = PageReader(io=io, depth=4, page_queues=2, threads=3)
    file = PageFile.open(str(written), direct=True)
    failures: list[BaseException] = []
    unresolved = 0

    def work(number: int) -> None:
        nonlocal unresolved
        rng = np.random.default_rng(number)
        try:
            for _ in range(60):
                timeout = [None, 0.0, float(rng.uniform(0, 3e-4))][int(rng.integers(3))]
                rows, states = read(reader, file, timeout)
                late = states == UNRESOLVED
                assert timeout is not None or not late.any()
                unresolved += int(late.sum())
                states[late] = np.where(MISSING[late], ABSENT, FOUND)
                assert (rows[late] == 77).all(), "a row was written that is not said to be there"
                rows[late & ~MISSING] = ROWS[np.searchsorted(IDS, ASKED[late & ~MISSING])]
                check(rows, states)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    assert unresolved > 0


class PageFileWriter:
    """Changes bytes of a file in place."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("r+b", buffering=0)

    def put(self, place: int, data: bytes) -> None:
        self._file.seek(place)
        self._file.write(data)

    def __enter__(self) -> PageFileWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
