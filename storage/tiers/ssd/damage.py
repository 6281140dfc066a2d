"""Remembers the damage that an open store finds in its own files."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from storage.errors import CorruptStoreError


class Damage:
    """Remembers the first damage found. Thread-safe.

    A failing disk is no damage, because its files may be read later.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listener: Callable[[str], None] | None = None
        self._found = ""

    @property
    def found(self) -> str:
        """The damage, naming the file; "" as long as none was found."""
        return self._found

    def listen(self, listener: Callable[[str], None]) -> None:
        """Registers a function to be called once with the damage, at once if there is any, else when it is found.

        It is called on the thread that finds the damage.
        """
        with self._lock:
            self._listener = listener
        if self._found:
            listener(self._found)

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Remembers a CorruptStoreError that is raised in the context."""
        try:
            yield
        except CorruptStoreError as error:
            self._note(str(error))
            raise

    def _note(self, text: str) -> None:
        with self._lock:
            first, listener = not self._found, self._listener
            self._found = self._found or text
        if first and listener is not None:
            listener(text)
