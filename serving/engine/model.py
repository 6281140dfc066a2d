"""A loaded version: weights and tables once, shared by its sessions, behind one bounded queue."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from serving.engine.batcher import RequestQueue
from serving.engine.model_config import ModelConfig, complete_model_config
from serving.engine.pipeline import Pipeline
from serving.engine.replay import replay_golden
from serving.engine.requests import InferenceResult, QueuedRequest
from serving.engine.session import Session
from serving.engine.statistics import ModelStatistics
from serving.protocol.dtypes import WIRE_TYPES
from serving.protocol.signature import ModelSignature
from storage.checkpoint import DenseGraph, PublishedVersion, open_version
from storage.errors import DeadlineExceeded, Unavailable
from storage.features import Column, FeatureEngine
from storage.tiers.tiered import LoadProgress, StoreStats, TieredStore

logger = logging.getLogger("emberline.serving")
_PROGRESS_SECONDS = 2.0


class LoadedModel:
    """Made by `load`; answers requests until `close`."""

    def __init__(self, config: ModelConfig, published: PublishedVersion, store: TieredStore, graph: DenseGraph) -> None:
        manifest = published.manifest
        self.name = config.name
        self.version = str(published.version)
        self.snapshot = published.snapshot
        self.signature = ModelSignature.of(
            config.name, published.spec, manifest.graph.outputs, config.max_batch_size or manifest.max_batch_size
        )
        self.proto = complete_model_config(config, self.signature)
        self.statistics = ModelStatistics()
        self._store = store
        self._timeout_ns = config.queue.default_timeout_us * 1000
        self._queue = RequestQueue(config.name, config.queue, self.signature.max_batch_size)
        engine = FeatureEngine(published.spec)
        lookup_timeout_ms = config.options.lookup_timeout_ms
        timeout_s = None if lookup_timeout_ms is None else lookup_timeout_ms / 1000
        golden = published.golden()
        # The replay must see every row, however slow the disk: no deadline there.
        replay = Pipeline(published.spec, engine, store, graph, None)
        self.golden_difference = replay_golden(replay, golden, manifest.graph.outputs)
        self._sessions = [
            Session(
                f"{config.name}/{self.version}#{index}",
                self._queue,
                Pipeline(published.spec, engine, store, graph, timeout_s),
                self.statistics,
                config.options.torch_threads,
            )
            for index in range(config.sessions)
        ]
        self._after_replay = store.stats()
        for session in self._sessions:
            session.start()

    @classmethod
    def load(cls, config: ModelConfig, path: Path, store_dir: Path) -> LoadedModel:
        """Opens a version, fills its store, replays its golden requests.

        Raises CheckpointError, StoreError or ConfigError; nothing stays open then.
        """
        started = time.monotonic()
        name = f"{config.name}/{path.name}"
        logger.info("%s: verifying digests", name)
        published = open_version(path)
        graph = published.graph()
        store_dir.mkdir(parents=True, exist_ok=True)
        store = TieredStore.open(store_dir, published.tables, dram_bytes=config.options.dram_bytes)
        try:
            store.load(published, _progress(name))
            model = cls(config, published, store, graph)
        except BaseException:
            store.close()
            raise
        stats = store.stats()
        logger.info(
            "%s: ready in %.1f s: snapshot %s, %d rows, %d in DRAM (%.1f MiB), %d session(s), golden requests "
            "within %.2g",
            name,
            time.monotonic() - started,
            model.snapshot,
            stats.rows["ssd"],
            stats.rows["dram"],
            stats.bytes["dram"] / 2**20,
            config.sessions,
            model.golden_difference,
        )
        return model

    @property
    def queued(self) -> int:
        """Requests that wait for a session."""
        return len(self._queue)

    @property
    def sessions(self) -> int:
        """How many sessions it has."""
        return len(self._sessions)

    def store_stats(self) -> StoreStats:
        """Hits by tier and sizes of its store; the golden replay is not counted."""
        now, then = self._store.stats(), self._after_replay
        return replace(
            now,
            hits={tier: count - then.hits[tier] for tier, count in now.hits.items()},
            absent=now.absent - then.absent,
            unresolved=now.unresolved - then.unresolved,
        )

    async def infer(self, columns: Mapping[str, Column], batch: int, timeout_us: int = 0) -> InferenceResult:
        """Answers one request; called on any event loop.

        timeout_us: how long it may wait for a session, 0 for the model's own limit. Raises Overloaded when the queue is
        full, DeadlineExceeded, InvalidInput. Cancelling the call frees its place in the queue.
        """
        arrived_ns = time.monotonic_ns()
        if batch == 0:
            return InferenceResult(
                [np.zeros((0, *output.dims), WIRE_TYPES[output.dtype].numpy) for output in self.signature.outputs]
            )
        loop = asyncio.get_running_loop()
        timeout_ns = min((t for t in (timeout_us * 1000, self._timeout_ns) if t), default=0)
        request = QueuedRequest(
            columns, batch, loop.create_future(), loop, arrived_ns, arrived_ns + timeout_ns if timeout_ns else 0
        )
        try:
            self._queue.put(request)
        except Unavailable:
            self.statistics.finished(time.monotonic_ns() - arrived_ns, failed=True, rejected=True)
            raise
        timer = loop.call_later(timeout_ns / 1e9, self._expire, request) if timeout_ns else None
        try:
            result = await request.future
        except asyncio.CancelledError:
            self._queue.discard(request)
            self.statistics.finished(time.monotonic_ns() - arrived_ns, failed=True)
            raise
        except Exception:
            self.statistics.finished(time.monotonic_ns() - arrived_ns, failed=True)
            raise
        finally:
            if timer is not None:
                timer.cancel()
        self.statistics.finished(time.monotonic_ns() - arrived_ns)
        return result

    def close(self, timeout_s: float) -> None:
        """Refuses new requests, works off the queue for at most `timeout_s`, and releases the store."""
        deadline = time.monotonic() + timeout_s
        self._queue.close()
        ended = [session.join(max(0.0, deadline - time.monotonic())) for session in self._sessions]
        for request in self._queue.clear():
            request.loop.call_soon_threadsafe(_refuse, request, Unavailable(f"model {self.name!r} is shutting down"))
        if not all(ended):
            logger.warning("%s/%s: a session was still at work after %.1f s", self.name, self.version, timeout_s)
            ended = [session.join(timeout_s) for session in self._sessions]
        if all(ended):
            self._store.close()

    def _expire(self, request: QueuedRequest) -> None:
        # A request that a session has taken already is answered.
        if not request.future.done() and self._queue.discard(request):
            request.future.set_exception(DeadlineExceeded("request timeout expired in the queue"))


def _refuse(request: QueuedRequest, error: Exception) -> None:
    if not request.future.done():
        request.future.set_exception(error)


def _progress(name: str) -> LoadProgress:
    last = time.monotonic()

    def report(stage: str, table: str, done: int, rows: int) -> None:
        nonlocal last
        if time.monotonic() - last >= _PROGRESS_SECONDS:
            last = time.monotonic()
            logger.info("%s: %s: table %s: %d of %d rows", name, stage, table, done, rows)

    return report
