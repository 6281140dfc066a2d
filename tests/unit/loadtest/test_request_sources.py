"""Requests have the ids of the data with another popularity, drift over time, and may be about one user."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from loadtest.ids import IdColumn
from loadtest.popularity import Array, Popularity, parse_popularity
from loadtest.prepared import Prepared, encode
from loadtest.rows import InputMetadata, Tensor
from loadtest.sources import RowRequests, Wanted

INPUTS = [
    InputMetadata("user", "INT64", False),
    InputMetadata("tags", "BYTES", True),
    InputMetadata("price", "FP32", False),
    InputMetadata("at", "INT64", False, column_type="timestamp"),
]
ROWS = 4000


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Rows with 1,000 users, the first of whom is the most frequent."""
    rng = np.random.default_rng(1)
    users = np.concatenate([np.zeros(500, np.int64), rng.integers(0, 1000, ROWS - 500)])
    tags = [[f"t{number}" for number in rng.integers(0, 50, rng.integers(0, 4))] for _ in range(ROWS)]
    path = tmp_path_factory.mktemp("data") / "rows.parquet"
    table = {
        "user": pa.array(users + 10**12, mask=rng.random(ROWS) < 0.01),
        "tags": tags,
        "price": rng.random(ROWS).astype(np.float32),
        "at": pa.array(rng.integers(0, 10**6, ROWS), pa.timestamp("us")),
    }
    pq.write_table(pa.table(table), path)
    return str(path)


def requests_of(data: str, seconds: float = 10.0, **wanted: object) -> list[list[list[Tensor]]]:
    source = RowRequests(data, INPUTS, Wanted(**{"items": 8, "distinct": 400, **wanted}))  # type: ignore[arg-type]
    return [list(stretch) for stretch in source.stretches(seconds)]


def users_of(requests: list[list[Tensor]]) -> Counter[int]:
    found: Counter[int] = Counter()
    for tensors in requests:
        by_name = {tensor.name: tensor.values for tensor in tensors}
        valid = by_name.get("user.valid", np.ones_like(by_name["user"], bool))
        found.update(by_name["user"][valid].tolist())
    return found


def test_rows_stay_as_they_are_and_lists_are_as_wide_as_the_longest_of_a_request(data: str) -> None:
    (requests,) = requests_of(data)
    assert len(requests) == 400
    for tensors in requests:
        by_name = {tensor.name: tensor.values for tensor in tensors}
        assert {len(values) for values in by_name.values()} == {8}
        assert by_name["tags"].shape[1] == by_name["tags.lengths"].max()
    (again,) = requests_of(data)
    for first, second in zip(requests, again, strict=True):
        for a, b in zip(first, second, strict=True):
            assert a.name == b.name
            assert np.array_equal(a.values, b.values)


def test_ids_follow_zipf_and_the_most_frequent_stays_the_hottest(data: str) -> None:
    (requests,) = requests_of(data, ids="zipf:1.5")
    counted = users_of(requests)
    weights = np.arange(1, 1001) ** -1.5
    hottest, count = counted.most_common(1)[0]
    assert hottest == 10**12
    assert count / counted.total() == pytest.approx(weights[0] / weights.sum(), rel=0.1)
    (uniform,) = requests_of(data, ids="uniform")
    assert users_of(uniform).most_common(1)[0][1] < 20
    nulls = sum(
        tensor.values.size - tensor.values.sum() for each in requests for tensor in each if tensor.name == "user.valid"
    )
    assert nulls > 0, "an id that is not there stays so"


def test_reuse_is_that_of_production(data: str) -> None:
    assert parse_popularity("reuse", 1000).name == "production reuse"
    (requests,) = requests_of(data, ids="reuse")
    assert users_of(requests).most_common(1)[0][1] > 50


@pytest.mark.parametrize("text", ["zipf:", "zipf:x", "zipf:-1", "pareto", "reuse:2"])
def test_another_popularity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected uniform, zipf"):
        parse_popularity(text, 10)


def test_hot_ids_drift_over_the_stretches_of_a_test(data: str) -> None:
    stretches = requests_of(data, 120.0, ids="zipf", drift=0.6, distinct=4800)
    assert len(stretches) == 12
    hot = [{user for user, _ in users_of(requests).most_common(20)} for requests in stretches]
    kept = [len(hot[0] & each) for each in hot]
    assert kept[1] > kept[-1], "the later, the fewer of the first hot ids are left"
    assert kept[-1] < 12
    still = requests_of(data, 120.0, ids="zipf", distinct=4800)
    assert len(still) == 1


class EachRank(Popularity):
    """Draws every rank once, in order."""

    def ranks(self, rng: np.random.Generator, count: int) -> Array:
        return np.arange(count)


@pytest.mark.parametrize("share", [0.0, 0.05, 0.5, 1.0])
def test_as_many_hot_ids_become_others_as_are_asked_for(share: float) -> None:
    count = 20_001
    ids = IdColumn(pa.array(range(count)), EachRank("each", np.ones(count)), np.random.default_rng(1))
    before = ids.draw(count).to_pylist()
    ids.drift(share)
    after = ids.draw(count).to_pylist()
    changed = sum(a != b for a, b in zip(before, after, strict=True))
    assert changed / len(before) == pytest.approx(share, abs=0.01)
    assert sorted(after) == sorted(before)


def test_many_items_of_one_user(data: str) -> None:
    (requests,) = requests_of(data, user_inputs=("user", "tags"))
    for tensors in requests:
        rows = {tensor.name: len(tensor.values) for tensor in tensors}
        assert rows["user"] == rows["tags"] == rows["tags.lengths"] == 1
        assert rows["price"] == rows["at"] == 8
    with pytest.raises(ValueError, match="--user-inputs: the model has no input 'usr'; it has user, tags, price, at"):
        requests_of(data, user_inputs=("usr",))


def test_ids_need_an_input_that_holds_some(data: str) -> None:
    with pytest.raises(ValueError, match="no input of the model holds ids"):
        RowRequests(data, [INPUTS[2], INPUTS[3]], Wanted(ids="zipf"))


@pytest.mark.parametrize("kind", ["http_binary", "http_json", "grpc"])
def test_prepared_requests_are_read_as_they_were_saved(data: str, tmp_path: Path, kind: str) -> None:
    stretches = requests_of(data, 40.0, ids="zipf", drift=0.1, distinct=40)
    prepared = encode(kind, "m", stretches, stretch_s=10.0)
    prepared.save(tmp_path / "requests")
    loaded = Prepared.load(tmp_path / "requests")
    assert loaded.count == prepared.count == 40
    assert [loaded.body(place) for place in range(40)] == [prepared.body(place) for place in range(40)]
    assert list(loaded.headers) == list(prepared.headers)
    # A request is taken from the stretch of its time, in turn, and after the last stretch the first comes again.
    assert [loaded.pick(number, 0.0) for number in (0, 9, 10)] == [0, 9, 0]
    assert [loaded.pick(3, seconds) for seconds in (0.0, 15.0, 39.9, 40.0)] == [3, 13, 33, 3]


def test_too_many_different_requests_are_refused(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadtest.prepared.MOST_BYTES", 1000)
    with pytest.raises(ValueError, match="expected at most"):
        encode("http_json", "m", requests_of(data))
