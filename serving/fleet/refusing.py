"""Keeps what one replica refuses, and what no replica may serve because of that, the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from serving.fleet.standing import newer_than_served, snapshot_names
from serving.updates import refusals
from serving.updates.live_model import LiveModel
from serving.updates.state import Refusal
from storage.objects.fleet import FleetObjects
from storage.objects.head import Head


class Refusing:
    """The refusals of one replica. `add` is thread-safe; one thread at a time calls `tell`."""

    def __init__(
        self, model: LiveModel, objects: FleetObjects, look: Callable[[], None], follow: Callable[[], None]
    ) -> None:
        """look, follow: as for FleetMember."""
        self._model, self._objects, self._look, self._follow = model, objects, look, follow
        # Those that head.json lacks so far, with the reasons.
        self._own: dict[str, str] = {}
        self._told: frozenset[str] = frozenset()
        self._forgave: tuple[int, Mapping[str, Refusal]] = (-1, {})

    def add(self, snapshot: str, reason: str) -> None:
        """Notes that this replica refuses a snapshot."""
        self._own[snapshot] = reason

    def tell(self, head: Head) -> None:
        """Tells waiters here, and the other replicas, what is refused and why. Raises ObjectStoreError."""
        self._tell_waiters(head)
        self._forgive(head)
        for snapshot, reason in list(self._own.items()):
            self._objects.refuse(snapshot, reason)
            del self._own[snapshot]
            self._look()

    def _tell_waiters(self, head: Head) -> None:
        refused = frozenset(head.served.refused)
        if refused == self._told:
            return
        names = snapshot_names(head)
        for snapshot in refused - self._told:
            reason = f"a replica refuses it: {'; '.join(head.served.refused[snapshot])}"
            self._model.refuse_waiters(filter(None, (snapshot, names.get(snapshot, ""))), reason)
        forgiven = self._told - refused
        if forgiven:
            self._model.accept_waiters(name for each in forgiven for name in (each, names.get(each, "")) if name)
        self._told = refused

    def _forgive(self, head: Head) -> None:
        """Has this replica judge again what it refused and the others may take: they would wait for it in vain.

        It was forgiven by an operator, refused before there was a fleet, or others were never told.
        """
        quarantine = self._model.facts.quarantine
        if not quarantine or self._forgave == (head.generation, quarantine):
            return
        open_ones = set(newer_than_served(head)) - {*head.served.refused, *self._own}
        if refusals.forget(self._model, lambda each: each.snapshot in open_ones):
            self._follow()
        self._forgave = (head.generation, self._model.facts.quarantine)
