"""After a restart: the store as it was left, the chain staged again from what was kept, the same snapshot served."""

from __future__ import annotations

import logging
from pathlib import Path

from serving.engine.gate import Claims, gate
from serving.engine.model_config import ModelConfig
from serving.engine.snapshot import Snapshot
from serving.updates.applying import judge_delta
from serving.updates.keep import kept_folder
from serving.updates.line import MAX_COVERED, Entry, Lane, LineView, StoreLine
from serving.updates.live_model import LiveModel
from serving.updates.loading import DRAIN_S, close_store, fill, make_lane, open_store
from serving.updates.sharing import diff_on
from serving.updates.state import EntryState, LineState
from serving.updates.version_diff import TooDifferent
from storage.checkpoint import DenseGraph, PublishedDelta, PublishedVersion, open_delta, open_version
from storage.errors import LineageError, NotFound
from storage.tiers.tiered import TieredStore

logger = logging.getLogger("emberline.serving")


def restore_line(model: LiveModel, config: ModelConfig, state: LineState) -> StoreLine:
    """The line that a state file describes. Raises EmberlineError or OSError when it cannot be had again."""
    folder = model.store_root / state.folder
    if not folder.is_dir():
        raise NotFound(f"the store {folder} is gone")
    versions = _Versions(model.folder)
    content = versions.first([state.content, *(e.snapshot.version for e in state.chain if e.kind != "delta")])
    store = open_store(model, config, content, folder)
    try:
        return _restore(model, config, state, store, folder, versions)
    except BaseException:
        close_store(model, folder, store)
        raise


def _restore(
    model: LiveModel,
    config: ModelConfig,
    state: LineState,
    store: TieredStore,
    folder: Path,
    versions: _Versions,
) -> StoreLine:
    states, content = _above(state, store.at)
    at = store.at
    fill(model, store, versions.get(content))
    if store.at != at:
        raise LineageError(f"{folder}: version {content} is not what the store was filled with")
    lanes: dict[int, Lane] = {}
    entries: list[Entry] = []
    try:
        covered = (*state.covered, *(s.snapshot for s in (state.base, *state.chain) if s not in states))
        mask = 0
        for position, entry_state in enumerate(states):
            model.check_stop()
            overlay: int | None = None
            rows = removed = 0
            version = versions.get(entry_state.snapshot.version)
            delta: PublishedDelta | None = None
            if entry_state.kind == "delta":
                delta = open_delta(kept_folder(model.store_root, entry_state.snapshot.id), verify=False)
                rows = sum(table.rows for table in delta.manifest.tables)
                removed = sum(table.removed for table in delta.manifest.tables)
                if position > 0:
                    overlay = store.stage(delta)
                    mask |= 1 << overlay
            elif entry_state.kind == "version" and position > 0:
                diff = diff_on(store, model.store_root, versions.get(content), version, states[1:position], 1.0)
                rows, removed = diff.rows, sum(len(ids) for ids in diff.gone.values())
                overlay = store.stage(diff)
                mask |= 1 << overlay
            lane = lanes.get(version.version)
            graph = versions.graph(version) if lane is None else lane.graph
            snapshot = _snapshot(entry_state, version, delta, graph, mask)
            if lane is None:
                lane = make_lane(model, config, version, graph, store, snapshot, None)
                lanes[version.version] = lane
            size = 0 if overlay is None else store.overlay_stats()[overlay].bytes
            entry = Entry(entry_state, snapshot, lane, overlay, rows, removed, size, covered[-MAX_COVERED:])
            covered = (*covered, entry.name)
            entries.append(entry)
        served = next((i for i, entry in enumerate(entries) if entry.id == state.served), None)
        if served is None:
            raise LineageError(f"{folder} does not know the snapshot {state.served} that was served")
        _judge(model, config, entries[served], versions)
    except BaseException as error:
        for lane in lanes.values():
            lane.model.close(DRAIN_S)
        if isinstance(error, TooDifferent):
            raise LineageError(f"{folder}: {error}") from None
        raise
    line = StoreLine(folder, store, entries[0].lane, entries[0], content)
    line.lanes = lanes
    line.view = LineView(tuple(entries), served)
    return line


def _above(state: LineState, at: str) -> tuple[list[EntryState], int]:
    """The base and what is above it, by the store's own marker, and the version whose rows it holds."""
    content = state.content
    states = [state.base, *state.chain]
    for position, entry in enumerate(states):
        if position > 0 and entry.kind != "delta":
            content = entry.snapshot.version
        if entry.snapshot.id == at:
            return states[position:], content
    raise LineageError(f"the store holds the snapshot {at or 'of nothing'}, which the state file does not name")


def _snapshot(
    state: EntryState, version: PublishedVersion, delta: PublishedDelta | None, graph: DenseGraph, mask: int
) -> Snapshot:
    name = state.snapshot
    if delta is None:
        if version.snapshot != name.id:
            raise LineageError(f"{version.path} is the snapshot {version.snapshot}, served was {name.id}")
        return Snapshot.of_version(version, graph, mask)
    own = graph.with_weights(delta.weights())
    return Snapshot(name.id, name.version, name.sequence, mask, own, state.published_unix_ms, Path(state.origin))


def _judge(model: LiveModel, config: ModelConfig, entry: Entry, versions: _Versions) -> None:
    """The served snapshot must still get the trainer's scores: it is not taken on trust from a disk."""
    if entry.state.kind == "delta":
        delta = open_delta(kept_folder(model.store_root, entry.id), verify=False)
        judge_delta(model, entry.lane, entry, delta, entry.overlay, live=False)
        return
    published = versions.get(entry.name.version)
    claims = Claims.of_version(published.manifest)
    gate(entry.lane.model.parts, None, entry.snapshot, published.golden(), None, options=config.options, claims=claims)


class _Versions:
    """The versions of a model's folder, each opened once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._opened: dict[int, PublishedVersion] = {}

    def get(self, number: int) -> PublishedVersion:
        """A version. Raises NotFound when it is gone."""
        if number not in self._opened:
            self._opened[number] = open_version(self._folder / str(number), verify=False)
        return self._opened[number]

    def first(self, numbers: list[int]) -> PublishedVersion:
        """The first of these that is there."""
        for number in numbers:
            try:
                return self.get(number)
            except NotFound:
                continue
        raise NotFound(f"{self._folder} has none of the versions {numbers} that the store was filled with")

    def graph(self, version: PublishedVersion) -> DenseGraph:
        """A version's graph with its own weights."""
        return version.graph()
