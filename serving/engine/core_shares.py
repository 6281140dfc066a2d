"""Shares the machine's cores fairly among models when their sessions want more cores than there are.

This is start-time fair queueing: a model's clock advances by the time that its batches took, divided by its share. When
cores are short, the batch of the model whose clock is behind goes first. A model that was idle takes over the clock of
those that were not, so idle time is not saved up.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class CoreAccount:
    """Counts one model's use of the cores."""

    def __init__(self, name: str, share: float) -> None:
        self.name = name
        #: Relative to the shares of the other models.
        self.share = share
        self.used_ns = 0
        self.clock = 0.0
        self.active = 0  # batches that compute or wait for a core


class CoreShares:
    """Decides which model's batch gets a core next. Thread-safe.

    slots: batches that compute at a time while several models want cores; a single model is not limited. A batch that
    waits for the disk keeps its slot, because it was that model's turn.
    """

    def __init__(self, slots: int | None = None) -> None:
        self.slots = slots or len(os.sched_getaffinity(0))
        self._lock = threading.Lock()
        self._running = 0
        self._busy: dict[CoreAccount, None] = {}
        self._waiting: list[tuple[CoreAccount, threading.Event]] = []  # in order of arrival
        self._clock = 0.0
        self._accounts: dict[str, CoreAccount] = {}

    def account(self, model: str, share: float) -> CoreAccount:
        """Returns the account of a model, one for all its versions and tables. share: its share from now on."""
        with self._lock:
            account = self._accounts.setdefault(model, CoreAccount(model, share))
            account.share = share
            return account

    @property
    def has_spare(self) -> bool:
        """Returns whether a core would be left if one more thread computed now: work that may wait asks for this."""
        return not self._waiting and self._running < max(1, self.slots - 1)

    @contextmanager
    def turn(self, account: CoreAccount) -> Iterator[None]:
        """Holds a core for one batch; waits for it while it is the turn of other models."""
        self._enter(account)
        started = time.monotonic_ns()
        try:
            yield
        finally:
            self._leave(account, time.monotonic_ns() - started)

    def _enter(self, account: CoreAccount) -> None:
        with self._lock:
            if account.active == 0:
                account.clock = max(account.clock, self._clock)
                self._busy[account] = None
            account.active += 1
            if self._running < self.slots or len(self._busy) == 1:
                self._running += 1
                self._clock = account.clock
                return
            event = threading.Event()
            self._waiting.append((account, event))
        event.wait()

    def _leave(self, account: CoreAccount, ns: int) -> None:
        with self._lock:
            self._running -= 1
            account.used_ns += ns
            account.clock += ns / account.share
            account.active -= 1
            if account.active == 0:
                del self._busy[account]
            while self._waiting and (self._running < self.slots or len(self._busy) == 1):
                # A model's clock advances while its batches wait, and it has no more of them than sessions.
                first = min(range(len(self._waiting)), key=lambda place: self._waiting[place][0].clock)
                behind, event = self._waiting.pop(first)
                self._clock = behind.clock
                self._running += 1
                event.set()
