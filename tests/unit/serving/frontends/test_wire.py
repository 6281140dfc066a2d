"""Messages between front ends and the engine arrive unchanged, whole, once, and in order."""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
import threading
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.frontends import wire
from serving.frontends.wire import CallReader, InferRecord, PacketSocket

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="sockets of packets are Linux's")

_u32, _u64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
_records = st.builds(
    InferRecord,
    id=_u64,
    target=_u32,
    offset=_u64,
    size=_u64,
    out=_u64,
    batch=_u32,
    arrived_ns=_u64,
    timeout_us=_u64,
    priority=_u64,
    layout=st.binary(max_size=40),
    routing_key=st.text(st.characters(), max_size=20),
    min_snapshot=st.text(st.characters(), max_size=20),
)
_json = st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=9) | st.none(), max_size=4)


@given(st.lists(_records, max_size=5))
def test_requests_arrive_as_they_were_sent(records: list[InferRecord]) -> None:
    packet = b"".join([wire.INFER, *[record.encode() for record in records]])
    assert list(wire.read_records(packet)) == records


def test_the_longest_request_fits_into_a_packet_and_any_text_travels() -> None:
    key = "\N{SNOWMAN}" * 1024
    record = InferRecord(1, 2, 3, 4, 5, 6, 7, 8, 9, b"x" * 40_000, key, "\ud800" * 1024)
    packet = wire.INFER + record.encode()
    assert len(packet) < wire.MAX_PACKET
    assert list(wire.read_records(packet)) == [record]


@given(name=st.binary(max_size=100), answers=st.lists(st.tuples(_u64, st.integers(0, 2**40)), max_size=50))
def test_answers_arrive_as_they_were_sent(name: bytes, answers: list[tuple[int, int]]) -> None:
    snapshot, arrived = wire.read_answers(wire.encode_answers(name, answers))
    assert snapshot == name
    # A count that does not fit into four bytes is sent as the largest that does.
    assert list(arrived) == [(number, min(unresolved, 2**32 - 1)) for number, unresolved in answers]


@given(number=_u64, content=_json)
def test_errors_arrive_as_they_were_sent(number: int, content: dict[str, object]) -> None:
    assert wire.read_error(wire.encode_error(number, content)) == (number, content)
    assert wire.read_cancel(wire.encode_cancel(number)) == number


@pytest.mark.parametrize(
    "size",
    [0, 1, wire.MAX_PACKET - 6, wire.MAX_PACKET - 5, wire.MAX_PACKET, 5 * wire.MAX_PACKET + 3],
)
def test_a_call_of_any_length_arrives_once_its_last_packet_does(size: int) -> None:
    body = bytes(range(256)) * (size // 256 + 1)
    packets = list(wire.encode_call(7, {"a": 1}, body[:size]))
    assert all(len(packet) < 2 * wire.MAX_PACKET for packet in packets)
    assert len(packets) == -(-(4 + len('{"a": 1}') + size) // wire.MAX_PACKET)
    reader = CallReader()
    assert [reader.add(packet) for packet in packets[:-1]] == [None] * (len(packets) - 1)
    assert reader.add(packets[-1]) == (7, {"a": 1}, body[:size])
    # The call number can be used again.
    (again,) = wire.encode_call(7, {}, b"")
    assert reader.add(again) == (7, {}, b"")


@given(st.data())
def test_calls_whose_packets_are_mixed_are_distinguished(data: st.DataObject) -> None:
    calls = {number: (str(number) * 100_000).encode() for number in range(1, 4)}
    queues = [list(wire.encode_call(number, {"n": number}, body)) for number, body in calls.items()]
    reader, found = CallReader(), {}
    while any(queues):
        whole = reader.add(data.draw(st.sampled_from([queue for queue in queues if queue])).pop(0))
        if whole is not None:
            found[whole[0]] = whole[1:]
    assert found == {number: ({"n": number}, body) for number, body in calls.items()}


class Ends:
    """Both ends of a connection on one event loop, and what each has received."""

    def __init__(self, buffer_bytes: int = 4096) -> None:
        loop = asyncio.get_running_loop()
        own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
        self.raw = other
        self.closed: list[str] = []
        self.arrived: list[bytes] = []
        self.own = PacketSocket(own, loop, self.arrived.append, lambda: self.closed.append("own"))
        self.other = PacketSocket(other, loop, self.arrived.append, lambda: self.closed.append("other"))


def on_loop(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        async def bounded() -> None:
            async with asyncio.timeout(20):
                await test()

        asyncio.run(bounded())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


async def until(holds: Callable[[], object]) -> None:
    """Waits for the condition; `on_loop` bounds the time."""
    while not holds():
        await asyncio.sleep(0)


def numbered(number: int) -> bytes:
    return struct.pack("<I", number) + bytes(number % 2000)


@linux_only
@on_loop
async def test_packets_that_find_no_room_wait_and_arrive_in_their_order() -> None:
    ends = Ends()
    sent = [numbered(number) for number in range(3000)]
    for packet in sent[:2000]:
        ends.own.send(packet)  # The other end does not read yet.
    assert not ends.arrived
    ends.other.start()
    await until(lambda: ends.arrived)
    for packet in sent[2000:]:
        ends.own.send(packet)
    await until(lambda: len(ends.arrived) >= len(sent))
    assert ends.arrived == sent
    ends.own.close()
    ends.other.close()


@linux_only
@on_loop
async def test_packets_from_many_threads_arrive_each_once() -> None:
    ends = Ends()

    def send(first: int) -> None:
        for number in range(first, first + 500):
            ends.own.send_from_any(numbered(number))

    threads = [threading.Thread(target=send, args=(first,)) for first in range(0, 2000, 500)]
    for thread in threads:
        thread.start()
    await asyncio.to_thread(lambda: [thread.join(20) for thread in threads])
    ends.other.start()
    await until(lambda: len(ends.arrived) >= 2000)
    assert sorted(ends.arrived) == sorted(numbered(number) for number in range(2000))
    ends.own.close()
    ends.other.close()


@linux_only
@on_loop
async def test_an_end_learns_once_that_the_other_has_gone_and_after_all_that_it_said() -> None:
    ends = Ends(1 << 16)
    ends.other.start()
    for number in range(10):
        ends.own.send(numbered(number))
    ends.own.close()
    await until(lambda: ends.closed)
    assert len(ends.arrived) == 10
    for _ in range(5):
        await asyncio.sleep(0)
    assert ends.closed == ["other"]
    # Both ends are closed: nothing is sent, and nothing is raised.
    for end in (ends.own, ends.other):
        end.send(b"late")
        end.send_from_any(b"late")
        end.close()
    assert ends.closed == ["other"]


@linux_only
@on_loop
async def test_an_end_that_goes_while_packets_wait_for_room_is_noticed() -> None:
    ends = Ends()
    ends.own.start()
    for number in range(2000):
        ends.own.send(numbered(number))
    ends.raw.close()
    await until(lambda: ends.closed)
    assert ends.closed == ["own"]


@linux_only
@on_loop
async def test_an_end_that_is_closed_by_what_it_takes_reads_no_more() -> None:
    ends = Ends(1 << 16)
    taken: list[bytes] = []

    def take(packet: bytes) -> None:
        taken.append(packet)
        own.close()

    first, second = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    own = PacketSocket(first, asyncio.get_running_loop(), take, lambda: taken.append(b"closed"))
    second.send(b"one")
    second.send(b"two")
    own.start()
    await until(lambda: taken)
    await asyncio.sleep(0)
    assert taken == [b"one"]
    second.close()
    ends.own.close()
    ends.other.close()
