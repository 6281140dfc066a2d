"""An iterator that is one item ahead of who uses it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

T = TypeVar("T")


def one_ahead(items: Iterable[T]) -> Iterator[T]:
    """The same items, each made on another thread while the one before it is used; errors come where the item would."""
    iterator = iter(items)
    with ThreadPoolExecutor(1, thread_name_prefix="emberline-ahead") as thread:

        def take() -> list[T]:
            return list(islice(iterator, 1))

        coming = thread.submit(take)
        while item := coming.result():
            coming = thread.submit(take)
            yield item[0]
