"""Connects the engine to one front end: reads requests from shared memory, and writes their answers into it."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from serving.engine.endpoint import Endpoint, can_answer
from serving.engine.requests import (
    Answer,
    InferenceResult,
    QueuedRequest,
    ReplacedError,
    RequestCancelled,
    request_expired,
)
from serving.frontends import wire
from serving.frontends.arena import SharedMemory, aligned
from serving.frontends.calls import EngineCalls
from serving.frontends.failures import to_wire
from serving.frontends.targets import Target, Targets
from serving.pipeline.snapshot import Snapshot
from serving.protocol.signature import SignatureChanged
from serving.repository.model_repository import ModelRepository
from storage.errors import InvalidInput
from storage.features.flat import FlatColumns

logger = logging.getLogger("emberline.serving")

_TICK_S = 0.005
# A later deadline is checked again by then: most requests are answered, and need not be remembered for longer.
_LOOK_AGAIN_S = 1.0
_ANSWERS_A_PACKET = 4096


@dataclass(slots=True)
class _Place:
    """Says where the answer to a request goes."""

    number: int
    out: int
    #: The endpoint that got the request.
    endpoint: Endpoint
    target: Target
    min_snapshot: str


class FrontendConnection:
    """The engine's connection to one front end; see serving.engine.requests.ResponseSink.

    It is made on the engine's event loop; answers come on the sessions' threads.
    """

    def __init__(
        self,
        end: socket.socket,
        repository: ModelRepository,
        calls: EngineCalls,
        on_closed: Callable[[FrontendConnection], None],
    ) -> None:
        self._repository = repository
        self._calls = calls
        self._on_closed = on_closed
        self._loop = asyncio.get_running_loop()
        self._end = end
        self._memory: SharedMemory | None = None
        self._targets = Targets(repository)
        self._waiting: dict[int, QueuedRequest] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._reader = wire.CallReader()
        # Requests by the tick at which their deadline is checked.
        self._deadlines: dict[int, list[int]] = {}
        self._ticking = False
        self._end_listening: Callable[[], None] = lambda: None
        end.setblocking(False)
        self._loop.add_reader(end.fileno(), self._greet)
        self._socket = wire.PacketSocket(end, self._loop, self._take, self._lost)

    def close(self) -> None:
        """Ends the connection."""
        self._socket.close()
        self._forget()

    def deliver(self, answers: Sequence[tuple[QueuedRequest, Answer]]) -> None:
        """See ResponseSink."""
        good: dict[Snapshot, list[tuple[int, int]]] = {}
        for request, answer in answers:
            place: _Place = request.place
            if self._waiting.pop(place.number, None) is None:
                continue
            took_ns = time.monotonic_ns() - request.arrived_ns
            if isinstance(answer, InferenceResult):
                self._write(place, answer)
                place.endpoint.answered(request)
                place.endpoint.statistics_of(request).finished(took_ns)
                good.setdefault(answer.snapshot, []).append((place.number, answer.unresolved))
            elif isinstance(answer, ReplacedError):
                self._loop.call_soon_threadsafe(self._ask, request)
            else:
                place.endpoint.statistics_of(request).finished(took_ns, answer)
                self._socket.send_from_any(wire.encode_error(place.number, to_wire(answer)))
        for snapshot, numbers in good.items():
            for start in range(0, len(numbers), _ANSWERS_A_PACKET):
                part = numbers[start : start + _ANSWERS_A_PACKET]
                self._socket.send_from_any(wire.encode_answers(_name(snapshot), part))

    def _greet(self) -> None:
        """Sends the first packet, with the memory."""
        self._loop.remove_reader(self._end.fileno())
        fds: list[int] = []
        try:
            packet, fds, _, _ = socket.recv_fds(self._end, wire.MAX_PACKET, 1)
            if packet[:1] != wire.HELLO or len(fds) != 1:
                raise InvalidInput("a front end did not say hello")
            hello = json.loads(packet[1:])
            self._memory = SharedMemory.receive(fds.pop(), hello["memory_bytes"])
        except Exception:
            logger.exception("a front end's line is not usable")
            for fd in fds:
                os.close(fd)
            self._socket.close()
            self._on_closed(self)
            return
        self._end_listening = self._repository.regions.listen(self._memory.announce)
        self._socket.start()
        self._socket.send(wire.HELLO)

    def _take(self, packet: bytes) -> None:
        kind = packet[:1]
        if kind == wire.INFER:
            for record in wire.read_records(packet):
                try:
                    self._begin(record)
                except Exception as error:
                    self._refuse(record.id, error)
        elif kind == wire.CANCEL:
            self._cancel(wire.read_cancel(packet))
        elif kind == wire.CALL:
            found = self._reader.add(packet)
            if found is not None:
                number, head, body = found
                self._start(number, self._call(number, head, body))

    def _begin(self, record: wire.InferRecord) -> None:
        target = self._targets.known(record.target)
        endpoint = self._repository.get(target.name, target.version, record.routing_key)
        if not isinstance(endpoint, Endpoint):
            raise SignatureChanged(f"model {target.name!r} is another one now; send the request again")
        if target.endpoint is None or endpoint is not target.endpoint():
            if not can_answer(endpoint.signature, target.signature, record.batch):
                raise SignatureChanged(f"model {target.name!r} takes other inputs now; send the request again")
            target.endpoint = weakref.ref(endpoint)
        endpoint.signature.check_batch(record.batch)
        memory = self._memory
        assert memory is not None
        outputs = sum([aligned(record.batch * row) for row in endpoint.signature.output_row_bytes])
        if record.offset + record.size > record.out or record.out + outputs > memory.blocks:
            raise InvalidInput("a request lies outside of its memory")
        columns = FlatColumns(
            target.layout(record.layout), memory.array[record.offset : record.offset + record.size], record.batch
        )
        place = _Place(record.id, record.out, endpoint, target, record.min_snapshot)
        call = endpoint.call(
            columns,
            record.batch,
            self,
            place,
            record.arrived_ns,
            timeout_us=record.timeout_us,
            priority=record.priority,
            routing_key=record.routing_key,
        )
        if record.min_snapshot or record.batch == 0:
            self._ask(call)
            return
        if 0 < call.deadline_ns <= time.monotonic_ns():
            self._fail(call, request_expired())
            return
        self._waiting[record.id] = call
        if call.deadline_ns:
            self._watch(call)
        try:
            endpoint.group.put(call)
        except ReplacedError:
            del self._waiting[record.id]
            self._ask(call)
        except BaseException as error:
            del self._waiting[record.id]
            endpoint.statistics_of(call).finished(time.monotonic_ns() - call.arrived_ns, error)
            raise

    def _ask(self, call: QueuedRequest) -> None:
        """Handles requests that wait for more than a session: for a snapshot, or for the version after theirs."""
        columns = call.columns
        assert isinstance(columns, FlatColumns)
        # When such a request is cancelled, its front end frees the memory, though a session may still read it.
        call = replace(call, columns=FlatColumns(columns.layout, columns.data.copy(), columns.batch), features=None)
        self._start(call.place.number, self._answer(call))

    async def _answer(self, call: QueuedRequest) -> None:
        place: _Place = call.place
        left_us = max(1, (call.deadline_ns - time.monotonic_ns()) // 1000) if call.deadline_ns else 0
        try:
            result = await place.endpoint.infer(
                call.columns,
                call.batch,
                left_us,
                min_snapshot=place.min_snapshot,
                canary=call.canary,
                follow=not place.target.version,
                priority=call.priority,
                routing_key=call.routing_key,
            )
        except asyncio.CancelledError:
            self._refuse(place.number, RequestCancelled())
            raise
        except Exception as error:
            self._refuse(place.number, error)
            return
        self._write(place, result)
        self._socket.send(wire.encode_answers(_name(result.snapshot), [(place.number, result.unresolved)]))

    async def _call(self, number: int, head: dict[str, Any], body: bytes) -> None:
        try:
            answer, content = await self._calls.answer(self._targets, head, body)
        except Exception as error:
            answer, content = to_wire(error), b""
        for packet in wire.encode_call(number, answer, content):
            self._socket.send(packet)

    def _start(self, number: int, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks[number] = task
        task.add_done_callback(partial(self._ended, number))

    def _ended(self, number: int, task: asyncio.Task[None]) -> None:
        del self._tasks[number]
        if not task.cancelled() and task.exception() is not None:
            logger.error("a request of a front end failed", exc_info=task.exception())

    def _cancel(self, number: int) -> None:
        call = self._waiting.get(number)
        if call is not None:
            # A request that a session has taken already is answered, and its front end ignores the answer.
            if call.discard() and self._waiting.pop(number, None) is not None:
                self._fail(call, RequestCancelled())
        elif number in self._tasks:
            self._tasks[number].cancel()

    def _watch(self, call: QueuedRequest) -> None:
        at_s = min(call.deadline_ns / 1e9, time.monotonic() + _LOOK_AGAIN_S)
        self._deadlines.setdefault(int(at_s / _TICK_S) + 1, []).append(call.place.number)
        if not self._ticking:
            self._ticking = True
            self._loop.call_later(_TICK_S, self._tick)

    def _tick(self) -> None:
        now = int(time.monotonic() / _TICK_S)
        for tick in [tick for tick in self._deadlines if tick <= now]:
            for number in self._deadlines.pop(tick):
                call = self._waiting.get(number)
                if call is not None and call.deadline_ns > time.monotonic_ns():
                    self._watch(call)
                # A request that a session has taken already is answered.
                elif call is not None and call.discard() and self._waiting.pop(number, None) is not None:
                    self._fail(call, request_expired())
        self._ticking = bool(self._deadlines)
        if self._ticking:
            self._loop.call_later(_TICK_S, self._tick)

    def _fail(self, call: QueuedRequest, error: Exception) -> None:
        place: _Place = call.place
        place.endpoint.statistics_of(call).finished(time.monotonic_ns() - call.arrived_ns, error)
        self._refuse(place.number, error)

    def _refuse(self, number: int, error: BaseException) -> None:
        self._socket.send(wire.encode_error(number, to_wire(error)))

    def _write(self, place: _Place, result: InferenceResult) -> None:
        memory = self._memory
        assert memory is not None
        at = place.out
        for values in result.outputs:
            size = values.nbytes
            memory.mapped[at : at + size] = values.data.cast("B") if size else b""
            at += aligned(size)

    def _lost(self) -> None:
        """Handles the loss of the front end: its requests have no caller any more."""
        self._forget()
        self._on_closed(self)

    def _forget(self) -> None:
        self._end_listening()
        for number in list(self._waiting):
            call = self._waiting.pop(number, None)
            if call is not None:
                call.discard()
        for task in list(self._tasks.values()):
            task.cancel()


def _name(snapshot: Snapshot) -> bytes:
    return f"{snapshot.id} {snapshot.version} {snapshot.sequence}".encode()
