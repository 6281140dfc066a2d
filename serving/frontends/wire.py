"""Defines the protocol between front ends and the engine: packets over a socket that keeps their boundaries.

The bytes of tensors lie in shared memory; packets say where. A packet is a kind and its content. Both ends are of one
installation and are started together, so that nothing here has a version.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

# Packets are kept below this; the kernel's default bounds one at about three times as much.
MAX_PACKET = 64 << 10

_LARGEST_PACKET = 256 << 10
# The bound keeps a busy front end from occupying the loop.
_READS_AT_ONCE = 16

HELLO, INFER, CANCEL, CALL, ANSWERS, ERRORS = (bytes([kind]) for kind in range(6))

_INFER = struct.Struct("<IQQQQQQQIHHH")
_ANSWER = struct.Struct("<QI")
_CHUNK = struct.Struct("<Q?")
_ERROR = struct.Struct("<QI")
_ID = struct.Struct("<Q")


@dataclass(slots=True)
class InferRecord:
    """One request."""

    id: int
    #: Number that the engine assigned to a name and version.
    target: int
    #: Offset of its columns in shared memory.
    offset: int
    #: Size of its columns.
    size: int
    #: Offset of its outputs in shared memory, aligned behind the columns.
    out: int
    batch: int
    #: Time by `time.monotonic_ns`, which all processes of a machine share.
    arrived_ns: int
    timeout_us: int
    priority: int
    #: Code of the columns' layout, see `storage.features.flat`.
    layout: bytes
    routing_key: str
    min_snapshot: str

    def encode(self) -> bytes:
        """Encodes the record for a packet."""
        key, snapshot = (text.encode("utf-8", "surrogatepass") for text in (self.routing_key, self.min_snapshot))
        fixed = _INFER.pack(
            self.target,
            self.id,
            self.offset,
            self.size,
            self.out,
            self.arrived_ns,
            self.timeout_us,
            self.priority,
            self.batch,
            len(self.layout),
            len(key),
            len(snapshot),
        )
        return b"".join([fixed, self.layout, key, snapshot])


def read_records(packet: bytes) -> Iterator[InferRecord]:
    """Yields the requests of an INFER packet."""
    at = 1
    while at < len(packet):
        target, number, offset, size, out, arrived_ns, timeout_us, priority, batch, layout, key, snapshot = (
            _INFER.unpack_from(packet, at)
        )
        key_at = at + _INFER.size + layout
        snapshot_at = key_at + key
        yield InferRecord(
            number,
            target,
            offset,
            size,
            out,
            batch,
            arrived_ns,
            timeout_us,
            priority,
            packet[at + _INFER.size : key_at],
            packet[key_at:snapshot_at].decode("utf-8", "surrogatepass") if key else "",
            packet[snapshot_at : snapshot_at + snapshot].decode("utf-8", "surrogatepass") if snapshot else "",
        )
        at = snapshot_at + snapshot


def encode_answers(snapshot: bytes, answers: Sequence[tuple[int, int]]) -> bytes:
    """Encodes (id, unresolved) of requests whose outputs lie in shared memory. snapshot: the one they come from."""
    entries = [_ANSWER.pack(number, min(unresolved, 2**32 - 1)) for number, unresolved in answers]
    return b"".join([ANSWERS, bytes([len(snapshot)]), snapshot, *entries])


def read_answers(packet: bytes) -> tuple[bytes, Iterator[tuple[int, int]]]:
    """Returns the snapshot, and (id, unresolved) of requests."""
    start = 2 + packet[1]
    return packet[2:start], _ANSWER.iter_unpack(packet[start:])


def encode_error(number: int, content: dict[str, Any]) -> bytes:
    """Encodes the error of a request that has no answer."""
    text = json.dumps(content).encode()
    return b"".join([ERRORS, _ERROR.pack(number, len(text)), text])


def read_error(packet: bytes) -> tuple[int, dict[str, Any]]:
    """Returns id and content."""
    number, length = _ERROR.unpack_from(packet, 1)
    start = 1 + _ERROR.size
    return number, json.loads(packet[start : start + length])


def encode_cancel(number: int) -> bytes:
    """Encodes that a request has no caller any more. It is answered all the same."""
    return CANCEL + _ID.pack(number)


def read_cancel(packet: bytes) -> int:
    """Returns the id."""
    return int(_ID.unpack_from(packet, 1)[0])


def encode_call(number: int, head: dict[str, Any], body: bytes) -> Iterator[bytes]:
    """Yields the packets of a call, or of the answer to one: a JSON object and a body of any length."""
    text = json.dumps(head).encode()
    content = b"".join([struct.pack("<I", len(text)), text, body])
    for start in range(0, len(content), MAX_PACKET):
        part = content[start : start + MAX_PACKET]
        yield b"".join([CALL, _CHUNK.pack(number, start + MAX_PACKET >= len(content)), part])


class CallReader:
    """Assembles the packets of calls."""

    def __init__(self) -> None:
        self._parts: dict[int, list[bytes]] = {}

    def add(self, packet: bytes) -> tuple[int, dict[str, Any], bytes] | None:
        """Returns id, head and body once the last packet of a call is here."""
        number, is_last = _CHUNK.unpack_from(packet, 1)
        parts = self._parts.setdefault(number, [])
        parts.append(packet[1 + _CHUNK.size :])
        if not is_last:
            return None
        del self._parts[number]
        content = b"".join(parts)
        (length,) = struct.unpack_from("<I", content)
        return number, json.loads(content[4 : 4 + length]), content[4 + length :]


class PacketSocket:
    """A socket of packets on an event loop. Nothing blocks: packets that the other end does not accept yet wait here.

    on_packet: called with each packet that comes. on_closed: called once, when the other end has gone. `send` is for
    the loop's thread; `send_from_any` for every other.
    """

    def __init__(
        self,
        end: socket.socket,
        loop: asyncio.AbstractEventLoop,
        on_packet: Callable[[bytes], None],
        on_closed: Callable[[], None],
    ) -> None:
        end.setblocking(False)
        # A packet that is larger than this could never be sent.
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LARGEST_PACKET)
        self._end = end
        self._loop = loop
        self._on_packet = on_packet
        self._on_closed = on_closed
        self._view = memoryview(bytearray(_LARGEST_PACKET))
        self._waiting: deque[bytes] = deque()
        self._closed = False

    def start(self) -> None:
        """Accepts packets from this call on."""
        self._loop.add_reader(self._end.fileno(), self._read)

    def send(self, packet: bytes) -> None:
        """Sends a packet, or keeps it until there is room."""
        if self._closed:
            return
        if self._waiting or not self._try(packet):
            if not self._waiting:
                self._loop.add_writer(self._end.fileno(), self._write)
            self._waiting.append(packet)

    def send_from_any(self, packet: bytes) -> None:
        """Sends as `send` does, from any thread: directly where there is room."""
        if self._closed:
            return
        if self._waiting or not self._try(packet):
            with contextlib.suppress(RuntimeError):  # the loop has closed
                self._loop.call_soon_threadsafe(self.send, packet)

    def close(self) -> None:
        """Closes the socket; `on_closed` is not called."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._end.fileno())
        if self._waiting:
            self._loop.remove_writer(self._end.fileno())
            self._waiting.clear()
        self._end.close()

    def _try(self, packet: bytes) -> bool:
        try:
            self._end.send(packet)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            # Otherwise the other end has gone: the reader will find out.
            return error.errno not in (errno.ENOBUFS, errno.ENOMEM)
        return True

    def _read(self) -> None:
        for _ in range(_READS_AT_ONCE):
            try:
                # The packet is read into existing memory: a large buffer of its own for each packet costs more than the
                # packet.
                packet = bytes(self._view[: self._end.recv_into(self._view)])
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                packet = b""
            if not packet:
                if not self._closed:
                    self.close()
                    self._on_closed()
                return
            self._on_packet(packet)
            if self._closed:
                return

    def _write(self) -> None:
        while self._waiting and self._try(self._waiting[0]):
            self._waiting.popleft()
        if not self._waiting:
            self._loop.remove_writer(self._end.fileno())
