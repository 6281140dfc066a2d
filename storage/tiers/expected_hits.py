"""Predicts which share of lookups DRAM answers while it is filled with hot ids."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from storage.tiers.hot_ids import HotIds
from storage.tiers.planning.use_codes import uses_of_codes

# Uses that a count stands for. A row that was used less than half a time in the memory of a cache has the count 0.
_USES = np.maximum(uses_of_codes(), 0.25)


class ExpectedHits:
    """Adds up the uses of those hot ids whose rows are here. One thread adds; any thread reads.

    lists: the hot ids by name of the table, with what lookups found where the lists were made. before: what an earlier
    filling by the same lists counted.
    """

    def __init__(self, lists: Mapping[str, HotIds], before: ExpectedHits | None = None) -> None:
        #: By table, how many of the ids an earlier filling brought, and this one so far.
        self.ids_before: Mapping[str, int] = {} if before is None else before.ids
        self.ids: dict[str, int] = dict.fromkeys(lists, 0)
        self._seen = {name: (hot.found, hot.hits) for name, hot in lists.items()}
        self._all = {name: uses_of(hot.counts) for name, hot in lists.items()}
        self._here = dict.fromkeys(lists, 0.0)

    def came(self, table: str, counts: np.ndarray) -> None:
        """Notes that the rows of ids with these counts (n,) uint8 are here."""
        self.ids[table] += len(counts)
        self._here[table] += uses_of(counts)

    def rate(self, is_complete: Callable[[str], bool] = lambda table: False) -> float | None:
        """Returns the share of lookups of rows that is expected to be answered; None when nothing was looked up.

        Lookups are those that the lists were made from: ids were asked for as often as their counts say, and ids that
        are on no list are not counted as answered. is_complete: whether all rows of a table are here.
        """
        found = sum(found for found, _ in self._seen.values())
        if found <= 0:
            return None
        hits = sum(
            asked if is_complete(name) else answered * min(1.0, self._here[name] / max(self._all[name], 0.25))
            for name, (asked, answered) in self._seen.items()
        )
        return min(1.0, hits / found)

    def seen(self, table: str) -> tuple[float, float]:
        """Returns how many lookups of a table found a row where the list was made, and how many the list answered."""
        return self._seen.get(table, (0.0, 0.0))


def uses_of(counts: np.ndarray) -> float:
    """Returns the uses that these counts (n,) uint8 stand for together."""
    return float(np.bincount(counts, minlength=len(_USES)) @ _USES)


def covered(mine: Mapping[str, HotIds], theirs: Mapping[str, HotIds]) -> float:
    """Returns the share of what `mine` answers that would be answered with the ids of `theirs` alone."""
    both = ExpectedHits(mine)
    for name, hot in mine.items():
        if name in theirs:
            both.came(name, hot.counts[np.isin(hot.ids, theirs[name].ids)])
    hits, found = sum(hot.hits for hot in mine.values()), sum(hot.found for hot in mine.values())
    return 1.0 if hits <= 0 else (both.rate() or 0.0) * found / hits
