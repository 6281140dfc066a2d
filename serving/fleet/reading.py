"""Reads what the object store has of a fleet within a time, and falls back on what was read last."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from storage.errors import EmberlineError, ObjectStoreError
from storage.objects.fleet import FleetObjects, Lease, Replica
from storage.objects.mirror import RepositoryMirror
from storage.objects.requests import Stopped
from storage.objects.trials import TrialObjects, TrialReport

#: Whoever asks for a fleet waits so long for the object store, and gets what is known without it then.
ANSWER_S = 5.0


@dataclass(frozen=True)
class Reading:
    """Holds what the object store says of the replicas of a model, or said when it last answered."""

    #: The URL of the model in the object store.
    url: str
    lease: Lease
    replicas: Sequence[Replica]
    #: What was last said of a canary by live AUC.
    trial: TrialReport | None
    #: When the object store last said what all serve.
    answered_unix_ms: int
    #: When `replicas` were read; 0 where they never were.
    replicas_unix_ms: int
    #: Why the object store does not say it now; "" when it does.
    error: str = ""


class Reader:
    """Reads the objects of one fleet, on a thread of its own, because an object store may not answer at all.

    Thread-safe. Callers that come while it reads share what it finds. mirror: follows the model.
    """

    def __init__(self, objects: FleetObjects, mirror: RepositoryMirror) -> None:
        self._objects, self._mirror = objects, mirror
        self._trial: TrialReport | None = None
        self._lock = threading.Lock()
        self._began = 0.0
        self._found: Future[Lease] | None = None

    def read(self, within_s: float = ANSWER_S) -> Reading:
        """Returns what the object store says now, or what it said last and why it does not answer within a time."""
        with self._lock:
            if self._found is None or self._found.done():
                self._found, self._began = Future(), time.monotonic()
                threading.Thread(target=self._run, args=(self._found,), name="emberline-view", daemon=True).start()
            found, until = self._found, self._began + within_s
        model, lease, error = self._objects.model, Lease(), ""
        try:
            lease = found.result(max(0.0, until - time.monotonic()))
        except TimeoutError:
            error = self._mirror.not_seen(model.name) or f"{model.url}: no answer within {within_s:g} s"
        except (EmberlineError, Stopped) as failure:
            error = str(failure) or "this server stops"
        replicas, read_unix_ms = self._objects.known
        answered_unix_ms = int(self._mirror.status(model.name).checked_unix * 1000)
        return Reading(model.url, lease, replicas, self._trial, answered_unix_ms, read_unix_ms, error)

    def _run(self, found: Future[Lease]) -> None:
        try:
            name = self._objects.model.name
            self._mirror.check(name)
            if error := self._mirror.not_seen(name):
                raise ObjectStoreError(error)
            self._objects.replicas()
            self._trial = TrialObjects(self._objects.model).said()
            found.set_result(self._objects.lease())
        except BaseException as failure:  # whoever waits raises it
            found.set_exception(failure)
