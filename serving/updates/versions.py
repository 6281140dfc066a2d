"""Opens versions again: those of the repository, and those that the store keeps.

A restart needs the version that the rows were loaded from and those whose sessions it starts. A pin or a hold may
outlast them in the repository, whose publisher deletes old ones.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from serving.updates.faults import is_machine_fault
from serving.updates.keep import KEPT_VERSIONS, NoLinks, collect, keep_version, kept_version
from storage.checkpoint import PublishedVersion, open_version
from storage.errors import EmberlineError, NotFound, StoreError

logger = logging.getLogger("emberline.serving")


class Versions:
    """The versions of one model. Thread-safe."""

    def __init__(self, folder: Path, store: Path) -> None:
        self._folder = folder
        self._store = store

    def keep(self, version: PublishedVersion) -> None:
        """Keeps a version for later, where that costs no disk space. Otherwise a restart needs it in the repository."""
        kept = kept_version(self._store, version.snapshot)
        if version.path == kept or kept.is_dir():
            return
        try:
            keep_version(version.path, kept)
        except NoLinks:
            logger.info(
                "%s: the store is on another file system, so the version is not kept there: a restart needs it here",
                version.path,
            )
        except (OSError, StoreError) as error:
            logger.warning("%s: not kept for a restart: %s", version.path, error)

    def open(self, number: int, snapshot: str = "") -> PublishedVersion:
        """Opens a version, by number, and by snapshot where that is known.

        Raises NotFound when it is gone, ReadError or OSError when it may be there, or what is wrong with it.
        """
        path = self._folder / str(number)
        failure: Exception = NotFound(f"{path} is gone, and the store does not keep it")
        try:
            published = open_version(path, verify=False)
        except (EmberlineError, OSError) as error:
            if not isinstance(error, NotFound):
                failure = error
        else:
            if snapshot in ("", published.snapshot):
                return published
        for kept in self._kept(snapshot):
            try:
                published = open_version(kept, verify=False)
            except (EmberlineError, OSError) as error:
                logger.warning("%s is kept, but cannot be read: %s", kept, error)
                if is_machine_fault(error):
                    failure = error  # it may be there after all
                continue
            if published.version == number and snapshot in ("", published.snapshot):
                return published
        raise failure

    def collect(self, wanted: Iterable[str]) -> None:
        """Deletes what is kept of all versions but those whose snapshots are `wanted`."""
        collect(self._store, wanted, KEPT_VERSIONS)

    def _kept(self, snapshot: str) -> list[Path]:
        if snapshot:
            kept = kept_version(self._store, snapshot)
            return [kept] if kept.is_dir() else []
        folder = self._store / KEPT_VERSIONS
        return sorted(path for path in folder.glob("[0-9a-f]*") if path.is_dir()) if folder.is_dir() else []
