"""Decides when a version can be staged on the store of the one before, and finds what must be staged then."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from serving.engine.validation import Claims
from serving.model_config.pbtxt import ModelConfig
from serving.pipeline.precision import dense_graph
from serving.pipeline.snapshot import Snapshot
from serving.updates.applying import agree, append_entry, check_version_signature, drop_entries, timed
from serving.updates.keep import kept_folder
from serving.updates.lineage import Take
from serving.updates.live_model import LiveModel
from serving.updates.loading import DRAIN_S, load_version
from serving.updates.mount import LoadedVersion, MountedStore, StagedSnapshot, StoreView
from serving.updates.state import SavedSnapshot
from serving.updates.version_diff import TooDifferent, VersionDiff, touched_ids, version_diff
from storage.checkpoint import PublishedVersion, open_delta, open_version
from storage.errors import CheckpointError
from storage.specs import TableSpec
from storage.tiers.tiered import TieredStore

logger = logging.getLogger("emberline.serving")


def take_on_store(model: LiveModel, config: ModelConfig, mount: MountedStore, take: Take) -> None:
    """Takes a version onto the store of the one before: new sessions use the same rows.

    No row is read when the version says that it has the served ones. Otherwise the rows that differ are staged. Raises
    TooDifferent when they are too many.
    """
    with model.taking_upon(mount) as view:
        _take_upon(model, config, mount, view, take)


def _take_upon(model: LiveModel, config: ModelConfig, mount: MountedStore, view: StoreView, take: Take) -> None:
    found = take.found
    model.step("found")
    published = open_version(found.path, verify=False)
    if found.equals == view.current.id:
        _check_tables(published, mount)
    check_version_signature(model, config, published)
    model.versions.keep(published)
    model.step("verified")
    graph = dense_graph(published, config.options)
    before = view.current.loaded
    diff: VersionDiff | None = None
    overlay: int | None = None
    mask = view.mask(view.served)
    if found.equals != view.current.id:
        old = model.versions.open(mount.content.version, mount.content.id)
        chain = [entry.saved for entry in view.entries[1 : view.served + 1]]
        diff = diff_on(mount.store, model.store_root, old, published, chain, config.options.version_reuse_share)
        overlay = mount.store.stage(diff)
        mask |= 1 << overlay
    loaded: LoadedVersion | None = None
    try:
        snapshot = Snapshot.of_version(published, graph, mask)
        loaded = load_version(model, config, published, graph, mount.store, snapshot, before.model.recent)
        model.step("staged")
        claims = Claims.of_version(published.manifest)
        report = loaded.model.judge(snapshot, published.golden(), claims, config.options, before.model)
        model.step("validated")
        model.check_stop()
        covered = view.current.covered_by_next()
        if diff is None or overlay is None:
            entry = StagedSnapshot(snapshot, loaded, "same", covered=covered)
        else:
            removed = sum(len(ids) for ids in diff.gone.values())
            size = mount.store.overlay_stats()[overlay].bytes
            entry = StagedSnapshot(snapshot, loaded, "version", overlay, diff.rows, removed, size, covered)
        agreed = agree(model, mount, view.current.id, snapshot, take)
        entry = timed(model, entry, found.path)
        with model.lock:
            mount.loaded_versions[loaded.version] = loaded
            try:
                append_entry(model, mount, view, entry, take, agreed)
            except BaseException:
                del mount.loaded_versions[loaded.version]
                raise
    except BaseException:
        if loaded is not None:
            loaded.model.close(DRAIN_S)
        if overlay is not None:
            mount.store.discard(overlay)
        raise
    model.counters.versions_loaded += 1
    logger.info(
        "%s: %s is served over the same store as %s: %d rows differ, %d are gone; golden requests within %.2g; %s",
        model.name,
        entry.snapshot,
        view.current.snapshot,
        entry.rows,
        entry.removed,
        report.golden_difference,
        report.guard,
    )
    drop_entries(model)


def diff_on(
    store: TieredStore,
    store_root: Path,
    old: PublishedVersion,
    new: PublishedVersion,
    chain: Iterable[SavedSnapshot],
    share: float,
) -> VersionDiff:
    """Returns the difference between the rows that a chain on a store shows and those of a version.

    old: the version that the store was filled with. chain: what is staged above the base, up to what is served. Raises
    TooDifferent when staging it is not worthwhile, or the difference cannot be known.
    """
    states = list(chain)
    if not store.holds(old):
        raise TooDifferent("the store was filled with another version than lies in the folder")
    if any(state.kind == "version" for state in states):
        raise TooDifferent("the version before is staged as a difference itself")
    if set(_kinds(old.tables)) != set(_kinds(new.tables)):
        raise TooDifferent("it has other tables, stores their rows otherwise, or ids without one read otherwise")
    touched: dict[str, list[np.ndarray]] = {spec.name: list(store.changed(spec.name)) for spec in store.tables}
    for state in states:
        if state.kind == "delta":
            delta = open_delta(kept_folder(store_root, state.id), verify=False)
            for spec in delta.tables:
                touched[spec.name].append(delta.removed(spec.name))
                touched[spec.name] += [shard.ids for shard in delta.shards(spec.name)]
    return version_diff(old, new, {name: touched_ids(parts) for name, parts in touched.items()}, share)


def _check_tables(published: PublishedVersion, mount: MountedStore) -> None:
    """Raises CheckpointError unless a version has the tables of a mount."""
    own, given = (sorted(_kinds(tables)) for tables in (mount.store.tables, published.tables))
    if own != given:
        raise CheckpointError(
            f"{published.path} says that it has the served rows, but its tables (name, dim, row type, absent rows) are "
            f"{given}, not {own}"
        )


def _kinds(tables: Iterable[TableSpec]) -> list[tuple[str, int, str, str, int]]:
    """Returns, by table, what versions over one store must have in common."""
    return [(spec.name, spec.dim, spec.row_type, str(spec.absent), spec.absent.seed) for spec in tables]
