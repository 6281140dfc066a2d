"""Provides an iterator that makes items one ahead of its caller."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

T = TypeVar("T")


def one_ahead(items: Iterable[T]) -> Iterator[T]:
    """Yields the same items, each made on another thread while the one before it is used.

    An error is raised in place of its item.
    """
    iterator = iter(items)
    with ThreadPoolExecutor(1, thread_name_prefix="emberline-ahead") as thread:

        def take() -> list[T]:
            return list(islice(iterator, 1))

        coming = thread.submit(take)
        while item := coming.result():
            coming = thread.submit(take)
            yield item[0]
