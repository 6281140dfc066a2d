"""Commits for all replicas, while this one holds the lease and has something staged."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from serving.fleet.holder import judge
from serving.fleet.identity import Identity
from serving.fleet.orders import ordered
from serving.fleet.peers import Health, Peers
from serving.fleet.standing import snapshot_names
from serving.updates.state import ModelState
from storage.objects.fleet import FleetObjects, Replica
from storage.objects.head import Head

logger = logging.getLogger("emberline.serving")

#: From a commit until all replicas switch: time for two of their looks.
LEAD_MS = 300
#: As long as that may become where the object store is slow.
LEAD_LAST_MS = 3_000
# Seconds before others are asked whether they are alive, and between tries for a lease that another one holds.
_FIRST_ASK_S, _LEASE_S = 0.3, 1.0
_LOG_AFTER_S = 5.0
# The object of a replica whose address refuses connections is deleted when it is as old as this.
_FORGET_MS = 600_000


class Holding:
    """The part of a replica in which it decides for all. One thread at a time."""

    def __init__(self, name: str, objects: FleetObjects, peers: Peers, look: Callable[[], None]) -> None:
        self._name = name
        self._objects, self._peers, self._look = objects, peers, look
        #: Replicas that are waited for while this one holds the lease, by id.
        self.waits_for: tuple[str, ...] = ()
        self._logged = ""
        self._try_at = 0.0

    def hold(
        self, who: Identity, head: Head, snapshot: str, facts: ModelState, after: str, waited_s: float
    ) -> str | None:
        """Commits a snapshot for all when it holds the lease and all are ready for it.

        facts, after: the facts and what is served once it is shown. waited_s: since it was staged. Returns what is
        waited for; None while another replica holds the lease. Raises Conflict, ObjectStoreError.
        """
        now = time.monotonic()
        if now < self._try_at:
            return None
        if not self._objects.take_lease(who.id, time.time_ns() // 1_000_000, self._dead_holder(waited_s)):
            self.waits_for = ()
            self._try_at = now + _LEASE_S
            return None
        self._try_at = 0.0
        replicas = self._objects.replicas()
        # What was just asked are two or three requests, and the commit and the looks of the others are as many.
        lead_ms = int(min(max(LEAD_MS, 2000 * (time.monotonic() - now)), LEAD_LAST_MS))
        others = [each for each in replicas if each.id != who.id and each.staged != snapshot]
        health = self._peers.health(others) if waited_s > _FIRST_ASK_S else self._peers.known(others)
        verdict = judge(head, snapshot, replicas, health, waited_s=waited_s, max_unavailable=who.max_unavailable)
        name = snapshot_names(head).get(snapshot, snapshot)
        self.waits_for = ()
        if verdict.action == "wait":
            self.waits_for = tuple(each.id for each in others if health.get(each.id) not in ("gone", "unready"))
            if waited_s > _LOG_AFTER_S:
                self._log(f"{name} waits: {verdict.reason}")
            return verdict.reason
        if verdict.action == "name":
            wanted = head.served.changed(next=verdict.snapshot, written_unix_ms=time.time_ns() // 1_000_000, by=who.id)
        else:
            wanted = ordered(head.served, facts, after, by=who.id, lead_ms=lead_ms)
            if verdict.reason:
                self._log(f"{name} is served: {verdict.reason}")
        self._objects.write(head.served, lambda _: wanted)
        self._look()
        self._forget(others, health)
        return ""

    def _dead_holder(self, waited_s: float) -> str:
        """Returns the holder of the lease where its address refuses connections; "" otherwise."""
        holder = self._objects.lease().holder if waited_s > _LEASE_S else ""
        replica = self._objects.replica(holder) if holder else None
        return holder if replica is not None and self._peers.wait([replica]).get(holder) == "gone" else ""

    def _log(self, text: str) -> None:
        if text != self._logged:
            logger.warning("%s: %s", self._name, text)
        self._logged = text

    def _forget(self, replicas: list[Replica], health: dict[str, Health]) -> None:
        before = time.time_ns() // 1_000_000 - _FORGET_MS
        for each in replicas:
            if health.get(each.id) == "gone" and each.unix_ms < before:
                self._objects.leave(each.id)
