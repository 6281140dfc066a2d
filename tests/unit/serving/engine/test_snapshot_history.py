from __future__ import annotations

import asyncio
import gc
import random
import threading
import time
from pathlib import Path
from typing import Any, cast

import pytest

from serving.pipeline.snapshot import MAX_REFUSALS, Snapshot, SnapshotHistory
from storage.errors import DeadlineExceeded, InvalidInput, Overloaded, Unavailable


def snapshot(sequence: int, version: int = 3) -> Snapshot:
    return Snapshot(f"{version:016x}{sequence:016x}", version, sequence, 0, cast(Any, None), 0, Path("/nowhere"))


def soon_ns(seconds: float = 30.0) -> int:
    return time.monotonic_ns() + int(seconds * 1e9)


def test_names_are_what_people_write() -> None:
    assert snapshot(17).name == "3.17"
    assert str(snapshot(0)) == f"3.0 ({snapshot(0).id})"
    assert snapshot(1) != snapshot(1)


def test_a_switch_leaves_what_is_pinned_and_its_release_is_reported() -> None:
    first, second = snapshot(0), snapshot(1)
    history = SnapshotHistory("m", first)
    told: list[Snapshot] = []
    history.on_release(told.append)
    assert history.acquire() is first
    assert history.acquire() is first
    history.switch(second)
    assert history.current is second
    assert history.in_use() == {first, second}
    history.release(first)
    assert told == []
    assert history.in_use() == {first, second}
    history.release(first)
    assert told == [first]
    assert history.in_use() == {second}


def test_an_unpinned_snapshot_is_free_at_the_switch_and_the_current_one_never_is() -> None:
    first, second = snapshot(0), snapshot(1)
    history = SnapshotHistory("m", first)
    told: list[Snapshot] = []
    history.on_release(told.append)
    history.release(history.acquire())
    assert told == []
    history.switch(second)
    assert told == [first]


def test_a_canary_has_pins_of_its_own_and_ends_in_the_current_one() -> None:
    first, second = snapshot(0), snapshot(1)
    history = SnapshotHistory("m", first)
    told: list[Snapshot] = []
    history.on_release(told.append)
    assert history.acquire(canary=True) is first  # there is none
    history.set_canary(second, 0.25)
    assert history.canary == (second, 0.25)
    assert history.acquire(canary=True) is second
    assert history.acquire() is first
    history.set_canary(None)
    assert history.in_use() == {first, second}
    history.release(second)
    assert told == [second]
    assert history.acquire(canary=True) is first


def test_promoting_the_canary_frees_only_what_was_served() -> None:
    first, second = snapshot(0), snapshot(1)
    history = SnapshotHistory("m", first)
    told: list[Snapshot] = []
    history.on_release(told.append)
    history.set_canary(second, 0.5)
    history.switch(second)
    history.set_canary(None)
    assert told == [first]
    assert history.in_use() == {second}


def test_pins_under_a_storm_of_switches_never_come_free_while_held() -> None:
    history = SnapshotHistory("m", snapshot(0))
    pinned: set[tuple[Snapshot, int]] = set()
    wrong: list[Snapshot] = []
    told: list[Snapshot] = []
    stop = threading.Event()

    def listen(free: Snapshot) -> None:
        told.append(free)
        if any(held is free for held, _ in list(pinned)):
            wrong.append(free)

    history.on_release(listen)

    def batches(number: int) -> None:
        while not stop.is_set():
            held = history.acquire(canary=number % 2 == 0)
            pinned.add((held, number))
            pinned.discard((held, number))
            history.release(held)

    threads = [threading.Thread(target=batches, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for sequence in range(1, 300):
        history.switch(snapshot(sequence))
        if sequence % 7 == 0:
            history.set_canary(snapshot(sequence, version=4), 0.5)
    history.set_canary(None)
    stop.set()
    for thread in threads:
        thread.join(10)
    assert wrong == []
    assert history.in_use() == {history.current}
    assert len({entry.name for entry in told}) == 299 + 42  # all but the current one came free


def wait(history: SnapshotHistory, text: str, *, canary: bool = False, seconds: float = 30.0) -> bool:
    return asyncio.run(history.wait_for(text, soon_ns(seconds), canary))


def test_what_is_served_is_not_waited_for() -> None:
    first, second = snapshot(4), snapshot(7)
    history = SnapshotHistory("m", first)
    history.announce([second.id], second)
    history.announce(["3.0", "3.2", "f" * 32], first)
    for text in (first.id, "3.4", "3.0", "3.2", "f" * 32):
        assert wait(history, text, seconds=0.0) is True
    assert history.covers(first, "3.2")
    assert not history.covers(first, "3.3")


def test_who_waits_is_notified_by_the_switch_on_another_thread() -> None:
    history = SnapshotHistory("m", snapshot(0))
    after = snapshot(5)

    async def run() -> bool:
        waiting = asyncio.ensure_future(history.wait_for("3.4", soon_ns()))
        await asyncio.sleep(0)
        history.announce(["3.4", snapshot(4).id], after)
        thread = threading.Thread(target=history.switch, args=(after,))
        thread.start()
        try:
            return await waiting
        finally:
            thread.join()

    assert asyncio.run(run()) is True


def test_a_rollback_takes_back_what_was_covered() -> None:
    first, second = snapshot(0), snapshot(1)
    history = SnapshotHistory("m", first)
    history.switch(second)
    assert wait(history, "3.1")
    history.refuse("3.1", "rolled back")
    assert wait(history, "3.1")  # it is served still
    history.switch(first)
    with pytest.raises(Unavailable, match=r"3\.1 is not served: rolled back; model 'm' serves 3\.0"):
        wait(history, "3.1")
    history.accept("3.1")
    with pytest.raises(DeadlineExceeded):
        wait(history, "3.1", seconds=0.0)


def test_a_refusal_ends_the_wait_at_once() -> None:
    history = SnapshotHistory("m", snapshot(0))

    async def run() -> None:
        waiting = asyncio.ensure_future(history.wait_for("3.9", soon_ns()))
        await asyncio.sleep(0)
        history.refuse("3.9", "quarantined: golden requests")
        await waiting

    with pytest.raises(Unavailable, match="quarantined: golden requests"):
        asyncio.run(run())


def test_the_deadline_says_what_is_served() -> None:
    history = SnapshotHistory("ranker", snapshot(6))
    with pytest.raises(DeadlineExceeded, match=r"3\.7 did not come .* model 'ranker' serves 3\.6"):
        wait(history, "3.7", seconds=0.01)
    assert history._waiters == []


def test_the_arm_that_answers_is_the_one_that_must_cover() -> None:
    first, second = snapshot(0), snapshot(1)
    history = SnapshotHistory("m", first)
    history.set_canary(second, 0.5)
    assert wait(history, "3.1", canary=True)
    with pytest.raises(DeadlineExceeded):
        wait(history, "3.1", seconds=0.0)


def test_the_end_of_a_line_is_reported_to_who_waits_and_to_who_comes() -> None:
    history = SnapshotHistory("m", snapshot(0))

    async def run() -> bool:
        waiting = asyncio.ensure_future(history.wait_for("3.1", soon_ns()))
        await asyncio.sleep(0)
        history.end()
        return await waiting

    assert asyncio.run(run()) is False
    assert wait(history, "3.1") is False
    assert wait(history, "3.0") is True


def test_a_cancelled_wait_leaves_nothing_behind_and_their_number_is_bounded() -> None:
    history = SnapshotHistory("m", snapshot(0), max_waiting=2)

    async def run() -> None:
        waiting = [asyncio.ensure_future(history.wait_for("3.1", soon_ns())) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="2 requests wait"):
            await history.wait_for("3.1", soon_ns())
        assert await history.wait_for("3.0", soon_ns())
        for entry in waiting:
            entry.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    asyncio.run(run())
    assert history._waiters == []


@pytest.mark.parametrize("text", ["3", "3.", ".1", "03.1", "3.01", "F" * 32, "a" * 31, "a" * 33, "3.1 ", "-1.2", "é"])
def test_another_text_is_the_callers_fault(text: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        wait(SnapshotHistory("m", snapshot(0)), text)
    assert raised.value.field == "min_snapshot"


def test_what_a_snapshot_covers_goes_with_it_and_refusals_are_bounded() -> None:
    history = SnapshotHistory("m", snapshot(0))
    for sequence in range(1, 20):
        after = snapshot(sequence)
        history.announce([f"3.{number}" for number in range(sequence)], after)
        history.switch(after)
    del after
    gc.collect()
    assert len(history._covered) == 1
    for number in range(MAX_REFUSALS + 10):
        history.refuse(f"4.{number}", "held")
    assert len(history._refusals) == MAX_REFUSALS


def test_waiters_on_many_loops_are_all_told() -> None:
    history = SnapshotHistory("m", snapshot(0))
    texts = [f"3.{random.Random(number).randint(1, 50)}" for number in range(40)]
    results: list[bool] = []

    def one_loop(mine: list[str]) -> None:
        async def run() -> None:
            results.extend(await asyncio.gather(*(history.wait_for(text, soon_ns()) for text in mine)))

        asyncio.run(run())

    threads = [threading.Thread(target=one_loop, args=(texts[index::4],)) for index in range(4)]
    for thread in threads:
        thread.start()
    for sequence in range(1, 51):
        after = snapshot(sequence)
        history.announce([f"3.{number}" for number in range(sequence)], after)
        history.switch(after)
    for thread in threads:
        thread.join(30)
    assert results == [True] * 40
