"""Fills a lost or damaged store again: from the published version, and the deltas that led to what it held.

Nothing in a store is the only copy, so it is never repaired in place: a fresh one replaces it, at the same snapshot.
"""

from __future__ import annotations

import logging
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from serving.model_config.pbtxt import ModelConfig
from serving.updates.catalog import Found, ModelFolder, found_delta
from serving.updates.keep import KEPT_DELTAS
from serving.updates.live_model import LiveModel
from serving.updates.loading import close_store, fill, open_store
from serving.updates.state import StoreState
from storage.checkpoint import PublishedDelta, PublishedVersion, open_delta
from storage.errors import CheckpointError, NotFound
from storage.tiers.tiered import TieredStore

logger = logging.getLogger("emberline.serving")

# Opens a version by its number and snapshot.
OpenVersion = Callable[[int, str], PublishedVersion]


def rebuild_store(model: LiveModel, config: ModelConfig, state: StoreState, version_of: OpenVersion) -> TieredStore:
    """Fills a fresh store in the folder of a mount up to its base, or the first snapshot above that can be reached.

    Raises NotFound when a version or delta that is needed is gone, CheckpointError when it is damaged; then the folder
    is as it was.
    """
    version, deltas = _sources(model, state, version_of)
    folder = model.store_root / state.folder
    if folder.exists():
        shutil.rmtree(folder)
    store = open_store(model, config, version, folder)
    try:
        fill(model, config, store, version)
        for delta in deltas:
            model.check_stop()
            store.merge(store.stage(delta), at=delta.snapshot)
    except BaseException:
        close_store(model, folder, store)
        raise
    names = ", ".join(f"{delta.manifest.version}.{delta.manifest.sequence}" for delta in deltas)
    logger.info("%s: holds version %d%s again", folder, version.version, f" and the deltas {names}" if names else "")
    return store


def route(start: str, target: str, deltas: Iterable[Found]) -> list[Found] | None:
    """Returns the fewest deltas that lead from one snapshot to another, in order; None when they do not lead there."""
    known = [delta for delta in deltas if delta.error is None]
    ways: dict[str, list[Found]] = {start: []}
    queue = deque([start])
    while queue and target not in ways:
        at = queue.popleft()
        for delta in known:
            if at in delta.ancestors and delta.snapshot not in ways:
                ways[delta.snapshot] = [*ways[at], delta]
                queue.append(delta.snapshot)
    return ways.get(target)


def _sources(
    model: LiveModel, state: StoreState, version_of: OpenVersion
) -> tuple[PublishedVersion, list[PublishedDelta]]:
    """Returns the version to begin with, and the deltas to merge on top."""
    content = (state.content, state.content_snapshot)
    missing = ""
    for entry in state.snapshots:
        if entry is not state.base and entry.kind != "delta":
            content = (entry.version, entry.id)
        version = version_of(*content)
        deltas = _verified_route(version.snapshot, entry.id, _deltas(model, version))
        if deltas is not None:
            return version, deltas
        missing = missing or f"the deltas that lead from {version.path} to {entry.name} are gone"
        if entry.id == state.served:
            break
    raise NotFound(f"{model.store_root / state.folder}: the store cannot be filled again: {missing}")


def _verified_route(start: str, target: str, deltas: Sequence[Found]) -> list[PublishedDelta] | None:
    """Finds a route like `route`, without deltas that are damaged."""
    usable = list(deltas)
    while (way := route(start, target, usable)) is not None:
        opened: list[PublishedDelta] = []
        for delta in way:
            try:
                opened.append(open_delta(delta.path))
            except (CheckpointError, NotFound) as error:
                logger.warning("%s cannot be used to fill a store again: %s", delta.path, error)
                usable.remove(delta)
                break
        else:
            return opened
    return None


def _deltas(model: LiveModel, version: PublishedVersion) -> list[Found]:
    """Returns the deltas of a version that the repository or the store has. Raises OSError."""
    found: list[Found] = []
    kept = model.store_root / KEPT_DELTAS
    for path in sorted(kept.glob("[0-9a-f]*")) if kept.is_dir() else ():
        try:
            found.append(found_delta(path, open_delta(path, verify=False).manifest))
        except (CheckpointError, NotFound) as error:
            logger.warning("%s is kept, but cannot be read: %s", path, error)
    published = ModelFolder(model.folder).scan({version.version: 0}).deltas(version.version)
    return [delta for delta in (*found, *published) if delta.base == version.snapshot]
