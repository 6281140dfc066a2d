"""Reports changes in the repository: at once where the system reports them (inotify), else by looking.

Only folders in which versions and deltas appear are watched, not those that they are written in: a publisher that
writes for minutes wakes nothing before its last rename.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from watchfiles._rust_notify import RustNotify

from serving.updates.catalog import numbered
from storage.checkpoint.deltas import DELTAS
from storage.threads import require_threads

logger = logging.getLogger("emberline.serving")

# Changes that come together are reported together, but nothing waits for longer than the first of these.
_GATHER_MS = 50
_QUIET_MS = 40
_AGAIN_S = 0.05
# Number of looks into the repository before watching is tried again.
_LOOKS = 30


class Watcher:
    """A thread that calls `changed` with the folders in which something changed; with none after every `poll_s`."""

    def __init__(self, root: Path, poll_s: float, changed: Callable[[set[Path]], None]) -> None:
        # What the system reports has absolute names.
        self._root = root.absolute()
        self._poll_s = poll_s
        self._changed = changed
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="emberline-watch", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        trouble = ""
        while not self._stop.is_set():
            try:
                self._watch()
            except Exception as error:
                if isinstance(error, FileNotFoundError) and self._root.is_dir():
                    # A folder disappeared between the look and the watch: what is there now is watched.
                    self._stop.wait(_AGAIN_S)
                    continue
                # No inotify instances are left, for example: looking every poll_s is enough until it works again.
                if str(error) != trouble:
                    logger.warning(
                        "%s: cannot be watched, it is looked at every %g s: %s", self._root, self._poll_s, error
                    )
                trouble = str(error)
                for _ in range(_LOOKS):
                    if self._stop.wait(self._poll_s):
                        break
                    self._changed(set())

    def _watch(self) -> None:
        folders = watched_folders(self._root)
        require_threads(f"watching {self._root}")
        # The public `watch` begins to watch only at its first wait, after the look below.
        notify = RustNotify([str(folder) for folder in sorted(folders)], False, False, 300, False, False)
        try:
            # Whatever appeared before the watch began is seen by looking once.
            self._changed(set())
            # A folder that was exchanged has another inode under the old name, which is not watched yet.
            while not self._stop.is_set() and watched_folders(self._root) == folders:
                events = notify.watch(_GATHER_MS, _QUIET_MS, int(self._poll_s * 1000), self._stop)
                if isinstance(events, set):
                    paths = [Path(path) for _, path in events]
                    # Folders that are still being written have a dot before their name.
                    if any(not path.name.startswith(".") for path in paths):
                        self._changed({path.parent for path in paths} | set(paths))
                elif events == "timeout":
                    self._changed(set())
                else:
                    return
        finally:
            notify.close()


def watched_folders(root: Path) -> dict[Path, int]:
    """Returns the folders in which models, versions and deltas appear, and the inode of each."""
    folders: dict[Path, int] = {}
    for folder in _folders(root):
        with suppress(OSError):
            folders[folder] = os.stat(folder).st_ino
    return folders


def _folders(root: Path) -> set[Path]:
    folders = {root}
    try:
        models = [entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith(".")]
    except OSError:
        return folders
    for model in models:
        try:
            numbers = numbered(model)
        except OSError:
            continue
        folders.add(model)
        for number in numbers:
            version = model / str(number)
            folders.add(version)
            if (version / DELTAS).is_dir():
                folders.add(version / DELTAS)
    return folders
