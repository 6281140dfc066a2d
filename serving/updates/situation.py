"""Collects what the decisions about a mount depend on."""

from __future__ import annotations

from collections.abc import Callable

from serving.model_config.pbtxt import ModelConfig
from serving.updates.catalog import Catalog, Found
from serving.updates.lineage import Situation
from serving.updates.live_model import LiveModel
from serving.updates.mount import MountedStore
from serving.updates.state import ModelState

# Overlays that may lie above the base, the held ones included; the next delta waits then.
MAX_CHAIN = 60


def situation(
    model: LiveModel,
    catalog: Catalog,
    config: ModelConfig,
    mount: MountedStore | None,
    refused: Callable[[Found], bool],
) -> Situation:
    """Returns what the decisions about a mount depend on. Call it under the lock."""
    facts = model.facts
    if model.anew and mount is model.default:
        mount = None
    served = None if mount is None else mount.view.current.saved
    return Situation(
        served=served,
        held=frozenset(facts.held),
        abandoned=frozenset(facts.abandoned),
        held_sequence=0 if mount is None else _held_sequence(catalog, mount, facts),
        again=model.again | model.agreement.way(),
        choose=config.choose_versions,
        refused=refused,
        awaiting={number: each.reason for number, each in model.awaiting.items()},
        stopped="" if mount is None else stopped(model, mount),
        canary_to=facts.canary.to if facts.canary is not None and facts.canary.snapshot is None else "",
        version_snapshot="" if mount is None else mount.view.current.loaded.published.snapshot,
        published_unix_ms=0 if served is None else served.published_unix_ms,
    )


def stopped(model: LiveModel, mount: MountedStore) -> str:
    """Returns why nothing new is taken onto a mount; "" when it is taken. Call it under the lock."""
    facts = model.facts
    canary = model.canary_entry()
    if facts.pinned:
        return f"pinned to {mount.view.current.name} until resume"
    if facts.paused:
        return "paused until resume"
    if canary is not None:
        return f"the canary {canary[1].name} runs; promote or stop it"
    above = len(mount.view.entries) - 1 + len(mount.view.beside) + len(mount.left_behind)
    if above >= MAX_CHAIN:
        return f"{above} snapshots lie above the base, and none of them can be merged yet"
    return ""


def _held_sequence(catalog: Catalog, mount: MountedStore, facts: ModelState) -> int:
    """Returns the newest rolled-back delta of the served version; from the folder when its store was lost."""
    version = mount.view.current.snapshot.version
    above = [entry.snapshot for entry in mount.view.entries[mount.view.served + 1 :]]
    staged = [each.sequence for each in above if each.version == version and each.id in facts.held]
    found = [delta.sequence for delta in catalog.deltas(version) if delta.snapshot in facts.held]
    return max(staged or found, default=0)
