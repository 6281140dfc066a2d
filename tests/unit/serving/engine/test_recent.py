from __future__ import annotations

import time

import numpy as np
import pytest

from serving.engine import recent
from serving.engine.recent import ROWS_PER_REQUEST, RecentRequests
from storage.features import BytesValues, Column, FeatureEngine, FeatureSpec, column_from_lists


def numbers(values: list[int], width: int = 1) -> Column:
    return Column("INT64", len(values) // width, width, np.array(values, np.int64))


def every(max_requests: int = 100) -> RecentRequests:
    return RecentRequests(max_requests, interval_ns=0)


def test_the_last_requests_are_kept_as_copies() -> None:
    kept = every(2)
    source = np.array([1, 2], np.int64)
    for value in range(3):
        source[:] = value
        kept.record({"item": Column("INT64", 2, 1, source)}, 2)
    source[:] = 99
    assert [request.columns["item"].values.tolist() for request in kept.requests()] == [[1, 1], [2, 2]]


def test_every_kind_of_column_is_copied_whole_and_free_of_its_request() -> None:
    kept = every()
    body = np.frombuffer(b"....abcde....", np.uint8).copy()
    tags = BytesValues(body, np.array([4, 6, 6], np.int64), np.array([6, 6, 9], np.int64))
    columns = {
        "tags": Column("BYTES", 2, 1, tags, np.array([0, 1, 3], np.int64), np.array([1, 1], np.uint8)),
        "zip": Column("BYTES", 2, 1, tags.take(slice(0, 2)), None, np.array([True, False])),
        "user": numbers([7]),
        "price": Column("FP32", 2, 2, np.arange(4, dtype=np.float32)),
    }
    kept.record(columns, 2)
    body[:] = ord("x")
    copy = kept.requests()[0].columns
    assert copy["tags"].values.tolist() == [b"ab", b"", b"cde"]
    assert copy["tags"].offsets is not None
    assert copy["tags"].offsets.tolist() == [0, 1, 3]
    assert copy["tags"].values.data.nbytes == 5
    assert copy["zip"].values.tolist() == [b"ab", b""]
    assert copy["zip"].valid is not None
    assert copy["zip"].valid.tolist() == [True, False]
    assert (copy["user"].rows, copy["price"].rows, copy["price"].width) == (1, 2, 2)


def test_a_large_request_gives_its_first_rows() -> None:
    kept = every()
    lists = Column("INT64", 40, 1, np.arange(80, dtype=np.int64), np.arange(0, 81, 2, dtype=np.int64))
    kept.record({"item": numbers(list(range(40))), "history": lists, "user": numbers([5])}, 40)
    request = kept.requests()[0]
    assert request.batch == ROWS_PER_REQUEST
    assert request.columns["item"].values.tolist() == list(range(ROWS_PER_REQUEST))
    assert request.columns["history"].values.tolist() == list(range(2 * ROWS_PER_REQUEST))
    assert request.columns["user"].rows == 1


def test_rows_and_bytes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "MAX_ROWS", 10)
    kept = every()
    for _ in range(9):
        kept.record({"item": numbers([1, 2, 3])}, 3)
    assert len(kept.requests()) == 3
    monkeypatch.setattr(recent, "MAX_BYTES", 50)
    kept.record({"item": numbers([4, 5, 6])}, 3)
    assert [request.columns["item"].values.tolist() for request in kept.requests()] == [[1, 2, 3], [4, 5, 6]]


def test_a_request_that_is_large_even_so_is_left_out() -> None:
    kept = every()
    long = np.zeros(recent.MAX_REQUEST_BYTES, np.uint8)
    ends = np.array([len(long)], np.int64)
    kept.record({"text": Column("BYTES", 1, 1, BytesValues(long, np.zeros(1, np.int64), ends))}, 1)
    assert kept.requests() == []


HOUR_NS = 3_600_000_000_000


def test_every_request_is_kept_until_it_is_full_and_then_they_are_sampled_by_time() -> None:
    kept = RecentRequests(3, interval_ns=HOUR_NS)
    for item in range(4):
        assert kept.wants(time.monotonic_ns())
        kept.record({"item": numbers([item])}, 1)
    assert kept.wants(time.monotonic_ns())
    kept.record({"item": numbers([4])}, 1)
    assert not kept.wants(time.monotonic_ns())
    kept.record({"item": numbers([5])}, 1)
    assert [request.columns["item"].values.tolist() for request in kept.requests()] == [[2], [3], [4]]
    assert kept.wants(time.monotonic_ns() + HOUR_NS)


def test_requests_that_are_left_out_are_looked_at_by_time_only() -> None:
    kept = RecentRequests(3, interval_ns=HOUR_NS)
    kept.record({"item": numbers(list(range(recent.MAX_REQUEST_BYTES)))}, 1)
    assert not kept.wants(time.monotonic_ns())


def test_none_are_kept_when_none_are_asked_for() -> None:
    assert not RecentRequests(0).wants(time.monotonic_ns())


def test_features_are_kept_for_their_engine_and_made_anew_for_another() -> None:
    spec = FeatureSpec.model_validate(
        {
            "inputs": [{"name": "item", "dtype": "INT64", "kind": "list"}, {"name": "price", "dtype": "FP32"}],
            "features": [
                {"name": "item", "inputs": ["item"], "output": "ids", "table": "item", "pooling": "sum"},
                {"name": "price", "inputs": ["price"], "output": "dense"},
            ],
        }
    )
    engine, other = FeatureEngine(spec), FeatureEngine(spec)
    offsets = np.arange(0, 61, 3, dtype=np.int64)
    columns = {
        "item": Column("INT64", 20, 1, np.arange(60, dtype=np.int64), offsets),
        "price": Column("FP32", 20, 1, np.arange(20, dtype=np.float32)),
    }
    kept = every()
    kept.record(columns, 20, engine.run(columns, 20), engine)
    request = kept.requests()[0]
    own, made = request.features_of(engine), request.features_of(other)
    assert own is request.features
    assert made is not own
    assert (own.batch, made.batch) == (ROWS_PER_REQUEST, ROWS_PER_REQUEST)
    for name in own.ids:
        assert np.array_equal(own.ids[name].values, made.ids[name].values)
        assert np.array_equal(own.ids[name].offsets, made.ids[name].offsets)
    for name in own.dense:
        assert np.array_equal(own.dense[name], made.dense[name])
    assert own.ids["item"].values.base is None  # not a part of the request's own arrays


def test_a_request_that_shared_its_features_with_others_keeps_its_own() -> None:
    spec = FeatureSpec.model_validate(
        {
            "inputs": [{"name": "item", "dtype": "INT64", "kind": "list"}, {"name": "price", "dtype": "FP32"}],
            "features": [
                {"name": "item", "inputs": ["item"], "output": "ids", "table": "item", "pooling": "sum"},
                {"name": "price", "inputs": ["price"], "output": "dense"},
            ],
        }
    )
    engine = FeatureEngine(spec)
    whole = {
        "item": column_from_lists("INT64", [[1], [2, 3], [], [4, 5, 6], [7]]),
        "price": Column("FP32", 5, 1, np.arange(5, dtype=np.float32)),
    }
    own = {name: column.slice(1, 4) for name, column in whole.items()}
    kept = every()
    kept.record(own, 3, engine.run(whole, 5), engine, first_row=1)
    features = kept.requests()[0].features_of(engine)
    assert features.batch == 3
    assert features.ids["item"].values.tolist() == [2, 3, 4, 5, 6]
    assert features.ids["item"].offsets.tolist() == [0, 2, 2, 5]
    assert features.dense["dense"].ravel().tolist() == [1, 2, 3]
