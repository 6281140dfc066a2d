"""Rows that DRAM does not have, read from SSD for many tables in one call on the request's own thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from storage._pages import ABSENT, FOUND
from storage.errors import StoreError
from storage.tiers.dram_cache import DramCache
from storage.tiers.overlays import Overlay, Overlays
from storage.tiers.promoter import Promoter, Promotion
from storage.tiers.ssd.reads import Answer, ReadRequest
from storage.tiers.ssd.tier import SsdTier


@dataclass(frozen=True)
class Wanted:
    """Ids (n,) of one table: in the base, or, with an overlay, among the rows that it spilled to SSD."""

    table: int
    ids: np.ndarray
    overlay: Overlay | None = None


class ColdReads:
    """The reads of one store. Any number of threads.

    numbers: a table's number on SSD, by its index. cache: the store's DRAM now, which a first budget replaces.
    """

    def __init__(
        self,
        ssd: SsdTier,
        numbers: Sequence[int],
        overlays: Overlays,
        cache: Callable[[], DramCache],
        promoter: Promoter,
    ) -> None:
        self._ssd = ssd
        self._numbers = numbers
        self._overlays = overlays
        self._cache = cache
        self._promoter = promoter

    def read(self, wanted: Sequence[Wanted], timeout_s: float | None) -> list[Answer]:
        """For each: rows and states, UNRESOLVED for what has not come after timeout_s (None: waits). Raises StoreError.

        What was found in the base is offered to DRAM, what was not is remembered.
        """
        if not wanted:
            return []
        started = time.monotonic()
        cache = self._cache()
        generation = cache.generation
        answers = self._ssd.read([self._request(each, cache) for each in wanted], timeout_s)
        self._offer(generation, wanted, answers)
        again = self._merged_meanwhile(wanted, answers)
        if again:
            left = None if timeout_s is None else max(0.0, timeout_s - (time.monotonic() - started))
            _merge(wanted, answers, again, self.read(again, left))
        return answers

    def _request(self, part: Wanted, cache: DramCache) -> ReadRequest:
        number = self._numbers[part.table] if part.overlay is None else part.overlay.spills[part.table]
        return ReadRequest(number, part.ids, cache.tables[part.table].row_bytes)

    def _offer(self, generation: int, wanted: Sequence[Wanted], answers: Sequence[Answer]) -> None:
        for part, (rows, states) in zip(wanted, answers, strict=True):
            if part.overlay is not None:
                continue
            hits, absent = states == FOUND, states == ABSENT
            if hits.any() or absent.any():
                self._promoter.offer(Promotion(generation, part.table, part.ids[hits], rows[hits], part.ids[absent]))

    def _merged_meanwhile(self, wanted: Sequence[Wanted], answers: Sequence[Answer]) -> list[Wanted]:
        """What to ask of the base, because an overlay's spilled rows have gone there. Raises StoreError."""
        again: list[Wanted] = []
        for part, (_, states) in zip(wanted, answers, strict=True):
            gone = states == ABSENT
            if part.overlay is None or not gone.any():
                continue
            # It left the view before its rows went, so what is not in the view was merged, and the base has them.
            view = self._overlays.view
            if part.overlay in view.live or view.discarded >> part.overlay.number & 1:
                raise StoreError(
                    f"{self._ssd.path}: rows of overlay {part.overlay.number} are gone; it was discarded or lost"
                )
            again.append(Wanted(part.table, part.ids[gone]))
        return again


def _merge(wanted: Sequence[Wanted], answers: list[Answer], again: Sequence[Wanted], late: list[Answer]) -> None:
    """Puts what a second read brought over what the first one did not find. again: parts of `wanted`, in its order."""
    found = iter(zip(again, late, strict=True))
    for each, (rows, states) in zip(wanted, answers, strict=True):
        gone = states == ABSENT
        if each.overlay is not None and gone.any():
            _, (new_rows, new_states) = next(found)
            rows[gone], states[gone] = new_rows, new_states
