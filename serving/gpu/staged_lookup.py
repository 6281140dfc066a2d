"""Looks up into the staging buffer: rows go from the tables to where the GPU fetches them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from storage.checkpoint.manifest import GraphEntry
from storage.errors import CheckpointError
from storage.features import FeatureBatch, FeatureSpec
from storage.tiers.tiered import LookupResult, TieredStore

# Kinds of inputs that need no lookup.
_AS_THEY_ARE = frozenset({"dense", "ids"})
_PARTS = {"lengths": "lengths", "mask": "masks"}


class StagedLookup:
    """The lookups for some inputs of a graph. Not thread-safe: it owns a plan."""

    def __init__(self, spec: FeatureSpec, store: TieredStore, graph: GraphEntry, places: Sequence[int]) -> None:
        """Plans the lookups. places: numbers of the graph's inputs that are made here."""
        entries = [(place, graph.inputs[place]) for place in places]
        # Features that the graph does not read are not looked up.
        sources = dict.fromkeys(entry.source for _, entry in entries if entry.kind not in _AS_THEY_ARE)
        #: The features that are looked up, in the plan's order.
        self.features = self._features = list(sources)
        self._plan = store.plan([spec.lookup(name) for name in self._features])
        self._dense = [(place, entry.source) for place, entry in entries if entry.kind == "dense"]
        self._integers = [(place, entry.source) for place, entry in entries if entry.kind == "ids"]
        # The input that a feature's rows are written to by the lookup itself.
        self._direct: list[int | None] = [None] * len(self._features)
        self._copied: list[tuple[int, int, str, str]] = []
        for place, entry in entries:
            if entry.kind in _AS_THEY_ARE:
                continue
            number = self._features.index(entry.source)
            if entry.kind in ("pooled", "rows") and entry.dtype == "FP32" and self._direct[number] is None:
                self._direct[number] = place
            else:
                self._copied.append((place, number, _PARTS.get(entry.kind, "outputs"), entry.name))

    def run(self, batch: FeatureBatch, timeout_s: float | None, mask: int, views: Sequence[np.ndarray]) -> LookupResult:
        """Fills its inputs among `views`, all inputs of the graph. Raises StoreError."""
        for place, source in self._dense:
            views[place][...] = batch.dense[source]
        for place, source in self._integers:
            views[place][...] = batch.integers(source)
        # The views lie in memory of the GPU's driver, which a plan must not keep after the session.
        outputs = [None if place is None else views[place] for place in self._direct]
        into = self._plan.arrays(batch.batch, outputs, once=True)
        ids = [batch.ids[name] for name in self._features]
        found = self._plan.lookup(batch.batch, ids, timeout_s, mask, into)
        for place, number, part, name in self._copied:
            value = getattr(found, part)[number]
            if value is None:
                raise CheckpointError(f"graph input {name!r}: the feature {self._features[number]!r} is pooled")
            views[place][...] = value
        return found
