from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

from serving.engine.batcher import RequestQueue
from serving.engine.model_config import QueueSettings
from serving.engine.requests import QueuedRequest
from storage.errors import DeadlineExceeded, Overloaded, Unavailable

LIMIT = 16


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


def request(loop: asyncio.AbstractEventLoop, batch: int = 1, deadline_ns: int = 0) -> QueuedRequest:
    return QueuedRequest({}, batch, loop.create_future(), loop, time.monotonic_ns(), deadline_ns)


def filled(loop: asyncio.AbstractEventLoop, sizes: list[int], **settings: object) -> RequestQueue:
    queue = RequestQueue("m", QueueSettings(**{"merge": True, **settings}), LIMIT)  # type: ignore[arg-type]
    for size in sizes:
        queue.put(request(loop, size))
    return queue


def sizes(batch: list[QueuedRequest] | None) -> list[int]:
    assert batch is not None
    return [entry.batch for entry in batch]


def test_requests_share_a_batch_up_to_the_limit_in_order(loop: asyncio.AbstractEventLoop) -> None:
    queue = filled(loop, [4, 4, 9, 1])
    assert sizes(queue.take()) == [4, 4]
    assert sizes(queue.take()) == [9, 1]


def test_without_dynamic_batching_each_request_is_alone(loop: asyncio.AbstractEventLoop) -> None:
    queue = filled(loop, [1, 1], merge=False)
    assert sizes(queue.take()) == [1]
    assert sizes(queue.take()) == [1]


def test_the_largest_preferred_size_that_can_be_filled_is_taken(loop: asyncio.AbstractEventLoop) -> None:
    queue = filled(loop, [1] * 7, preferred=(2, 4, 8))
    assert len(queue.take() or []) == 4
    assert len(queue.take() or []) == 2
    assert len(queue.take() or []) == 1


def test_a_batch_waits_for_more_but_not_longer_than_the_delay(loop: asyncio.AbstractEventLoop) -> None:
    queue = filled(loop, [1], delay_us=50_000)
    started = time.monotonic()
    assert sizes(queue.take()) == [1]
    assert time.monotonic() - started >= 0.04


def test_a_waiting_batch_takes_in_what_arrives(loop: asyncio.AbstractEventLoop) -> None:
    queue = filled(loop, [1], delay_us=10_000_000, preferred=(3,))
    threading.Timer(0.02, lambda: [queue.put(request(loop)), queue.put(request(loop))]).start()
    assert sizes(queue.take()) == [1, 1, 1]


def test_a_full_queue_answers_at_once_and_a_discarded_request_frees_its_place(loop: asyncio.AbstractEventLoop) -> None:
    queue = filled(loop, [1], max_queue_size=2)
    second = request(loop)
    queue.put(second)
    with pytest.raises(Overloaded, match="maximum queue size"):
        queue.put(request(loop))
    assert queue.discard(second)
    queue.put(request(loop))
    assert len(queue) == 2
    assert not queue.discard(second)


def test_an_expired_request_is_answered_without_being_computed(loop: asyncio.AbstractEventLoop) -> None:
    queue = filled(loop, [])
    late = request(loop, deadline_ns=time.monotonic_ns() - 1)
    queue.put(late)
    queue.put(request(loop))
    assert len(queue.take() or []) == 1
    with pytest.raises(DeadlineExceeded):
        loop.run_until_complete(late.future)


def test_a_closed_queue_gives_out_what_waits_and_then_ends(loop: asyncio.AbstractEventLoop) -> None:
    queue = filled(loop, [1], delay_us=60_000_000)
    queue.close()
    assert sizes(queue.take()) == [1]
    assert queue.take() is None
    with pytest.raises(Unavailable):
        queue.put(request(loop))


def test_closing_wakes_every_session(loop: asyncio.AbstractEventLoop) -> None:
    queue = filled(loop, [])
    ended: list[object] = []
    threads = [threading.Thread(target=lambda: ended.append(queue.take())) for _ in range(4)]
    for thread in threads:
        thread.start()
    queue.close()
    for thread in threads:
        thread.join(5)
    assert ended == [None] * 4


def test_many_sessions_take_every_request_once(loop: asyncio.AbstractEventLoop) -> None:
    queue = RequestQueue("m", QueueSettings(merge=True, max_queue_size=10_000), LIMIT)
    taken: list[QueuedRequest] = []
    lock = threading.Lock()

    def session() -> None:
        while (batch := queue.take()) is not None:
            assert sum(entry.batch for entry in batch) <= LIMIT
            with lock:
                taken.extend(batch)

    threads = [threading.Thread(target=session) for _ in range(4)]
    for thread in threads:
        thread.start()
    sent = [request(loop, 1 + index % 5) for index in range(2000)]
    for entry in sent:
        queue.put(entry)
    queue.close()
    for thread in threads:
        thread.join(10)
    assert {id(entry) for entry in taken} == {id(entry) for entry in sent}
    assert len(taken) == len(sent)


def test_no_deadline_passes_while_company_is_waited_for(loop: asyncio.AbstractEventLoop) -> None:
    queue = filled(loop, [], delay_us=3_600_000_000)
    queue.put(request(loop, deadline_ns=time.monotonic_ns() + 60_000_000_000))
    batch = queue.take()  # an hour of delay, a minute of deadline: handed over at once, or this test hangs
    assert batch is not None
    assert len(batch) == 1


def arm_request(loop: asyncio.AbstractEventLoop, canary: bool, batch: int = 1) -> QueuedRequest:
    made = request(loop, batch)
    made.canary = canary
    return made


def test_a_batch_is_of_one_arm_and_the_arm_that_waited_longest_comes_first(loop: asyncio.AbstractEventLoop) -> None:
    queue = filled(loop, [])
    sent = [arm_request(loop, canary) for canary in (False, True, False, True, True, False)]
    for entry in sent:
        queue.put(entry)
    assert len(queue) == 6
    assert queue.take() == [sent[0], sent[2], sent[5]]
    assert queue.take() == [sent[1], sent[3], sent[4]]
    queue.put(later := arm_request(loop, True))
    queue.put(arm_request(loop, False))
    assert queue.take() == [later]


def test_one_arm_s_batch_waits_for_no_company_while_the_other_arm_waits(loop: asyncio.AbstractEventLoop) -> None:
    queue = filled(loop, [1], delay_us=3_600_000_000)
    threading.Timer(0.02, queue.put, [arm_request(loop, True)]).start()
    assert [entry.canary for entry in queue.take() or []] == [False]  # an hour of delay, or this test hangs
    queue.put(arm_request(loop, False))
    assert [entry.canary for entry in queue.take() or []] == [True]


def test_the_bound_and_the_end_of_the_queue_count_both_arms(loop: asyncio.AbstractEventLoop) -> None:
    queue = filled(loop, [1], max_queue_size=2)
    canary = arm_request(loop, True)
    queue.put(canary)
    with pytest.raises(Overloaded):
        queue.put(arm_request(loop, True))
    assert queue.discard(canary)
    queue.put(canary := arm_request(loop, True))
    assert canary in queue.close()
    assert len(queue.take() or []) == 1
    assert queue.clear() == [canary]
    assert queue.take() is None
