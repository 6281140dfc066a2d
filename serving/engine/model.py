"""A loaded version: weights and tables once, shared by its sessions, behind one bounded queue."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping

import numpy as np

from serving.engine.batcher import RequestQueue
from serving.engine.canary import routing_point
from serving.engine.model_config import ModelConfig, complete_model_config
from serving.engine.recent import RecentRequests
from serving.engine.replay import ModelParts
from serving.engine.requests import Answers, InferenceResult, QueuedRequest
from serving.engine.session import Session
from serving.engine.snapshot import Snapshot, SnapshotLine
from serving.engine.statistics import ModelStatistics
from serving.protocol.dtypes import WIRE_TYPES
from serving.protocol.signature import ModelSignature
from storage.checkpoint import PublishedVersion
from storage.errors import DeadlineExceeded, Overloaded, Unavailable
from storage.features import Column
from storage.tiers.tiered import StoreStats, TieredStore

logger = logging.getLogger("emberline.serving")


class LoadedModel:
    """Answers requests on the snapshots of its `line` until `close`. The store belongs to the caller.

    The gate is the caller's too: a snapshot is served from the moment it is in the line.
    """

    def __init__(
        self,
        config: ModelConfig,
        published: PublishedVersion,
        store: TieredStore,
        snapshot: Snapshot,
        *,
        recent: RecentRequests | None = None,
    ) -> None:
        """Starts the sessions.

        store: filled. snapshot: the first to be served. recent: requests of the version before, to go on with.
        Raises ConfigError when config.pbtxt does not fit the version.
        """
        manifest = published.manifest
        options = config.options
        self.name = config.name
        self.version = str(published.version)
        self.signature = ModelSignature.of(
            config.name, published.spec, manifest.graph.outputs, config.max_batch_size or manifest.max_batch_size
        )
        self.proto = complete_model_config(config, self.signature)
        self.statistics = ModelStatistics()
        self.canary_statistics = ModelStatistics()
        self.line = SnapshotLine(config.name, snapshot, max_waiting=config.queue.max_queue_size)
        self.recent = recent or RecentRequests(options.live_guard_requests if options.live_guard else 0)
        self.parts = ModelParts(published, store, torch_threads=options.torch_threads)
        self._store = store
        self._successor: LoadedModel | None = None
        self._timeout_ns = config.queue.default_timeout_us * 1000
        self._snapshot_timeout_ns = int(options.min_snapshot_timeout_ms * 1e6)
        self._queue = RequestQueue(config.name, config.queue, self.signature.max_batch_size)
        lookup_timeout_ms = options.lookup_timeout_ms
        timeout_s = None if lookup_timeout_ms is None else lookup_timeout_ms / 1000
        self._pipelines = [self.parts.pipeline(timeout_s) for _ in range(config.sessions)]
        self._sessions = [
            Session(
                f"{config.name}/{self.version}#{index}",
                self._queue,
                pipeline,
                self.line,
                (self.statistics, self.canary_statistics),
                options.torch_threads,
            )
            for index, pipeline in enumerate(self._pipelines)
        ]
        for session in self._sessions:
            session.start()

    @property
    def snapshot(self) -> str:
        """The id of the snapshot that is served; an answer says for itself which one it comes from."""
        return self.line.current.id

    @property
    def arms(self) -> dict[str, ModelStatistics]:
        """Statistics by arm: "main" and "canary". Every request counts in one of them."""
        return {"main": self.statistics, "canary": self.canary_statistics}

    @property
    def queued(self) -> int:
        """Requests that wait for a session."""
        return len(self._queue)

    @property
    def sessions(self) -> int:
        """How many sessions it has."""
        return len(self._sessions)

    def store_stats(self) -> StoreStats:
        """Hits by tier of this version's own requests, replays left out; sizes of the whole store, shared or not."""
        return self._store.stats().counted(np.sum([pipeline.counted for pipeline in self._pipelines], 0))

    def takes_canary(self, routing_key: str) -> bool:
        """Whether a request with this key is answered by the canary; without a key, by chance."""
        canary = self.line.canary
        return canary is not None and routing_point(self.name, routing_key) < canary[1]

    async def infer(
        self,
        columns: Mapping[str, Column],
        batch: int,
        timeout_us: int = 0,
        *,
        min_snapshot: str = "",
        canary: bool = False,
        follow: bool = True,
    ) -> InferenceResult:
        """Answers one request; called on any event loop.

        timeout_us: how long it may wait for a snapshot and a session, 0 for the model's own limits. min_snapshot:
        "" or a snapshot that the answer must not be older than, by id or as "V.S"; it is waited for. canary: what
        `takes_canary` said. follow: when this version was replaced meanwhile, let the one after it answer, as long as
        its signature fits; give False for a request that asked for this version by number. The result's snapshot says
        which version it was. Raises Overloaded when the queue is full, DeadlineExceeded, InvalidInput, Unavailable
        (min_snapshot is held or refused). Cancelling the call frees its place in the queue.
        """
        arrived_ns = time.monotonic_ns()
        timeout_ns = min((t for t in (timeout_us * 1000, self._timeout_ns) if t), default=0)
        deadline_ns = arrived_ns + timeout_ns if timeout_ns else 0
        canary = canary and self.line.canary is not None
        statistics = self.canary_statistics if canary else self.statistics
        try:
            if not min_snapshot:
                result = await self._answer(columns, batch, arrived_ns, deadline_ns, canary)
            else:
                result = await self._answer_at(min_snapshot, columns, batch, arrived_ns, deadline_ns, canary)
        except _ReplacedError:
            if not follow or self._successor is None:
                statistics.finished(time.monotonic_ns() - arrived_ns, failed=True, rejected=True)
                raise Unavailable(f"model {self.name!r} version {self.version} is shutting down") from None
            return await self._hand_on(self._successor, columns, batch, deadline_ns, min_snapshot)
        except Overloaded:
            statistics.finished(time.monotonic_ns() - arrived_ns, failed=True, rejected=True)
            raise
        except (Exception, asyncio.CancelledError):
            statistics.finished(time.monotonic_ns() - arrived_ns, failed=True)
            raise
        if batch:
            statistics.finished(time.monotonic_ns() - arrived_ns)
        return result

    def hand_over(self, successor: LoadedModel) -> None:
        """From now on, requests that come too late for this version or wait for a newer one go to `successor`."""
        self._successor = successor
        self.line.end()

    def take_back(self) -> None:
        """Ends `hand_over`, as long as this version was not closed: it is served again."""
        if self._successor is not None:
            self._successor = None
            self.line.reopen()

    def close(self, timeout_s: float) -> bool:
        """Takes no new requests, works off the queue for at most `timeout_s`, and ends the sessions.

        What is left in the queue then goes to the successor, or is refused where there is none. Returns whether all
        sessions ended; while one is still at work, the store must stay open.
        """
        deadline = time.monotonic() + timeout_s
        self.line.end()
        self._queue.close()
        ended = [session.join(max(0.0, deadline - time.monotonic())) for session in self._sessions]
        left = Answers()
        for request in self._queue.clear():
            left.add(request, _ReplacedError())
        left.send()
        if not all(ended):
            logger.warning("%s/%s: a session was still at work after %.1f s", self.name, self.version, timeout_s)
            ended = [session.join(timeout_s) for session in self._sessions]
        return all(ended)

    async def _answer_at(
        self,
        min_snapshot: str,
        columns: Mapping[str, Column],
        batch: int,
        arrived_ns: int,
        deadline_ns: int,
        canary: bool,
    ) -> InferenceResult:
        """The answer of a snapshot that covers `min_snapshot`."""
        until_ns = deadline_ns or arrived_ns + self._snapshot_timeout_ns
        while True:
            if not await self.line.wait_for(min_snapshot, until_ns, canary):
                raise _ReplacedError
            result = await self._answer(columns, batch, arrived_ns, deadline_ns, canary)
            # A rollback may have come between the wait and the batch; then there is another wait.
            if self.line.covers(result.snapshot, min_snapshot):
                return result

    async def _answer(
        self, columns: Mapping[str, Column], batch: int, arrived_ns: int, deadline_ns: int, canary: bool
    ) -> InferenceResult:
        """One way through the queue and a session. Raises _ReplacedError when the queue is closed."""
        if batch == 0:
            canary_arm = self.line.canary if canary else None
            return InferenceResult(
                [np.zeros((0, *output.dims), WIRE_TYPES[output.dtype].numpy) for output in self.signature.outputs],
                self.line.current if canary_arm is None else canary_arm[0],
            )
        loop = asyncio.get_running_loop()
        request = QueuedRequest(columns, batch, loop.create_future(), loop, arrived_ns, deadline_ns, canary=canary)
        try:
            self._queue.put(request)
        except Overloaded:
            raise
        except Unavailable:
            raise _ReplacedError from None
        timer = None
        if deadline_ns:
            timer = loop.call_later((deadline_ns - time.monotonic_ns()) / 1e9, self._expire, request)
        try:
            result = await request.future
        except asyncio.CancelledError:
            self._queue.discard(request)
            raise
        finally:
            if timer is not None:
                timer.cancel()
        if self.recent.wants(arrived_ns):
            # After the answer has gone: nobody waits for the copy.
            loop.call_soon(self.recent.record, columns, batch, request.features, self.parts.engine)
        return result

    async def _hand_on(
        self,
        successor: LoadedModel,
        columns: Mapping[str, Column],
        batch: int,
        deadline_ns: int,
        min_snapshot: str,
    ) -> InferenceResult:
        if not _takes(successor.signature, self.signature, batch):
            raise Unavailable(
                f"model {self.name!r}: version {self.version} was replaced by version {successor.version}, which has "
                "another signature; send the request again"
            )
        left_us = max(1, (deadline_ns - time.monotonic_ns()) // 1000) if deadline_ns else 0
        return await successor.infer(columns, batch, left_us, min_snapshot=min_snapshot)

    def _expire(self, request: QueuedRequest) -> None:
        # A request that a session has taken already is answered.
        if not request.future.done() and self._queue.discard(request):
            request.future.set_exception(DeadlineExceeded("request timeout expired in the queue"))


class _ReplacedError(Exception):
    """This version takes no requests any more."""


def _takes(signature: ModelSignature, request: ModelSignature, batch: int) -> bool:
    """Whether what was decoded by one signature can be answered, and encoded again, by a model with another."""
    own = {entry.name: (entry.dtype, entry.kind, entry.width) for entry in signature.raw}
    given = {entry.name: (entry.dtype, entry.kind, entry.width) for entry in request.raw}
    fresh_optional = all(entry.missing == "null" for entry in signature.raw if entry.name not in given)
    same_inputs = fresh_optional and given.items() <= own.items()
    return same_inputs and signature.outputs == request.outputs and batch <= signature.max_batch_size
