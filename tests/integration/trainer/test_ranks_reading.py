"""Rows that ranks read for each other: each reads a share of the blocks, and gets the rows of its own batches."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from storage.data import DataOptions, DataRows, RowBlock, Wanted
from storage.errors import InvalidInput
from storage.features import InputSpec
from tests.integration.trainer.ranks_process import run_ranks
from trainer import join_ranks
from trainer.data import Dealer, Prefetcher, RowStream, SharedReading, Split, shared_reading
from trainer.rank_group import RankGroup
from trainer.ranks import Ranks, Traffic

ROWS, GROUP_ROWS = 6000, 100
BATCH = 64
INPUTS = (
    InputSpec(name="user", dtype="INT64"),
    InputSpec(name="item", dtype="BYTES"),
    InputSpec(name="tags", dtype="BYTES", kind="list", missing="null"),
    InputSpec(name="price", dtype="FP32", missing="null"),
)


@pytest.fixture(scope="module")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes rows whose text is stored as dictionaries, and as text where it is different in each row."""
    place, rng = tmp_path_factory.mktemp("clicks"), np.random.default_rng(1)
    rows = range(ROWS)
    tags = [[f"tag {each * k % 50}" for k in range(each % 4)] if each % 7 else None for each in rows]
    table = pa.table(
        {
            "user": rows,
            "item": [f"item {each % 37}" if each % 11 else None for each in rows],
            "tags": tags,
            "price": pa.array(rng.random(ROWS), mask=rng.random(ROWS) < 0.1),
        }
    )
    pq.write_table(table, place / "clicks.parquet", row_group_size=GROUP_ROWS)
    pyarrow.csv.write_csv(table.drop_columns("tags"), place / "clicks.csv")
    return place


def _rows(path: Path) -> DataRows:
    inputs = [entry for entry in INPUTS if path.suffix == ".parquet" or entry.name != "tags"]
    return DataRows.open(path, Wanted(tuple(inputs)), DataOptions(block_rows=GROUP_ROWS, read_threads=2))


def _stream(path: Path, shuffle: int | None, ranks: Ranks) -> RowStream:
    return RowStream(_rows(path), BATCH, shuffle_rows=shuffle, seed=3, split=Split(ranks.rank, ranks.size))


def _batches(reading: SharedReading, stream: RowStream) -> Iterator[Any]:
    """Yields the batches of a rank, as a training takes them."""
    with reading, Prefetcher(reading.tables(), depth=reading.rounds) as read:
        try:
            yield from reading.permitting(stream.cut(read))
        finally:
            reading.stop()


def _compare(place: Path) -> None:
    with join_ranks() as ranks:
        group, dealer = RankGroup(ranks, Traffic()), Dealer(ranks.size)
        for name in ("clicks.parquet", "clicks.csv"):
            for shuffle, epoch, skip in ((None, 0, 0), (1, 0, 3), (450, 1, 40), (450, 2, 93), (10**6, 0, 7)):
                stream = _stream(place / name, shuffle, ranks)
                reading = SharedReading(stream, epoch, skip, group, dealer, lookahead=1)
                found = [table.to_pylist() for table in _batches(reading, stream)]
                assert found == [table.to_pylist() for table in stream.epoch(epoch, skip_batches=skip)]


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_a_rank_gets_the_rows_that_it_would_have_read_alone(clicks: Path, ranks: int) -> None:
    assert run_ranks(ranks, _compare, clicks) == [0] * ranks


def _count(place: Path, slow: int | None) -> None:
    with join_ranks() as ranks:
        read, clock = RowBlock.read, threading.local()
        taken: list[int] = []

        def now() -> float:  # in the thread that asks
            return getattr(clock, "now", 0.0)

        def counted(self: RowBlock, schema: Any) -> Any:
            taken.append(1)
            clock.now = now() + (0.02 if ranks.rank == slow else 0.004)
            return read(self, schema)

        RowBlock.read = counted  # type: ignore[method-assign]
        # The clock of this machine would say how busy it is.
        shared_reading.time = SimpleNamespace(perf_counter=now)  # type: ignore[assignment, attr-defined]
        stream = _stream(place / "clicks.parquet", 450, ranks)
        traffic = Traffic()
        reading = SharedReading(stream, 0, 0, RankGroup(ranks, traffic), Dealer(ranks.size), lookahead=1)
        assert len(list(_batches(reading, stream))) == stream.batches
        (place / f"read-{slow}-{ranks.rank}").write_text(f"{len(taken)} {traffic.sent['data']}")


@pytest.mark.parametrize(("slow", "expected"), [(None, [20, 20, 20]), (1, [26, 8, 26])])
def test_each_rank_reads_a_share_and_a_slow_one_less(clicks: Path, slow: int | None, expected: list[int]) -> None:
    assert run_ranks(3, _count, clicks, slow) == [0, 0, 0]
    found = [(clicks / f"read-{slow}-{rank}").read_text().split() for rank in range(3)]
    blocks, sent = ([int(each[place]) for each in found] for place in (0, 1))
    assert blocks == expected
    assert np.allclose(np.array(sent) / sum(sent), np.array(blocks) / sum(blocks), atol=0.02)


def _read_all(place: Path, ends: Path) -> None:
    with join_ranks() as ranks:
        stream = _stream(place, 450, ranks)
        reading = SharedReading(stream, 0, 0, RankGroup(ranks, Traffic()), Dealer(ranks.size), lookahead=1)
        try:
            for _ in _batches(reading, stream):
                pass
        except InvalidInput as error:
            (ends / str(ranks.rank)).write_text(str(error))


def test_an_error_of_one_reader_ends_all_ranks_with_what_it_says(clicks: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.parquet"
    content = bytearray((clicks / "clicks.parquet").read_bytes())
    column = pq.ParquetFile(clicks / "clicks.parquet").metadata.row_group(41).column(0)
    start = column.data_page_offset
    content[start : start + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    damaged.write_bytes(content)
    assert run_ranks(3, _read_all, damaged, tmp_path) == [0, 0, 0]
    said = {(tmp_path / str(rank)).read_text() for rank in range(3)}
    assert len(said) == 1
    assert said.pop().startswith(f"{damaged}: row group 41 cannot be read: ")


def _stop(place: Path) -> None:
    """Rank 0 goes as far as the others; each is in the middle of something when all stop."""
    with join_ranks() as ranks:
        stream = _stream(place / "clicks.parquet", 450, ranks)
        group, dealer = RankGroup(ranks, Traffic()), Dealer(ranks.size)
        for taken in (0, 1, 2, 30, stream.batches - 1, stream.batches):
            reading = SharedReading(stream, 0, 0, group, dealer, lookahead=20)
            for _, number in zip(_batches(reading, stream), range(taken), strict=False):
                time.sleep(0.01 * (ranks.rank == number % ranks.size))


def test_ranks_stop_after_the_same_batch_wherever_their_readers_are(clicks: Path) -> None:
    assert run_ranks(3, _stop, clicks) == [0, 0, 0]
