"""A front end's connection to the engine: sends requests, receives answers, reconnects after a restart of the
engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from serving.frontends import wire
from serving.frontends.arena import BlockAllocator, aligned, create_memory, give_back
from serving.frontends.failures import from_wire
from serving.protocol.dtypes import WIRE_TYPES
from serving.protocol.signature import ModelSignature
from storage.errors import Unavailable
from storage.features import Column
from storage.features.flat import flatten

logger = logging.getLogger("emberline.serving")

_RETRY_S = 0.05
_AWAY = "the engine is being started; try again"


@dataclass(frozen=True, slots=True)
class RemoteSnapshot:
    """The name of the snapshot that an answer comes from."""

    id: str
    version: int
    sequence: int


@dataclass(slots=True)
class RemoteAnswer:
    """See serving.control.models.ModelAnswer."""

    outputs: list[np.ndarray]
    snapshot: RemoteSnapshot
    unresolved: int


@dataclass(slots=True)
class _Pending:
    """A request that the engine has."""

    #: None when there is no caller any more; its block is kept until it is answered.
    future: asyncio.Future[RemoteAnswer] | None
    signature: ModelSignature
    batch: int
    offset: int
    order: int
    out: int


class EngineConnection:
    """The connection of one front end.

    Not thread-safe: one event loop uses it. on_change: called when it is up or down.
    """

    def __init__(self, path: str, memory_bytes: int, on_change: Callable[[], None]) -> None:
        """Prepares the connection.

        path: the engine's socket. memory_bytes: a power of two, for all requests that are in flight at once.
        """
        self._path = path
        self._memory_bytes = memory_bytes
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        # The socket, and the same once the engine has accepted it: a connection may wait for an engine that is being
        # started.
        self._line: wire.PacketSocket | None = None
        self._socket: wire.PacketSocket | None = None
        self._up = asyncio.Event()
        self._numbers = itertools.count(1)
        self._pending: dict[int, _Pending] = {}
        self._calls: dict[int, asyncio.Future[tuple[dict[str, Any], bytes]]] = {}
        self._closed = False
        self._connecting: asyncio.Task[None] | None = None
        self._reset()

    @property
    def is_up(self) -> bool:
        """True if the engine can be asked."""
        return self._socket is not None

    @property
    def announced(self) -> int:
        """The announced generation, see SharedMemory; 0 in the memory of a new connection."""
        return self._memory.announced

    @property
    def in_flight(self) -> int:
        """Number of requests and calls that wait for the engine."""
        return len(self._pending) + len(self._calls)

    def start(self) -> None:
        """Connects, and reconnects whenever the engine has gone."""
        self._connecting = self._loop.create_task(self._connect())

    async def wait_until_up(self, timeout_s: float) -> None:
        """Waits for the engine, up to the timeout."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._up.wait()

    def close(self) -> None:
        """Ends the connection; requests in flight are refused."""
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        if self._line is not None:
            self._line.close()
            self._lost()

    async def infer(
        self,
        target: int,
        signature: ModelSignature,
        places: Mapping[str, int],
        columns: Mapping[str, Column],
        batch: int,
        timeout_us: int,
        priority: int,
        routing_key: str,
        min_snapshot: str,
    ) -> RemoteAnswer:
        """Returns the answer to one request. Raises what the engine raises, Unavailable when it is away, Overloaded."""
        arrived_ns = time.monotonic_ns()
        if self._socket is None:
            raise Unavailable(_AWAY)
        layout, data = flatten(columns, batch, places)
        size = len(data)
        out = aligned(size)
        outputs = sum([aligned(batch * row) for row in signature.output_row_bytes])
        offset, order = self._blocks.allocate(out + outputs)
        self._memory.mapped[offset : offset + size] = data
        number = next(self._numbers)
        future: asyncio.Future[RemoteAnswer] = self._loop.create_future()
        self._pending[number] = _Pending(future, signature, batch, offset, order, offset + out)
        record = wire.InferRecord(
            number,
            target,
            offset,
            size,
            offset + out,
            batch,
            arrived_ns,
            timeout_us,
            priority,
            layout,
            routing_key,
            min_snapshot,
        )
        self._queue(record.encode())
        try:
            return await future
        except asyncio.CancelledError:
            self._cancel(number)
            raise

    async def call(self, head: dict[str, Any], body: bytes = b"") -> tuple[dict[str, Any], bytes]:
        """Makes a call that is no inference. Raises what the engine raises, Unavailable when it is away."""
        if self._socket is None:
            raise Unavailable(_AWAY)
        number = next(self._numbers)
        future: asyncio.Future[tuple[dict[str, Any], bytes]] = self._loop.create_future()
        self._calls[number] = future
        for packet in wire.encode_call(number, head, body):
            self._socket.send(packet)
        try:
            answer, content = await future
        finally:
            self._calls.pop(number, None)
        if "error" in answer:
            raise from_wire(answer)
        return answer, content

    def _reset(self) -> None:
        """Makes new memory for a new connection: an engine that has gone may have left anything in the old."""
        self._memory, self._fd = create_memory(self._memory_bytes)
        self._blocks = BlockAllocator(self._memory_bytes)
        self._reader = wire.CallReader()
        self._snapshots: dict[bytes, RemoteSnapshot] = {}
        self._records: list[bytes] = []

    async def _connect(self) -> None:
        while not self._closed:
            end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                end.connect(self._path)
                hello = json.dumps({"memory_bytes": self._memory.size}).encode()
                socket.send_fds(end, [wire.HELLO + hello], [self._fd])
            except OSError:
                end.close()
                await asyncio.sleep(_RETRY_S)
                continue
            os.close(self._fd)
            self._line = wire.PacketSocket(end, self._loop, self._take, self._lost)
            self._line.start()
            return

    def _lost(self) -> None:
        """Handles the loss of the engine: the requests it held have failed, and a new connection is made."""
        self._line = self._socket = None
        self._up.clear()
        pending, self._pending = self._pending, {}
        for entry in pending.values():
            if entry.future is not None and not entry.future.done():
                entry.future.set_exception(Unavailable("the engine ended before it answered; try again"))
        for future in self._calls.values():
            if not future.done():
                future.set_exception(Unavailable(_AWAY))
        if self._closed:
            return
        logger.warning("the engine has gone; %d requests failed with it", len(pending))
        self._reset()
        self._on_change()
        self.start()

    def _queue(self, record: bytes) -> None:
        """Queues a record; requests of one iteration of the loop are sent together."""
        if not self._records:
            self._loop.call_soon(self._flush)
        self._records.append(record)

    def _flush(self) -> None:
        records, self._records = self._records, []
        if self._socket is None or not records:
            return
        packet: list[bytes] = [wire.INFER]
        size = 0
        for record in records:
            if size + len(record) > wire.MAX_PACKET and size:
                self._socket.send(b"".join(packet))
                packet, size = [wire.INFER], 0
            packet.append(record)
            size += len(record)
        self._socket.send(b"".join(packet))

    def _cancel(self, number: int) -> None:
        entry = self._pending.get(number)
        if entry is None or entry.future is None:
            return
        entry.future = None
        if self._socket is not None:
            # It follows the request itself, which may not have been sent yet.
            self._flush()
            self._socket.send(wire.encode_cancel(number))

    def _take(self, packet: bytes) -> None:
        kind = packet[:1]
        if kind == wire.ANSWERS:
            name, answers = wire.read_answers(packet)
            snapshot = self._snapshots.get(name)
            if snapshot is None:
                snapshot = self._snapshots[name] = _snapshot(name)
            for number, unresolved in answers:
                self._answered(number, snapshot, unresolved)
        elif kind == wire.ERRORS:
            number, content = wire.read_error(packet)
            entry = self._pending.pop(number, None)
            if entry is not None:
                self._release(entry)
                if entry.future is not None and not entry.future.done():
                    entry.future.set_exception(from_wire(content))
        elif kind == wire.CALL:
            found = self._reader.add(packet)
            if found is not None:
                future = self._calls.pop(found[0], None)
                if future is not None and not future.done():
                    future.set_result(found[1:])
        elif kind == wire.HELLO:
            self._socket = self._line
            self._up.set()
            self._on_change()

    def _answered(self, number: int, snapshot: RemoteSnapshot, unresolved: int) -> None:
        entry = self._pending.pop(number, None)
        if entry is None:
            return
        if entry.future is not None and not entry.future.done():
            outputs = []
            at = entry.out
            for output, row_bytes in zip(entry.signature.outputs, entry.signature.output_row_bytes, strict=True):
                size = entry.batch * row_bytes
                values = np.frombuffer(self._memory.mapped[at : at + size], WIRE_TYPES[output.dtype].numpy)
                outputs.append(values.reshape(entry.batch, *output.dims))
                at += aligned(size)
            entry.future.set_result(RemoteAnswer(outputs, snapshot, unresolved))
        self._release(entry)

    def _release(self, entry: _Pending) -> None:
        self._blocks.free(entry.offset, entry.order)
        give_back(self._memory, entry.offset, entry.order)


def _snapshot(name: bytes) -> RemoteSnapshot:
    identity, version, sequence = name.decode().split()
    return RemoteSnapshot(identity, int(version), int(sequence))
