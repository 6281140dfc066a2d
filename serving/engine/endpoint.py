"""Answers the requests of one model name: a bounded queue, sessions, and the snapshots that they answer from."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from serving.engine.canary import routing_point
from serving.engine.core_shares import CoreShares
from serving.engine.requests import (
    Answers,
    InferenceResult,
    LoopSink,
    QueuedRequest,
    ReplacedError,
    ResponseSink,
    request_expired,
)
from serving.engine.session import SessionParts
from serving.engine.session_group import SessionGroup
from serving.engine.statistics import ModelStatistics
from serving.engine.tap import RequestTap
from serving.engine.warm_up import WarmUp
from serving.model_config.instance_groups import Place
from serving.model_config.options import ModelOptions
from serving.model_config.queue_settings import QueueSettings
from serving.pipeline.host import ScoringPipeline
from serving.pipeline.snapshot import SnapshotHistory
from serving.protocol.dtypes import WIRE_TYPES
from serving.protocol.signature import ModelSignature, SignatureChanged
from storage.errors import DeadlineExceeded, Overloaded, Unavailable
from storage.features import Column

logger = logging.getLogger("emberline.serving")


class Endpoint:
    """Answers requests on the snapshots of `history` until `close`.

    proto: its ModelConfig, as the server reports it.
    """

    def __init__(
        self,
        version: str,
        signature: ModelSignature,
        proto: Any,
        history: SnapshotHistory,
        queue: QueueSettings,
        options: ModelOptions,
        make_pipeline: Callable[[Place], ScoringPipeline],
        *,
        places: Sequence[Place],
        cores: CoreShares,
        sessions: int | None = None,
        owner: str = "",
        warm_ups: Sequence[WarmUp] = (),
    ) -> None:
        """Starts the sessions, and waits until they are warm. Raises ConfigError when they cannot be, DeviceError.

        places: where its sessions run. sessions: their number, instead of one for each place. owner: the model that
        its use of the cores counts for, "" for itself.
        """
        self.name = signature.model
        self.version = version
        self.signature = signature
        self.proto = proto
        #: Looks at requests after they were answered, which all have an id then; None for nobody.
        self.tap: RequestTap | None = None
        self.statistics = ModelStatistics()
        self.canary_statistics = ModelStatistics()
        self.history = history
        self.queue_settings = queue
        self._snapshot_timeout_ns = int(options.min_snapshot_timeout_ms * 1e6)
        self.group = SessionGroup(
            self.name,
            f"{self.name}/{version}",
            queue,
            signature.max_batch_size,
            options.pick,
            SessionParts(
                history,
                (self.statistics, self.canary_statistics),
                cores,
                cores.account(owner or self.name, options.share),
                options.torch_threads,
                options.cpus,
                tuple(warm_ups),
            ),
            make_pipeline,
            places,
        )
        try:
            self.group.resize(sessions or len(places))
            self.group.wait_warm()
        except BaseException:
            self.group.close()
            self.group.join(None)
            raise

    @property
    def successor(self) -> Endpoint | None:
        """Returns the endpoint that answers requests that come too late for this one; None where there is none."""
        return None

    @property
    def trouble(self) -> str:
        """Returns why it cannot answer until the server restarts; "" when it can."""
        return ""

    @property
    def unready(self) -> str:
        """Returns why it should not get requests now; "" when it should."""
        return self.trouble

    def answers(self, version: str) -> bool:
        """Returns whether it still answers requests for `version`; "" stands for the version that is served."""
        return not self.group.is_closed

    @property
    def arms(self) -> dict[str, ModelStatistics]:
        """Returns the statistics by arm, "main" and "canary"; every request counts in one of them."""
        return {"main": self.statistics, "canary": self.canary_statistics}

    @property
    def queued(self) -> int:
        """Returns the number of requests that wait for a session."""
        return self.group.queued

    @property
    def sessions(self) -> int:
        """Returns the number of sessions."""
        return len(self.group)

    def resize(self, sessions: int) -> None:
        """Starts or ends sessions while it serves, until there are `sessions`, 1 or more."""
        self.group.resize(sessions)

    def check_load(self) -> None:
        """Raises Overloaded when a request would be refused now, so that no work is spent on reading it."""
        try:
            self.group.check()
        except Overloaded as error:
            self.statistics.finished(0, error)
            raise

    def takes_canary(self, routing_key: str) -> bool:
        """Returns whether the canary answers a request with this key; without a key, chance decides."""
        canary = self.history.canary
        return canary is not None and routing_point(self.name, routing_key) < canary[1]

    async def infer(
        self,
        columns: Mapping[str, Column],
        batch: int,
        timeout_us: int = 0,
        *,
        min_snapshot: str = "",
        canary: bool | None = None,
        follow: bool = True,
        priority: int = 0,
        routing_key: str = "",
        request_id: str = "",
    ) -> InferenceResult:
        """Answers one request; called on any event loop.

        timeout_us: how long it may wait for a snapshot and a session, 0 for the model's own limits.
        min_snapshot: "" or a snapshot, by id or as "V.S"; waits until the served one is not older.
        canary: the arm; None for what `takes_canary` returns.
        follow: if this version was replaced meanwhile, the next one answers, as long as its signature fits; pass False
        for a request that asked for this version by number.
        priority: 1 is the first, 0 the model's default.
        routing_key: chooses the session, where config.pbtxt says so, and the arm.
        request_id: names it for whoever looks at requests.

        The result's snapshot says which version answered. Raises Overloaded when the queue is full or the wait would
        be too long, DeadlineExceeded, InvalidInput, Unavailable (min_snapshot is held or refused), or
        SignatureChanged, an Unavailable, when the version was replaced by one that takes other inputs. Cancelling the
        call frees its place in the queue.
        """
        arrived_ns = time.monotonic_ns()
        loop = asyncio.get_running_loop()
        call = self.call(
            columns,
            batch,
            LoopSink(loop),
            loop.create_future(),
            arrived_ns,
            timeout_us=timeout_us,
            canary=canary,
            priority=priority,
            routing_key=routing_key,
        )
        call.request_id = request_id
        statistics = self.statistics_of(call)
        try:
            if min_snapshot:
                call, result = await self._answer_at(min_snapshot, call)
            else:
                result = await self._answer(call)
        except ReplacedError as error:
            successor = self.successor
            # A version whose store was replaced is still the same version.
            if successor is None or not (follow or successor.version == self.version):
                statistics.finished(time.monotonic_ns() - arrived_ns, error)
                raise Unavailable(f"model {self.name!r} version {self.version} is shutting down") from None
            return await self._hand_on(successor, call, min_snapshot)
        except (Exception, asyncio.CancelledError) as error:
            statistics.finished(time.monotonic_ns() - arrived_ns, error)
            raise
        if batch:
            statistics.finished(time.monotonic_ns() - arrived_ns)
            self.answered(call, result)
        return result

    def call(
        self,
        columns: Mapping[str, Column],
        batch: int,
        sink: ResponseSink,
        place: Any,
        arrived_ns: int,
        *,
        timeout_us: int = 0,
        canary: bool | None = None,
        priority: int = 0,
        routing_key: str = "",
    ) -> QueuedRequest:
        """Builds the request that will wait, with its arm, level and deadline. Callers may pass their own sink.

        The parameters are those of `infer`.
        """
        level = self.queue_settings.level_of(priority)
        settings = self.queue_settings.levels[level]
        bounds = (timeout_us, 0 if settings.delays else settings.timeout_us)
        timeout_ns = min((bound for bound in bounds if bound), default=0) * 1000
        wants_canary = self.takes_canary(routing_key) if canary is None else canary
        return QueuedRequest(
            columns,
            batch,
            sink,
            place,
            arrived_ns,
            arrived_ns + timeout_ns if timeout_ns else 0,
            canary=wants_canary and self.history.canary is not None,
            level=level,
            delay_at_ns=arrived_ns + settings.timeout_us * 1000 if settings.delays and settings.timeout_us else 0,
            priority=priority,
            routing_key=routing_key,
        )

    def statistics_of(self, call: QueuedRequest) -> ModelStatistics:
        """Returns the statistics that a request counts in."""
        return self.canary_statistics if call.canary else self.statistics

    def answered(self, call: QueuedRequest, result: InferenceResult) -> None:
        """Receives each request that was answered, before its memory is freed; called on any thread."""

    def close(self, timeout_s: float) -> bool:
        """Takes no new requests, answers those in the queue for at most `timeout_s`, and ends the sessions.

        The requests that are left in the queue then go to the successor, or are refused where there is none. Returns
        whether all sessions ended; while one is still at work, the store must stay open.
        """
        deadline = time.monotonic() + timeout_s
        self.history.end()
        self.group.close()
        ended = self.group.join(max(0.0, deadline - time.monotonic()))
        left = Answers()
        for request in self.group.clear():
            left.add(request, ReplacedError())
        left.send()
        if not ended:
            logger.warning("%s/%s: a session was still at work after %.1f s", self.name, self.version, timeout_s)
            ended = self.group.join(timeout_s)
        return ended

    async def _answer_at(self, min_snapshot: str, call: QueuedRequest) -> tuple[QueuedRequest, InferenceResult]:
        """Returns the answer of a snapshot that covers `min_snapshot`, and the call that got it."""
        until_ns = call.deadline_ns or call.arrived_ns + self._snapshot_timeout_ns
        while True:
            try:
                has_come = await self.history.wait_for(min_snapshot, until_ns, call.canary)
            except DeadlineExceeded as error:
                if call.deadline_ns:
                    raise
                # The caller still waits: a load balancer asks another replica after this, and not after a deadline.
                raise Unavailable(f"{error}; another replica may serve it already") from None
            if not has_come:
                raise ReplacedError
            result = await self._answer(call)
            # After a rollback between the wait and the batch, it waits again.
            if self.history.covers(result.snapshot, min_snapshot):
                return call, result
            call = replace(call, place=asyncio.get_running_loop().create_future(), features=None)

    async def _answer(self, call: QueuedRequest) -> InferenceResult:
        """Sends a request through the queue and a session once. Raises ReplacedError when the queue is closed."""
        if call.batch == 0:
            canary_arm = self.history.canary if call.canary else None
            return InferenceResult(
                [np.zeros((0, *output.dims), WIRE_TYPES[output.dtype].numpy) for output in self.signature.outputs],
                self.history.current if canary_arm is None else canary_arm[0],
                make_asked=self._no_rows,
            )
        self.group.put(call)
        timer = None
        if call.deadline_ns:
            loop = asyncio.get_running_loop()
            timer = loop.call_later((call.deadline_ns - time.monotonic_ns()) / 1e9, _expire, call)
        try:
            result: InferenceResult = await call.place
        except asyncio.CancelledError:
            call.discard()
            raise
        finally:
            if timer is not None:
                timer.cancel()
        return result

    def _no_rows(self, name: str) -> np.ndarray:
        output = self.signature.output_at(self.signature.output(name))
        return np.zeros((0,) * (1 + len(output.dims)), WIRE_TYPES[output.dtype].numpy)

    async def _hand_on(self, successor: Endpoint, call: QueuedRequest, min_snapshot: str) -> InferenceResult:
        if not can_answer(successor.signature, self.signature, call.batch):
            raise SignatureChanged(
                f"model {self.name!r}: version {self.version} was replaced by version {successor.version}, which has "
                "another signature; send the request again"
            )
        left_us = max(1, (call.deadline_ns - time.monotonic_ns()) // 1000) if call.deadline_ns else 0
        return await successor.infer(
            call.columns,
            call.batch,
            left_us,
            min_snapshot=min_snapshot,
            priority=call.priority,
            routing_key=call.routing_key,
            request_id=call.request_id,
        )


def _expire(request: QueuedRequest) -> None:
    # A request that a session has already taken is answered.
    if not request.place.done() and request.discard():
        request.place.set_exception(request_expired())


def can_answer(signature: ModelSignature, request: ModelSignature, batch: int) -> bool:
    """Returns whether a model with `signature` can answer a request that was decoded with the signature `request`.

    The answer is encoded with `request`, too. batch: rows of the request.
    """
    own = {entry.name: (entry.dtype, entry.kind, entry.width) for entry in signature.raw}
    given = {entry.name: (entry.dtype, entry.kind, entry.width) for entry in request.raw}
    fresh_optional = all(entry.missing == "null" for entry in signature.raw if entry.name not in given)
    same_inputs = fresh_optional and given.items() <= own.items()
    same_outputs = signature.outputs == request.outputs and signature.asked == request.asked
    return same_inputs and same_outputs and batch <= signature.max_batch_size
