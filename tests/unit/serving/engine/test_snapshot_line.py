from __future__ import annotations

import asyncio
import gc
import random
import threading
import time
from pathlib import Path
from typing import Any, cast

import pytest

from serving.pipeline.snapshot import MAX_REFUSALS, Snapshot, SnapshotLine
from storage.errors import DeadlineExceeded, InvalidInput, Overloaded, Unavailable


def snapshot(sequence: int, version: int = 3) -> Snapshot:
    return Snapshot(f"{version:016x}{sequence:016x}", version, sequence, 0, cast(Any, None), 0, Path("/nowhere"))


def soon_ns(seconds: float = 30.0) -> int:
    return time.monotonic_ns() + int(seconds * 1e9)


def test_names_are_what_people_write() -> None:
    assert snapshot(17).name == "3.17"
    assert str(snapshot(0)) == f"3.0 ({snapshot(0).id})"
    assert snapshot(1) != snapshot(1)


def test_a_switch_leaves_what_is_pinned_and_its_release_is_told() -> None:
    first, second = snapshot(0), snapshot(1)
    line = SnapshotLine("m", first)
    told: list[Snapshot] = []
    line.on_release(told.append)
    assert line.acquire() is first
    assert line.acquire() is first
    line.switch(second)
    assert line.current is second
    assert line.in_use() == {first, second}
    line.release(first)
    assert told == []
    assert line.in_use() == {first, second}
    line.release(first)
    assert told == [first]
    assert line.in_use() == {second}


def test_an_unpinned_snapshot_is_free_at_the_switch_and_the_current_one_never_is() -> None:
    first, second = snapshot(0), snapshot(1)
    line = SnapshotLine("m", first)
    told: list[Snapshot] = []
    line.on_release(told.append)
    line.release(line.acquire())
    assert told == []
    line.switch(second)
    assert told == [first]


def test_a_canary_has_pins_of_its_own_and_ends_in_the_current_one() -> None:
    first, second = snapshot(0), snapshot(1)
    line = SnapshotLine("m", first)
    told: list[Snapshot] = []
    line.on_release(told.append)
    assert line.acquire(canary=True) is first  # there is none
    line.set_canary(second, 0.25)
    assert line.canary == (second, 0.25)
    assert line.acquire(canary=True) is second
    assert line.acquire() is first
    line.set_canary(None)
    assert line.in_use() == {first, second}
    line.release(second)
    assert told == [second]
    assert line.acquire(canary=True) is first


def test_promoting_the_canary_frees_only_what_was_served() -> None:
    first, second = snapshot(0), snapshot(1)
    line = SnapshotLine("m", first)
    told: list[Snapshot] = []
    line.on_release(told.append)
    line.set_canary(second, 0.5)
    line.switch(second)
    line.set_canary(None)
    assert told == [first]
    assert line.in_use() == {second}


def test_pins_under_a_storm_of_switches_never_come_free_while_held() -> None:
    line = SnapshotLine("m", snapshot(0))
    pinned: set[tuple[Snapshot, int]] = set()
    wrong: list[Snapshot] = []
    told: list[Snapshot] = []
    stop = threading.Event()

    def listen(free: Snapshot) -> None:
        told.append(free)
        if any(held is free for held, _ in list(pinned)):
            wrong.append(free)

    line.on_release(listen)

    def batches(number: int) -> None:
        while not stop.is_set():
            held = line.acquire(canary=number % 2 == 0)
            pinned.add((held, number))
            pinned.discard((held, number))
            line.release(held)

    threads = [threading.Thread(target=batches, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for sequence in range(1, 300):
        line.switch(snapshot(sequence))
        if sequence % 7 == 0:
            line.set_canary(snapshot(sequence, version=4), 0.5)
    line.set_canary(None)
    stop.set()
    for thread in threads:
        thread.join(10)
    assert wrong == []
    assert line.in_use() == {line.current}
    assert len({entry.name for entry in told}) == 299 + 42  # all but the current one came free


def wait(line: SnapshotLine, text: str, *, canary: bool = False, seconds: float = 30.0) -> bool:
    return asyncio.run(line.wait_for(text, soon_ns(seconds), canary))


def test_what_is_served_is_not_waited_for() -> None:
    first, second = snapshot(4), snapshot(7)
    line = SnapshotLine("m", first)
    line.announce([second.id], second)
    line.announce(["3.0", "3.2", "f" * 32], first)
    for text in (first.id, "3.4", "3.0", "3.2", "f" * 32):
        assert wait(line, text, seconds=0.0) is True
    assert line.covers(first, "3.2")
    assert not line.covers(first, "3.3")


def test_who_waits_is_told_by_the_switch_on_another_thread() -> None:
    line = SnapshotLine("m", snapshot(0))
    after = snapshot(5)

    async def run() -> bool:
        waiting = asyncio.ensure_future(line.wait_for("3.4", soon_ns()))
        await asyncio.sleep(0)
        line.announce(["3.4", snapshot(4).id], after)
        thread = threading.Thread(target=line.switch, args=(after,))
        thread.start()
        try:
            return await waiting
        finally:
            thread.join()

    assert asyncio.run(run()) is True


def test_a_rollback_takes_back_what_was_covered() -> None:
    first, second = snapshot(0), snapshot(1)
    line = SnapshotLine("m", first)
    line.switch(second)
    assert wait(line, "3.1")
    line.refuse("3.1", "rolled back")
    assert wait(line, "3.1")  # it is served still
    line.switch(first)
    with pytest.raises(Unavailable, match=r"3\.1 is not served: rolled back; model 'm' serves 3\.0"):
        wait(line, "3.1")
    line.accept("3.1")
    with pytest.raises(DeadlineExceeded):
        wait(line, "3.1", seconds=0.0)


def test_a_refusal_ends_the_wait_at_once() -> None:
    line = SnapshotLine("m", snapshot(0))

    async def run() -> None:
        waiting = asyncio.ensure_future(line.wait_for("3.9", soon_ns()))
        await asyncio.sleep(0)
        line.refuse("3.9", "quarantined: golden requests")
        await waiting

    with pytest.raises(Unavailable, match="quarantined: golden requests"):
        asyncio.run(run())


def test_the_deadline_says_what_is_served() -> None:
    line = SnapshotLine("ranker", snapshot(6))
    with pytest.raises(DeadlineExceeded, match=r"3\.7 did not come .* model 'ranker' serves 3\.6"):
        wait(line, "3.7", seconds=0.01)
    assert line._waiters == []


def test_the_arm_that_answers_is_the_one_that_must_cover() -> None:
    first, second = snapshot(0), snapshot(1)
    line = SnapshotLine("m", first)
    line.set_canary(second, 0.5)
    assert wait(line, "3.1", canary=True)
    with pytest.raises(DeadlineExceeded):
        wait(line, "3.1", seconds=0.0)


def test_the_end_of_a_line_is_told_to_who_waits_and_to_who_comes() -> None:
    line = SnapshotLine("m", snapshot(0))

    async def run() -> bool:
        waiting = asyncio.ensure_future(line.wait_for("3.1", soon_ns()))
        await asyncio.sleep(0)
        line.end()
        return await waiting

    assert asyncio.run(run()) is False
    assert wait(line, "3.1") is False
    assert wait(line, "3.0") is True


def test_a_cancelled_wait_leaves_nothing_behind_and_their_number_is_bounded() -> None:
    line = SnapshotLine("m", snapshot(0), max_waiting=2)

    async def run() -> None:
        waiting = [asyncio.ensure_future(line.wait_for("3.1", soon_ns())) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="2 requests wait"):
            await line.wait_for("3.1", soon_ns())
        assert await line.wait_for("3.0", soon_ns())
        for entry in waiting:
            entry.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    asyncio.run(run())
    assert line._waiters == []


@pytest.mark.parametrize("text", ["3", "3.", ".1", "03.1", "3.01", "F" * 32, "a" * 31, "a" * 33, "3.1 ", "-1.2", "é"])
def test_another_text_is_the_callers_fault(text: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        wait(SnapshotLine("m", snapshot(0)), text)
    assert raised.value.field == "min_snapshot"


def test_what_a_snapshot_covers_goes_with_it_and_refusals_are_bounded() -> None:
    line = SnapshotLine("m", snapshot(0))
    for sequence in range(1, 20):
        after = snapshot(sequence)
        line.announce([f"3.{number}" for number in range(sequence)], after)
        line.switch(after)
    del after
    gc.collect()
    assert len(line._covered) == 1
    for number in range(MAX_REFUSALS + 10):
        line.refuse(f"4.{number}", "held")
    assert len(line._refusals) == MAX_REFUSALS


def test_waiters_on_many_loops_are_all_told() -> None:
    line = SnapshotLine("m", snapshot(0))
    texts = [f"3.{random.Random(number).randint(1, 50)}" for number in range(40)]
    results: list[bool] = []

    def one_loop(mine: list[str]) -> None:
        async def run() -> None:
            results.extend(await asyncio.gather(*(line.wait_for(text, soon_ns()) for text in mine)))

        asyncio.run(run())

    threads = [threading.Thread(target=one_loop, args=(texts[index::4],)) for index in range(4)]
    for thread in threads:
        thread.start()
    for sequence in range(1, 51):
        after = snapshot(sequence)
        line.announce([f"3.{number}" for number in range(sequence)], after)
        line.switch(after)
    for thread in threads:
        thread.join(30)
    assert results == [True] * 40
