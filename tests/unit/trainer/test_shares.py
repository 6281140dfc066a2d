"""Processes that train together read the same number of batches, which hold each row once an epoch."""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage.data import DataOptions, DataRows
from storage.errors import ConfigError
from trainer.data import RowStream, Share

PAGE = Path(__file__).parents[3] / "docs" / "data.md"
ROWS = 1003
BLOCKS = DataOptions(block_rows=100)


def opened(rows: int = ROWS) -> DataRows:
    return DataRows.open(pa.table({"row": range(rows)}), None, BLOCKS)


def streams(rows: DataRows, world: int, uneven: str = "drop", shuffle: int | None = 250) -> list[RowStream]:
    return [
        RowStream(rows, 32, shuffle_rows=shuffle, seed=3, share=Share(rank, world, uneven))  # type: ignore[arg-type]
        for rank in range(world)
    ]


def read(stream: RowStream, epoch: int, skip: int = 0) -> list[list[int]]:
    return [table["row"].to_pylist() for table in stream.epoch(epoch, skip_batches=skip)]


@pytest.mark.parametrize("shuffle", [None, 1, 250, 10**6])
@pytest.mark.parametrize("world", [2, 4, 7, 12])
def test_all_processes_have_the_same_batches_and_each_row_comes_once(world: int, shuffle: int | None) -> None:
    rows = opened()
    for uneven in ("drop", "repeat"):
        for epoch in range(2):
            parts = [read(stream, epoch) for stream in streams(rows, world, uneven, shuffle)]
            sizes = [[len(batch) for batch in part] for part in parts]
            assert sizes == [sizes[0]] * world
            assert len(sizes[0]) == streams(rows, world, uneven)[0].batches
            seen = list(chain.from_iterable(chain.from_iterable(parts)))
            if uneven == "drop":
                assert len(set(seen)) == len(seen) == ROWS - ROWS % world
            else:
                assert set(seen) == set(range(ROWS))
                assert len(seen) - ROWS == -ROWS % world


def test_shares_follow_from_the_seed_and_change_by_epoch_even_of_one_block() -> None:
    rows = DataRows.open(pa.table({"row": range(90)}), None, BLOCKS)
    one, again = (streams(rows, 3)[1] for _ in range(2))
    assert read(one, 0) == read(again, 0)
    assert set(chain.from_iterable(read(one, 0))) != set(chain.from_iterable(read(one, 1)))
    alone = RowStream(rows, 32, shuffle_rows=250, seed=3)
    assert read(streams(rows, 1)[0], 0) == read(alone, 0)


@pytest.mark.parametrize("shuffle", [None, 250])
def test_a_share_goes_on_within_an_epoch_and_names_its_rows(shuffle: int | None, tmp_path: Path) -> None:
    pq.write_table(pa.table({"row": range(ROWS)}), tmp_path / "a.parquet", row_group_size=100)
    rows = DataRows.open(tmp_path / "a.parquet", None)
    stream = streams(rows, 3, "repeat", shuffle)[2]
    whole = read(stream, 1)
    assert read(stream, 1, skip=6) == whole[6:]
    assert stream.place_of(1, 6, 5).endswith(f"a.parquet: row {whole[6][5]}")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((2, 2), "rank is 2, expected 0 to 1, as world_size is 2"),
        ((-1, 2), "rank is -1"),
        ((0, 0), "world_size is 0, expected 1 or more"),
        ((0, 2, "pad"), "uneven is 'pad', expected 'drop' or 'repeat'"),
    ],
)
def test_shares_that_cannot_be_are_refused(options: tuple[int, int], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Share(*options)
    with pytest.raises(ConfigError, match="the data has 3 rows for 4 processes"):
        read(streams(opened(3), 4)[0], 0)


def test_the_example_of_the_documentation_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(code, "data.md", "exec"), {})
    assert capsys.readouterr().out == "8\n"
