"""Notes on disk what is being taken, so that a version or delta that ends the engine is not taken at every start.

The note is written before anything of it is read and removed when the taking has ended, however it ended. A note that
is found at a start means that the process died meanwhile, because of what it took or because somebody killed it: it is
taken once more, after everything else, and refused when the process dies again.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from serving.updates.catalog import Found
from storage.checkpoint.install import sync_directory
from storage.errors import EngineEnded, StoreError

logger = logging.getLogger("emberline.serving")

NOTE = "taking.json"
# Number of deaths of the process after which a version or delta is refused.
_MOST = 2


class Attempts:
    """The note of one model, for one version or delta at a time.

    Not thread-safe, except for `stop` and `forget`, which any thread may call.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._note = folder / NOTE
        self._name = name
        self._key, self._deaths = "", 0
        self._busy = False

    def read(self) -> None:
        """Finds out whether the process before died while it took something. Raises OSError."""
        try:
            note = json.loads(self._note.read_bytes())
            self._key, self._deaths = str(note["key"]), int(note["deaths"]) + 1
        except FileNotFoundError:
            return
        except (ValueError, KeyError, TypeError) as error:
            logger.warning("%s: cannot be read, so nothing is taken to be dangerous: %s", self._note, error)
            return
        logger.warning(
            "%s: the engine ended while it took %s (%d times)", self._name, note.get("path", self._key), self._deaths
        )

    @property
    def any(self) -> bool:
        """True if the process before died while it took something."""
        return self._deaths > 0

    def is_suspect(self, found: Found) -> bool:
        """Returns whether the process before died while it took this."""
        return self.any and found.key == self._key

    @contextmanager
    def noted(self, found: Found, again: str = "") -> Iterator[None]:
        """Keeps the note of it within the block. Raises EngineEnded for what the process died of twice, StoreError.

        again: the command that tries it again; "" for that of loading the model.
        """
        deaths = self._deaths if self.is_suspect(found) else 0
        if deaths >= _MOST:
            # The note stays, for a start that finds no other record of the refusal.
            raise EngineEnded(
                f"the engine ended {deaths} times while it took this, by lack of memory or because somebody killed it; "
                f"`{again or f'emberline load {self._name}'}` tries it again"
            )
        self._busy = True
        self._write({"key": found.key, "path": str(found.path), "deaths": deaths})
        try:
            yield
        finally:
            self._busy = False
            self.forget()

    def stop(self) -> None:
        """Removes the note of what is being taken, because the process is asked to end.

        That it ends meanwhile is nobody's fault.
        """
        if self._busy:
            self.forget()

    def forget(self) -> None:
        """Removes the note: nothing counts as dangerous any more."""
        self._key, self._deaths = "", 0
        with suppress(OSError):
            self._note.unlink(missing_ok=True)

    def _write(self, note: dict[str, object]) -> None:
        temporary = self._note.with_name(f".{NOTE}.new")
        try:
            self._note.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as file:
                file.write(json.dumps(note).encode())
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self._note)
            sync_directory(self._note.parent)
        except OSError as error:
            raise StoreError(f"writing {self._note}: {error}") from error
