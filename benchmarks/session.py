"""Claims: what a batch of a DLRM costs in one session: its lookup, and its lookup and graph, in processor time.

The lookup is measured beside the gather of as many rows by their numbers, which needs no index
(benchmarks/native/limits), and beside the lookup that writes each feature into an array of its own. Features are made
anew before each batch, as in a server, and are not measured. One thread, all rows in DRAM.

    python -m benchmarks.session            # batches of 1, 64 and 512 rows: about two minutes
    python -m benchmarks.session --quick
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch

from benchmarks._limits import RowLimit
from benchmarks.catalog import Run
from benchmarks.command import script
from benchmarks.dlrm_towers import DIM, ROWS, SPARSE
from benchmarks.dlrm_world import DlrmWorld
from benchmarks.measure import Contestant
from serving.config import ServerConfig
from serving.engine.model import LoadedModel
from serving.pipeline.host import Pipeline
from serving.repository.model_repository import ModelRepository
from storage.checkpoint import DenseGraph
from storage.features import Column, FeatureBatch, column_from_numpy

BATCHES = (1, 64, 512)
# Highest cost of a lookup in microseconds, by rows of the batch.
LOOKUP_US = {1: 20.0, 512: 200.0}
_REQUESTS = 24


def measure(run: Run) -> None:
    """Measures batches of each size."""
    torch.set_num_threads(1)
    with _world(run) as (world, model):
        limit = RowLimit(SPARSE * ROWS, DIM)
        for batch in BATCHES:
            measure_batch(run, _Session(world, model, batch, run.piece_s), limit)


def measure_batch(run: Run, session: _Session, limit: RowLimit) -> None:
    """Measures batches of one size."""
    graph, stacked = session.snapshot.graph, session.snapshot.graph.stacked
    if stacked is None:
        raise AssertionError("the graph takes its inputs one by one: there is nothing to compare")
    samples = run.interleave(
        {
            "lookup": session.contestant(lambda features: session.lookup(features, stacked)),
            "apart": session.contestant(lambda features: session.lookup(features, graph)),
            "gather": session.gather(limit),
            "score": session.contestant(lambda features: session.score(features, stacked)),
            "score apart": session.contestant(lambda features: session.score(features, graph)),
        },
        max_s=40.0,
    )
    what = f"{session.batch} rows of {SPARSE} ids, d{DIM}"
    bound = LOOKUP_US.get(session.batch)
    if bound is not None:
        costs = samples.values("lookup")
        run.report.pairs(
            f"lookup, {what}",
            costs,
            [bound] * len(costs),
            "bound",
            unit="us",
            target=1.0,
            less_is_better=True,
            dropped=samples.dropped,
            disturbed=not samples.is_clean,
        )
    for claim, ours, against, note in (
        ("lookup", "lookup", "gather", "rows by their numbers"),
        ("lookup", "lookup", "apart", "an array for each feature"),
        ("lookup and graph", "score", "score apart", "an array for each feature, stacked by the graph"),
    ):
        run.report.compare(
            f"{claim}, {what}", samples, against, ours=ours, unit="us", less_is_better=True, note=f"against {note}"
        )
    run.settle(samples)


class _Session:
    """A session's pipeline, and requests of one size for it."""

    def __init__(self, world: DlrmWorld, model: LoadedModel, batch: int, piece_s: float) -> None:
        pipeline = model.parts.pipeline(None)
        assert isinstance(pipeline, Pipeline)
        self.batch = batch
        self.snapshot = model.history.current
        self._pipeline = pipeline
        self._piece_s = piece_s
        self._columns = [_columns(world, batch) for _ in range(_REQUESTS)]

    def lookup(self, features: FeatureBatch, graph: DenseGraph) -> None:
        """Looks up a batch as this graph takes it."""
        self._pipeline.graph_inputs(features, self.snapshot, graph)

    def score(self, features: FeatureBatch, graph: DenseGraph) -> None:
        """Looks up a batch and computes this graph."""
        graph.run(self._pipeline.graph_inputs(features, self.snapshot, graph)[0])

    def contestant(self, work: Callable[[FeatureBatch], None]) -> Contestant:
        """Returns a contestant whose figure is the processor time of a batch, in microseconds."""

        def run(_: int) -> float:
            taken, batches, ends = 0, 0, time.monotonic() + self._piece_s
            while time.monotonic() < ends:
                columns = self._columns[batches % _REQUESTS]
                ((features, _),) = self._pipeline.features([(columns, self.batch)])
                assert isinstance(features, FeatureBatch)
                started = time.thread_time_ns()
                work(features)
                taken += time.thread_time_ns() - started
                batches += 1
            return taken / batches / 1000

        return run

    def gather(self, limit: RowLimit) -> Contestant:
        """Returns a contestant that copies as many rows, whose numbers are known."""
        count = self.batch * SPARSE
        numbers = np.random.default_rng(0).integers(0, limit.rows, (_REQUESTS, count))
        out = np.empty((count, DIM), np.float32)

        def run(_: int) -> float:
            started, batches, ends = time.thread_time_ns(), 0, time.monotonic() + self._piece_s
            while time.monotonic() < ends:
                limit.gather(numbers[batches % _REQUESTS], out)
                batches += 1
            return (time.thread_time_ns() - started) / batches / 1000

        return run


def _columns(world: DlrmWorld, batch: int) -> dict[str, Column]:
    return {tensor.name: column_from_numpy(tensor.dtype, tensor.values) for tensor in world.request(batch)}


@contextmanager
def _world(run: Run) -> Iterator[tuple[DlrmWorld, LoadedModel]]:
    """Publishes and loads the model."""
    world = DlrmWorld(run.work / "repository", run.work / "weights.safetensors")
    repository = ModelRepository(ServerConfig(model_repository=run.work / "repository", store=run.work / "store"))
    repository.load_all()
    try:
        model = repository.get("dlrm", "", "")
        assert isinstance(model, LoadedModel)
        yield world, model
    finally:
        repository.close(10.0)


if __name__ == "__main__":
    script("session")
