"""Turns raw columns into scores on the processor: features, lookup, dense graph.

Each thread has a pipeline of its own; the parts that it drives are shared.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from serving.pipeline.snapshot import Snapshot
from serving.pipeline.user_side import SidedBatch, SidedFeatures, UserSide
from storage.checkpoint import GraphInput
from storage.checkpoint.manifest import GraphEntry
from storage.errors import CheckpointError
from storage.features import (
    Column,
    FeatureBatch,
    FeatureEngine,
    FeatureSpec,
    can_join,
    concat_batches,
    is_row_by_row,
)
from storage.features.dtypes import NUMPY_DTYPES
from storage.specs import LookupSpec
from storage.tiers.tiered import COUNTED, LookupCounts, LookupResult, TieredStore

# The columns and the number of rows of one request.
RawRequest = tuple[Mapping[str, Column], int]
# Features, and the number of requests that they belong to.
MadeFeatures = tuple[FeatureBatch | SidedFeatures, int]
_Pick = Callable[[FeatureBatch, LookupResult], np.ndarray]


@dataclass(slots=True)
class Scores:
    """The scores of a batch."""

    #: Outputs for the whole batch, in the graph's order.
    outputs: list[np.ndarray]
    #: Where the rows of the batch came from.
    counts: LookupCounts
    infer_ns: int


class _Lookup:
    """Looks up some features, and takes inputs of the graph out of the result."""

    def __init__(self, spec: FeatureSpec, store: TieredStore, graph: GraphEntry, places: Sequence[int]) -> None:
        """places: positions of the graph's inputs that are made from these features."""
        entries = [graph.inputs[place] for place in places]
        # Features that the graph does not read are not looked up.
        self._features = list(dict.fromkeys(entry.source for entry in entries if entry.kind != "dense"))
        features = [spec.feature(name) for name in self._features]
        self._plan = store.plan([LookupSpec(f.name, f.table, f.pooling, f.length) for f in features])
        self._picks = [(place, self._pick(entry)) for place, entry in zip(places, entries, strict=True)]

    def run(self, batch: FeatureBatch, timeout_s: float | None, mask: int, tensors: list[torch.Tensor]) -> LookupResult:
        """Looks up the ids of the features, and puts the graph's inputs into their places of `tensors`."""
        found = self._plan.lookup(batch.batch, [batch.ids[name] for name in self._features], timeout_s, mask)
        for place, pick in self._picks:
            tensors[place] = torch.from_numpy(pick(batch, found))
        return found

    def _pick(self, entry: GraphInput) -> _Pick:
        """Returns a function that takes one input of the graph out of features and lookup, in the graph's dtype."""
        dtype = NUMPY_DTYPES[entry.dtype]
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


class ScoringPipeline(Protocol):
    """Makes features of requests, then scores all of them together; a session drives it.

    Not thread-safe: one thread uses it at a time.
    """

    counted: np.ndarray
    output_names: tuple[str, ...]

    def prepare(self) -> None:
        """Gets ready to score. The thread that will score calls it once, before anything else. Raises DeviceError."""

    def begin_requests(self) -> None:
        """Marks the beginning of real requests.

        Requests that are scored from now on are counted, and caches learn from them; those before do not count.
        """

    def features(self, requests: Sequence[RawRequest]) -> list[MadeFeatures]:
        """Makes features of requests, in their order.

        Raises InvalidInput that names the input at fault, not the request.
        """

    def score(self, batches: Sequence[FeatureBatch | SidedFeatures], snapshot: Snapshot) -> Scores:
        """Scores several requests together, all on one snapshot that the caller has pinned."""

    def close(self) -> None:
        """Releases what it holds outside this process's own memory. No other method is called afterwards."""


def run_joined(engine: FeatureEngine, requests: Sequence[RawRequest]) -> list[MadeFeatures]:
    """Runs an engine once for requests that can be joined; returns nothing for no requests. Raises InvalidInput."""
    return [(engine.run_joined(requests), len(requests))] if requests else []


class RequestFeatures:
    """Makes features of requests. Thread-safe."""

    def __init__(self, engine: FeatureEngine, side: UserSide | None) -> None:
        self._engine = engine
        #: How the user's side is split; None where it is not.
        self.side = side

    def make(self, requests: Sequence[RawRequest]) -> list[MadeFeatures]:
        """Runs the feature engine, once for neighbours that have the same inputs: a run costs more than a row.

        Raises InvalidInput naming the input at fault; with several requests, it does not say whose input it is.
        """
        made: list[MadeFeatures] = []
        alike: list[RawRequest] = []
        for request in requests:
            columns, batch = request
            # The one row of a user stands only for the rows of its own request.
            is_plain = is_row_by_row(columns, batch)
            if not is_plain and self.side is not None and self.side.takes(columns, batch):
                made += run_joined(self._engine, alike)
                alike = []
                made.append((self.side.run(columns, batch), 1))
                continue
            if alike and not (is_plain and can_join(alike[0][0], columns)):
                made += run_joined(self._engine, alike)
                alike = []
            if is_plain:
                alike.append(request)
            else:
                made.append((self._engine.run(columns, batch), 1))
        return made + run_joined(self._engine, alike)


class Pipeline:
    """Scores requests on the processor. Not thread-safe: it owns lookup plans.

    The only memory that it has for itself is the scratch memory of these plans; the other parts are shared.
    """

    def __init__(
        self,
        spec: FeatureSpec,
        requests: RequestFeatures,
        store: TieredStore,
        graph: GraphEntry,
        lookup_timeout_s: float | None,
    ) -> None:
        """graph: the interface that the dense graphs of all its snapshots have."""
        self._requests = requests
        self._side = side = requests.side
        #: (T, 6) counts of all its lookups so far, by table, columns as in COUNTED.
        self.counted = np.zeros((len(store.tables), len(COUNTED)), np.uint64)
        self.output_names = tuple(entry.name for entry in graph.outputs)
        self._lookup_timeout_s = lookup_timeout_s
        self._inputs = len(graph.inputs)
        self._whole = _Lookup(spec, store, graph, range(self._inputs))
        if side is not None:
            user = side.places(graph)
            self._user_places = user
            self._user = _Lookup(spec, store, graph, user)
            self._item = _Lookup(spec, store, graph, [place for place in range(self._inputs) if place not in user])

    def prepare(self) -> None:
        """Does nothing: the scratch memory is allocated with the batches."""

    def begin_requests(self) -> None:
        """Sets the counts of lookups to zero; the host's tiers have already counted the lookups before."""
        self.counted[:] = 0

    def features(self, requests: Sequence[RawRequest]) -> list[MadeFeatures]:
        """Makes features of requests, in their order. Raises InvalidInput naming the input at fault."""
        return self._requests.make(requests)

    def score(self, batches: Sequence[FeatureBatch | SidedFeatures], snapshot: Snapshot) -> Scores:
        """Scores requests together, all on one snapshot that the caller has pinned. Raises StoreError."""
        side = self._side
        if side is not None and any(isinstance(batch, SidedFeatures) for batch in batches):
            merged = side.merge(batches)
            if side.is_on:
                return self.score_sided(merged, snapshot)
            return self._score_whole(merged.whole(), snapshot)
        return self._score_whole(
            concat_batches([batch for batch in batches if isinstance(batch, FeatureBatch)]), snapshot
        )

    def score_sided(self, batch: SidedBatch, snapshot: Snapshot) -> Scores:
        """Scores a batch; looks up and computes the user's side once for each user."""
        started_ns = time.monotonic_ns()
        tensors = [torch.empty(0)] * self._inputs
        of_users = self._user.run(batch.user, self._lookup_timeout_s, snapshot.mask, tensors)
        found = self._item.run(batch.item, self._lookup_timeout_s, snapshot.mask, tensors)
        self.counted += of_users.by_table
        self.counted += found.by_table
        found.counts.add(of_users.counts)
        rows = torch.from_numpy(batch.rows)
        halves = snapshot.graph.program.halves(self._user_places)
        if halves is None:
            for place in self._user_places:
                tensors[place] = tensors[place].index_select(0, rows)
            outputs = snapshot.graph.run(tensors)
        else:
            outputs = snapshot.graph.run_halves(halves, tensors, rows)
        return Scores([tensor.numpy() for tensor in outputs], found.counts, time.monotonic_ns() - started_ns)

    def graph_inputs(self, batch: FeatureBatch, snapshot: Snapshot) -> tuple[list[torch.Tensor], LookupResult]:
        """Returns the inputs of the whole graph for a batch, and the result of its lookups."""
        tensors = [torch.empty(0)] * self._inputs
        found = self._whole.run(batch, self._lookup_timeout_s, snapshot.mask, tensors)
        self.counted += found.by_table
        return tensors, found

    def close(self) -> None:
        """Does nothing: the plans are released with the store."""

    def _score_whole(self, batch: FeatureBatch, snapshot: Snapshot) -> Scores:
        started_ns = time.monotonic_ns()
        tensors, found = self.graph_inputs(batch, snapshot)
        outputs = [tensor.numpy() for tensor in snapshot.graph.run(tensors)]
        return Scores(outputs, found.counts, time.monotonic_ns() - started_ns)
