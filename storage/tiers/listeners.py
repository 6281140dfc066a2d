"""Caches of a store's rows outside of it, such as those on GPUs: what the store tells them, and asks of them.

The store knows no such cache by its kind. Whoever makes one plugs it in, and it learns of every snapshot before it is
served, of every overlay before it is merged or discarded, and of the end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from storage.tiers.overlays import Overlay


@dataclass(frozen=True)
class Held:
    """What a listener holds: of all tables, and of each in the store's order."""

    rows: int
    bytes: int
    table_rows: Sequence[int]
    table_bytes: Sequence[int]


class SnapshotListener(Protocol):
    """A cache of the store's rows. Any thread."""

    @property
    def in_use(self) -> bool:
        """Whether it may hold rows, so that the store cannot be loaded with others."""

    def prepare(self, mask: int) -> None:
        """Gets ready to answer for a mask, before it is used. Raises StoreError for one that cannot be."""

    def retire(self, overlay: Overlay, *, merged: bool) -> None:
        """An overlay is in every snapshot from now on (merged), or in none; it is still in the store's view."""

    def held(self) -> Held:
        """What it holds now."""

    def close_all(self) -> None:
        """Ends; the store closes behind it."""


Kind = TypeVar("Kind", bound=SnapshotListener)


class SnapshotListeners:
    """The listeners of one store. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Both are replaced whole, and read without the lock.
        self._each: tuple[SnapshotListener, ...] = ()
        self._retiring: Mapping[int, bool] = {}
        self._closed = False

    def plugged(self, kind: type[Kind], make: Callable[[], Kind]) -> Kind:
        """The listener of a kind; it is made and plugged in when there is none. make: calls nothing of this object."""
        with self._lock:
            for known in self._each:
                if isinstance(known, kind):
                    return known
            made = make()
            self._each = (*self._each, made)
            if self._closed:
                made.close_all()
            return made

    @property
    def in_use(self) -> bool:
        """Whether one of them is."""
        return any(listener.in_use for listener in self._each)

    @property
    def retiring_now(self) -> Mapping[int, bool]:
        """Numbers of overlays that are in every snapshot from now on (True), or in none."""
        return self._retiring

    def prepare(self, mask: int) -> None:
        """Has each of them ready for a mask. Raises StoreError."""
        for listener in self._each:
            listener.prepare(mask)

    @contextmanager
    def retiring(self, overlay: Overlay, *, merged: bool) -> Iterator[None]:
        """While an overlay is merged or discarded: it is in every snapshot from now on, or in none.

        Who is plugged in meanwhile, or begins to hold rows, finds it in `retiring_now`.
        """
        try:
            with self._lock:
                self._retiring = {**self._retiring, overlay.number: merged}
                listeners = self._each
            for listener in listeners:
                listener.retire(overlay, merged=merged)
            yield
        finally:
            with self._lock:
                self._retiring = {number: way for number, way in self._retiring.items() if number != overlay.number}

    def held(self) -> list[Held]:
        """What each of them holds."""
        return [listener.held() for listener in self._each]

    def close_all(self) -> None:
        """Ends all of them; one that is plugged in later is ended at once."""
        with self._lock:
            self._closed = True
            listeners = self._each
        for listener in listeners:
            listener.close_all()
