"""Replays beside live traffic: requests scored on any snapshot by the way that live requests take, slice by slice."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from serving.engine.pipeline import Pipeline
from serving.engine.recent import RecentRequest
from serving.engine.snapshot import Snapshot
from storage.checkpoint import Golden, GraphOutput, PublishedVersion
from storage.errors import ParityError
from storage.features import Column, FeatureBatch, FeatureEngine, FeatureSpec
from storage.tiers.tiered import TieredStore

# Rows scored at once, and the longest rest after them: live sessions get the interpreter and the cores in between.
SLICE_ROWS = 64
MAX_REST_S = 0.005


@dataclass(frozen=True)
class Replayed:
    """Scores of requests, one array an output, in the graph's order. ids: looked up in all; absent: without a row."""

    outputs: list[np.ndarray]
    ids: int
    absent: int


class ModelParts:
    """What all snapshots of a version share: features, store, the graph's interface; and a pipeline for replays.

    Any thread; one replay at a time.
    """

    def __init__(self, published: PublishedVersion, store: TieredStore, *, torch_threads: int = 1) -> None:
        self.spec: FeatureSpec = published.spec
        self.graph = published.manifest.graph
        self.engine = FeatureEngine(self.spec)
        self.store = store
        self._torch_threads = torch_threads
        self._lock = threading.Lock()
        # One for the life of the version: a plan belongs to the store for as long as that is open.
        self._replay = self.pipeline(None)

    def pipeline(self, lookup_timeout_s: float | None) -> Pipeline:
        """A new pipeline, for one thread at a time."""
        return Pipeline(self.spec, self.engine, self.store, self.graph, lookup_timeout_s)

    def features(self, columns: Mapping[str, Column], batch: int) -> FeatureBatch:
        """Runs the feature engine over one request. Raises InvalidInput naming the input at fault."""
        return self.engine.run(columns, batch)

    def recalled(self, request: RecentRequest) -> FeatureBatch:
        """The features of a recent request, with a rest where they had to be made. Raises InvalidInput."""
        started = time.thread_time()
        features = request.features_of(self.engine)
        if request.engine is not self.engine:
            _rest(started)
        return features

    def score(self, requests: Iterable[FeatureBatch], snapshot: Snapshot) -> Replayed:
        """Scores requests on a snapshot, however slow the disk; rests after each slice for as long as it computed."""
        parts: list[list[np.ndarray]] = []
        ids = absent = 0
        with self._lock:
            # As in a session: the setting is the thread's own, and more threads would take the sessions' cores.
            torch.set_num_threads(self._torch_threads)
            started = time.thread_time()
            for part in _slices(requests):
                scores = self._replay.score(part, snapshot)
                parts.append(scores.outputs)
                counts = scores.counts
                ids += sum(vars(counts).values())
                absent += counts.absent
                _rest(started)
                started = time.thread_time()
        outputs = [np.concatenate(values) for values in zip(*parts, strict=True)]
        return Replayed(outputs, ids, absent)


def replay_golden(parts: ModelParts, snapshot: Snapshot, golden: Golden) -> float:
    """The largest difference to the trainer's scores. Raises ParityError when one is over the tolerance."""
    requests = (parts.features(columns, batch) for columns, batch in _cut(golden))
    return compare_golden(parts.score(requests, snapshot).outputs, golden, parts.graph.outputs)


def compare_golden(scores: Sequence[np.ndarray], golden: Golden, outputs: Sequence[GraphOutput]) -> float:
    """The largest difference between scores and the golden ones. Raises ParityError."""
    worst = 0.0
    for entry, values in zip(outputs, scores, strict=True):
        expected = golden.outputs[entry.name]
        if values.shape != expected.shape:
            raise ParityError(f"golden requests: output {entry.name!r} is {values.shape}, expected {expected.shape}")
        difference = np.abs(values.astype(np.float64) - expected.astype(np.float64))
        largest = float(difference.max(initial=0.0))
        if not largest <= golden.tolerance:
            rows = np.unravel_index(int(np.argmax(np.nan_to_num(difference, nan=np.inf))), difference.shape)
            raise ParityError(
                f"golden requests: output {entry.name!r} differs by {largest:.3g} in row {int(rows[0])}, at most "
                f"{golden.tolerance:.3g} is allowed; the version is not served"
            )
        worst = max(worst, largest)
    return worst


def _rest(started: float) -> None:
    time.sleep(min(MAX_REST_S, time.thread_time() - started))


def _cut(golden: Golden) -> Iterator[tuple[Mapping[str, Column], int]]:
    """The golden rows as requests of one slice each; a column of one row stands for all."""
    for start in range(0, golden.batch, SLICE_ROWS):
        stop = min(start + SLICE_ROWS, golden.batch)
        columns = {
            name: column.slice(start, stop) if column.rows == golden.batch else column
            for name, column in golden.columns.items()
        }
        yield columns, stop - start


def _slices(requests: Iterable[FeatureBatch]) -> Iterator[list[FeatureBatch]]:
    part: list[FeatureBatch] = []
    rows = 0
    for request in requests:
        if part and rows + request.batch > SLICE_ROWS:
            yield part
            part, rows = [], 0
        part.append(request)
        rows += request.batch
    if part:
        yield part
