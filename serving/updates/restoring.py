"""Restores a mount after a restart.

The store is opened as it was left, the chain is staged again from what was kept, and the same snapshot is served.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from serving.engine.recent import RecentRequests
from serving.engine.validation import Claims
from serving.model_config.pbtxt import ModelConfig
from serving.pipeline.precision import dense_graph
from serving.pipeline.snapshot import Snapshot
from serving.updates.applying import judge_delta
from serving.updates.budgets import wait_hit_rate
from serving.updates.dense_weights import Weights, kept_weights
from serving.updates.keep import kept_folder
from serving.updates.live_model import LiveModel
from serving.updates.loading import DRAIN_S, close_store, fill, load_version, open_store
from serving.updates.mount import MAX_COVERED, LoadedVersion, MountedStore, StagedSnapshot, StoreView
from serving.updates.rebuilding import rebuild_store
from serving.updates.sharing import diff_on
from serving.updates.state import CanaryState, ModelState, SavedSnapshot, StoreState
from serving.updates.version_diff import TooDifferent
from serving.updates.versions import Versions
from storage.checkpoint import DenseGraph, PublishedDelta, PublishedVersion, open_delta
from storage.errors import CorruptStoreError, LineageError, NotFound, Unavailable
from storage.tiers.tiered import TieredStore

logger = logging.getLogger("emberline.serving")


def restore_mount(model: LiveModel, config: ModelConfig, state: StoreState) -> MountedStore:
    """Restores the mount that a state file describes; a store that is damaged or gone is filled again first.

    Raises EmberlineError or OSError when it cannot be restored.
    """
    folder = model.store_root / state.folder
    versions = _Versions(model.versions)
    try:
        if not folder.is_dir():
            raise CorruptStoreError(f"the store {folder} is gone")
        others = [(e.version, e.id) for e in state.chain if e.kind != "delta"]
        content = versions.first([(state.content, state.content_snapshot), *others])
        return _restored(model, config, state, versions, open_store(model, config, content, folder))
    except CorruptStoreError as error:
        damage = str(error)
    logger.error("%s: the store is filled again from published files: %s", model.name, damage)
    with model.rebuilding(f"the store {folder} is filled again from published files: {damage}"):
        return rebuilt_mount(model, config, state)


def rebuilt_mount(
    model: LiveModel, config: ModelConfig, state: StoreState, recent: RecentRequests | None = None
) -> MountedStore:
    """Restores a mount like `restore_mount`, with a fresh store in place of what is in the folder.

    recent: recent requests to continue with.
    """
    versions = _Versions(model.versions)
    store = rebuild_store(model, config, state, versions.get)
    return _restored(model, config, state, versions, store, recent)


def _restored(
    model: LiveModel,
    config: ModelConfig,
    state: StoreState,
    versions: _Versions,
    store: TieredStore,
    recent: RecentRequests | None = None,
) -> MountedStore:
    """Returns the mount on its open store, which is closed when that fails."""
    folder = model.store_root / state.folder
    try:
        return _restore(model, config, state, store, folder, versions, recent)
    except BaseException:
        close_store(model, folder, store)
        raise


def give_up_lost(model: LiveModel, lost: Mapping[str, Exception]) -> None:
    """Leaves out stores that cannot be restored, and logs the reasons. lost: reasons by folder.

    Raises Unavailable instead when the store that was served is among them and an operator pinned or paused the model:
    then nothing else may be served before `resume`.
    """
    facts = model.facts
    served = next((state for state in facts.lines if state.folder == facts.default and state.folder in lost), None)
    if served is not None:
        entries = served.snapshots
        place = next((place for place, each in enumerate(entries) if each.id == served.served), 0)
        if facts.pinned or facts.paused:
            raise Unavailable(
                f"{entries[place].name} is {'pinned' if facts.pinned else 'paused'} and cannot be served: "
                f"{lost[served.folder]}; put back what is missing, or end this with `emberline resume {model.name}`: "
                "then the newest version is served"
            )
        model.again = frozenset(each.id for each in (*served.covered, *entries[: place + 1]))
    for folder, error in lost.items():
        logger.error("%s: the store %s is not taken up again: %s", model.name, folder, error)


def without_lost_canary(name: str, facts: ModelState) -> ModelState:
    """Returns the facts without a canary that no store has: it is held, and tried again if it can be loaded again."""
    canary = facts.canary
    if canary is None or canary.snapshot is None:
        return facts
    logger.error("%s: no store has the canary %s any more; it is held until it is tried again", name, canary.snapshot)
    held = tuple(dict.fromkeys((*facts.held, canary.snapshot)))
    return facts.model_copy(update={"held": held, "canary": CanaryState(fraction=canary.fraction, to=canary.snapshot)})


def _restore(
    model: LiveModel,
    config: ModelConfig,
    state: StoreState,
    store: TieredStore,
    folder: Path,
    versions: _Versions,
    recent: RecentRequests | None,
) -> MountedStore:
    states, content = _above(state, store.at)
    at = store.at
    filled = versions.get(*content)
    model.versions.keep(filled)
    fill(model, config, store, filled)
    if store.at != at:
        raise LineageError(f"{folder}: version {filled.version} is not what the store was filled with")
    loaded_versions: dict[int, LoadedVersion] = {}
    entries: list[StagedSnapshot] = []
    try:
        covered = (*state.covered, *(s for s in state.snapshots if s not in states))
        mask = 0
        for position, saved in enumerate(states):
            model.check_stop()
            overlay: int | None = None
            rows = removed = 0
            delta: PublishedDelta | None = None
            if saved.kind == "delta":
                delta = open_delta(kept_folder(model.store_root, saved.id), verify=False)
                rows = sum(table.rows for table in delta.manifest.tables)
                removed = sum(table.removed for table in delta.manifest.tables)
                if position > 0:
                    overlay = store.stage(delta)
                    mask |= 1 << overlay
            version = versions.get(saved.version, saved.id if delta is None else delta.base)
            if saved.kind == "version" and position > 0:
                diff = diff_on(store, model.store_root, filled, version, states[1:position], 1.0)
                rows, removed = diff.rows, sum(len(ids) for ids in diff.gone.values())
                overlay = store.stage(diff)
                mask |= 1 << overlay
            loaded = loaded_versions.get(version.version)
            graph = dense_graph(version, config.options) if loaded is None else loaded.graph
            known = {entry.id: entry.snapshot.graph.weights() for entry in entries}
            snapshot, needs = _snapshot(model, saved, version, delta, graph, mask, known)
            if loaded is None:
                model.versions.keep(version)
                loaded = load_version(model, config, version, graph, store, snapshot, recent)
                loaded_versions[version.version] = loaded
            size = 0 if overlay is None else store.overlay_stats()[overlay].bytes
            made_from = covered[-MAX_COVERED:]
            entry = StagedSnapshot(
                snapshot, loaded, saved.kind, overlay, rows, removed, size, made_from, saved.visible_ms, needs
            )
            covered = (*covered, saved)
            entries.append(entry)
        served = next((i for i, entry in enumerate(entries) if entry.id == state.served), None)
        if served is None:
            raise LineageError(f"{folder} does not know the snapshot {state.served} that was served")
        _judge(model, config, entries[served], versions)
        if model.default is None:
            wait_hit_rate(model.name, store, config.options, model.check_stop)
    except BaseException as error:
        for loaded in loaded_versions.values():
            loaded.model.close(DRAIN_S)
        if isinstance(error, TooDifferent):
            raise LineageError(f"{folder}: {error}") from None
        raise
    mount = MountedStore(folder, store, entries[0].loaded, entries[0])
    mount.content = SavedSnapshot(
        id=filled.snapshot,
        version=filled.version,
        sequence=0,
        published_unix_ms=filled.manifest.published_unix_ms,
    )
    mount.loaded_versions = loaded_versions
    mount.view = StoreView(tuple(entries), served)
    return mount


def _above(state: StoreState, at: str) -> tuple[list[SavedSnapshot], tuple[int, str]]:
    """Returns the base and what is above it, by the store's own marker, and the version that the store holds.

    The version is given by its number and snapshot.
    """
    content: tuple[int, str] = (state.content, state.content_snapshot)
    for position, entry in enumerate(state.snapshots):
        if position > 0 and entry.kind != "delta":
            content = (entry.version, entry.id)
        if entry.id == at:
            return list(state.snapshots[position:]), content
    # It was being filled, or a repair dropped tables of it.
    raise CorruptStoreError(f"it holds {f'the snapshot {at}' if at else 'no snapshot'}, which the state does not name")


def _snapshot(
    model: LiveModel,
    saved: SavedSnapshot,
    version: PublishedVersion,
    delta: PublishedDelta | None,
    graph: DenseGraph,
    mask: int,
    known: Mapping[str, Weights],
) -> tuple[Snapshot, tuple[str, ...]]:
    if delta is None:
        if version.snapshot != saved.id:
            raise LineageError(f"{version.path} is the snapshot {version.snapshot}, served was {saved.id}")
        return replace(Snapshot.of_version(version, graph, mask), origin=Path(saved.origin)), ()
    weights, needs = kept_weights(delta, model.store_root, version.snapshot, graph.weights(), known)
    own = graph.with_weights(weights)
    origin = Path(saved.origin)
    found = delta.manifest
    snapshot = Snapshot(
        *(saved.id, saved.version, saved.sequence, mask, own, saved.published_unix_ms, origin),
        events=found.events,
        events_since=found.events_since,
    )
    return snapshot, needs


def _judge(model: LiveModel, config: ModelConfig, entry: StagedSnapshot, versions: _Versions) -> None:
    """Checks that the served snapshot still gets the trainer's scores: what a disk holds is not trusted."""
    if entry.kind == "delta":
        delta = open_delta(kept_folder(model.store_root, entry.id), verify=False)
        judge_delta(model, entry.loaded, entry, delta, entry.overlay, live=False)
        return
    published = versions.get(entry.snapshot.version, entry.id)
    claims = Claims.of_version(published.manifest)
    entry.loaded.model.judge(entry.snapshot, published.golden(), claims, config.options, None)


class _Versions:
    """A model's versions, each opened once."""

    def __init__(self, versions: Versions) -> None:
        self._versions = versions
        self._opened: dict[int, PublishedVersion] = {}

    def get(self, number: int, snapshot: str = "") -> PublishedVersion:
        """Returns a version. Raises NotFound when it is gone."""
        found = self._opened.get(number)
        if found is None or snapshot not in ("", found.snapshot):
            found = self._opened[number] = self._versions.open(number, snapshot)
        return found

    def first(self, names: list[tuple[int, str]]) -> PublishedVersion:
        """Returns the first of these versions that is there. Raises NotFound when all are gone."""
        for number, snapshot in names:
            try:
                return self.get(number, snapshot)
            except NotFound:
                continue
        raise NotFound(f"the versions {[number for number, _ in names]} that the store was filled with are gone")
