"""A change of what a model serves, as an operator's command or the fleet wants it, and how it is carried out."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from serving.updates.live_model import LiveModel
from serving.updates.mount import MountedStore, StoreView
from serving.updates.state import ModelState


@dataclass(frozen=True)
class Change:
    """The state of a model after a command; what is not given stays."""

    facts: ModelState
    views: Mapping[MountedStore, StoreView] = field(default_factory=dict)
    default: MountedStore | None = None
    #: Why snapshots are held from now on, such as "it was rolled back".
    why: str = ""
    #: True if what the replicas of a fleet refused may be tried again.
    forgives: bool = False

    def snapshot(self, model: LiveModel) -> str:
        """Returns the id of the snapshot that is served after the change; "" for none. Call it under the lock."""
        default = self.default or model.default
        return "" if default is None else self.views.get(default, default.view).current.id


def carry_out(model: LiveModel, change: Change, *, at: float = 0.0) -> None:
    """Records a change and shows it to requests, also to those that wait for a snapshot.

    Call it under the model's lock. at: as for `LiveModel.commit`. Raises StoreError when it cannot be recorded; then
    nothing changed.
    """
    before, default = model.facts, model.default
    if default is None and change.default is None:
        model.keep_decision(change.facts)
        model.trouble = model.waiting = ""  # the next try sets what is waited for
        return
    served = -1 if default is None else default.view.served
    model.commit(facts=change.facts, views=change.views, default=change.default, at=at)
    if default is not None and change.views.get(default, default.view).served < served:
        model.counters.rollbacks += 1
    if before.is_bound and not change.facts.is_bound:
        model.free_since_ns = time.time_ns()
        model.waiting = ""  # the reason has just ended; the next look at the folder sets a new one
    _tell_waiters(model, before, change)


def _tell_waiters(model: LiveModel, before: ModelState, change: Change) -> None:
    held, fresh = set(change.facts.held), set(change.facts.held) - set(before.held)
    names = {entry.id: entry.name for mount in model.mounts for entry in mount.view.entries}
    model.accept_waiters(set(before.held) - held)
    model.accept_waiters(name for snapshot, name in names.items() if snapshot not in held)
    for snapshot in fresh:
        name = names.get(snapshot, snapshot)
        model.refuse_waiters({snapshot, name}, f"{name} is held: {change.why or 'an operator set it aside'}")
