from __future__ import annotations

import threading
from collections.abc import Generator, Iterator

import pytest

from storage.tiers.ssd.ahead import one_ahead


def test_the_next_item_is_made_while_one_is_used() -> None:
    made = [threading.Event() for _ in range(4)]

    def items() -> Iterator[int]:
        for number, event in enumerate(made):
            event.set()
            yield number

    for number in one_ahead(items()):
        assert number == 3 or made[number + 1].wait(30)
        assert number >= 2 or not made[number + 2].is_set()  # and not two


def test_nothing_is_nothing() -> None:
    assert list(one_ahead([])) == []


def test_an_error_comes_where_the_item_would() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ValueError("the second")

    found = one_ahead(items())
    assert next(found) == 1
    with pytest.raises(ValueError, match="the second"):
        next(found)


def test_who_stops_early_leaves_no_thread() -> None:
    before = threading.active_count()
    found = one_ahead(iter(range(100)))
    assert next(found) == 0
    assert isinstance(found, Generator)
    found.close()
    assert threading.active_count() == before
