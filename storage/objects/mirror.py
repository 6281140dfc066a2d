"""Keeps a folder of this machine like a repository in an object store, so that all readers of folders work unchanged.

Two threads for each model: one asks for head.json, conditionally, every `poll_s`, the other brings what is new.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from storage.errors import EmberlineError, ObjectStoreError, UnsafeArtifact
from storage.objects.catalog import ModelNames
from storage.objects.fetching import Fetcher, Pace
from storage.objects.follower import UNWATCHED, Follower, Watch
from storage.objects.mirror_folder import MirrorFolder
from storage.objects.model_mirror import SIDE_S, Choose, MirrorStatus, ModelMirror, SideFiles
from storage.objects.object_store import ObjectStore
from storage.objects.requests import Stopped, Traffic

logger = logging.getLogger("emberline.storage")

_LOOK_S = 0.1


class RepositoryMirror:
    """Follows the models of a repository, each by a thread, from `start` until `stop`. Thread-safe."""

    def __init__(
        self,
        url: str,
        root: Path,
        *,
        models: Sequence[str] = (),
        poll_s: float = 1.0,
        bytes_per_s: float | None = None,
        choose: Choose | None = lambda folder, numbers: numbers[-1:],
        side_files: SideFiles = lambda folder: (),
        watch: Watch = UNWATCHED,
        waits: bool = False,
    ) -> None:
        """models: the ones to follow; all of them when empty. choose: None brings every version and every delta.

        watch: gets what is published. waits: waits until no other process keeps the folder. Raises ConfigError for a
        folder in other use.
        """
        self._stop = threading.Event()
        self.objects = ObjectStore(url, retry_s=3.0, stop=self._stop)
        self.root = root
        self._models = tuple(dict.fromkeys(models))
        self._poll_s = poll_s
        self._watch = watch
        self._choose = choose
        self._side_files = side_files
        self._fetcher = Fetcher(self.objects, Pace(bytes_per_s), self._stop)
        self._lock = threading.Lock()
        self._mirrors: dict[str, Follower] = {}
        self._names_thread: threading.Thread | None = None
        self._place = MirrorFolder(root, self.objects.url, waits=waits)

    @property
    def traffic(self) -> Traffic:
        """Counts of what was asked of the store so far."""
        return self.objects.traffic

    def find_models(self) -> tuple[str, ...]:
        """Returns the names of the models to follow, and makes a folder for each.

        Those of an earlier run when the store does not say. Raises ObjectStoreError or UnsafeArtifact without any.
        """
        try:
            names = self._models or ModelNames(self.objects).read()
        except (ObjectStoreError, UnsafeArtifact) as error:
            names = tuple(sorted(each.name for each in self.root.iterdir() if each.is_dir()))
            if not names:
                raise
            logger.error("%s: what came before is served: %s", self.objects.url, error)
        for name in names:
            (self.root / name).mkdir(exist_ok=True)
        return names

    def start(self, names: Sequence[str]) -> None:
        """Starts to follow these models, and whatever is published beside them unless models were named."""
        for name in names:
            self._follow(name)
        if not self._models:
            self._names_thread = threading.Thread(target=self._look_for_models, name="emberline-mirror", daemon=True)
            self._names_thread.start()

    def wait_first(self, name: str) -> None:
        """Waits until what is there of a model has come for the first time, or could not, or the mirror is stopped."""
        follower = self._follower(name)
        while follower is not None and not self._stop.is_set() and not follower.tried.wait(_LOOK_S):
            pass

    def has_tried(self, name: str) -> bool:
        """Returns whether the first look at a model has ended, with or without success."""
        follower = self._follower(name)
        return follower is not None and follower.tried.is_set()

    def once(self) -> None:
        """Brings what is new of every model, without threads. Raises the first failure after all were tried."""
        failure: EmberlineError | None = None
        for name in self.find_models():
            try:
                mirror = self._new(name)
                mirror.look()
                mirror.bring()
            except EmberlineError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def give_up(self) -> None:
        """Gives up what is under way, without waiting."""
        self._stop.set()

    def stop(self) -> None:
        """Gives up what is under way and ends the threads."""
        self._stop.set()
        with self._lock:
            followers = list(self._mirrors.values())
        for follower in followers:
            follower.end()
        if self._names_thread is not None:
            self._names_thread.join()
        self._fetcher.close()
        self._place.release()

    def look(self, name: str, timeout_s: float = 60.0) -> None:
        """Looks for what is new of a model now, its configuration too, and returns when that has come, or failed."""
        follower = self._follower(name)
        if follower is not None:
            follower.look(timeout_s)
        elif not self._models:
            self._follow_new()
            self.wait_first(name)

    def check(self, name: str) -> None:
        """Looks what is published of a model, and returns when that is known, or could not be told."""
        follower = self._follower(name)
        if follower is not None:
            follower.check()

    def wake(self, name: str) -> None:
        """Looks for what is new of a model at once, without waiting for it."""
        follower = self._follower(name)
        if follower is not None:
            follower.wake()

    def statuses(self) -> Mapping[str, MirrorStatus]:
        """Returns the status of each model."""
        with self._lock:
            return {name: follower.mirror.status for name, follower in self._mirrors.items()}

    def status(self, name: str) -> MirrorStatus:
        """Returns the status of a model; an empty one for an unknown model."""
        follower = self._follower(name)
        return MirrorStatus() if follower is None else follower.mirror.status

    def not_seen(self, name: str) -> str:
        """Returns why the last look at what is published of a model failed; "" when it succeeded."""
        follower = self._follower(name)
        return "" if follower is None else follower.mirror.not_seen

    def not_brought(self, name: str) -> str:
        """Returns why what is published of a model has not come, such as a full disk; "" for no reason."""
        follower = self._follower(name)
        return "" if follower is None else follower.mirror.not_brought

    def _follower(self, name: str) -> Follower | None:
        with self._lock:
            return self._mirrors.get(name)

    def _new(self, name: str) -> ModelMirror:
        return ModelMirror(self.objects, name, self.root, self._fetcher, self._choose, self._side_files)

    def _follow(self, name: str) -> None:
        with self._lock:
            if name in self._mirrors or self._stop.is_set():
                return
            follower = self._mirrors[name] = Follower(self._new(name), name, self._poll_s, self._stop, self._watch)
        follower.start()

    def _look_for_models(self) -> None:
        while not self._stop.wait(SIDE_S):
            self._follow_new()

    def _follow_new(self) -> None:
        try:
            for name in ModelNames(self.objects).read():
                (self.root / name).mkdir(exist_ok=True)
                self._follow(name)
        except Stopped:
            return
        except (EmberlineError, OSError) as error:
            logger.warning("%s: no look for new models now: %s", self.objects.url, error)
