"""Finds out at the start whether the store was left by a repository that does not exist any more.

A store outlives its repository. When that was removed and begun anew, or when another repository is served over the
same store, the state file names snapshots that the folder does not have, and they must not be served again.
"""

from __future__ import annotations

import logging

from serving.updates.catalog import Catalog
from serving.updates.lineage import Situation, is_replaced
from serving.updates.live_model import LiveModel
from serving.updates.state import ModelState, SavedSnapshot, StoreState

logger = logging.getLogger("emberline.serving")


def facts_for_folder(model: LiveModel, facts: ModelState, catalog: Catalog) -> ModelState:
    """Returns the recorded state without what another repository left: its stores and its canary.

    Holds and allowed inputs are dropped too where the same folder was begun anew; where it is another folder they stay,
    for when the first one is served again. What an operator pinned or paused stays served until `resume`.
    """
    mount = next((mount for mount in facts.lines if mount.folder == facts.default), None)
    if mount is None or facts.pinned or facts.paused:
        return facts
    other_folder = facts.repository not in ("", model.place)
    served = next((each for each in mount.snapshots if each.id == mount.served), mount.base)
    now = Situation(
        served,
        version_snapshot=_version_snapshot(mount, served),
        published_unix_ms=served.published_unix_ms,
        other_folder=other_folder,
    )
    if not is_replaced(catalog, now):
        return facts
    logger.warning(
        "%s: the store holds the snapshot %s (%s), which is not in %s any more; what lies there is loaded instead",
        model.name,
        served.name,
        served.id,
        model.folder,
    )
    changes: dict[str, object] = {"lines": (), "default": "", "canary": None, "shadow": None}
    if not other_folder:
        changes.update(held=(), abandoned=(), allowed={})
    return facts.model_copy(update=changes)


def _version_snapshot(mount: StoreState, served: SavedSnapshot) -> str:
    """Returns the id of the version that a snapshot belongs to; "" when the state file does not say."""
    known = {each.version: each.id for each in (*mount.snapshots, *mount.covered) if each.sequence == 0}
    if mount.content_snapshot:
        known.setdefault(mount.content, mount.content_snapshot)
    return known.get(served.version, "")
