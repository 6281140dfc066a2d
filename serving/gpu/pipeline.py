"""Turns raw columns into scores with the dense graph on a GPU.

Features and lookup are as on the host, then one execution context computes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

import numpy as np

from serving.gpu.context import ExecutionContext
from serving.gpu.device_model import DeviceModel
from serving.gpu.lookup import GpuLookup, GpuScores
from serving.gpu.runners import choose_runner
from serving.gpu.staged_lookup import StagedLookup
from serving.pipeline.host import MadeFeatures, Pipeline, RawRequest, RequestFeatures, Scores, ScoringPipeline
from serving.pipeline.levels import BatchLevels, LevelCounts, chained_features
from serving.pipeline.snapshot import Snapshot
from serving.pipeline.user_side import SidedBatch, SidedFeatures
from storage.checkpoint.manifest import GraphEntry
from storage.errors import DeviceError, DeviceLost, DeviceOutOfMemory
from storage.features import FeatureBatch, FeatureSpec, concat_batches
from storage.tiers.tiered import COUNTED, LookupCounts, LookupResult, TieredStore

logger = logging.getLogger("emberline.serving")


class GpuPipeline:
    """The pipeline of one session on a GPU. Not thread-safe: it owns lookup plans and an execution context."""

    def __init__(
        self,
        spec: FeatureSpec,
        requests: RequestFeatures,
        store: TieredStore,
        graph: GraphEntry,
        user_places: Sequence[int],
        lookup_timeout_s: float | None,
        model: DeviceModel,
        processor: Callable[[], Pipeline] | None,
        first: Snapshot | None = None,
    ) -> None:
        """Builds the pipeline.

        user_places: inputs of the user's side. processor: makes the pipeline that answers what the GPU cannot; None:
        the error is raised. first: the snapshot to capture graphs with in `prepare`; None for replays: they are
        captured when needed. Raises DeviceError.
        """
        #: (T, 6) counts of its lookups, as in every pipeline.
        self.counted = np.zeros((len(store.tables), len(COUNTED)), np.uint64)
        self.levels = LevelCounts(chained_features(spec))
        self.output_names = tuple(entry.name for entry in graph.outputs)
        self.model = model
        self._requests = requests
        self._lookup_timeout_s = lookup_timeout_s
        self._make_processor = processor
        self._first = first
        self._refused: DeviceOutOfMemory | None = None
        self._processor: Pipeline | None = None
        self._read: BatchLevels | None = None
        everything = range(len(graph.inputs))
        self._whole = StagedLookup(spec, store, graph, everything)
        self._user = StagedLookup(spec, store, graph, user_places)
        self._item = StagedLookup(spec, store, graph, [place for place in everything if place not in user_places])
        self._context = ExecutionContext(model)
        self._gpu: GpuLookup | None = None
        if model.gpu is not None:
            self._gpu = GpuLookup(self._context, model.gpu, lookup_timeout_s)

    def prepare(self) -> None:
        """Captures the session's graphs, so that no request waits for it.

        Call it on the session's own thread: libraries have workspaces for each thread and stream, which graphs continue
        to use. Raises DeviceError, or gives the GPU up where the processor may answer.
        """
        if self._first is None:
            return
        try:
            self._context.capture_all(self._first.graph)
            if self._gpu is not None:
                self._gpu.capture_all(self._first.graph, self._first.mask)
        except DeviceError as error:
            if self._make_processor is None:
                raise
            if isinstance(error, DeviceOutOfMemory):
                # This concerns one session: others have what they need.
                logger.warning("%s: a session is on the processor: %s", self.model.name, error)
                self._gpu = None
                self._context.close()
                self._refused = error
            else:
                self.model.give_up(str(error))
        self._first = None

    def begin_requests(self) -> None:
        """Resets lookup counts, and lets the GPU's cache learn from requests."""
        self.counted[:] = 0
        self.levels.counted[:] = 0
        if self._gpu is not None:
            self._gpu.tells = True

    def choose_runner(self, snapshot: Snapshot, names: Sequence[str], tolerance: float) -> None:
        """Keeps the fastest of some runners for the GPU, before sessions capture their graphs. Raises DeviceError."""
        if len(names) > 1 or "eager" not in names:
            choose_runner(self.model, self._context, snapshot.graph, names, tolerance)

    def features(self, requests: Sequence[RawRequest]) -> list[MadeFeatures]:
        """Returns the features of requests, in their order. Raises InvalidInput naming the input at fault."""
        return self._requests.make(requests)

    def score(self, batches: Sequence[FeatureBatch | SidedFeatures], snapshot: Snapshot) -> Scores:
        """Scores requests together, all on one snapshot that the caller has pinned. Raises StoreError, DeviceError."""
        side = self._requests.side
        if side is not None and any(isinstance(batch, SidedFeatures) for batch in batches):
            merged = side.merge(batches)
            if side.is_on:
                return self.score_sided(merged, snapshot)
            return self._score_whole(merged.whole(), snapshot)
        whole = concat_batches([batch for batch in batches if isinstance(batch, FeatureBatch)])
        return self._score_whole(whole, snapshot)

    def score_sided(self, batch: SidedBatch, snapshot: Snapshot) -> Scores:
        """Scores a batch with a user's row looked up, and moved to the GPU, once."""

        def fill() -> list[LookupResult]:
            views = self._context.begin(batch.item.batch, batch.rows, batch.user.batch)
            items = self._item.run(batch.item, self._lookup_timeout_s, snapshot.mask, views)
            users = self._user.run(batch.user, self._lookup_timeout_s, snapshot.mask, views)
            self._note([(self._user, batch.user, users, batch.rows), (self._item, batch.item, items, None)])
            return [items, users]

        return self._score(batch, fill, snapshot, lambda processor: processor.score_sided(batch, snapshot))

    def close(self) -> None:
        """Frees the GPU's memory. Nothing else may be called then."""
        self._context.close()
        self._gpu = None
        del self._context

    def _score_whole(self, batch: FeatureBatch, snapshot: Snapshot) -> Scores:
        def fill() -> list[LookupResult]:
            found = self._whole.run(batch, self._lookup_timeout_s, snapshot.mask, self._context.begin(batch.batch))
            self._note([(self._whole, batch, found, None)])
            return [found]

        return self._score(batch, fill, snapshot, lambda processor: processor.score([batch], snapshot))

    def _score(
        self,
        batch: FeatureBatch | SidedBatch,
        fill: Callable[[], list[LookupResult]],
        snapshot: Snapshot,
        otherwise: Callable[[Pipeline], Scores],
    ) -> Scores:
        """Scores a batch. fill: writes its inputs, looked up by the host. otherwise: scores it without the GPU."""
        started_ns = time.monotonic_ns()
        model = self.model
        try:
            if self._refused is not None:
                raise self._refused
            model.check_usable()
            model.check_program(snapshot.graph)
            model.driver.enter_thread()
            found = self._by_gpu(batch, snapshot)
            if found is None:
                found = self._by_host(fill, snapshot)
        except DeviceError as error:
            if isinstance(error, DeviceLost):
                model.give_up(str(error))
            return self._without_gpu(error, otherwise)
        self.counted += found.by_table
        # A GPU keeps no rows of a version whose features have a chain, so its lookups were those of the host.
        levels, self._read = self._read, None
        infer_ns = time.monotonic_ns() - started_ns
        lookup_ns = max(0, found.looked_up_ns - started_ns)
        return Scores(found.outputs, found.counts, infer_ns, levels, lookup_ns)

    def _note(self, parts: Sequence[tuple[StagedLookup, FeatureBatch, LookupResult, np.ndarray | None]]) -> None:
        """Counts the levels that lookups read, and keeps them for the answer."""
        if self.levels.features:
            self._read = BatchLevels()
            for lookup, batch, found, rows in parts:
                self.levels.take(self._read, lookup.features, batch.ids, found.fallback, rows)

    def _by_gpu(self, batch: FeatureBatch | SidedBatch, snapshot: Snapshot) -> GpuScores | None:
        """Scores with rows from the GPU; returns None where the host has to look them up."""
        return None if self._gpu is None else self._gpu.score(batch, snapshot.mask, snapshot.graph)

    def _by_host(self, fill: Callable[[], list[LookupResult]], snapshot: Snapshot) -> GpuScores:
        parts = fill()
        looked_up_ns = time.monotonic_ns()
        with self.model.weight_slots.pinned(snapshot.graph) as weight_slot:
            outputs = self._context.finish(weight_slot)
        counts = LookupCounts()
        for each in parts:
            counts.add(each.counts)
        by_table = sum((each.by_table for each in parts[1:]), parts[0].by_table)
        return GpuScores(outputs, counts, by_table, looked_up_ns)

    def _without_gpu(self, error: DeviceError, otherwise: Callable[[Pipeline], Scores]) -> Scores:
        if self._make_processor is None:
            raise error
        if isinstance(error, DeviceOutOfMemory) and error is not self._refused:
            logger.warning("%s: a batch is answered by the processor: %s", self.model.name, error)
        if self._processor is None:
            self._processor = self._make_processor()
            self._processor.counted = self.counted
            self._processor.levels = self.levels
        self.model.counters.fell_back()
        return otherwise(self._processor)


def _conforms(pipeline: GpuPipeline) -> ScoringPipeline:
    return pipeline
