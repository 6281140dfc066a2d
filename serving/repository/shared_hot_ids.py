"""Keeps the hot ids of each model in its object store, so that new replicas fill DRAM with what the others answer from.

The replicas of a model write one object, NAME/hot_ids, in the format of the list in a store's folder. It is a hint:
whatever goes wrong here is logged, and the server goes on without it. A list holds for versions with the same features,
because to others its ids may mean something else.

Requests are few. A replica asks for the age of the object once an hour. If it is old, the replica compares it with its
own list, at most once a day unless it has changed, and replaces one that differs by compare-and-swap. So a group of any
size writes at most one list an hour, and none while its traffic stays the same.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from serving.updates.live_model import LiveModel
from storage.checkpoint import PublishedVersion
from storage.checkpoint.manifest import FEATURES
from storage.errors import EmberlineError, NotFound, ObjectStoreError, UnsafeArtifact
from storage.objects import ObjectStore
from storage.objects.object_store import Changed, ObjectInfo, Taken
from storage.objects.requests import Stopped
from storage.objects.urls import join
from storage.tiers.expected_hits import covered
from storage.tiers.hot_ids import HOT_IDS, HotIds, decode_hot_ids, encode_hot_ids, most_bytes, write_hot_ids
from storage.tiers.tiered import StoreLimits, TieredStore

logger = logging.getLogger("emberline.serving")

# Seconds before the first look at a model's object and between looks, and the least age of an object that is replaced.
FIRST_S, EVERY_S, LEAST_AGE_S = 600.0, 3600.0, 3600.0
# Seconds until a list that was alike is compared again, and until a write that failed is tried again.
_DAY_S = 86_400.0
# A list that covers so much of what this server answers from DRAM is as good as its own.
_ALIKE = 0.98
# A row at the edge of a cache is asked for once in so many lookups per row; fewer do not tell which rows are hot.
_LOOKUPS_PER_ROW = 20
_TICK_S = 5.0
_MOST = StoreLimits().hot_ids


@dataclass(frozen=True)
class _Served:
    """A model that answers requests, with its store."""

    name: str
    store: TieredStore
    published: PublishedVersion


@dataclass
class _Turn:
    """Says when the object of a model is looked at next, and remembers what was seen."""

    due: float
    #: Tag of an object that was alike, and until when it counts as that.
    alike: str = ""
    alike_until: float = 0.0
    #: The last reason why nothing could be written, so that it is logged once.
    told: str = ""


class SharedHotIds:
    """Brings hot ids to stores that have none, and writes those of this server from `start` until `stop`."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._turns: dict[str, _Turn] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def bring(self, name: str, published: PublishedVersion, folder: Path) -> None:
        """Puts the list of a model into the folder of a store that has none."""
        if (folder / HOT_IDS).exists():
            return
        began = time.monotonic()
        try:
            info = self._objects.stat(join(name, HOT_IDS))
            lists, data = self._read(name, published, info)
            write_hot_ids(folder, data)
        except (NotFound, Stopped):  # nobody has written one yet; or the server stops
            return
        except EmberlineError as error:
            logger.warning(
                "%s/%s/%s is left out, published frequencies do for it: %s", self._objects.url, name, HOT_IDS, error
            )
            return
        logger.info(
            "%s: %d hot ids that other replicas wrote %.0f minutes ago came from the object store in %.1f s",
            name,
            sum(len(hot.ids) for hot in lists.values()),
            info.age_s / 60,
            time.monotonic() - began,
        )

    def start(self, models: Callable[[], Iterable[LiveModel]]) -> None:
        """Starts the thread that writes. models: returns those that are there now."""
        self._thread = threading.Thread(target=self._run, args=(models,), name="emberline-hot-ids", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends it. What is under way ends when the object store is given up."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, models: Callable[[], Iterable[LiveModel]]) -> None:
        while not self._stop.wait(_TICK_S):
            for model in models():
                turn = self._turns.setdefault(model.name, _Turn(time.monotonic() + FIRST_S * random.uniform(0.5, 1.5)))
                mount = model.default
                if mount is None or time.monotonic() < turn.due:
                    continue
                turn.due = time.monotonic() + EVERY_S * random.uniform(0.75, 1.25)
                try:
                    self._look(_Served(model.name, mount.store, mount.view.current.loaded.published), turn)
                except Stopped:
                    return
                except EmberlineError as error:  # the mirror says when the object store cannot be reached
                    logger.debug("%s: its hot ids were not written: %s", model.name, error)
                except Exception:
                    logger.exception("%s: writing hot ids failed", model.name)

    def _look(self, served: _Served, turn: _Turn) -> None:
        stats = served.store.stats()
        if stats.hits["dram"] + stats.hits["ssd"] < _LOOKUPS_PER_ROW * stats.rows["dram"] or stats.rows["dram"] == 0:
            turn.due = time.monotonic() + min(FIRST_S, EVERY_S)
            return
        key = join(served.name, HOT_IDS)
        try:
            info = self._objects.stat(key)
        except NotFound:
            info = None
        if info is not None and info.age_s < LEAST_AGE_S:
            return
        if info is not None and info.tag == turn.alike and time.monotonic() < turn.alike_until:
            return
        mine = served.store.hot.now()
        if not mine:
            return  # it has no budget
        if info is not None and self._is_alike(served, mine, info):
            turn.alike, turn.alike_until = info.tag, time.monotonic() + _DAY_S
            return
        self._write(served, mine, info, turn)

    def _is_alike(self, served: _Served, mine: Mapping[str, HotIds], info: ObjectInfo) -> bool:
        try:
            theirs, _ = self._read(served.name, served.published, info)
        except UnsafeArtifact as error:
            logger.info("%s: the hot ids in the object store are replaced: %s", served.name, error)
            return False
        return covered(mine, theirs) >= _ALIKE

    def _write(self, served: _Served, mine: Mapping[str, HotIds], info: ObjectInfo | None, turn: _Turn) -> None:
        key, data = join(served.name, HOT_IDS), encode_hot_ids(mine, _meaning(served.published))
        try:
            if info is None:
                self._objects.create(key, data)
            else:
                self._objects.replace(key, data, info.tag)
        except (Taken, Changed):
            return  # another replica was first
        except (ObjectStoreError, OSError) as error:
            turn.due = time.monotonic() + _DAY_S
            if str(error) != turn.told:
                turn.told = str(error)
                logger.info(
                    "%s: its hot ids are not kept for new replicas; that needs the right to write this object: %s",
                    served.name,
                    error,
                )
            return
        turn.told = ""
        logger.info("%s: wrote %d hot ids for new replicas", served.name, sum(len(hot.ids) for hot in mine.values()))

    def _read(self, name: str, published: PublishedVersion, info: ObjectInfo) -> tuple[Mapping[str, HotIds], bytes]:
        """Returns the list of a model and its bytes. Raises UnsafeArtifact for one that is damaged or means others."""
        if info.size > most_bytes(_MOST):
            raise UnsafeArtifact(f"{info.size} bytes are more than a list of {_MOST} ids takes")
        found = self._objects.read(join(name, HOT_IDS))
        assert found is not None
        lists, meaning = decode_hot_ids(found.data)
        if meaning != _meaning(published):
            raise UnsafeArtifact("it was written by replicas with a version of other features")
        return lists, found.data


def _meaning(published: PublishedVersion) -> str:
    """Returns a text that is the same for versions whose features make the same ids."""
    return next(entry.sha256 for entry in published.manifest.files if entry.path == FEATURES)
