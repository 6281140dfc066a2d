"""Tests cores shared among models.

Clocks are set by the test, not measured: one slot is entered and left by hand.
"""

from __future__ import annotations

import threading
import time

import pytest

from serving.engine.core_shares import CoreAccount, CoreShares

MS = 1_000_000


class Room:
    """One core, and threads that want it for accounts; `order` lists the accounts that had it."""

    def __init__(self) -> None:
        self.cores = CoreShares(slots=1)
        self.order: list[str] = []
        self.holder = CoreAccount("holder", 1.0)
        self.threads: list[threading.Thread] = []
        self.cores._enter(self.holder)

    def want(self, account: CoreAccount, ns: int) -> None:
        """Starts a thread that waits for the core, then holds it for `ns`."""
        before = len(self.cores._waiting)

        def run() -> None:
            self.cores._enter(account)
            self.order.append(account.name)
            self.cores._leave(account, ns)

        thread = threading.Thread(target=run)
        thread.start()
        self.threads.append(thread)
        deadline = time.monotonic() + 5
        while len(self.cores._waiting) == before:
            assert time.monotonic() < deadline
            time.sleep(0.001)

    def open(self) -> list[str]:
        self.cores._leave(self.holder, 0)
        for thread in self.threads:
            thread.join(5)
            assert not thread.is_alive()
        return self.order


def test_a_model_with_many_sessions_has_no_more_than_one_with_few() -> None:
    room = Room()
    many, few = CoreAccount("many", 1.0), CoreAccount("few", 1.0)
    for _ in range(6):
        room.want(many, 10 * MS)
    for _ in range(3):
        room.want(few, 10 * MS)
    order = room.open()
    assert sorted(order[:6]) == ["few"] * 3 + ["many"] * 3
    assert order[6:] == ["many"] * 3
    assert (many.used_ns, few.used_ns) == (60 * MS, 30 * MS)


def test_a_share_of_two_has_twice_as_much() -> None:
    room = Room()
    double, single = CoreAccount("double", 2.0), CoreAccount("single", 1.0)
    for _ in range(8):
        room.want(double, 10 * MS)
    for _ in range(4):
        room.want(single, 10 * MS)
    assert room.open()[:9].count("double") == 6


def test_long_batches_count_for_what_they_take() -> None:
    room = Room()
    slow, quick = CoreAccount("slow", 1.0), CoreAccount("quick", 1.0)
    for _ in range(3):
        room.want(slow, 40 * MS)
    for _ in range(8):
        room.want(quick, 10 * MS)
    order = room.open()
    assert order.index("quick") < 2
    assert order[: len(order) - 1].count("slow") == 2  # the third only when all the quick ones are through
    assert order[-1] == "slow"


def test_who_was_idle_has_saved_nothing_up() -> None:
    room = Room()
    busy, idle = CoreAccount("busy", 1.0), CoreAccount("idle", 1.0)
    busy.clock = 1000.0 * MS
    for _ in range(4):
        room.want(busy, 10 * MS)
    room.cores._clock = busy.clock  # as after many batches of it
    for _ in range(4):
        room.want(idle, 10 * MS)
    assert sorted(room.open()[:4]) == ["busy", "busy", "idle", "idle"]


def test_a_model_alone_is_not_held_to_the_slots() -> None:
    cores, alone = CoreShares(slots=1), CoreAccount("alone", 1.0)
    with cores.turn(alone), cores.turn(alone), cores.turn(alone):
        assert alone.active == 3
    assert alone.active == 0
    assert alone.used_ns > 0


def test_a_failing_batch_gives_its_core_back() -> None:
    cores, one, other = CoreShares(slots=1), CoreAccount("one", 1.0), CoreAccount("other", 1.0)
    with pytest.raises(ValueError, match="planted"), cores.turn(one):
        raise ValueError("planted")
    with cores.turn(other):
        assert other.active == 1


def test_versions_and_tables_of_a_model_have_one_account() -> None:
    cores = CoreShares(slots=1)
    first = cores.account("ranker", 1.0)
    assert cores.account("other", 1.0) is not first
    assert cores.account("ranker", 3.0) is first
    assert first.share == 3.0  # a version that is loaded later may bring another configuration
