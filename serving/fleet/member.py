"""One replica of a model in its fleet: what it knows of what all serve, and what it tells them."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pydantic import JsonValue

from serving.fleet.holder import judge, newer_than_served
from serving.fleet.orders import installed, obey, ordered
from serving.fleet.peers import Peers
from serving.fleet.view import fleet_view, snapshot_names
from serving.pipeline.snapshot import Snapshot
from serving.updates import refusals
from serving.updates.agreement import Agreed, Outdated
from serving.updates.change import Change
from serving.updates.live_model import LiveModel
from serving.updates.state import ModelState
from storage.errors import Conflict, EmberlineError, ObjectStoreError, Unavailable
from storage.objects.fleet import FleetObjects, Replica
from storage.objects.follower import HURRY_S
from storage.objects.head import Head, leads_to, line_to
from storage.objects.requests import Stopped as Ended
from storage.objects.served import Served

logger = logging.getLogger("emberline.serving")

#: From a commit until all replicas switch: time for two of their looks.
LEAD_MS = 300
# Seconds from which on a replica that serves something else than the others is not ready.
_GRACE_S = 0.5
# A snapshot that is named as the next one is waited for so long, by the clocks of those that wait.
_NEXT_MS = 60_000
# What cannot be followed is loaded anew after this time, when no balancer sends requests here any more.
_ANEW_S = 3.0
_FIRST_ASK_S = 0.3
_LOOK_S = 0.25
_ORDERS = 20
_ORDER_S = 10.0


class FleetRefused(EmberlineError):  # noqa: N818 - another replica's error
    """Another replica refuses the snapshot, so none of them serves it."""


@dataclass(frozen=True)
class Identity:
    """Says who a replica is, and how many of its kind may be left behind."""

    id: str
    url: str
    max_unavailable: int


class FleetMember:
    """One model of one replica. Thread-safe; `run` is called by one thread and ends with the model.

    objects: of the model. look: looks at the object store and returns when that is done. hurry: makes the looking
    thread look at once. who: known before `run`. follow: called when what is served leads to nothing that others serve.
    """

    def __init__(
        self,
        model: LiveModel,
        who: Callable[[], Identity],
        objects: FleetObjects,
        peers: Peers,
        *,
        look: Callable[[], None],
        hurry: Callable[[], None],
        follow: Callable[[], None],
    ) -> None:
        self.model = model
        self._who = who
        self.wake_word = secrets.token_hex(16)
        self._objects, self._peers = objects, peers
        self._look, self._hurry, self._follow = look, hurry, follow
        self._changed = threading.Condition()
        self._head: Head | None = None
        self._switch_at = 0.0
        self._staged = self._showing = ""
        self._obeyed: Served | None = None
        self._lost_at: float | None = None
        self._refusals: dict[str, str] = {}
        self._trouble = self._said = ""
        self._waits_for = ""
        self._told: frozenset[str] = frozenset()
        self._ordering, self._stepping = threading.Lock(), threading.Lock()

    @property
    def served(self) -> Served:
        """Returns what all replicas serve, as far as it is known here."""
        head = self._head
        return Served() if head is None else head.served

    def see(self, head: Head) -> None:
        """Takes note of what is published and served; called in the order in which it was read."""
        now_ms = time.time_ns() // 1_000_000
        with self._changed:
            if head.served != self.served:
                lead_ms = head.served.commit_at_unix_ms - head.served.written_unix_ms
                # Where clocks differ, nobody waits longer than the lead.
                left_ms = min(max(0, head.served.commit_at_unix_ms - now_ms), max(0, lead_ms))
                self._switch_at = time.monotonic() + left_ms / 1000
                if head.served.written_unix_ms - now_ms > 2 * LEAD_MS:
                    logger.warning(
                        "%s: the clock here is %.1f s behind that of %s; replicas switch less exactly together",
                        self.model.name,
                        (head.served.written_unix_ms - now_ms) / 1000,
                        head.served.by,
                    )
            self._head = head
            self._changed.notify_all()

    def hurries(self) -> bool:
        """Returns whether something waits for what the others do."""
        return bool(self._staged)

    def why_not(self) -> str:
        """Returns why this replica should get no requests; "" when it may."""
        head = self._head
        if head is None:
            return "what the other replicas serve is not known yet: the object store has not answered"
        default = self.model.default
        if default is None or not head.served.snapshot:
            return ""
        current = default.view.current
        if self._obeyed is None:
            return "it does not yet do what was ordered for all replicas"
        if current.id == head.served.snapshot or time.monotonic() < self._switch_at + _GRACE_S:
            return ""
        name = head.find(head.served.snapshot).replace("/deltas/", ".") or head.served.snapshot
        return f"it serves {current.name}, and the other replicas serve {name}"

    @property
    def waits_for(self) -> str:
        """Returns what a snapshot that is staged waits for, or why the newest one is not served; "" for nothing."""
        head = self._head
        if self._waits_for or head is None:
            return self._waits_for
        newer = [each for each in newer_than_served(head) if each in head.served.refused]
        if not newer:
            return ""
        return f"{snapshot_names(head)[newer[-1]]} is served by no replica: {'; '.join(head.served.refused[newer[-1]])}"

    def allows(self, snapshot: str) -> bool:
        """See Agreement."""
        head = self._head
        if head is None:
            return False
        served = head.served
        own = self._own()
        trial = "" if served.canary is None else served.canary.snapshot
        if served.snapshot and own != served.snapshot:
            return leads_to(head, snapshot, served.snapshot)
        if snapshot in served.refused:
            return False
        wanted = self._next(served, head)
        return not wanted or snapshot in (wanted, trial)

    def way(self) -> frozenset[str]:
        """See Agreement."""
        head = self._head
        if head is None or self._own() == head.served.snapshot:
            return frozenset()
        return frozenset(line_to(head, head.served.snapshot))

    def agree(self, snapshot: Snapshot, own: str, facts: ModelState, served: str, check: Callable[[], None]) -> Agreed:
        """See Agreement."""
        name = snapshot.id
        if self._may_show(name, own):
            return self._agreed(name)
        began = time.monotonic()
        self._staged = name
        self._waits_for = f"{snapshot.name} is staged, and served once the other replicas have it"
        is_reported, next_at, pause_s = False, 0.0, HURRY_S
        try:
            self._hurry()
            while not self._may_show(name, own):
                check()
                if time.monotonic() >= next_at:
                    try:
                        if not is_reported:
                            self._objects.report(self._report(staged=name, staged_name=snapshot.name))
                            is_reported = True
                        self._hold(name, facts, served, time.monotonic() - began)
                        pause_s = HURRY_S if time.monotonic() - began < 30.0 else 1.0
                    except Conflict:
                        self._look()
                    except (ObjectStoreError, Ended) as error:
                        logger.debug("%s: %s", self.model.name, error)
                        pause_s = 1.0
                    next_at = time.monotonic() + pause_s
                with self._changed:
                    self._changed.wait(HURRY_S)
            self._showing = name
            return self._agreed(name)
        except BaseException:
            self._withdraw(is_reported)
            raise
        finally:
            self._staged = self._waits_for = ""

    def refuse(self, snapshot: str, error: Exception) -> None:
        """See Agreement."""
        head = self._head
        if isinstance(error, FleetRefused):
            return
        if head is None or not snapshot or leads_to(head, snapshot, head.served.snapshot):
            return  # the others serve it: this replica is at fault, and not ready
        with self._changed:
            self._refusals[snapshot] = f"{self._who().id}: {str(error) or type(error).__name__}"
            self._changed.notify_all()

    def order(self, plan: Callable[[LiveModel], Change]) -> None:
        """Has all replicas do what a command wants. plan: works the command out on this replica.

        Raises Unavailable when the object store does not answer or this replica does not serve what all do; what plan
        raises.
        """
        with self._ordering:
            for _ in range(_ORDERS):
                seen = self._settled()
                with self.model.lock:
                    change = plan(self.model)
                    snapshot = change.snapshot(self.model) or seen.snapshot
                wanted = ordered(seen, change.facts, snapshot, by=self._who().id, lead_ms=0, why=change.why)
                if change.forgives:
                    wanted = wanted.model_copy(update={"refused": {}})
                try:
                    self._objects.write(seen, lambda _, wanted=wanted: wanted)  # type: ignore[misc]
                    self._look()
                except Conflict:
                    continue
                except (ObjectStoreError, Ended) as error:
                    raise Unavailable(
                        f"model {self.model.name!r}: the other replicas cannot be told, so nothing is changed: {error}"
                    ) from error
                self.obey_now()
                self.wake_others()
                return
        raise Unavailable(f"model {self.model.name!r}: other replicas change what is served all the time; try again")

    def wake(self) -> None:
        """Makes this replica look at the object store now, without waiting for it."""
        self._hurry()

    def wake_others(self) -> None:
        """Makes the other replicas look at the object store now, as far as they can be reached."""
        try:
            others = [each for each in self._objects.replicas() if each.id != self._who().id]
        except (ObjectStoreError, Ended) as error:
            logger.debug("%s: %s", self.model.name, error)
            return
        self._peers.wake(self.model.name, others)

    def view(self) -> dict[str, JsonValue]:
        """Returns what all replicas serve, and what each says of itself; docs/fleet.md describes it."""
        self._look()
        replicas = self._objects.replicas()
        head = self._head
        assert head is not None
        return fleet_view(self.model.name, head, self._objects.lease(), replicas, self._peers.wait(replicas))

    def run(self) -> None:
        """Follows what all serve until the model is stopped, then leaves the fleet."""
        is_reported = False
        trouble = ""
        while not self.model.stopping.is_set():
            try:
                if not is_reported and self._head is not None:
                    self._objects.report(self._report())
                    is_reported = True
                self._step()
                trouble = ""
            except (Conflict, Ended):
                pass
            except Exception as error:
                text = str(error) or type(error).__name__
                if text != trouble:
                    known = isinstance(error, EmberlineError)
                    logger.warning("%s: the fleet: %s", self.model.name, text, exc_info=None if known else error)
                trouble = text
            with self._changed:
                self._changed.wait(1.0 if trouble else _LOOK_S)

    def leave(self) -> None:
        """Takes this replica out of the fleet, so that nobody waits for it; called when it stops."""
        try:
            self._objects.leave(self._who().id)
        except (ObjectStoreError, Ended) as error:
            logger.debug("%s: %s", self.model.name, error)

    def obey_now(self) -> None:
        """Does what all are to do now. Raises StoreError."""
        self._step()

    def _step(self) -> None:
        head = self._head
        if head is not None:
            with self._stepping:
                self._follow_orders(head)

    def _follow_orders(self, head: Head) -> None:
        if not head.served.snapshot:
            self._found()
        elif head.served != self._obeyed and time.monotonic() >= self._switch_at:
            outcome = obey(self.model, head, staged=self._staged or self._showing)
            if outcome == "reached":
                self._obeyed, self._lost_at, self.model.anew = head.served, None, False
            elif outcome == "lost" and not self.model.anew:
                self._lost_at = self._lost_at or time.monotonic()
                if time.monotonic() - self._lost_at > _ANEW_S:
                    self.model.anew, self._lost_at = True, None
                    logger.warning("%s: is loaded anew: %s", self.model.name, self.why_not())
            if outcome != "reached":
                self._follow()
        self._tell_waiters(head)
        for snapshot, reason in list(self._refusals.items()):
            self._objects.refuse(snapshot, reason)
            del self._refusals[snapshot]
            self._look()
        if self.model.trouble != self._said and not self._staged:
            self._said = self.model.trouble
            self._objects.report(self._report())

    def _tell_waiters(self, head: Head) -> None:
        refused = frozenset(head.served.refused)
        if refused == self._told:
            return
        names = snapshot_names(head)
        for snapshot in refused - self._told:
            reason = f"a replica refuses it: {'; '.join(head.served.refused[snapshot])}"
            self.model.refuse_waiters(filter(None, (snapshot, names.get(snapshot, ""))), reason)
        forgiven = self._told - refused
        if forgiven:
            self.model.accept_waiters(name for each in forgiven for name in (each, names.get(each, "")) if name)
            refusals.forget(self.model, lambda each: each.kind == FleetRefused.__name__ and each.snapshot in forgiven)
            self._follow()
        self._told = refused

    def _found(self) -> None:
        """Makes what this replica serves what all serve: it is the first one that serves anything."""
        with self.model.lock:
            default = self.model.default
            if default is None or not self.model.knows_facts or self._staged:
                return
            facts, snapshot = self.model.facts, default.view.current.id
        head = self._head
        if head is None or not head.find(snapshot):
            return
        wanted = ordered(head.served, facts, snapshot, by=self._who().id, lead_ms=0)
        self._objects.write(head.served, lambda _: wanted)
        self._look()

    def _own(self) -> str:
        default = self.model.default
        return "" if default is None else default.view.current.id

    def _next(self, served: Served, head: Head) -> str:
        age_ms = time.time_ns() // 1_000_000 - served.written_unix_ms
        return served.next if served.next and age_ms < _NEXT_MS and head.find(served.next) else ""

    def _may_show(self, name: str, own: str) -> bool:
        """Returns whether a staged snapshot may be served now. Raises Outdated, FleetRefused."""
        head = self._head
        if head is None:
            raise Outdated
        served = head.served
        trial = "" if served.canary is None else served.canary.snapshot
        if name in (served.snapshot, trial):
            return True
        if served.snapshot and own != served.snapshot:
            if leads_to(head, name, served.snapshot):
                return True
            raise Outdated
        if name in served.refused:
            raise FleetRefused(f"no replica serves it: {'; '.join(served.refused[name])}")
        wanted = self._next(served, head)
        if served.paused or served.pinned or trial or not head.find(name) or (wanted and wanted != name):
            raise Outdated
        return False

    def _agreed(self, name: str) -> Agreed:
        head = self._head
        assert head is not None
        served = head.served
        trial = "" if served.canary is None else served.canary.snapshot
        if name not in (served.snapshot, trial):
            return Agreed()  # a step on the way

        def install(facts: ModelState) -> ModelState:
            here = {entry.id for mount in self.model.mounts for entry in mount.view.entries}
            return installed(facts, served, {*here, name}, reached=True)

        def done() -> None:
            self._showing = ""
            self._obeyed, self._lost_at, self.model.anew = served, None, False

        return Agreed(install, self._switch_at, done)

    def _hold(self, name: str, facts: ModelState, after: str, waited_s: float) -> None:
        """Commits for all when it holds the lease and all are ready for it. Raises Conflict, ObjectStoreError."""
        if not self._objects.take_lease(self._who().id, time.time_ns() // 1_000_000):
            return
        head = self._head
        assert head is not None
        replicas = self._objects.replicas()
        others = [each for each in replicas if each.id != self._who().id and each.staged != name]
        health = self._peers.health(others) if waited_s > _FIRST_ASK_S else {}
        verdict = judge(head, name, replicas, health, waited_s=waited_s, max_unavailable=self._who().max_unavailable)
        text = f"{name}: {verdict.reason}" if verdict.reason else ""
        if text and text != self._trouble and (verdict.action != "wait" or waited_s > 5):
            logger.warning("%s: %s %s", self.model.name, verdict.action, text)
            self._trouble = text
        if verdict.action == "wait":
            self._waits_for = f"{head.find(name).replace('/deltas/', '.')} waits: {verdict.reason}"
            return
        if verdict.action == "name":
            wanted = head.served.changed(
                next=verdict.snapshot, written_unix_ms=time.time_ns() // 1_000_000, by=self._who().id
            )
        else:
            wanted = ordered(head.served, facts, after, by=self._who().id, lead_ms=LEAD_MS)
        self._objects.write(head.served, lambda _: wanted)
        self._look()

    def _settled(self) -> Served:
        """Returns what all serve, once this replica serves it too. Raises Unavailable."""
        deadline = time.monotonic() + _ORDER_S
        self._look()
        while True:
            served, own = self.served, self._own()
            if self._head is not None and (served == self._obeyed or not own or not served.snapshot):
                return served
            if time.monotonic() > deadline:
                raise Unavailable(f"model {self.model.name!r}: {self.why_not() or 'it does not follow the others'}")
            with self._changed:
                self._changed.wait(HURRY_S)

    def _withdraw(self, is_reported: bool) -> None:
        """Takes back that a snapshot is staged. A holder that has not heard of it goes on without this replica."""
        if not is_reported or self.model.stopping.is_set():
            return
        try:
            self._objects.report(self._report())
        except (ObjectStoreError, Ended) as error:
            logger.debug("%s: %s", self.model.name, error)

    def _report(self, **changes: str) -> Replica:
        default = self.model.default
        current = None if default is None else default.view.current
        said: Mapping[str, str] = {
            "trouble": self.model.trouble,
            "served": "" if current is None else current.id,
            "served_name": "" if current is None else current.name,
            **changes,
        }
        return Replica(
            id=self._who().id,
            url=self._who().url,
            wake=self.wake_word,
            unix_ms=time.time_ns() // 1_000_000,
            **said,
        )
