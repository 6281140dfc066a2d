"""Turns what an operator or a holder wants into what all replicas serve, and makes this replica do that."""

from __future__ import annotations

import time

from serving.updates.change import Change, carry_out
from serving.updates.live_model import LiveModel
from serving.updates.state import MAX_REMEMBERED, CanaryState, ModelState
from storage.objects.head import Head, leads_to
from storage.objects.served import Canary, Served


def ordered(seen: Served, facts: ModelState, snapshot: str, *, by: str, lead_ms: int, why: str = "") -> Served:
    """Returns what all replicas are to serve, after a change from what was `seen`.

    facts, snapshot: what this replica has after the change. lead_ms: from now until all of them switch.
    """
    now = time.time_ns() // 1_000_000
    canary = facts.canary
    return seen.changed(
        snapshot=snapshot,
        previous=seen.snapshot if snapshot != seen.snapshot else seen.previous,
        commit_at_unix_ms=now + lead_ms,
        written_unix_ms=now,
        by=by,
        why=why,
        paused=facts.paused,
        pinned=facts.pinned,
        canary=None
        if canary is None
        else Canary(fraction=canary.fraction, snapshot=canary.snapshot or "", to=canary.to),
        held=facts.held,
        abandoned=facts.abandoned,
        allowed=facts.allowed,
        next="",
    )


def installed(facts: ModelState, served: Served, here: set[str], *, reached: bool) -> ModelState:
    """Returns a replica's facts with what is ordered for all.

    here: ids of the snapshots that it has staged. reached: whether it serves what all serve: only then it is paused,
    pinned, or has a canary, for it must be able to go on.
    """
    canary = None
    if served.canary is not None and reached:
        trial = served.canary.snapshot
        canary = CanaryState(
            fraction=served.canary.fraction,
            snapshot=trial if trial and trial in here else None,
            to=trial if trial and trial not in here else served.canary.to,
        )
    return facts.model_copy(
        update={
            "held": served.held,
            "abandoned": tuple(dict.fromkeys((*facts.abandoned, *served.abandoned)))[-MAX_REMEMBERED:],
            "allowed": served.allowed,
            "paused": served.paused and reached,
            "pinned": served.pinned and reached,
            "canary": canary,
        }
    )


def obey(model: LiveModel, head: Head, *, staged: str, at: float = 0.0) -> str:
    """Makes a replica serve what head.json names, as far as that takes no more than a change of pointers.

    staged: the snapshot that the updates are about to show. at: as for `LiveModel.commit`. Returns "reached"; "follows"
    while the updates get there by taking what is published; "lost" when nothing that is published leads there from what
    is served. Raises StoreError.
    """
    served = head.served
    with model.lock:
        default = model.default
        if served.snapshot in ("", staged):
            return "follows"
        here = {entry.id for mount in model.mounts for entry in mount.view.entries}
        for mount in model.mounts:
            position = mount.view.find(served.snapshot)
            if position is None or not mount.can_serve(position):
                continue
            views = {mount: mount.view.at(position)}
            facts = installed(model.facts, served, here, reached=True)
            if facts != model.facts or mount is not default or mount.view.served != position:
                carry_out(model, Change(facts, views, mount, served.why), at=at)
            return "reached"
        facts = installed(model.facts, served, here, reached=False)
        if facts != model.facts and model.knows_facts:
            carry_out(model, Change(facts, why=served.why))
        path = head.find(served.snapshot)
        if default is None or not path:
            return "follows" if path else "lost"
        current = default.view.current
        if int(path.partition("/")[0]) > current.snapshot.version:
            return "follows"
        aside = {*served.held, *served.abandoned}
        if current.id not in aside and leads_to(head, current.id, served.snapshot):
            return "follows"
        # The others went back, or back and another way: this replica goes back to where the ways part.
        entries = default.view.entries
        for position in range(default.view.served - 1, -1, -1):
            name = entries[position].id
            if name not in aside and leads_to(head, name, served.snapshot) and default.can_serve(position):
                carry_out(model, Change(facts, {default: default.view.at(position)}, why=served.why))
                return "follows"
    return "lost"
