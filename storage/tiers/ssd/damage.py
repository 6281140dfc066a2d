"""What a store that is open finds to be wrong with its own files."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from storage.errors import CorruptStoreError


class Damage:
    """The first thing that was found. Any thread. A failing disk is no damage: what it has may be read later."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listener: Callable[[str], None] | None = None
        self._found = ""

    @property
    def found(self) -> str:
        """What is wrong, naming the file; "" as long as nothing is."""
        return self._found

    def listen(self, listener: Callable[[str], None]) -> None:
        """Has a function called once with what is found, at once if something was; on the thread that found it."""
        with self._lock:
            self._listener = listener
        if self._found:
            listener(self._found)

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Remembers a CorruptStoreError on its way."""
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
