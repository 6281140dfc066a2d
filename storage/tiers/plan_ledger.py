"""The plans of a store, and what they counted."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import TypeVar

from storage.tiers.counting import LookupTotals
from storage.tiers.lookup_plan import LookupPlan

Plan = TypeVar("Plan", bound=LookupPlan)


class PlanLedger:
    """The plans of a store, each with its own counts, so that sessions do not share a line of memory."""

    def __init__(self, tables: int) -> None:
        self.any = False  # whether there ever was one
        self.lock = threading.Lock()  # held while a plan is made, or all are given other tables
        self._plans: list[tuple[weakref.ref[LookupPlan], LookupTotals]] = []
        self._ended = LookupTotals.of(tables)

    def made(self, make: Callable[[LookupTotals], Plan]) -> Plan:
        """Makes a plan, which counts what it is given, and enters it; when it is gone, its counts stay."""
        totals = LookupTotals.of(len(self._ended.by_table))
        with self.lock:
            plan = make(totals)
            self.any = True
            self._merge()
            self._plans.append((weakref.ref(plan), totals))
        return plan

    def total(self) -> LookupTotals:
        """What all plans counted until now."""
        total = LookupTotals.of(len(self._ended.by_table))
        with self.lock:
            self._merge()
            for counted in (self._ended, *(counted for _, counted in self._plans)):
                total.merge(counted)
        return total

    def each(self) -> list[LookupPlan]:
        """The plans that there are. Under the lock."""
        return [plan for reference, _ in self._plans if (plan := reference()) is not None]

    def __len__(self) -> int:
        return len(self._plans)

    def _merge(self) -> None:
        alive: list[tuple[weakref.ref[LookupPlan], LookupTotals]] = []
        for reference, counted in self._plans:
            if reference() is None:
                self._ended.merge(counted)
            else:
                alive.append((reference, counted))
        self._plans = alive
