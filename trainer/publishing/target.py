"""Finds where a model is published: a repository folder, or the URL of an object store with a copy on this machine.

A snapshot is always written into a folder first. For a URL that folder is a copy of what is in the store, under the
user's cache; it is uploaded when it is complete. What is missing in the copy is brought from the store, so a trainer
may go on from its checkpoint on another machine.
"""

from __future__ import annotations

import fcntl
import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from storage.checkpoint import list_deltas, open_delta, open_version
from storage.checkpoint.as_of import LATEST, AsOf, find_as_of
from storage.checkpoint.deltas import DELTAS, sequence_name
from storage.checkpoint.manifest import Manifest
from storage.errors import CheckpointError, LineageError, NotFound
from storage.objects import ObjectStore, is_url, url_of
from storage.objects.fetching import Fetcher, remove
from storage.objects.head import Head, delta_path, way_to
from storage.objects.published import PublishedModel
from storage.paths import local_path
from trainer.publishing.lineage import Lineage
from trainer.publishing.policy import DeltaPolicy
from trainer.publishing.repository import find_delta, find_version, read_version, version_numbers
from trainer.publishing.retention import remove_older, retain


def copies_dir() -> Path:
    """Returns the folder of the copies of repositories in object stores."""
    return Path.home() / ".cache" / "emberline" / "publishing"


class Target:
    """A model's folder in a repository of this machine."""

    def __init__(self, model_dir: Path) -> None:
        #: The folder that snapshots are written into.
        self.model_dir = model_dir

    @staticmethod
    def of(repository: Path | str, name: str) -> Target:
        """Returns the target for a repository, a path or a URL."""
        if is_url(repository):
            return _ObjectTarget(ObjectStore(str(repository)), name)
        return Target(local_path(repository, "repository") / name)

    def bring(self, lineage: Lineage) -> None:
        """Makes the folder hold what the next snapshot is made from, and what is known to be published."""

    def snapshot(self, text: str | None = None) -> AsOf | None:
        """Returns the newest snapshot, or the one that `text` names, with all its files; None where none is published.

        text: VERSION.SEQUENCE or an id. Raises NotFound for a snapshot that is not there, CheckpointError where deltas
        behind the newest one cannot be made of what is there.
        """
        if not version_numbers(self.model_dir) and text is None:
            return None
        found = find_as_of(self.model_dir, text or LATEST, verify=False)
        left = max(list_deltas(found.version.path), default=0) if text is None else 0
        if left > found.sequence:
            found = find_as_of(self.model_dir, LATEST, verify=False)  # another publisher may just have been here
            whole = f"{found.version.version}.{found.sequence}"
            if left > found.sequence:
                raise CheckpointError(
                    f"{found.version.path}/{DELTAS}/{sequence_name(left)} changes a snapshot that is not here: a delta "
                    f"before it was removed; the last whole one is {whole}. Go on from it with from_snapshot={whole!r} "
                    "(--from), or publish a version"
                )
        return found

    def erased_unix_ms(self) -> int:
        """Returns when ids were last forgotten in what is published, as its newest version says; 0 if none were.

        Every later version has to say it too: a server may have been down since, with their rows in its store.
        """
        for number in reversed(version_numbers(self.model_dir)):
            version = read_version(self.model_dir, number)
            if version is not None:
                return version.manifest.erased_unix_ms
        return 0

    def claim_version(self, snapshot: str, number: int | None) -> int | None:
        """Returns the number that a version is to have; None for the next one that is free."""
        return number

    def claim_sequence(self, version: int, snapshot: str, sequence: int) -> int:
        """Returns the sequence that a delta is to have, at least this one."""
        return sequence

    def publish(self, folder: Path, onto: str = "") -> None:
        """Makes a snapshot that was written into the folder visible to servers; again, it changes nothing.

        onto: the snapshot that has to be the newest one before it, "" for any. Raises LineageError when it is not; what
        was written is then gone.
        """
        # No other delta can have its sequence, but a version may have come, and nobody takes it behind that one.
        newest = version_numbers(self.model_dir)[-1:]
        if onto and newest != [int(folder.parent.parent.name)]:
            remove(folder)
            raise LineageError(f"{self.model_dir}: another publisher was first with a version")

    def retain(self, lineage: Lineage, policy: DeltaPolicy) -> None:
        """Removes older versions and deltas of the lineage."""
        retain(self.model_dir, lineage, policy)

    def erase(self, lineage: Lineage, holds: Callable[[Path], bool]) -> list[str]:
        """Removes every snapshot before the newest of the lineage, a version, at once and for good.

        holds: returns whether a version of another trainer, by its folder, is to go too. Returns what has to stay for
        now, because a fleet serves it.
        """
        remove_older(self.model_dir, lineage, holds)
        return []

    def shown(self, folder: Path) -> str:
        """Returns where people find a snapshot."""
        return str(folder)


class _ObjectTarget(Target):
    def __init__(self, objects: ObjectStore, name: str) -> None:
        place = hashlib.sha256(objects.url.encode()).hexdigest()[:16]
        super().__init__(copies_dir() / place / name)
        self._model = PublishedModel(objects, name)

    def bring(self, lineage: Lineage) -> None:
        pending = lineage.pending
        unwritten = [] if pending is None else [pending.snapshot, *filter(None, [pending.compaction])]
        with self._alone():
            head = self._model.head()
            self._forget_stale(head, unwritten)
            wanted = [lineage.base, *([lineage.newest.snapshot] if lineage.newest else []), *unwritten]
            paths = {path for snapshot in wanted if snapshot and (path := head.find(snapshot))}
            # A delta lies in its version.
            paths |= {path.partition("/")[0] for path in paths}
            missing = [path for path in sorted(paths) if not (self.model_dir / path).is_dir()]
            if missing:
                self._fetch(head, missing)
        for snapshot in unwritten:
            # A crash, or a store that did not answer, may have come between writing it here and uploading it.
            if not head.find(snapshot) and (folder := self._find(snapshot)) is not None:
                self.publish(folder)

    def erased_unix_ms(self) -> int:
        versions = self._model.head().versions
        return Manifest.from_bytes(self._model.manifest(str(versions[-1].version))).erased_unix_ms if versions else 0

    def claim_version(self, snapshot: str, number: int | None) -> int | None:
        return self._model.claim_version(snapshot, number)

    def claim_sequence(self, version: int, snapshot: str, sequence: int) -> int:
        return self._model.claim_sequence(version, snapshot, sequence)

    def snapshot(self, text: str | None = None) -> AsOf | None:
        with self._alone():
            head = self._model.head()
            self._forget_stale(head, ())
            path = head.named(text) if text else head.newest()
            if not path:
                if text is None:
                    return None
                raise NotFound(f"{self._model.url}: no snapshot {text!r}; `emberline inspect` shows what there is")
            number = path.partition("/")[0]
            version = head.version(int(number))
            assert version is not None
            way = way_to(version, head.snapshot_of(path))
            paths = [number, *(delta_path(version.version, delta.sequence) for delta in way)]
            self._fetch(head, [each for each in paths if not (self.model_dir / each).is_dir()])
        opened = open_version(self.model_dir / number, verify=False)
        deltas, at = [open_delta(self.model_dir / each, verify=False) for each in paths[1:]], opened.snapshot
        for delta in deltas:
            if at not in delta.applies_to:
                raise NotFound(f"{self._model.url}/{number}: a delta on the way to {path} is gone; publish a version")
            at = delta.snapshot
        return AsOf(opened, tuple(deltas))

    def publish(self, folder: Path, onto: str = "") -> None:
        if folder.parent.name == DELTAS:
            try:
                self._model.put_delta(folder, onto)
            except LineageError:
                remove(folder)
                raise
        else:
            self._model.put_version(folder)

    def retain(self, lineage: Lineage, policy: DeltaPolicy) -> None:
        super().retain(lineage, policy)
        keep = {"versions": policy.keep_versions, "deltas": policy.keep_deltas}
        self._model.retain(lineage.line(), lineage.version, **keep)

    def erase(self, lineage: Lineage, holds: Callable[[Path], bool]) -> list[str]:
        stays = self._model.erase((*lineage.line(), *self._others_that_hold(lineage, holds)), lineage.version)
        return stays or super().erase(lineage, holds)

    def _others_that_hold(self, lineage: Lineage, holds: Callable[[Path], bool]) -> list[str]:
        """Returns the snapshots of versions of other trainers for whose folders, brought here, `holds` is true."""
        line = set(lineage.line())
        with self._alone():
            head = self._model.head()
            self._forget_stale(head, ())
            others = [each for each in head.versions if each.snapshot not in line and each.version != lineage.version]
            for each in others:
                paths = [str(each.version), *(delta_path(each.version, delta.sequence) for delta in each.deltas)]
                self._fetch(head, [path for path in paths if not (self.model_dir / path).is_dir()])
            return [each.snapshot for each in others if holds(self.model_dir / str(each.version))]

    def shown(self, folder: Path) -> str:
        return shown(self._model.objects.url, folder)

    def _fetch(self, head: Head, paths: Sequence[str]) -> None:
        fetcher = Fetcher(self._model.objects)
        try:
            for path in paths:
                (self.model_dir / path).parent.mkdir(parents=True, exist_ok=True)
                fetcher.folder(f"{self._model.name}/{path}", head.manifest_of(path), self.model_dir / path)
        finally:
            fetcher.close()

    def _find(self, snapshot: str) -> Path | None:
        version = find_version(self.model_dir, snapshot)
        if version is not None:
            return version.path
        found = (find_delta(self.model_dir / str(number), snapshot) for number in version_numbers(self.model_dir))
        return next((delta.path for delta in found if delta is not None), None)

    def _forget_stale(self, head: Head, unwritten: Sequence[str]) -> None:
        """Removes from the copy what the store has not, or has otherwise; what is about to be uploaded stays."""
        for number in version_numbers(self.model_dir):
            version = read_version(self.model_dir, number)
            published = head.version(number)
            is_same = version is not None and published is not None and version.snapshot == published.snapshot
            if not is_same and (version is None or version.snapshot not in unwritten):
                remove(self.model_dir / str(number))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keeps other publishers of this machine out of the copy while it is changed."""
        self.model_dir.mkdir(parents=True, exist_ok=True)
        with (self.model_dir / ".lock").open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def shown(repository: Path | str, folder: Path) -> str:
    """Returns where people find a snapshot of a repository. folder: that of the snapshot on this machine."""
    if not is_url(repository):
        return str(folder)
    return "/".join([url_of(repository), *folder.relative_to(copies_dir()).parts[1:]])


def check_repository(repository: Path | str) -> Path | str:
    """Returns the repository, after a look that it can be published into at the end of a long training.

    Raises ConfigError for a URL of another kind, Unsupported for a store that does not keep publishers apart,
    ObjectStoreError when it does not answer.
    """
    if not is_url(repository):
        return local_path(repository, "repository")
    ObjectStore(str(repository), retry_s=10).check_conditional_writes()
    return str(repository)
