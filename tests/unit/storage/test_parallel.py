from __future__ import annotations

import threading
from collections.abc import Generator

import pytest

from storage.parallel import map_in_order


@pytest.mark.parametrize("threads", [1, 3])
def test_results_come_in_order_and_an_error_where_its_result_would(threads: int) -> None:
    def work(number: int) -> int:
        if number == 5:
            raise ValueError("the fifth")
        return number * 10

    assert list(map_in_order(work, range(5), threads)) == [0, 10, 20, 30, 40]
    assert list(map_in_order(work, [], threads)) == []
    found = map_in_order(work, range(9), threads)
    assert [next(found) for _ in range(5)] == [0, 10, 20, 30, 40]
    with pytest.raises(ValueError, match="the fifth"):
        next(found)


def test_items_are_worked_on_together_and_not_too_far_ahead() -> None:
    together = threading.Barrier(3, timeout=30)
    begun: list[int] = []

    def work(number: int) -> int:
        begun.append(number)
        if number < 3:
            together.wait()
        return number

    found = map_in_order(work, range(100), 3)
    assert next(found) == 0
    assert max(begun) <= 3
    assert isinstance(found, Generator)
    found.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("emberline-load")]
