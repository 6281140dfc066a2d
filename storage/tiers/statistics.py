"""What a store counts, and the plans that it counts for."""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass

from storage.tiers.lookup_plan import LookupCounts, LookupPlan


@dataclass(frozen=True)
class StoreStats:
    """Counts since the store was opened, and what lies where now. Keys of the dicts: "overlay", "dram" and "ssd".

    rows["ssd"] is that of the base; after merges it is exact for tables that DRAM holds whole, and for the others the
    number that was loaded.
    """

    hits: dict[str, int]
    absent: int
    unresolved: int
    rows: dict[str, int]
    bytes: dict[str, int]
    promotions_dropped: int


class PlanLedger:
    """The plans of a store, each with its own counts, so that lanes do not share a line of memory."""

    def __init__(self) -> None:
        self.any = False  # whether there ever was one
        self._lock = threading.Lock()
        self._plans: list[tuple[weakref.ref[LookupPlan], LookupCounts]] = []
        self._ended = LookupCounts()

    def add(self, plan: LookupPlan, counts: LookupCounts) -> None:
        """Enters a plan; when it is gone, its counts stay."""
        with self._lock:
            self.any = True
            self._fold()
            self._plans.append((weakref.ref(plan), counts))

    def total(self) -> LookupCounts:
        """What all plans counted until now."""
        total = LookupCounts()
        with self._lock:
            self._fold()
            for counts in (self._ended, *(counts for _, counts in self._plans)):
                total.add(counts)
        return total

    def release(self) -> None:
        """Has every plan let go of the tables."""
        with self._lock:
            for reference, _ in self._plans:
                if (plan := reference()) is not None:
                    plan.release()

    def __len__(self) -> int:
        return len(self._plans)

    def _fold(self) -> None:
        alive: list[tuple[weakref.ref[LookupPlan], LookupCounts]] = []
        for reference, counts in self._plans:
            if reference() is None:
                self._ended.add(counts)
            else:
                alive.append((reference, counts))
        self._plans = alive
