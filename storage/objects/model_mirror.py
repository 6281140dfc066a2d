"""Brings what is new of one model from an object store into its folder: newest first, and only what a server needs.

These are the versions of the model's policy, and the fewest deltas that lead to their newest snapshots. Each comes into
the folder by one rename. What has left head.json leaves the folder.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from storage.checkpoint.deltas import DELTAS
from storage.checkpoint.signed import MANIFEST
from storage.checkpoint.versions import is_version
from storage.errors import EmberlineError, IntegrityError, NotFound, StoreError, UnsafeArtifact
from storage.objects.fetching import Fetcher, leftovers, remove
from storage.objects.head import DeltaObject, Head, VersionObject, chain, delta_path, way_to
from storage.objects.object_store import ObjectStore
from storage.objects.published import CONFIG, PublishedModel
from storage.objects.urls import join

logger = logging.getLogger("emberline.storage")

#: Returns the versions to bring, of a model's folder and the numbers that are published.
Choose = Callable[[Path, Sequence[int]], Sequence[int]]
#: Returns names of further files in a model's folder that its configuration refers to.
SideFiles = Callable[[Path], Sequence[str]]

# Seconds between looks for new models and edited configurations, which head.json does not tell.
SIDE_S = 120.0


@dataclass(frozen=True)
class MirrorStatus:
    """Says what the mirror of one model is doing."""

    #: The newest snapshot in the store, such as 3.17; "" while it is unknown.
    newest: str = ""
    #: The folder that is being brought; "" for none.
    bringing: str = ""
    done_bytes: int = 0
    total_bytes: int = 0
    #: Why the store could not be followed at the last look; "" when it could.
    error: str = ""
    #: When head.json was last read or found unchanged; 0 before the first time.
    checked_unix: float = 0.0
    #: Folders that were brought so far.
    folders: int = 0

    @property
    def text(self) -> str:
        """Says what a server waits for; "" for nothing."""
        if self.error:
            return f"the object store cannot be followed: {self.error}"
        if self.bringing:
            return f"{self.bringing} is on its way: {self.done_bytes / 1e6:,.1f} of {self.total_bytes / 1e6:,.1f} MB"
        return ""


class ModelMirror:
    """Follows one model. `look` and `bring` are each called by one thread at a time; `status` may be read by any."""

    def __init__(
        self,
        objects: ObjectStore,
        name: str,
        root: Path,
        fetcher: Fetcher,
        choose: Choose | None,
        side_files: SideFiles,
    ) -> None:
        self.status = MirrorStatus()
        self.model = PublishedModel(objects, name)
        #: What is published, as of the last look; None before the first one that succeeded.
        self.head: Head | None = None
        self._folder = root / name
        self._fetcher = fetcher
        self._choose = choose
        self._side_files = side_files
        self._tag: str | None = None
        # The head that everything is here of.
        self._brought: Head | None = None
        self._side_tags: dict[str, str] = {}
        self._side_at = -math.inf
        # Digests of the manifests of folders that are here.
        self._here: dict[str, str] = {}
        self._errors = {"look": "", "bring": ""}
        self._counting = threading.Lock()

    @property
    def not_seen(self) -> str:
        """The reason why the last `look` failed; "" when it succeeded."""
        return self._errors["look"]

    @property
    def not_brought(self) -> str:
        """The reason why the last `bring` failed; "" when it succeeded."""
        return self._errors["bring"]

    def expect_edits(self) -> None:
        """Makes the next `bring` look at the configuration too, and not only once in a while."""
        self._side_at = -math.inf

    def look(self) -> bool:
        """Asks the store once what is published; returns whether that is something else than before.

        Raises EmberlineError; then it may be called again.
        """
        try:
            found = self.model.look(self._tag)
        except NotFound:
            error = f"{self.model.url}: nothing is published there"
            self._fail("look", error)
            raise NotFound(error) from None
        except EmberlineError as error:
            self._fail("look", str(error))
            raise
        self._fail("look", "")
        self._note(checked_unix=time.time())
        if found is None:
            return False
        self.head, self._tag = found
        if self.head.versions:
            newest = self.head.versions[-1]
            self._note(newest=f"{newest.version}.{newest.deltas[-1].sequence if newest.deltas else 0}")
        return True

    def bring(self) -> None:
        """Brings what the last look found, unless it is here. Raises EmberlineError; then it may be called again."""
        head = self.head
        is_here = head is self._brought
        if head is None or (is_here and time.monotonic() - self._side_at <= SIDE_S):
            return
        try:
            self._bring_side_files()
            if head.versions:
                self._bring(head)
        except NotFound as error:
            # It was retired after head.json was read, which is another one then.
            self._tag = None
            self._fail("bring", str(error))
            raise
        except EmberlineError as error:
            self._fail("bring", str(error))
            raise
        except OSError as error:
            text = f"{self._folder}: cannot be written: {error.strerror or error}"
            self._fail("bring", text)
            raise StoreError(text) from error
        self._brought = head
        self._fail("bring", "")

    def _fail(self, what: str, error: str) -> None:
        """Notes why a look or a download failed; "" for success."""
        self._errors[what] = error
        changes = {"bringing": ""} if what == "bring" else {}
        self._note(error=self._errors["look"] or self._errors["bring"], **changes)

    def _bring(self, head: Head) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        numbers = [version.version for version in head.versions]
        chosen = set(numbers if self._choose is None else self._choose(self._folder, numbers))
        # A fleet may serve an earlier one, which a new replica needs.
        served = {head.find(name).partition("/")[0] for name in head.served.names}
        chosen |= {int(number) for number in served if number}
        failure: EmberlineError | None = None
        # What is served already goes on before a new version comes, which may take long.
        for version in sorted(head.versions, key=lambda each: (not self._is_here(each), -each.version)):
            if version.version in chosen:
                try:
                    self._bring_version(version, head.served.names)
                except (IntegrityError, NotFound, UnsafeArtifact) as error:  # of this version only
                    failure = failure or error
        if failure is not None:
            raise failure
        self._clear(head)

    def _bring_version(self, version: VersionObject, served: Sequence[str]) -> None:
        self._bring_folder(str(version.version), version.manifest, version.bytes)
        deltas: Iterable[DeltaObject] = version.deltas
        if self._choose is not None:
            wanted = {each.sequence: each for name in served for each in way_to(version, name)}
            wanted |= {each.sequence: each for each in chain(version)}
            deltas = [wanted[sequence] for sequence in sorted(wanted)]
        for delta in deltas:
            self._bring_folder(delta_path(version.version, delta.sequence), delta.manifest, delta.bytes)

    def _bring_folder(self, path: str, manifest: str, size: int) -> None:
        target = self._folder / path
        if self._digest(path) == manifest:
            return
        target.parent.mkdir(exist_ok=True)
        number, _, delta = path.partition(f"/{DELTAS}/")
        self._note(bringing=f"{number}.{int(delta or 0)}", done_bytes=0, total_bytes=size)
        self._fetcher.folder(join(self.model.name, path), manifest, target, on_bytes=self._count)
        self._here[path] = manifest
        self._note(folders=self.status.folders + 1)
        logger.info("%s: %s has come", self.model.name, self.status.bringing)

    def _is_here(self, version: VersionObject) -> bool:
        return self._digest(str(version.version)) == version.manifest

    def _digest(self, path: str) -> str:
        """Returns the digest of the manifest of a folder that is here, "" when there is none."""
        if path not in self._here:
            try:
                data = (self._folder / path / MANIFEST).read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                return ""
            self._here[path] = hashlib.sha256(data).hexdigest()
        return self._here[path]

    def _clear(self, head: Head) -> None:
        """Removes what head.json does not name any more, and downloads that were given up."""
        named = {str(each.version) for each in head.versions}
        named |= {delta_path(each.version, delta.sequence) for each in head.versions for delta in each.deltas}
        for path in self._folders():
            if path not in named:
                self._here.pop(path, None)
                remove(self._folder / path)
        for parent in (self._folder, *(self._folder / str(each.version) / DELTAS for each in head.versions)):
            for folder in leftovers(parent):
                remove(folder)

    def _folders(self) -> Iterator[str]:
        for version in sorted(self._folder.iterdir()):
            if is_version(version.name):
                yield version.name
                if (version / DELTAS).is_dir():
                    yield from sorted(
                        f"{version.name}/{DELTAS}/{delta.name}"
                        for delta in (version / DELTAS).iterdir()
                        if not delta.name.startswith(".")
                    )

    def _bring_side_files(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._bring_side_file(CONFIG)
        for name in self._side_files(self._folder):
            self._bring_side_file(name)
        self._side_at = time.monotonic()

    def _bring_side_file(self, name: str) -> None:
        path = self._folder / name
        tag = self._side_tags.get(name) if path.exists() else None
        try:
            found = self.model.objects.read(join(self.model.name, name), unless=tag)
        except NotFound:
            path.unlink(missing_ok=True)
            self._side_tags.pop(name, None)
            return
        if found is None:
            return
        if not path.exists() or path.read_bytes() != found.data:
            unfinished = path.with_name(f".{name}.part")
            unfinished.write_bytes(found.data)
            os.replace(unfinished, path)
        self._side_tags[name] = found.tag

    def _count(self, count: int) -> None:
        with self._counting:
            self.status = replace(self.status, done_bytes=self.status.done_bytes + count)

    def _note(self, **changes: object) -> None:
        with self._counting:
            self.status = replace(self.status, **changes)  # type: ignore[arg-type]
