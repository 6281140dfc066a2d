"""Collects the miss-ratio curves of DRAM: the share of lookups that would read from SSD with so many bytes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from prometheus_client import Metric

from serving.engine.model import LoadedModel
from serving.http.prometheus import Labels, family, label_value
from storage.errors import StoreError
from storage.tiers.planning.forecast import SlabCurve
from storage.tiers.tiered import TieredStore

#: Parts of the bytes that all rows of a curve's tables would take, at which the curve is shown.
SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
# A curve is computed anew after this time: that reads a sample of the lookups, and it moves slowly.
_KEPT_S = 60.0


@dataclass(frozen=True)
class _Curves:
    slabs: tuple[SlabCurve, ...]
    #: The present bytes of each.
    now: tuple[int, ...]
    #: By time.monotonic; 0 while a slab has none.
    at: float


class CacheCurves:
    """Keeps the curves of stores with a DRAM budget for a minute. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: WeakKeyDictionary[TieredStore, _Curves] = WeakKeyDictionary()

    def families(self, models: Iterable[tuple[LoadedModel, Labels]]) -> Iterator[Metric]:
        """Yields a point of each curve for each of SHARES, and the present ones.

        Labels: model, version, tables (those of one row size, which share one cache), and share.
        """
        known = [(curves, of) for model, of in models if (curves := self._curves(model.parts.store)) is not None]
        slabs = [
            (
                slab,
                now,
                {"model": of["model"], "version": of["version"], "tables": label_value(",".join(slab.tables))[:200]},
            )
            for curves, of in known
            for slab, now in zip(curves.slabs, curves.now, strict=True)
        ]
        points = [(slab, share, {**of, "share": f"{share:g}"}) for slab, _, of in slabs for share in SHARES]
        yield family(
            "emberline_cache_curve_bytes",
            "gauge",
            "DRAM of a point of the miss-ratio curve",
            [(of, float(round(slab.whole_bytes * share))) for slab, share, of in points],
        )
        yield family(
            "emberline_cache_curve_miss_ratio",
            "gauge",
            "Expected share of the lookups that read from SSD with so many bytes",
            [(of, 1.0 - slab.hit_rate(slab.whole_bytes * share)) for slab, share, of in points],
        )
        yield family(
            "emberline_cache_bytes",
            "gauge",
            "DRAM that the tables of a miss-ratio curve have now",
            [(of, float(now)) for _, now, of in slabs],
        )
        yield family(
            "emberline_cache_expected_miss_ratio",
            "gauge",
            "Share of the lookups that the curve expects to read from SSD now",
            [(of, 1.0 - slab.hit_rate(now)) for slab, now, of in slabs],
        )

    def _curves(self, store: TieredStore) -> _Curves | None:
        """Returns the curves of a store; None without a budget, for then no lookup is sampled."""
        with self._lock:
            known, now = self._known.get(store), time.monotonic()
            if known is None or now - known.at > _KEPT_S:
                try:
                    forecast = store.forecast()
                    sizes = tuple(store.slab_bytes())
                except StoreError:  # it is being closed
                    return None
                if forecast is None or len(sizes) != len(forecast.slabs):
                    return None
                # A slab without a sampled lookup has no curve yet.
                known_slabs = [index for index, slab in enumerate(forecast.slabs) if len(slab.curve_rows) > 1]
                known = _Curves(
                    tuple(forecast.slabs[index] for index in known_slabs),
                    tuple(sizes[index] for index in known_slabs),
                    now if len(known_slabs) == len(sizes) else 0.0,
                )
                self._known[store] = known
            return known
