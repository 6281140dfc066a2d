"""Publishes into an object store: files first, the manifest last, and then head.json names the folder.

A number belongs to whoever wrote its claim first, so that two publishers never write the same objects. A crash at any
point leaves what nobody reads; publishing the same snapshot again finishes it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from storage.checkpoint.delta_manifest import DeltaManifest
from storage.checkpoint.deltas import DELTAS
from storage.checkpoint.manifest import Manifest
from storage.checkpoint.signed import MANIFEST
from storage.errors import CheckpointError, LineageError, NotFound, ObjectStoreError, UnsafeArtifact
from storage.objects.catalog import ModelNames
from storage.objects.head import HEAD, DeltaObject, Head, VersionObject, delta_path, needed, way_to
from storage.objects.object_store import ObjectStore, Taken
from storage.objects.urls import join

M = TypeVar("M", Manifest, DeltaManifest)

logger = logging.getLogger("emberline.storage")

CONFIG = "config.pbtxt"
#: The ids that servers answer most from (serving.repository.shared_hot_ids).
HOT_IDS_OBJECT = "hot_ids"
#: Objects of a folder that head.json names no longer stay for this long, because a slow reader may be in it.
GRACE_S = 600.0
_ATTEMPTS = 100
_UPLOADS = 4


class PublishedModel:
    """One model in an object store. Thread-safe."""

    def __init__(self, objects: ObjectStore, name: str) -> None:
        self.objects = objects
        self.name = name
        self.url = f"{objects.url}/{name}"

    def head(self) -> Head:
        """Returns what is published; an empty head before the first version. Raises ObjectStoreError."""
        try:
            found = self.look(None)
        except NotFound:
            return Head()
        assert found is not None
        return found[0]

    def look(self, tag: str | None) -> tuple[Head, str] | None:
        """Returns the head and its tag; None while it is that of `tag`. Raises NotFound before the first version."""
        found = self.objects.read(join(self.name, HEAD), unless=tag)
        return None if found is None else (self._parsed(found.data), found.tag)

    def update(self, change: Callable[[Head], Head]) -> Head:
        """Changes head.json by compare-and-swap and returns it. change: called again when another writer was first."""

        def edited(data: bytes | None) -> bytes | None:
            head = self._parsed(data)
            changed = change(head)
            if changed is head:
                return None
            return changed.model_copy(update={"generation": head.generation + 1}).to_bytes()

        return self._parsed(self.objects.edit(join(self.name, HEAD), edited))

    def claim_version(self, snapshot: str, number: int | None = None) -> int:
        """Returns the number that a new version may have. number: the only one that will do.

        Raises CheckpointError when that is taken.
        """
        least = 1
        for _ in range(_ATTEMPTS):
            head = self.head()
            if published := head.find(snapshot):
                return int(published)
            wanted = number or max(least, head.last_version + 1)
            if wanted > head.last_version and self._claim(f"{wanted}.json", snapshot):
                # Whoever had the number may have published it, and dropped its claim, since the head was read.
                if self.head().last_version < wanted and self._is_free(str(wanted), snapshot):
                    return wanted
                self._forget_claim(f"{wanted}.json")
            if number is not None:
                raise CheckpointError(
                    f"{self.url}/{number} was published before or is being published, and numbers in an object store "
                    f"only grow; choose one above {max(head.last_version, number)}, or none"
                )
            least = wanted + 1
        raise ObjectStoreError(f"{self.url}: other publishers keep taking the next number; try again")

    def _is_free(self, path: str, snapshot: str) -> bool:
        """Returns whether no other snapshot's folder is there; one may be after head.json was deleted by hand."""
        try:
            return _manifest(path, self.manifest(path)).snapshot == snapshot
        except NotFound:
            return True
        except (CheckpointError, UnsafeArtifact):
            return False

    def claim_sequence(self, version: int, snapshot: str, sequence: int) -> int:
        """Returns the sequence that a new delta of a version may have, `sequence` or a larger one."""
        for _ in range(_ATTEMPTS):
            head = self.head()
            published = head.find(snapshot)
            if published:
                return int(published.rpartition("/")[2])
            sequence = max(sequence, head.last_sequences.get(str(version), 0) + 1)
            if self._claim(f"{version}.{sequence}.json", snapshot):
                if self.head().last_sequences.get(str(version), 0) < sequence:
                    return sequence
                self._forget_claim(f"{version}.{sequence}.json")
            sequence += 1
        raise ObjectStoreError(f"{self.url}/{version}: other publishers keep taking the next sequence; try again")

    def put(self, folder: Path) -> None:
        """Uploads a version or delta of this machine's under its own number, unless it is there. See `put_version`."""
        if folder.parent.name == DELTAS:
            delta = DeltaManifest.from_bytes((folder / MANIFEST).read_bytes())
            number = self.claim_sequence(delta.version, delta.snapshot, delta.sequence)
            if number != delta.sequence:
                self._forget_claim(f"{delta.version}.{number}.json")  # the next delta may have it
                raise CheckpointError(
                    f"{self.url}: another publisher's delta {delta.version}.{delta.sequence} or a later one is there, "
                    "and a sequence is used once"
                )
            self.put_delta(folder)
        else:
            version = Manifest.from_bytes((folder / MANIFEST).read_bytes())
            self.claim_version(version.snapshot, version.version)
            self.put_version(folder)

    def put_version(self, folder: Path) -> Head:
        """Uploads a version that was published into a folder of this machine, with its model's configuration.

        Raises ObjectStoreError, CheckpointError when another one has its number.
        """
        manifest, digest = self._upload(folder, str(int(folder.name)), Manifest)
        with suppress(FileNotFoundError, Taken):  # one in the store may have been edited there
            self.objects.create(join(self.name, CONFIG), (folder.parent / CONFIG).read_bytes())
        entry = VersionObject(
            version=manifest.version, snapshot=manifest.snapshot, manifest=digest, bytes=_bytes(manifest)
        )
        head = self.update(lambda head: head.with_version(entry))
        ModelNames(self.objects).add(self.name)
        self._forget_claim(f"{manifest.version}.json")
        return head

    def put_delta(self, folder: Path, onto: str = "") -> Head:
        """Uploads a delta. See `put_version`.

        onto: the snapshot that is the newest of all before it, "" for any. Raises LineageError when another one is;
        what was uploaded is deleted then.
        """
        sequence, version = int(folder.name), int(folder.parent.parent.name)
        manifest, digest = self._upload(folder, delta_path(version, sequence), DeltaManifest)
        entry = DeltaObject(
            sequence=manifest.sequence,
            snapshot=manifest.snapshot,
            manifest=digest,
            from_sequence=0 if manifest.cumulative else manifest.from_sequence,
            bytes=_bytes(manifest),
        )

        def change(head: Head) -> Head:
            there = head.version(version)
            if there is None or there.snapshot != manifest.base:
                raise NotFound(f"{self.url}/{version} has left the store, and what was published is a delta of it")
            newest = head.newest()
            if onto and head.snapshot_of(newest) not in (onto, manifest.snapshot):
                raise LineageError(f"{self.url}/{newest} was published meanwhile")
            return head.with_delta(version, entry)

        try:
            head = self.update(change)
        except LineageError:
            prefix = join(self.name, delta_path(version, sequence))
            names = (MANIFEST, *(entry.path for entry in manifest.files))
            with suppress(ObjectStoreError):
                self.objects.delete(join(prefix, name) for name in names)
            self._forget_claim(f"{version}.{sequence}.json")
            raise
        self._forget_claim(f"{version}.{sequence}.json")
        return head

    def retain(self, line: Sequence[str], current: int, *, versions: int, deltas: int) -> None:
        """Takes older versions and deltas of one trainer out of head.json, and deletes what left it long ago.

        line: the trainer's snapshots. current: its version, which stays. versions, deltas: how many stay. What a fleet
        serves stays too, and what cannot be removed now stays until the next time.
        """
        ours = set(line)

        def change(head: Head) -> Head:
            mine = [each for each in head.versions if each.snapshot in ours]
            needs = {name: head.find(name).partition("/")[0] for name in head.served.names}
            kept = {*(each.version for each in mine[-versions:]), current, *(int(v) for v in needs.values() if v)}
            gone = [str(each.version) for each in mine if each.version not in kept]
            for each in mine:
                if each.version in kept:
                    stay = needed(each.deltas, deltas)
                    stay |= {delta.sequence for name in needs for delta in way_to(each, name)}
                    gone += [delta_path(each.version, d.sequence) for d in each.deltas if d.sequence not in stay]
            return head.without(gone, time.time_ns() // 1_000_000)

        try:
            self._delete(self.update(change), GRACE_S)
        except ObjectStoreError as error:
            logger.warning("%s: older versions and deltas stay for now: %s", self.url, error)

    def erase(self, line: Sequence[str], current: int) -> list[str]:
        """Takes all versions of one trainer but the current one out of head.json, and deletes their objects at once.

        The list of hot ids goes too: servers write it anew. What a fleet serves stays, and is returned by its path. A
        server that is reading what goes finds the newer version instead. Raises ObjectStoreError.
        """
        ours = set(line)
        stays: list[str] = []

        def change(head: Head) -> Head:
            mine = [each for each in head.versions if each.snapshot in ours and each.version != current]
            served = {head.find(name).partition("/")[0] for name in head.served.names}
            stays[:] = [str(each.version) for each in mine if str(each.version) in served]
            gone = [str(each.version) for each in mine if str(each.version) not in stays]
            return head.without(gone, time.time_ns() // 1_000_000)

        self._delete(self.update(change), 0.0)
        self.objects.delete([join(self.name, HOT_IDS_OBJECT)])
        return stays

    def manifest(self, path: str) -> bytes:
        """Returns the manifest of a folder, such as 3/deltas/000017, unchecked. Raises NotFound, ObjectStoreError."""
        found = self.objects.read(join(self.name, path, MANIFEST))
        assert found is not None
        return found.data

    def _parsed(self, data: bytes | None) -> Head:
        return Head() if data is None else Head.from_bytes(data, f"{self.url}/{HEAD}")

    def _claim(self, name: str, snapshot: str) -> bool:
        key = join(self.name, "claims", name)
        try:
            self.objects.create(key, json.dumps({"snapshot": snapshot}).encode())
        except Taken:
            try:
                found = self.objects.read(key)
                assert found is not None
                return bool(json.loads(found.data).get("snapshot") == snapshot)
            except (NotFound, ValueError, AttributeError):  # given up meanwhile, or not ours
                return False
        return True

    def _forget_claim(self, name: str) -> None:
        with suppress(ObjectStoreError):
            self.objects.delete([join(self.name, "claims", name)])

    def _upload(self, folder: Path, path: str, kind: type[M]) -> tuple[M, str]:
        """Uploads a folder unless it is complete; returns its manifest in the store, and the sha256 of that."""
        data = (folder / MANIFEST).read_bytes()
        manifest = kind.from_bytes(data)
        prefix = join(self.name, path)
        there = self._complete(prefix, manifest)
        if there is None:
            with ThreadPoolExecutor(_UPLOADS, thread_name_prefix="emberline-upload") as pool:
                names = [entry.path for entry in manifest.files]
                for _ in pool.map(lambda name: self.objects.upload(join(prefix, name), folder / name), names):
                    pass
            try:
                self.objects.create(join(prefix, MANIFEST), data)
                there = data
            except Taken:
                there = self._complete(prefix, manifest)
                if there is None:
                    raise self._other(prefix) from None
        return kind.from_bytes(there), hashlib.sha256(there).hexdigest()

    def _complete(self, prefix: str, manifest: M) -> bytes | None:
        """Returns the manifest of a folder that is complete; None when there is none.

        Written anew after a crash, a snapshot may have other golden requests: then what was complete before stays.
        Raises CheckpointError when the folder is that of another snapshot.
        """
        try:
            found = self.objects.read(join(prefix, MANIFEST))
        except NotFound:
            return None
        assert found is not None
        if found.data != manifest.to_bytes() and type(manifest).from_bytes(found.data).snapshot != manifest.snapshot:
            raise self._other(prefix)
        return found.data

    def _other(self, path: str) -> CheckpointError:
        return CheckpointError(f"{self.objects.url}/{path} holds another snapshot; what is published never changes")

    def _delete(self, head: Head, grace_s: float) -> None:
        before = time.time_ns() // 1_000_000 - int(grace_s * 1000)
        left = [each.path for each in head.leaving if each.since_unix_ms <= before]
        if not left:
            return
        for path in left:
            try:
                names = [entry.path for entry in _manifest(path, self.manifest(path)).files]
            except (NotFound, CheckpointError, UnsafeArtifact):
                names = []  # deleted before, but for the head
            self.objects.delete(join(self.name, path, name) for name in (*names, MANIFEST))
        self.update(lambda head: head.deleted(left))


def _bytes(manifest: Manifest | DeltaManifest) -> int:
    return sum(entry.size for entry in manifest.files)


def _manifest(path: str, data: bytes) -> Manifest | DeltaManifest:
    return DeltaManifest.from_bytes(data) if "/" in path else Manifest.from_bytes(data)
