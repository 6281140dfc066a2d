"""Holds a session inside its lookup, on a thread of its own, while another thread changes the GPU's content."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from benchmarks.planted_rows import PlantedState
from storage.features import Jagged
from storage.hbm.readers import Turns
from storage.hbm.sharing import sharing_of
from storage.specs import LookupSpec
from tests.support.hbm.session import GpuAnswer, GpuLookupSession
from tests.support.hbm.world import TABLES, GpuWorld

_LONG_S = 60.0
# A change that does not wait for a session finishes in a small part of this time.
_STILL_S = 0.15


class HeldSession:
    """Looks up a whole table for one snapshot; stays inside, before anything is launched, until `let_go`."""

    def __init__(
        self, world: GpuWorld, state: PlantedState, mask: int, table: str = "user", *, across: bool = False
    ) -> None:
        """Returns when the session is inside. across: also inside at the GPUs that share rows with its own."""
        self._across = across
        self._world, self._state, self._mask, self._table = world, state, mask, table
        self._entered, self._go = threading.Event(), threading.Event()
        self._answer: GpuAnswer | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="held session")
        self._thread.start()
        assert self._entered.wait(_LONG_S)
        assert self._error is None, self._error

    def let_go(self) -> float:
        """Runs the lookup and leaves; returns the share of rows that hit. Raises AssertionError for a wrong one."""
        self._go.set()
        self._thread.join(_LONG_S)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error
        assert self._answer is not None
        rows, found = self._world.rows.expected(self._state, self._table, np.arange(self._size))
        missed = self._answer.missed
        assert np.isin(np.flatnonzero(~found), missed).all(), "the GPU has rows that are not there"
        rows[missed] = 0
        np.testing.assert_array_equal(self._answer.rows, rows)
        return float((self._size - len(missed)) / np.count_nonzero(found))

    @property
    def _size(self) -> int:
        return len(self._world.rows.ids[self._table])

    def _run(self) -> None:
        try:
            world = self._world
            reader = sharing_of(world.store).reader(world.tier) if self._across else None
            session = GpuLookupSession(world.device, world.tier, list(TABLES), self._size, self._size, reader)
            session.inside = self._stay
            bags = Jagged(self._world.rows.ids[self._table], np.arange(self._size + 1))
            spec = LookupSpec(self._table, self._table, "none", 1)
            self._answer = session.lookup(self._mask, self._size, spec, bags)
            assert self._answer is not None, f"the GPU does not answer for mask {self._mask:b}"
        except BaseException as error:  # raised by `let_go`
            self._error = error
        finally:
            self._entered.set()

    def _stay(self) -> None:
        self._entered.set()
        assert self._go.wait(_LONG_S)


@contextmanager
def held_up(change: Callable[[], object], session: HeldSession, least: float = 0.2) -> Iterator[None]:
    """Makes a change on another thread, which must wait for a session that is inside.

    The session finds its own rows all the same, and then the change completes. The body runs while both wait.
    least: share of rows that must hit. Raises the change's error.
    """
    waiting = threading.Event()
    errors: list[BaseException] = []

    def run() -> None:
        try:
            change()
        except BaseException as error:  # raised below
            errors.append(error)

    thread = threading.Thread(target=run, name="change")
    wait = Turns.wait

    def told(turns: Turns) -> None:
        if threading.current_thread() is thread:
            waiting.set()
        wait(turns)

    Turns.wait = told  # type: ignore[method-assign, assignment]
    try:
        thread.start()
        while not waiting.wait(0.01) and thread.is_alive():
            pass
        thread.join(_STILL_S)
        waited = thread.is_alive()
        yield
    finally:
        try:
            share = session.let_go()
        finally:
            thread.join(_LONG_S)
            Turns.wait = wait  # type: ignore[method-assign]
    assert not thread.is_alive()
    if errors:
        raise errors[0]
    assert waited, "the change was over while the session was inside"
    assert share >= least
