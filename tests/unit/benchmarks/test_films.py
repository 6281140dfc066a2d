"""The ratings that benchmarks.films replays: any MovieLens set, in the order of time."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.films import ratings
from storage.errors import InvalidInput

_EXPECTED = [(3, 9, True, 10.0), (1, 8, False, 20.0), (2, 7, True, 20.0)]


def rows_of(data: Path, work: Path) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for row in ratings(data, work).to_pylist()]


def test_ratings_of_grouplens_and_of_the_command_are_the_same(tmp_path: Path) -> None:
    csv = tmp_path / "ratings.csv"
    csv.write_text("userId,movieId,rating,timestamp\n2,7,4.0,20\n1,8,3.5,20\n3,9,5.0,10\n")
    assert rows_of(csv, tmp_path) == _EXPECTED
    folder = tmp_path / "movielens"
    folder.mkdir()
    for number, part in enumerate(("train", "valid", "test")):
        user, item, liked, at = _EXPECTED[number]
        rating = 4.0 if liked else 2.0
        pq.write_table(
            pa.table({"user": [user], "item": [item], "rating": [rating], "timestamp": [int(at)]}),
            folder / f"{part}.parquet",
        )
    assert rows_of(folder, tmp_path) == _EXPECTED


def test_other_data_is_refused_with_what_is_expected(tmp_path: Path) -> None:
    other = tmp_path / "movies.csv"
    other.write_text("movieId,title\n1,Toy Story\n")
    with pytest.raises(InvalidInput, match=r"--data .*movies.csv: .*expected a folder of `emberline data"):
        ratings(other, tmp_path)
