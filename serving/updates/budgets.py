"""Divides a model's DRAM budget among its stores while they are opened and closed.

A store is served, or it is on its way in or out. The served ones share the budget in equal parts. Those on their way
share a tenth of it, beside the budget. So a version that is loaded beside a served one goes

    old      new
    1        0.1     loaded and judged
    0.5      0.5     both are served, for the moment between; the requests move over
    0.1      1       the old one is drained, then closed

and the sum never passes the budget and a tenth: stores shrink before others grow.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

from serving.model_config.options import ModelOptions
from storage.errors import EmberlineError
from storage.tiers.tiered import TieredStore

logger = logging.getLogger("emberline.serving")

EXTRA_SHARE = 10
_LOOK_S = 0.1


class DramBudget:
    """Divides one DRAM budget among stores. Thread-safe."""

    def __init__(self, total: int | None = None) -> None:
        #: Bytes; None without a bound: then every store holds all of its rows.
        self.total = total
        self._lock = threading.Lock()
        self._served: dict[TieredStore, bool] = {}

    def open(self, opener: Callable[[int | None], TieredStore]) -> TieredStore:
        """Opens a store on its way in. opener: opens it with so many bytes, once the others have shrunk."""
        with self._lock:
            self._divide(self._parts(coming=1))
            store = opener(self._coming_bytes())
            self._served[store] = False
        return store

    def serve(self, store: TieredStore) -> None:
        """Gives a store that requests are about to reach the same part as those that are served already."""
        self._change(store, True)

    def retire(self, store: TieredStore) -> None:
        """Gives the part of a store that requests are about to leave to the others."""
        self._change(store, False)

    def leave(self, store: TieredStore) -> None:
        """Forgets a store that was closed."""
        with self._lock:
            if self._served.pop(store, None) is not None:
                self._divide(self._parts())

    def follow(self, said: Callable[[], int | None]) -> None:
        """Takes over the present budget. When it returns, rows that do not fit any more are gone.

        said: returns the budget; called when it is this call's turn, so that of two callers neither restores what the
        other replaced. Raises StoreError; then the budget stays as it was.
        """
        with self._lock:
            before, total = self.total, said()
            if total == before:
                return
            self.total = total
            try:
                self._divide(self._parts(), strictly=True)
            except BaseException:
                self.total = before
                self._divide(self._parts())
                raise

    def _change(self, store: TieredStore, served: bool) -> None:
        with self._lock:
            if self._served.get(store) is not None and self._served[store] != served:
                self._served[store] = served
                self._divide(self._parts())

    def _divide(self, wanted: Mapping[TieredStore, int | None], *, strictly: bool = False) -> None:
        """Gives every store its part. strictly: raises a store's error; otherwise that store keeps what it has."""
        for store in sorted(wanted, key=lambda each: _growth(each, wanted[each])):
            if store.dram_bytes == wanted[store]:
                continue
            try:
                store.set_dram_bytes(wanted[store])
            except EmberlineError as error:
                if strictly:
                    raise
                logger.warning("%s: its DRAM budget stays as it is: %s", store.ssd.path, error)

    def _parts(self, coming: int = 0) -> dict[TieredStore, int | None]:
        """Returns the part of each store. coming: number of stores that are about to be opened beside these."""
        served = sum(self._served.values())
        others = len(self._served) - served + coming
        if self.total is None:
            return dict.fromkeys(self._served)
        passing = (self.total if served == 0 else self.total // EXTRA_SHARE) // max(1, others)
        return {store: self.total // served if is_served else passing for store, is_served in self._served.items()}

    def _coming_bytes(self) -> int | None:
        """Returns the part of a store that is opened now. The others have shrunk already."""
        others = len(self._served) - sum(self._served.values()) + 1
        if self.total is None:
            return None
        return (self.total // EXTRA_SHARE if any(self._served.values()) else self.total) // others


def wait_filled(store: TieredStore, check_stop: Callable[[], None]) -> None:
    """Waits until a store has filled the memory that a larger budget gave it, if there is any."""
    while not store.wait_filled(_LOOK_S):
        check_stop()


def wait_hit_rate(name: str, store: TieredStore, options: ModelOptions, check_stop: Callable[[], None]) -> None:
    """Waits until DRAM is expected to have the hit rate that makes a model ready, is filled, or the time is up.

    Without hot ids nothing is expected, and nothing is waited for. Filling takes a whole core meanwhile, because no
    request waits for it.
    """
    if not isinstance(options.ready_when, float) or store.hot.expected_hit_rate() is None:
        return
    deadline = time.monotonic() + options.ready_timeout_ms / 1000
    store.hot.is_awaited = True
    try:
        while (store.hot.expected_hit_rate() or 0.0) < options.ready_when and not store.wait_filled(_LOOK_S):
            check_stop()
            if time.monotonic() > deadline:
                logger.warning("%s: DRAM is still being filled after ready_timeout_ms, and is not waited for", name)
                return
    finally:
        store.hot.is_awaited = False


def _growth(store: TieredStore, wanted: int | None) -> float:
    if wanted is None:
        return float("inf")
    return wanted - (float("inf") if store.dram_bytes is None else store.dram_bytes)
