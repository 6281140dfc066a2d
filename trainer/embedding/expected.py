"""Notes gradients that are on their way from a GPU or from other ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from trainer.embedding.table import EmbeddingTable


def expect_gradients(tables: Iterable[EmbeddingTable], keep: Callable[[], None]) -> None:
    """Has `keep` called, once, when one of the tables of a lookup is asked for its gradients.

    keep: waits for the gradients and gives them to all the tables. What it holds is freed after it.
    """
    once = _Once(keep)
    for table in tables:
        table.expect_gradients(once)


class _Once:
    def __init__(self, call: Callable[[], None]) -> None:
        self._call: Callable[[], None] | None = call

    def __call__(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call()
