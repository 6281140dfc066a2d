"""At the start: whether the store was left by a repository that is not there any more.

A store outlives its repository. When that was removed and begun anew, or when another repository is served over the
same store, the state file names snapshots that the folder does not have, and they must not be served again.
"""

from __future__ import annotations

import logging

from serving.updates.catalog import Catalog
from serving.updates.lineage import Situation, is_replaced
from serving.updates.live_model import LiveModel
from serving.updates.state import LineState, ModelState, SnapshotName

logger = logging.getLogger("emberline.serving")


def facts_for_folder(model: LiveModel, facts: ModelState, catalog: Catalog) -> ModelState:
    """The recorded state without what another repository left: its stores and its canary.

    Holds and allowed inputs go too where the same folder was begun anew; where it is another folder they stay for the
    day on which the first one is served again. What an operator pinned or paused stays served until `resume`.
    """
    line = next((line for line in facts.lines if line.folder == facts.default), None)
    if line is None or facts.pinned or facts.paused:
        return facts
    other_folder = facts.repository not in ("", model.place)
    served = _served(line)
    now = Situation(
        served[0],
        version_snapshot=_version_snapshot(line, served[0]),
        published_unix_ms=served[1],
        other_folder=other_folder,
    )
    if not is_replaced(catalog, now):
        return facts
    logger.warning(
        "%s: the store holds the snapshot %s (%s), which is not in %s any more; what lies there is loaded instead",
        model.name,
        served[0].name,
        served[0].id,
        model.folder,
    )
    changes: dict[str, object] = {"lines": (), "default": "", "canary": None}
    if not other_folder:
        changes.update(held=(), abandoned=(), allowed={})
    return facts.model_copy(update=changes)


def _served(line: LineState) -> tuple[SnapshotName, int]:
    """The snapshot that was served, and when it was published."""
    for entry in (line.base, *line.chain):
        if entry.snapshot.id == line.served:
            return entry.snapshot, entry.published_unix_ms
    return line.base.snapshot, line.base.published_unix_ms


def _version_snapshot(line: LineState, served: SnapshotName) -> str:
    """The id of the version that a snapshot belongs to; "" when the state file does not say."""
    names = [entry.snapshot for entry in (line.base, *line.chain)] + list(line.covered)
    known = {name.version: name.id for name in names if name.sequence == 0}
    if line.content_snapshot:
        known.setdefault(line.content, line.content_snapshot)
    return known.get(served.version, "")
