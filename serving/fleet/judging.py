"""Judges a canary by the labels of all replicas, at whichever holds the lease, and orders for all what follows."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from serving.fleet.identity import Identity
from serving.fleet.member import FleetMember
from serving.updates import commands
from serving.updates.change import Change
from serving.updates.live_model import LiveModel
from storage.errors import Conflict
from storage.objects.fleet import FleetObjects
from storage.objects.trials import Evidence, TrialObjects, TrialReport

# An operator's order is waited for as long, until this replica has done it too.
_SETTLE_S = 1.0
# Shorter than the time after which what a process wrote about another canary is deleted.
_SHARE_AGAIN_S = 300.0


class FleetJudges:
    """The part of a replica in the judgement of a canary. See Judges."""

    #: Shorter than a lease lasts, so that one replica goes on as the judge; another one takes its place when it ends.
    look_s = 8.0

    def __init__(self, member: FleetMember, who: Callable[[], Identity], objects: FleetObjects) -> None:
        self._member, self._who, self._objects = member, who, objects
        self._trials = TrialObjects(objects.model)
        self._shared: Evidence | None = None
        self._shared_at = 0.0

    def pooled(self, own: Evidence) -> Sequence[Evidence] | None:
        """See Judges. It writes what has changed, and again after a while, since what is old may be deleted."""
        if self._member.head is None:  # what is ordered for all is not known yet
            return None
        name, now = self._who().id, time.monotonic()
        if own.of_canary.rows and (own != self._shared or now - self._shared_at > _SHARE_AGAIN_S):
            self._trials.share(f"{name}.{self._member.wake_word[:16]}", own)
            self._shared, self._shared_at = own, now
        with self._member.leaving:
            if self._member.model.stopping.is_set():
                return None
            if not self._objects.take_lease(name, time.time_ns() // 1_000_000):
                return None
        return self._trials.shared(own)

    def age_s(self, here_s: float) -> float:
        """See Judges. It is the time since the last order for all replicas, the one that began the canary included."""
        return time.time() - self._member.served.commit_at_unix_ms / 1000

    def say(self, report: TrialReport) -> None:
        """See Judges."""
        stamp = {"by": self._who().id, "unix_ms": time.time_ns() // 1_000_000}
        self._trials.say(report.model_copy(update=stamp))

    def said(self) -> TrialReport | None:
        """See Judges."""
        return self._trials.said()

    def decide(self, canary: str, *, promotes: bool, why: str, due_s: float = 0.0) -> None:
        """See Judges. The age is that of the orders which the object store has now."""

        def plan(model: LiveModel) -> Change:
            if self.age_s(0.0) < due_s:
                raise Conflict(f"model {model.name!r}: an order has given the canary more time")
            return commands.end_trial(model, canary, promotes=promotes, why=why)

        self._member.order(plan, settle_s=_SETTLE_S)
