"""MovieLens from a small wheel of the same layout: order, splits, and nothing that a row could not have known."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from storage.errors import IntegrityError, NotFound
from trainer.datasets import recbole_wheel
from trainer.datasets.movielens import HISTORY, movielens_table, write_movielens
from trainer.datasets.recbole_wheel import INSIDE, find_wheel

USERS, ITEMS = 5, 90


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(1)
    inter = ["user_id:token\titem_id:token\trating:float\ttimestamp:float"]
    inter += [
        f"{user}\t{item}\t{rng.integers(1, 6)}\t{880_000_000 + rng.integers(0, 60)}"
        for user in range(1, USERS + 1)
        for item in rng.permutation(ITEMS)[:80] + 1
    ]
    items = ["item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq", "1\tunknown\t\tunknown"]
    items += [f"{item}\tFilm {item}\t19{item:02}\tComedy Sci-Fi" for item in range(2, ITEMS + 1)]
    users = ["user_id:token\tage:token\tgender:token\toccupation:token\tzip_code:token"]
    users += [f"{user}\t{20 + user}\tF\twriter\t0{user}E3" for user in range(1, USERS + 1)]
    path = tmp_path_factory.mktemp("wheel") / "some.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for kind, lines in (("inter", inter), ("item", items), ("user", users)):
            archive.writestr(INSIDE + kind, "\n".join(lines) + "\n")
    return path


def test_rows_come_in_the_order_of_time_and_no_row_is_lost(wheel: Path) -> None:
    table = movielens_table(wheel)
    assert table.num_rows == USERS * 80
    assert (np.diff(table["timestamp"].to_numpy()) >= 0).all()
    assert len(set(zip(table["user"].to_pylist(), table["item"].to_pylist(), strict=True))) == USERS * 80


def test_what_came_before_is_strictly_before_and_most_recent_first(wheel: Path) -> None:
    rows = movielens_table(wheel).to_pylist()
    longest = 0
    for at in range(0, len(rows), 7):
        row = rows[at]
        earlier = [r for r in rows if r["user"] == row["user"] and r["timestamp"] < row["timestamp"]]
        assert row["rated_before"] == len(earlier)
        likes = sum(r["label"] for r in earlier)
        assert row["like_rate"] == pytest.approx((likes + 2) / (len(earlier) + 4))
        time_of = {r["item"]: r["timestamp"] for r in earlier}
        for name, label in (("history", 1), ("disliked", 0)):
            expected = {r["item"] for r in earlier if r["label"] == label}
            assert len(row[name]) == min(len(expected), HISTORY)
            assert set(row[name]) <= expected
            times = [time_of[item] for item in row[name]]
            assert times == sorted(times, reverse=True)
            longest = max(longest, len(row[name]))
    assert longest > 20


def test_labels_genres_years_and_zips_mean_what_they_say(wheel: Path) -> None:
    rows = movielens_table(wheel).to_pylist()
    assert {row["label"] for row in rows} == {0, 1}
    unknown = [row for row in rows if row["release_year"] is None]
    assert unknown
    assert all(row["genres"] == [] for row in unknown)
    assert all(row["genres"] == ["Comedy", "Sci-Fi"] for row in rows if row["release_year"] is not None)
    assert {row["zip"] for row in rows} == {f"0{user}E3" for user in range(1, USERS + 1)}


def test_the_parts_are_the_first_eighty_and_twice_ten_percent(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recbole_wheel, "_check_digest", lambda path: None)
    report = write_movielens(tmp_path / "data", cache=tmp_path / "cache", wheel=wheel)
    assert report.rows == {"train": 320, "valid": 40, "test": 40}
    assert json.loads((tmp_path / "data" / "dataset.json").read_text())["rows"] == dict(report.rows)
    assert "GroupLens" in report.facts["source"]


def test_a_wheel_with_other_bytes_is_refused(wheel: Path, tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match="sha256"):
        find_wheel(tmp_path, wheel)
    (tmp_path / recbole_wheel.WHEEL).write_bytes(b"half a download")
    with pytest.raises(IntegrityError, match="delete it and run the command again"):
        find_wheel(tmp_path)


def test_without_a_network_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # An index that is not there, as a machine without a network sees it.
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(NotFound, match="--wheel PATH"):
        find_wheel(tmp_path / "cache")
    assert not (tmp_path / "cache" / recbole_wheel.WHEEL).exists()
