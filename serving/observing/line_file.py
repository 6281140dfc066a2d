"""Appends lines to a file that log rotation may rename, or to standard output."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from storage.errors import ConfigError

logger = logging.getLogger("emberline.serving")

#: Stands for standard output.
STDOUT = Path("-")


class LineFile:
    """Appends to a file, which is opened anew for each write. One thread uses it.

    So the file may be renamed at any time, and the next write makes a new one: no signal is needed.
    """

    def __init__(self, path: Path, field: str) -> None:
        """Checks that it can be written. Raises ConfigError naming the field of the configuration."""
        self._path = path
        self._is_failing = False
        if path != STDOUT:
            try:
                os.close(_open(path))
            except OSError as error:
                raise ConfigError(f"{field}: cannot write {path}: {error.strerror or error}", field=field) from None

    def write(self, lines: bytes) -> bool:
        """Appends whole lines; returns whether they were written. A failure is logged once until one succeeds."""
        try:
            if self._path == STDOUT:
                _write_all(1, lines)
            else:
                file = _open(self._path)
                try:
                    _write_all(file, lines)
                finally:
                    os.close(file)
        except OSError as error:
            if not self._is_failing:
                logger.error("the log %s cannot be written: %s", self._path, error.strerror or error)
            self._is_failing = True
            return False
        self._is_failing = False
        return True


def _write_all(file: int, lines: bytes) -> None:
    left = memoryview(lines)
    while left:
        left = left[os.write(file, left) :]


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
