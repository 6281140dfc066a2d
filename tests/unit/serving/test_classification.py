from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.protocol.classification import MAX_CLASSES, classify, wanted_classes
from storage.errors import InvalidInput


def test_the_largest_values_come_first_with_their_places_and_labels() -> None:
    values = np.array([[0.5, 2.0, -1.0], [3.0, 3.0, 0.25]], np.float32)
    found = classify(values, 2, ["a", "b"], has_batch=True)
    assert found.tolist() == [[b"2.000000:1:b", b"0.500000:0:a"], [b"3.000000:0:a", b"3.000000:1:b"]]
    assert classify(values, 9, [], has_batch=True).shape == (2, 3)
    assert classify(values[0], 1, [], has_batch=False).tolist() == [b"2.000000:1"]


def test_an_empty_batch_has_no_classes() -> None:
    assert classify(np.zeros((0, 4), np.float32), 2, [], has_batch=True).shape == (0, 2)


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=12), st.integers(1, 12))
def test_whole_numbers_of_any_size_are_ordered_exactly(row: list[int], count: int) -> None:
    found = classify(np.array([row], np.uint64), count, [], has_batch=True)
    wanted = sorted(range(len(row)), key=lambda place: (-row[place], place))[:count]
    assert found[0].tolist() == [f"{row[place]}:{place}".encode() for place in wanted]


def test_more_classes_than_anyone_reads_are_refused() -> None:
    with pytest.raises(InvalidInput, match="at most"):
        classify(np.zeros((2, MAX_CLASSES), np.int8), MAX_CLASSES, [], has_batch=True)


@pytest.mark.parametrize(("given_count", "count"), [(None, 0), (0, 0), (3, 3), ("3", 3)])
def test_how_many_classes_are_wanted(given_count: object, count: int) -> None:
    assert wanted_classes("score", "FP32", {} if given_count is None else {"classification": given_count}) == count


@pytest.mark.parametrize("count", [-1, True, 1.5, "many", 2**31, "٣"])
def test_a_number_of_classes_that_is_none_is_refused(count: object) -> None:
    with pytest.raises(InvalidInput, match="classification must be a number"):
        wanted_classes("score", "FP32", {"classification": count})


@pytest.mark.parametrize("dtype", ["BYTES", "BOOL", "FP16"])
def test_only_numbers_are_classified(dtype: str) -> None:
    with pytest.raises(InvalidInput, match="needs numbers"):
        wanted_classes("score", dtype, {"classification": 1})
