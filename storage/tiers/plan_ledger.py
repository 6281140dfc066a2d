"""Keeps the plans of a store and the counts of their lookups."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import TypeVar

from storage.tiers.counting import LookupTotals
from storage.tiers.lookup_plan import LookupPlan

Plan = TypeVar("Plan", bound=LookupPlan)


class PlanLedger:
    """Registers the plans of a store, each with its own counts, so that sessions do not share a cache line."""

    def __init__(self, tables: int) -> None:
        self.any = False  # whether a plan was ever made
        self.lock = threading.Lock()  # held while a plan is made, or all are bound to other tables
        self._plans: list[tuple[weakref.ref[LookupPlan], LookupTotals]] = []
        self._ended = LookupTotals.of(tables)

    def made(self, make: Callable[[LookupTotals], Plan]) -> Plan:
        """Makes and registers a plan that adds to the totals it is given; they stay when the plan is gone."""
        totals = LookupTotals.of(len(self._ended.by_table))
        with self.lock:
            plan = make(totals)
            self.any = True
            self._merge()
            self._plans.append((weakref.ref(plan), totals))
        return plan

    def total(self) -> LookupTotals:
        """Returns the counts of all plans until now."""
        total = LookupTotals.of(len(self._ended.by_table))
        with self.lock:
            self._merge()
            for counted in (self._ended, *(counted for _, counted in self._plans)):
                total.merge(counted)
        return total

    def each(self) -> list[LookupPlan]:
        """Returns the plans that exist. The caller holds the lock."""
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
