"""One replica of a model in its fleet: what it knows of what all serve, and what it tells them."""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from collections.abc import Callable

from serving.fleet.clocks import moment_of
from serving.fleet.holding import LEAD_LAST_MS, LEAD_MS, Holding
from serving.fleet.identity import Identity, warn_of_namesake
from serving.fleet.orders import installed, obey, ordered
from serving.fleet.peers import Peers
from serving.fleet.refusing import Refusing
from serving.fleet.standing import newer_than_served, snapshot_names, standing, trial_of
from serving.pipeline.snapshot import Snapshot
from serving.updates.agreement import After, Agreed, Outdated
from serving.updates.change import Change
from serving.updates.live_model import LiveModel
from serving.updates.state import ModelState
from storage.errors import Conflict, EmberlineError, ObjectStoreError, StoreError, Unavailable, UnsafeArtifact
from storage.objects.fleet import FleetObjects, Replica
from storage.objects.follower import HURRIES_S, HURRY_S
from storage.objects.head import Head, leads_to, line_to
from storage.objects.requests import Stopped as Ended
from storage.objects.served import Served

logger = logging.getLogger("emberline.serving")

# Seconds from which on a replica that serves something else than the others is not ready.
_GRACE_S = 0.5
# What cannot be followed is loaded anew after this time, when no balancer sends requests here any more.
_ANEW_S = 3.0
_LOOK_S = 0.25
# Seconds between tries to reach the others after a while, and when the object store does not answer.
_SLOW_S = 1.0
# Other writers that may be first, and seconds until this replica has to serve what all serve, before an order fails.
_ORDERS, _ORDER_S = 20, 10.0


class FleetRefused(EmberlineError):  # noqa: N818 - another replica's error
    """Another replica refuses the snapshot, so none of them serves it."""


class FleetMember:
    """One model of one replica. Thread-safe; `run` is called by one thread and ends with the model.

    objects: of the model. look: looks at the object store and returns when that is done. hurry: makes the looking
    thread look at once. who: known before `run`. follow: called when what is served leads to nothing that others serve.
    not_brought: returns why nothing comes from the object store, such as a full disk; "" for no reason.
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
        not_brought: Callable[[], str] = lambda: "",
    ) -> None:
        self.model = model
        self._who = who
        self.wake_word = secrets.token_hex(16)
        self._objects, self._peers = objects, peers
        self._look, self._hurry, self._follow, self._not_brought = look, hurry, follow, not_brought
        self._holding = Holding(model.name, objects, peers, look)
        self._changed = threading.Condition()
        self._head: Head | None = None
        self._switch_at = 0.0
        self._staged = self._showing = ""
        self._obeyed: Served | None = None
        self._lost_at: float | None = None
        self._refusing = Refusing(model, objects, look, follow)
        self._said = ""
        self._waits_for = ""
        self._ordering, self._stepping, self._reporting = threading.Lock(), threading.Lock(), threading.Lock()
        # Held by whoever takes the lease beside `run`, so that it is not taken again once this replica has left.
        self.leaving = threading.Lock()

    @property
    def head(self) -> Head | None:
        """Returns what is published and what all replicas serve, as of the last look; None before the first."""
        return self._head

    @property
    def served(self) -> Served:
        """Returns what all replicas serve, as far as it is known here."""
        head = self._head
        return Served() if head is None else head.served

    def see(self, head: Head, not_before: float = -math.inf) -> None:
        """Takes note of what is published and served; called in the order in which it was read.

        not_before: when a look began that did not find it, by `time.monotonic`.
        """
        with self._changed:
            if head.served != self.served:
                moment = moment_of(head.served, not_before, longest_ms=LEAD_LAST_MS)
                self._switch_at = moment.at
                if moment.ahead_s:
                    logger.warning(
                        "%s: the clock here is %.1f s %s that of %s; set both by NTP, so that replicas switch together",
                        self.model.name,
                        abs(moment.ahead_s),
                        "ahead of" if moment.ahead_s > 0 else "behind",
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
        name = snapshot_names(head).get(head.served.snapshot, head.served.snapshot)
        return f"it serves {current.name}, and the other replicas serve {name}"

    @property
    def waits_for(self) -> str:
        """Returns what a snapshot that is staged waits for, or why the newest one is not served; "" for nothing."""
        head = self._head
        if self._waits_for or head is None:
            return self._waits_for
        newer = self.refused_newer
        if not newer:
            return ""
        return f"{snapshot_names(head)[newer[-1]]} is served by no replica: {'; '.join(head.served.refused[newer[-1]])}"

    @property
    def replicas_behind(self) -> tuple[str, ...]:
        """Returns the ids of the replicas that this one waits for before it commits; empty without the lease."""
        return self._holding.waits_for

    @property
    def epochs_behind(self) -> int:
        """Returns how many changes of what all replicas serve this one has seen and not made yet."""
        obeyed = self._obeyed
        return max(0, self.served.epoch - (0 if obeyed is None else obeyed.epoch))

    @property
    def refused_newer(self) -> list[str]:
        """Returns the snapshots newer than the served one that a replica refused, the newest last."""
        head = self._head
        return [] if head is None else [each for each in newer_than_served(head) if each in head.served.refused]

    def allows(self, snapshot: str) -> bool:
        """See Agreement."""
        head = self._head
        return head is not None and standing(head, snapshot, self._own()) in ("show", "wait")

    def way(self) -> frozenset[str]:
        """See Agreement."""
        head = self._head
        if head is None or self._own() == head.served.snapshot:
            return frozenset()
        return frozenset(line_to(head, head.served.snapshot))

    def agree(self, snapshot: Snapshot, own: str, after: After, check: Callable[[], None]) -> Agreed:
        """See Agreement."""
        name = snapshot.id
        shown = self._shown(name, own)
        if shown is None:
            self._staged = name
            self._waits_for = f"{snapshot.name} is staged, and served once the other replicas have it"
            try:
                shown = self._wait_for_others(snapshot, own, after, check)
                self._showing = name
            finally:
                self._staged = self._waits_for = ""
                self._holding.waits_for = ()
        return self._agreed(name, *shown)

    def _wait_for_others(
        self, snapshot: Snapshot, own: str, after: After, check: Callable[[], None]
    ) -> tuple[Served, float]:
        began = time.monotonic()
        is_reported, try_at = False, 0.0
        self._hurry()
        try:
            while (shown := self._shown(snapshot.id, own)) is None:
                check()
                now = time.monotonic()
                if now >= try_at:
                    try_at = now + (HURRY_S if now - began < HURRIES_S else _SLOW_S)
                    try:
                        if not is_reported:
                            self._report()
                            is_reported = True
                        self._hold(snapshot, after, now - began)
                    except Conflict:
                        self._look()
                    except (EmberlineError, Ended) as error:  # of the objects there, not of what is staged here
                        logger.debug("%s: %s", self.model.name, error)
                        try_at = now + _SLOW_S
                with self._changed:
                    self._changed.wait(HURRY_S)
            return shown
        except BaseException:
            self._withdraw(is_reported)
            raise

    def _hold(self, snapshot: Snapshot, after: After, waited_s: float) -> None:
        head = self._head
        assert head is not None
        if head.served.snapshot and head.served != self._obeyed:
            return  # the facts here lack what was ordered meanwhile
        facts, served = after()
        reason = self._holding.hold(self._who(), head, snapshot.id, facts, served, waited_s)
        if reason:
            self._waits_for = f"{snapshot.name} is staged, and served once the other replicas have it: {reason}"

    def refuse(self, snapshot: str, error: Exception) -> None:
        """See Agreement."""
        head = self._head
        if isinstance(error, FleetRefused):
            return
        if head is None or not snapshot or leads_to(head, snapshot, head.served.snapshot):
            return  # the others serve it: this replica is at fault, and not ready
        with self._changed:
            self._refusing.add(snapshot, f"{self._who().id}: {str(error) or type(error).__name__}")
            self._changed.notify_all()

    def order(self, plan: Callable[[LiveModel], Change], settle_s: float = _ORDER_S) -> None:
        """Has all replicas do what a command wants. plan: works the command out on this replica.

        settle_s: waits so long until this replica serves what all do. Raises Unavailable when it does not then, or the
        object store does not answer; what plan raises.
        """
        with self._ordering:
            for _ in range(_ORDERS):
                seen = self._settled(settle_s)
                with self.model.lock:
                    change = plan(self.model)
                    snapshot = change.snapshot(self.model) or seen.snapshot
                lead_ms = LEAD_MS if snapshot != seen.snapshot else 0
                wanted = ordered(seen, change.facts, snapshot, by=self._who().id, lead_ms=lead_ms, why=change.why)
                if change.forgives:
                    wanted = wanted.model_copy(update={"refused": {}})
                try:
                    self._objects.write(seen, lambda _, wanted=wanted: wanted)  # type: ignore[misc]
                    self._look()
                except Conflict:
                    continue
                except (ObjectStoreError, UnsafeArtifact, Ended) as error:
                    self._look()  # it may have arrived, although nobody said so
                    if not self.served.has(wanted):
                        raise Unavailable(
                            f"model {self.model.name!r}: the other replicas cannot be told now: {error}; look at "
                            f"`emberline fleet {self.model.name}` before you repeat it, because it may arrive late"
                        ) from error
                self.wake_others()
                self._obey_order()
                return
        raise Unavailable(f"model {self.model.name!r}: other replicas change what is served all the time; try again")

    def _obey_order(self) -> None:
        """Does what was just ordered, which holds for all replicas by now. Raises Unavailable."""
        try:
            self._step()
        except StoreError as error:
            raise Unavailable(
                f"model {self.model.name!r}: the order holds for all replicas, but this one cannot record it: {error}"
            ) from error
        except (Conflict, ObjectStoreError, Ended) as error:
            logger.debug("%s: %s", self.model.name, error)  # `run` tries again

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

    def run(self) -> None:
        """Follows what all serve until the model is stopped, then leaves the fleet."""
        is_reported = False
        trouble = ""
        while not self.model.stopping.is_set():
            try:
                if not is_reported and self._head is not None:
                    warn_of_namesake(self.model.name, self._who(), self._objects, self._peers)
                    self._report()
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
                if not self.model.stopping.is_set():
                    wait_s, left_s = _SLOW_S if trouble else _LOOK_S, self._switch_at - time.monotonic()
                    self._changed.wait(min(wait_s, left_s) if left_s > 0 else wait_s)
        try:
            with self.leaving:
                self._objects.leave(self._who().id, self.wake_word)
        except (ObjectStoreError, Ended) as error:
            logger.debug("%s: %s", self.model.name, error)

    def notice(self) -> None:
        """Makes `run` look whether the model is stopping."""
        with self._changed:
            self._changed.notify_all()

    def _step(self) -> None:
        with self._stepping:
            head = self._head
            if head is not None:
                self._follow_orders(head)

    def _follow_orders(self, head: Head) -> None:
        if not head.served.snapshot:
            self._found(head)
        elif head.served != self._obeyed and not (self._is_early() and (self._staged or self._showing)):
            with self.model.lock:
                if self.served != head.served:
                    return  # what came after it may be shown already
                at = self._switch_at if self._is_early() else 0.0
                outcome = obey(self.model, head, staged=self._staged or self._showing, at=at)
                if outcome == "reached":
                    self._obeyed, self._lost_at, self.model.anew = head.served, None, False
            if outcome == "lost" and not self.model.anew:
                self._lost_at = self._lost_at or time.monotonic()
                if time.monotonic() - self._lost_at > _ANEW_S:
                    self._lost_at = None
                    self._find_back(head)
            if outcome != "reached":
                self._follow()
        self._refusing.tell(head)
        if (trouble := self._trouble()) != self._said and not self._staged:
            self._report()
            self._said = trouble

    def _is_early(self) -> bool:
        return time.monotonic() < self._switch_at

    def _find_back(self, head: Head) -> None:
        """Gets from what nothing leads to what all are to serve from. Raises Conflict, ObjectStoreError.

        Where no replica serves that, they have served newer ones without a fleet meanwhile, or it is gone for good:
        then they go on from what is here.
        """
        served, own = head.served, self._own()
        is_gone = not head.find(served.snapshot)
        if (is_gone or (own in newer_than_served(head) and standing(head, own, served.snapshot) == "wait")) and (
            self._serves_nobody()
        ):
            logger.warning("%s: no replica serves what all are to serve: they go on from another one", self.model.name)
            if is_gone:
                lost = served.changed(snapshot="", written_unix_ms=time.time_ns() // 1_000_000, by=self._who().id)
                self._objects.write(served, lambda _: lost)
                self._look()
            else:
                self._found(head)
        elif not is_gone and own:
            self.model.anew = True
            logger.warning("%s: is loaded anew: %s", self.model.name, self.why_not())

    def _serves_nobody(self) -> bool:
        """Returns whether all others are known to be not ready: whoever is ready serves what all are to serve."""
        others = [each for each in self._objects.replicas() if each.id != self._who().id]
        return all(each in ("unready", "gone") for each in self._peers.wait(others).values())

    def _found(self, head: Head) -> None:
        """Makes what this replica serves what all serve: it is the first one that serves anything."""
        with self.model.lock:
            default = self.model.default
            if default is None or not self.model.knows_facts or self._staged:
                return
            facts, snapshot = self.model.facts, default.view.current.id
            if head.served.epoch:  # what was ordered before holds on
                here = {entry.id for mount in self.model.mounts for entry in mount.view.entries}
                facts = installed(facts, head.served, here, reached=True)
        if not head.find(snapshot):
            return
        wanted = ordered(head.served, facts, snapshot, by=self._who().id, lead_ms=0)
        self._objects.write(head.served, lambda _: wanted)
        self._look()

    def _own(self) -> str:
        default = self.model.default
        return "" if default is None else default.view.current.id

    def _shown(self, name: str, own: str) -> tuple[Served, float] | None:
        """Returns under what, and from when on, a snapshot may be served; None while it waits for other replicas.

        Raises Outdated, FleetRefused.
        """
        with self._changed:
            head, at = self._head, self._switch_at
        found = "no" if head is None else standing(head, name, own)
        if found == "refused":
            assert head is not None
            raise FleetRefused(f"no replica serves it: {'; '.join(head.served.refused[name])}")
        if found == "no" or head is None:
            raise Outdated
        return (head.served, at) if found == "show" else None

    def _agreed(self, name: str, served: Served, at: float) -> Agreed:
        if name not in (served.snapshot, trial_of(served)):
            return Agreed()  # a step on the way

        def install(facts: ModelState) -> ModelState:
            here = {entry.id for mount in self.model.mounts for entry in mount.view.entries}
            return installed(facts, served, {*here, name}, reached=True)

        def done() -> None:
            self._showing = ""
            self._obeyed, self._lost_at, self.model.anew = served, None, False

        return Agreed(install, at, done)

    def _settled(self, wait_s: float) -> Served:
        """Returns what all serve, once this replica serves it too. Raises Unavailable."""
        deadline = time.monotonic() + wait_s
        self._look()
        while True:
            served, own = self.served, self._own()
            if served.snapshot and not own:
                raise Unavailable(
                    f"model {self.model.name!r}: this replica serves nothing yet; give the order to another one"
                )
            if self._head is not None and (self._has_all_of(served) or not served.snapshot):
                return served
            if time.monotonic() > deadline:
                why = self.why_not() or "it does not have the canary of the others yet"
                raise Unavailable(f"model {self.model.name!r}: {why}; give the order to another replica")
            with self._changed:
                self._changed.wait(HURRY_S)

    def _has_all_of(self, served: Served) -> bool:
        with self.model.lock:
            canary = self.model.canary_entry()
        return served == self._obeyed and trial_of(served) in ("", canary[1].id if canary is not None else "")

    def _withdraw(self, is_reported: bool) -> None:
        """Takes back that a snapshot is staged. A holder that has not heard of it goes on without this replica."""
        self._staged = ""
        if not is_reported or self.model.stopping.is_set():
            return
        try:
            self._report()
        except (ObjectStoreError, Ended) as error:
            logger.debug("%s: %s", self.model.name, error)

    def _trouble(self) -> str:
        return self.model.trouble or self._not_brought()

    def _report(self) -> None:
        """Writes what this replica says of itself, one thread after the other, so that the last one is true."""
        with self._reporting:
            self._objects.report(self.itself())

    def itself(self) -> Replica:
        """Returns what this replica says of itself now."""
        return Replica(
            id=self._who().id,
            url=self._who().url,
            wake=self.wake_word,
            served=self._own(),
            staged=self._staged,
            trouble=self._trouble(),
            unix_ms=time.time_ns() // 1_000_000,
        )
