"""Raw columns to scores: features, lookup, dense graph. One pipeline a thread; the parts that it drives are shared."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from serving.engine.snapshot import Snapshot
from storage.checkpoint import GraphInput
from storage.checkpoint.manifest import GraphEntry
from storage.errors import CheckpointError
from storage.features import Column, FeatureBatch, FeatureEngine, FeatureSpec, concat_batches
from storage.specs import LookupSpec
from storage.tiers.tiered import COUNTED, LookupCounts, LookupResult, TieredStore

_NUMPY = {"FP32": np.float32, "FP64": np.float64, "INT64": np.int64, "INT32": np.int32, "BOOL": np.bool_}
_Pick = Callable[[FeatureBatch, LookupResult], np.ndarray]


@dataclass(slots=True)
class Scores:
    """What a batch gave. outputs: of the whole batch, in the graph's order. counts: where its rows came from."""

    outputs: list[np.ndarray]
    counts: LookupCounts
    infer_ns: int


class Pipeline:
    """Not thread-safe: it owns a lookup plan. Its memory beside the shared parts is that plan's scratch.

    counted: (T, 5) of all its lookups so far, by table, columns as in COUNTED.
    """

    def __init__(
        self,
        spec: FeatureSpec,
        engine: FeatureEngine,
        store: TieredStore,
        graph: GraphEntry,
        lookup_timeout_s: float | None,
    ) -> None:
        """graph: the interface that the dense graphs of all its snapshots have."""
        self._engine = engine
        self.counted = np.zeros((len(store.tables), len(COUNTED)), np.uint64)
        self.output_names = tuple(entry.name for entry in graph.outputs)
        self._lookup_timeout_s = lookup_timeout_s
        # Features that the graph does not read are not looked up.
        self._features = list(dict.fromkeys(entry.source for entry in graph.inputs if entry.kind != "dense"))
        features = [spec.feature(name) for name in self._features]
        self._plan = store.plan([LookupSpec(f.name, f.table, f.pooling, f.length) for f in features])
        self._picks = [self._pick(entry) for entry in graph.inputs]

    def features(self, columns: Mapping[str, Column], batch: int) -> FeatureBatch:
        """Runs the feature engine over one request. Raises InvalidInput naming the input at fault."""
        return self._engine.run(columns, batch)

    def score(self, batches: Sequence[FeatureBatch], snapshot: Snapshot) -> Scores:
        """Scores requests together, all on one snapshot that the caller has pinned. Raises StoreError."""
        started_ns = time.monotonic_ns()
        whole = concat_batches(batches)
        ids = [whole.ids[name] for name in self._features]
        found = self._plan.lookup(whole.batch, ids, self._lookup_timeout_s, snapshot.mask)
        self.counted += found.by_table
        tensors = [torch.from_numpy(pick(whole, found)) for pick in self._picks]
        outputs = [tensor.numpy() for tensor in snapshot.graph.run(tensors)]
        return Scores(outputs, found.counts, time.monotonic_ns() - started_ns)

    def _pick(self, entry: GraphInput) -> _Pick:
        """How one input of the graph is taken out of features and lookup, in the dtype that the graph wants."""
        dtype = np.dtype(_NUMPY[entry.dtype])
        if entry.kind == "dense":
            source = entry.source
            return lambda features, found: features.dense[source].astype(dtype, copy=False)
        index = self._features.index(entry.source)
        part = {"pooled": "outputs", "rows": "outputs", "lengths": "lengths", "mask": "masks"}[entry.kind]

        def pick(features: FeatureBatch, found: LookupResult) -> np.ndarray:
            value = getattr(found, part)[index]
            if value is None:
                raise CheckpointError(f"graph input {entry.name!r}: the feature {entry.source!r} is pooled")
            return np.asarray(value).astype(dtype, copy=False)

        return pick
