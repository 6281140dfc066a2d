"""Defines how a store notifies caches of its rows that lie outside of it, such as those on GPUs.

The store does not depend on any kind of such cache. The code that makes one registers it here. The cache is then
notified of every snapshot before it is served, of every overlay before it is merged or discarded, and of the store's
closing.
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
    """The rows and bytes that a listener holds, in all and by table in the store's order."""

    rows: int
    bytes: int
    table_rows: Sequence[int]
    table_bytes: Sequence[int]


class SnapshotListener(Protocol):
    """A cache of the store's rows. Thread-safe."""

    @property
    def in_use(self) -> bool:
        """True when it may hold rows, so that the store must not be loaded with other ones."""

    def prepare(self, mask: int) -> None:
        """Prepares to answer for a mask, before it is used. Raises StoreError for an impossible mask."""

    def retire(self, overlay: Overlay, *, merged: bool) -> None:
        """Notes that an overlay is in every snapshot from now on (merged), or in none.

        The store's view still has it.
        """

    def held(self) -> Held:
        """Returns what it holds now."""

    def close_all(self) -> None:
        """Releases everything; the store closes afterwards."""


Kind = TypeVar("Kind", bound=SnapshotListener)


class SnapshotListeners:
    """Holds the listeners of one store. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Both are replaced whole, and read without the lock.
        self._each: tuple[SnapshotListener, ...] = ()
        self._retiring: Mapping[int, bool] = {}
        self._closed = False

    def plugged(self, kind: type[Kind], make: Callable[[], Kind]) -> Kind:
        """Returns the listener of a kind; makes and registers it when there is none.

        make: must not call this object.
        """
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
        """True when at least one of the listeners is in use."""
        return any(listener.in_use for listener in self._each)

    @property
    def retiring_now(self) -> Mapping[int, bool]:
        """The numbers of overlays that are in every snapshot from now on (True), or in none (False)."""
        return self._retiring

    def prepare(self, mask: int) -> None:
        """Prepares each of them for a mask. Raises StoreError."""
        for listener in self._each:
            listener.prepare(mask)

    @contextmanager
    def retiring(self, overlay: Overlay, *, merged: bool) -> Iterator[None]:
        """Notifies the listeners that an overlay is merged or discarded within the context.

        The overlay is in every snapshot from now on (merged), or in none. A listener that is registered meanwhile, or
        begins to hold rows, finds it in `retiring_now`.
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
        """Returns what each of them holds."""
        return [listener.held() for listener in self._each]

    def close_all(self) -> None:
        """Closes all of them; one that is registered later is closed at once."""
        with self._lock:
            self._closed = True
            listeners = self._each
        for listener in listeners:
            listener.close_all()
