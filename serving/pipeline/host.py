"""Turns raw columns into scores on the processor: features, lookup, dense graph.

Each thread has a pipeline of its own; the parts that it drives are shared.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from serving.pipeline.feature_lookup import FeatureLookup, MadeInput
from serving.pipeline.levels import BatchLevels, LevelCounts, chained_features
from serving.pipeline.snapshot import Snapshot
from serving.pipeline.user_side import SidedBatch, SidedFeatures, UserSide
from storage.checkpoint import DenseGraph
from storage.checkpoint.graph import Members
from storage.checkpoint.manifest import GraphEntry
from storage.features import (
    Column,
    FeatureBatch,
    FeatureEngine,
    FeatureSpec,
    can_join,
    concat_batches,
    is_row_by_row,
)
from storage.tiers.tiered import COUNTED, LookupCounts, LookupResult, TieredStore

# The columns and the number of rows of one request.
RawRequest = tuple[Mapping[str, Column], int]
_NONE = torch.empty(0)
# Features, and the number of requests that they belong to.
MadeFeatures = tuple[FeatureBatch | SidedFeatures, int]


@dataclass(slots=True)
class Scores:
    """The scores of a batch."""

    #: Outputs for the whole batch, in the graph's order.
    outputs: list[np.ndarray]
    #: Where the rows of the batch came from.
    counts: LookupCounts
    infer_ns: int
    #: Which rows its ids without one read, by feature; None where no feature has a chain.
    levels: BatchLevels | None = None
    #: The part of infer_ns that lookups took; 0 where it is not known.
    lookup_ns: int = 0


class ScoringPipeline(Protocol):
    """Makes features of requests, then scores all of them together; a session drives it.

    Not thread-safe: one thread uses it at a time.
    """

    counted: np.ndarray
    levels: LevelCounts
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

    The only memory that it has for itself is that of its lookups, which is as large as its largest batch needs. The
    other parts are shared.
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
        #: Counts of levels that ids of features with a chain read.
        self.levels = LevelCounts(chained_features(spec))
        self.output_names = tuple(entry.name for entry in graph.outputs)
        self._lookup_timeout_s = lookup_timeout_s
        self._spec, self._store, self._graph = spec, store, graph
        self._inputs = len(graph.inputs)
        # By the inputs that lie in each of a graph's: a plan whose rows are not stacked, and one whose rows are.
        self._lookups: dict[Members, FeatureLookup] = {}
        self._last: tuple[Members, FeatureLookup] | None = None
        if side is not None:
            user = side.places(graph)
            self._user_places = user
            self._user = self._lookup(user)
            self._item = self._lookup([place for place in range(self._inputs) if place not in user])

    def prepare(self) -> None:
        """Does nothing: memory is allocated with the batches."""

    def begin_requests(self) -> None:
        """Sets the counts of lookups to zero; the host's tiers have already counted the lookups before."""
        self.counted[:] = 0
        self.levels.counted[:] = 0

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
        tensors = [_NONE] * self._inputs
        of_users = self._user.run(batch.user, self._lookup_timeout_s, snapshot.mask, tensors)
        found = self._item.run(batch.item, self._lookup_timeout_s, snapshot.mask, tensors)
        self.counted += of_users.by_table
        self.counted += found.by_table
        found.counts.add(of_users.counts)
        lookup_ns = time.monotonic_ns() - started_ns
        rows = torch.from_numpy(batch.rows)
        halves = snapshot.graph.program.halves(self._user_places)
        if halves is None:
            for place in self._user_places:
                tensors[place] = tensors[place].index_select(0, rows)
            outputs = snapshot.graph.run(tensors)
        else:
            outputs = snapshot.graph.run_halves(halves, tensors, rows)
        arrays = _own_arrays(outputs, self._user, self._item)
        scores = Scores(arrays, found.counts, time.monotonic_ns() - started_ns, lookup_ns=lookup_ns)
        if self.levels.features:
            scores.levels = BatchLevels()
            self.levels.take(scores.levels, self._user.features, batch.user.ids, of_users.fallback, batch.rows)
            self.levels.take(scores.levels, self._item.features, batch.item.ids, found.fallback)
        return scores

    def graph_inputs(
        self, batch: FeatureBatch, snapshot: Snapshot, graph: DenseGraph | None = None
    ) -> tuple[list[torch.Tensor], LookupResult]:
        """Returns the inputs of a graph for a batch, which hold until the next call, and the result of its lookups.

        graph: None for the snapshot's whole graph.
        """
        return self._graph_inputs(self._lookup_of(graph or snapshot.graph), graph or snapshot.graph, batch, snapshot)

    def close(self) -> None:
        """Does nothing: the plans are released with the store."""

    def _score_whole(self, batch: FeatureBatch, snapshot: Snapshot) -> Scores:
        started_ns = time.monotonic_ns()
        graph = snapshot.graph.stacked or snapshot.graph
        lookup = self._lookup_of(graph)
        tensors, found = self._graph_inputs(lookup, graph, batch, snapshot)
        lookup_ns = time.monotonic_ns() - started_ns
        outputs = _own_arrays(graph.run(tensors), lookup)
        scores = Scores(outputs, found.counts, time.monotonic_ns() - started_ns, lookup_ns=lookup_ns)
        if self.levels.features:
            scores.levels = BatchLevels()
            self.levels.take(scores.levels, lookup.features, batch.ids, found.fallback)
        return scores

    def _graph_inputs(
        self, lookup: FeatureLookup, graph: DenseGraph, batch: FeatureBatch, snapshot: Snapshot
    ) -> tuple[list[torch.Tensor], LookupResult]:
        tensors = [_NONE] * len(graph.inputs)
        found = lookup.run(batch, self._lookup_timeout_s, snapshot.mask, tensors)
        self.counted += found.by_table
        return tensors, found

    def _lookup_of(self, graph: DenseGraph) -> FeatureLookup:
        """Returns the lookup that makes the inputs of a graph."""
        last = self._last
        if last is None or last[0] is not graph.members:
            lookup = self._lookups.get(graph.members)
            if lookup is None:
                shapes = [tuple(entry.shape[1:]) for entry in graph.inputs]
                made = [MadeInput(*parts) for parts in zip(range(len(shapes)), graph.members, shapes, strict=True)]
                lookup = self._lookups[graph.members] = FeatureLookup(self._spec, self._store, self._graph.inputs, made)
            self._last = last = (graph.members, lookup)
        return last[1]

    def _lookup(self, places: Sequence[int]) -> FeatureLookup:
        """Returns a lookup for some inputs of the whole graph."""
        inputs = self._graph.inputs
        made = [MadeInput(place, (place,), tuple(inputs[place].shape[1:])) for place in places]
        return FeatureLookup(self._spec, self._store, inputs, made)


def _own_arrays(outputs: Sequence[torch.Tensor], *lookups: FeatureLookup) -> list[np.ndarray]:
    """Returns a graph's outputs; those that are inputs, in memory that the next batch is written to, are copied."""
    return [
        tensor.numpy().copy() if any(lookup.owns(tensor) for lookup in lookups) else tensor.numpy()
        for tensor in outputs
    ]
