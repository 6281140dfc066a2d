"""Counts what the updates of one model did so far, for the metrics page."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from serving.pipeline.snapshot import Snapshot
from serving.updates.steps import STEPS, TAKING
from storage.checkpoint.event_times import EventAges


@dataclass
class UpdateCounters:
    """Counts since the server started, and the current state."""

    deltas_applied: int = 0
    versions_loaded: int = 0
    #: Number of refused versions and deltas by class of the error.
    refused: dict[str, int] = field(default_factory=dict)
    rollbacks: int = 0
    #: Canaries that were held for their live AUC.
    live_auc_held: int = 0
    merges: int = 0
    merge_failures: int = 0
    #: True if the last merge failed, and is tried again.
    merge_failing: bool = False
    #: Milliseconds from the newest delta's appearance in the folder until requests saw it.
    last_visible_ms: float = 0.0
    last_delta_rows: int = 0
    overlays: int = 0
    overlay_bytes: int = 0
    #: Rows of the deltas that are not merged.
    overlay_rows: int = 0
    #: Seconds that the steps of updates took, by the step that ended.
    step_seconds: dict[str, float] = field(default_factory=dict)
    #: When this process began to serve the present snapshot, milliseconds since 1970; 0 while nothing is served.
    served_since_unix_ms: int = 0
    #: How often a fresh store took the place of a damaged one.
    stores_rebuilt: int = 0
    #: True if a store is damaged, and another is filled to take its place.
    store_rebuilding: bool = False
    held: int = 0
    #: How old events were when the first snapshot that was trained on them was served.
    event_ages: EventAges = field(default_factory=EventAges)
    #: Time of the newest event in the served snapshot, milliseconds since 1970; 0 while none is known.
    newest_event_unix_ms: int = 0
    #: True while a version or delta is read, staged and judged.
    staging: bool = False
    #: What is waited for; None for nothing.
    waiting: str | None = None
    #: The DRAM budget; None without one.
    dram_bytes: int | None = None
    # The served snapshot whose events were counted last, and when the newest of them all was published.
    _counted: str = ""
    _counted_unix_ms: int = 0
    # The threads that take an update, and when the step before ended there.
    _step_ended: dict[int, float] = field(default_factory=dict)

    def count_step(self, step: str) -> None:
        """Counts the time since the step before on this thread, from "found" to "switched"; what else ends is left out.

        Called on the thread that takes the update.
        """
        thread, now = threading.get_ident(), time.monotonic()
        if step == STEPS[0]:
            self._step_ended[thread] = now
        elif step in TAKING and (before := self._step_ended.get(thread)) is not None:
            self.step_seconds[step] = self.step_seconds.get(step, 0.0) + now - before
            self._step_ended[thread] = now
            if step == TAKING[-1]:
                del self._step_ended[thread]

    def count_events(self, served: Snapshot, now_ms: float) -> None:
        """Counts the events of a snapshot that is served from now on, each once.

        What is served first after a start is not counted, and neither is what was served before. Where snapshots were
        passed over, the events count that are newer than those that were served.
        """
        events, newest = served.events, self.newest_event_unix_ms
        if served.id == self._counted:
            return
        if events is not None:
            if self._counted and served.published_unix_ms > self._counted_unix_ms:
                after_ms = -1 if served.events_since == self._counted else newest
                self.event_ages = self.event_ages.with_events(events, now_ms, after_ms)
            self.newest_event_unix_ms = events.newest_unix_ms
        self._counted = served.id
        self._counted_unix_ms = max(served.published_unix_ms, self._counted_unix_ms)
