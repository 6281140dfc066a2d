"""Tests which snapshot has the base of a GPU's cache and for how long.

Also tests what switching costs when several snapshots are asked for in turn.
"""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from storage.hbm import tier, visibility
from storage.hbm.base_switch import MOST_FACTOR, SwitchBackoff
from storage.hbm.visibility import Difference, Use, View
from tests.simulated_gpu import SimulatedDriver
from tests.support.hbm.world import GpuWorld


class Clock:
    """Simulates the clock of a tier and its readers: time passes only when a test advances it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = time.monotonic()
        for module in (tier, visibility):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def world(tmp_path: Path, gpu: SimulatedDriver, clock: Clock) -> GpuWorld:
    """Returns a world without upkeep in the background, whose tier settles after 3 s."""
    world = GpuWorld(tmp_path, gpu)
    world.quiet()
    world.tier.settle_after_s = 3.0
    return world


def ask(world: GpuWorld, clock: Clock, mask: int, after_s: float) -> tuple[bool, bool]:
    """Asks for a snapshot after a while, then runs one round of upkeep.

    Returns whether the GPU answered, and whether it settled.
    """
    clock.now += after_s
    answered = world.answers(mask)
    world.tier.prepare_asked()
    return answered, world.tier.settle()


@pytest.mark.parametrize("every_s", [4.0, 50.0])
def test_snapshots_that_are_asked_for_in_turn_both_stay_on_the_gpu(
    world: GpuWorld, clock: Clock, every_s: float
) -> None:
    before = world.state
    _, state, mask = world.stage()
    world.store.prepare(mask)
    turns = [ask(world, clock, (0, mask)[turn % 2], every_s) for turn in range(60)]
    assert sum(settled for _, settled in turns) <= 8
    assert all(answered for answered, _ in turns[30:])
    assert world.look(before, 0) > 0.4
    assert world.look(state, mask) > 0.4
    world.tier.check_integrity()
    world.close()


def test_what_alone_is_asked_for_has_the_base_in_the_end_and_what_is_new_at_once(world: GpuWorld, clock: Clock) -> None:
    _, state, mask = world.stage()
    world.store.prepare(mask)
    for turn in range(60):
        ask(world, clock, (0, mask)[turn % 2], 50.0)
    for alone in (0, mask):
        for _ in range(MOST_FACTOR):
            ask(world, clock, alone, 4.0)
        assert world.answers(alone)
        view = world.tier._view
        assert view is not None
        assert view.base == alone
        world.store.prepare(mask ^ alone)
    world.serve(state, mask)
    _, newest, newest_mask = world.stage()
    world.store.prepare(newest_mask)
    assert ask(world, clock, newest_mask, 4.0) == (True, True)
    assert world.look(newest, newest_mask) > 0.2
    world.tier.check_integrity()
    world.close()


def test_each_change_back_waits_longer_within_a_bound() -> None:
    backoff, live = SwitchBackoff(), 0b11

    def wait_s(base: int, mask: int, live: int = live) -> int:
        """Returns how many whole seconds after the last use of the base a difference becomes the next base.

        The base was asked for at time 0; the difference was asked for after it.
        """
        asked = Difference(mask, 1, (), 1, Use(1.0))
        view = View(cast(Any, None), base, (asked,), Use(0.0))
        return next(now for now in range(1000) if backoff.next_base(view, live, float(now), 1.0) is asked)

    assert wait_s(0b00, 0b01) == 1
    backoff.changed(0b00, 0b01, live)
    waits = []
    for turn in range(20):
        base, mask = ((0b01, 0b00), (0b00, 0b01))[turn % 2]
        assert wait_s(base, 0b11) == 1  # That snapshot never had the base.
        waits.append(wait_s(base, mask))
        backoff.changed(base, mask, live)
    assert waits[:4] == [1, 2, 4, 8]
    assert waits[-1] == MOST_FACTOR
    # Overlay 0 was merged, so it is in all snapshots.
    live = 0b10
    backoff.changed(0b01, 0b11, live)
    assert wait_s(0b11, 0b01, live) == 1
    backoff.changed(0b11, 0b01, live)
    assert wait_s(0b01, 0b11, live) == 2


def test_nothing_takes_the_base_over_that_was_not_asked_for() -> None:
    backoff = SwitchBackoff()
    replica = cast(Any, None)
    unused = Difference(0b01, 1, (), 1)
    assert backoff.next_base(None, 0b01, 100.0, 1.0) is None
    assert backoff.next_base(View(replica, 0), 0b01, 100.0, 1.0) is None
    assert backoff.next_base(View(replica, 0, (unused,)), 0b01, 100.0, 1.0) is None
    assert backoff.next_base(View(replica, None, (Difference(0b01, 1, (), 1, Use(5.0)),)), 0b01, 100.0, 1.0) is None
