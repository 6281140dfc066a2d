from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.engine.batcher import RequestQueue
from serving.engine.requests import LoopSink, QueuedRequest, ReplacedError
from serving.model_config.queue_settings import LevelSettings, QueueSettings
from storage.errors import DeadlineExceeded, Overloaded

LIMIT = 16


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


def request(loop: asyncio.AbstractEventLoop, batch: int = 1, deadline_ns: int = 0) -> QueuedRequest:
    return QueuedRequest({}, batch, LoopSink(loop), loop.create_future(), time.monotonic_ns(), deadline_ns)


def filled(
    loop: asyncio.AbstractEventLoop, sizes: list[int], *, max_size: int = 256, **settings: object
) -> RequestQueue:
    one = (LevelSettings(max_size),)
    queue = RequestQueue("m", QueueSettings(**{"merge": True, "levels": one, **settings}), LIMIT)  # type: ignore[arg-type]
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
    queue = filled(loop, [1], max_size=2)
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
        loop.run_until_complete(late.place)


def test_a_closed_queue_gives_out_what_waits_and_then_ends(loop: asyncio.AbstractEventLoop) -> None:
    queue = filled(loop, [1], delay_us=60_000_000)
    queue.close()
    assert sizes(queue.take()) == [1]
    assert queue.take() is None
    with pytest.raises(ReplacedError):
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
    queue = RequestQueue("m", QueueSettings(merge=True, levels=(LevelSettings(10_000),)), LIMIT)
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
    queue = filled(loop, [1], max_size=2)
    canary = arm_request(loop, True)
    queue.put(canary)
    with pytest.raises(Overloaded):
        queue.put(arm_request(loop, True))
    assert queue.discard(canary)
    queue.put(canary := arm_request(loop, True))
    queue.close()
    assert len(queue.take() or []) == 1
    assert queue.clear() == [canary]
    assert queue.take() is None


# ---- priority


def level_request(loop: asyncio.AbstractEventLoop, level: int, batch: int = 1, delay_at_ns: int = 0) -> QueuedRequest:
    made = request(loop, batch)
    made.level, made.delay_at_ns = level, delay_at_ns
    return made


def test_a_higher_priority_goes_first_and_a_batch_takes_in_lower_ones_behind(loop: asyncio.AbstractEventLoop) -> None:
    queue = filled(loop, [], levels=(LevelSettings(),) * 3)
    sent = [level_request(loop, level, 8) for level in (2, 1, 0, 1, 0)]
    for entry in sent:
        queue.put(entry)
    assert queue.take() == [sent[2], sent[4]]
    assert queue.take() == [sent[1], sent[3]]
    assert queue.take() == [sent[0]]


def test_numbers_of_priorities_mean_what_they_mean_to_triton() -> None:
    settings = QueueSettings(levels=(LevelSettings(),) * 3, default_level=2)
    assert [settings.level_of(priority) for priority in (0, 1, 2, 3, 4, 2**64 - 1)] == [1, 0, 1, 2, 1, 1]


def test_each_level_has_its_own_bound(loop: asyncio.AbstractEventLoop) -> None:
    queue = filled(loop, [], levels=(LevelSettings(1), LevelSettings(2)))
    sent = [level_request(loop, level) for level in (0, 1, 1)]
    for entry in sent:
        queue.put(entry)
    for level, bound in ((0, 1), (1, 2)):
        with pytest.raises(Overloaded, match=f"queue size of {bound}"):
            queue.put(level_request(loop, level))
    with pytest.raises(Overloaded):
        queue.check()
    assert queue.discard(sent[0])
    queue.check()


def test_who_waited_too_long_goes_behind_those_who_have_not_where_the_level_says_so(
    loop: asyncio.AbstractEventLoop,
) -> None:
    queue = filled(loop, [], levels=(LevelSettings(), LevelSettings()))
    late = level_request(loop, 0, 8, delay_at_ns=time.monotonic_ns() - 1)
    timely = level_request(loop, 0, 8, delay_at_ns=time.monotonic_ns() + 10**12)
    lower = level_request(loop, 1, 16)
    for entry in (lower, late, timely):
        queue.put(entry)
    assert queue.take() == [timely, late]
    assert queue.take() == [lower]
    assert not late.place.done()


@given(
    st.lists(st.tuples(st.sampled_from(["put", "take", "discard"]), st.integers(0, 2), st.integers(1, 5)), max_size=60)
)
def test_a_queue_is_a_list_sorted_by_level(steps: list[tuple[str, int, int]]) -> None:
    made = asyncio.new_event_loop()
    queue = filled(made, [], merge=False, levels=(LevelSettings(),) * 3)
    known: list[QueuedRequest] = []
    for step, level, batch in steps:
        turn = sorted(known, key=lambda entry: entry.level)
        if step == "put":
            known.append(level_request(made, level, batch))
            queue.put(known[-1])
        elif step == "take" and known:
            assert queue.take() == turn[:1]
            known.remove(turn[0])
        elif known:
            chosen = known.pop((level * 7 + batch) % len(known))
            assert queue.discard(chosen)
            assert not queue.discard(chosen)
        assert len(queue) == len(known)
    queue.close()
    assert queue.clear() == sorted(known, key=lambda entry: entry.level)
    made.close()


# ---- waits by estimate


def test_a_request_that_would_wait_too_long_is_refused_before_it_waits(loop: asyncio.AbstractEventLoop) -> None:
    queue = filled(loop, [], max_wait_us=50_000)
    queue.worked(10, 100_000_000)  # ten milliseconds a row
    for _ in range(6):
        queue.put(request(loop))
    with pytest.raises(Overloaded, match="would wait 60 ms, at most 50 ms"):
        queue.put(request(loop))
    with pytest.raises(Overloaded, match="max_wait_ms"):
        queue.check()
    queue.enter()
    queue.check()
    queue.put(request(loop))


def test_a_deadline_that_cannot_be_kept_is_refused_at_once(loop: asyncio.AbstractEventLoop) -> None:
    queue = filled(loop, [])
    queue.worked(1, 1_000_000_000)
    in_a_while = time.monotonic_ns() + 500_000_000
    queue.put(request(loop, deadline_ns=in_a_while))  # nobody is before it
    with pytest.raises(Overloaded, match="past its deadline"):
        queue.put(request(loop, deadline_ns=in_a_while))
    queue.put(request(loop))
    queue.put(request(loop, deadline_ns=in_a_while + 10**12))


def test_only_what_precedes_it_counts_for_the_wait_of_a_priority(loop: asyncio.AbstractEventLoop) -> None:
    queue = filled(loop, [], levels=(LevelSettings(), LevelSettings()), max_wait_us=1000)
    queue.worked(1, 1_000_000_000)
    queue.put(level_request(loop, 1))
    queue.put(level_request(loop, 0))
    with pytest.raises(Overloaded):
        queue.put(level_request(loop, 1))


def test_the_batch_that_a_session_works_on_counts_for_the_wait(loop: asyncio.AbstractEventLoop) -> None:
    queue = filled(loop, [], max_wait_us=500_000)
    queue.worked(1, 1_000_000_000)
    queue.put(request(loop))
    assert queue.take() is not None
    for refuse in (queue.check, lambda: queue.put(request(loop))):
        with pytest.raises(Overloaded, match="would wait 1000 ms, at most 500 ms"):
            refuse()
    queue.enter()  # an idle session takes the next request at once
    queue.check()
    queue.put(request(loop))
    # The session has ended its batch once it takes again.
    assert queue.take() is not None
    queue.leave(1)
    assert queue.take() is None
    queue.check()


def test_the_estimate_follows_the_last_batches(loop: asyncio.AbstractEventLoop) -> None:
    queue = filled(loop, [])
    assert queue.wait_ns(1000) == 0
    for _ in range(60):
        queue.worked(10, 1_000)
    assert queue.wait_ns(10) == pytest.approx(1000, rel=0.01)
    queue.enter()
    for _ in range(60):
        queue.worked(10, 9_000)
    assert queue.wait_ns(10) == pytest.approx(4500, rel=0.01)


# ---- sessions that leave


def test_as_many_sessions_leave_as_are_asked_to_and_the_others_go_on(loop: asyncio.AbstractEventLoop) -> None:
    queue = filled(loop, [])
    for _ in range(3):
        queue.enter()
    ended = threading.Semaphore(0)
    taken: list[QueuedRequest] = []

    def session() -> None:
        while (batch := queue.take()) is not None:
            taken.extend(batch)
        ended.release()

    threads = [threading.Thread(target=session) for _ in range(4)]
    for thread in threads:
        thread.start()
    queue.leave(3)
    for _ in range(3):
        assert ended.acquire(timeout=5)
    assert not ended.acquire(timeout=0.05)
    assert queue.sessions == 1
    sent = [request(loop) for _ in range(20)]
    for entry in sent:
        queue.put(entry)
    queue.close()
    assert ended.acquire(timeout=5)
    assert taken == sent
    for thread in threads:
        thread.join(5)


def test_giving_up_a_request_that_a_session_has_does_not_look_into_it(loop: asyncio.AbstractEventLoop) -> None:
    class Untouched(dict[str, Any]):
        def __repr__(self) -> str:
            raise AssertionError("the request is written down")

    queue = filled(loop, [1])
    asked = request(loop)
    asked.columns = Untouched()
    queue.put(asked)
    assert sizes(queue.take()) == [1, 1]
    assert not queue.discard(asked)
    repr(asked)
