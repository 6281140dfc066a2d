"""Keeps logs of successful compilations by a digest of all they depend on, so that nothing is compiled twice."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path


class KeptLogs:
    """A folder of logs. Thread-safe. compiled, found: how many `log` compiled and how many it had."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._used: set[str] = set()
        self.compiled = self.found = 0

    def log(self, parts: tuple[str | bytes, ...], compile_it: Callable[[], str]) -> str:
        """Returns the kept log, or else that of `compile_it`, whose errors are raised and not kept.

        parts: everything that the compilation depends on: sources, options, versions.
        """
        digest = hashlib.sha256()
        for part in parts:
            value = part.encode() if isinstance(part, str) else part
            digest.update(len(value).to_bytes(8, "little") + value)
        path = self._folder / f"{digest.hexdigest()}.log"
        with self._lock:
            self._used.add(path.name)
        try:
            log = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            pass
        else:
            with self._lock:
                self.found += 1
            return log
        log = compile_it()
        with self._lock:
            self.compiled += 1
        self._folder.mkdir(parents=True, exist_ok=True)
        # Renamed into place, so that an interrupted run leaves no partial log.
        part_path = path.with_suffix(f".{os.getpid()}.part")
        part_path.write_text(log, encoding="utf-8")
        part_path.rename(path)
        return log

    def prune(self) -> None:
        """Removes every log that was not requested."""
        for path in self._folder.glob("*.log"):
            if path.name not in self._used:
                path.unlink(missing_ok=True)
