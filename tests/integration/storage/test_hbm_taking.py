"""Rows of a difference, read straight from overlays, have the bytes that the ordinary lookup gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage.errors import StoreError
from storage.hbm.base_rows import SnapshotRows
from storage.tiers.overlays import Overlays
from tests.simulated_gpu import SimulatedDriver
from tests.support.hbm.world import GpuWorld


def same_rows(world: GpuWorld, mask: int, padding: int = 0) -> int:
    """Reads rows in both ways and returns their number. Raises AssertionError where the two ways differ."""
    rows, count = SnapshotRows(world.store), 0
    for table, ids in enumerate(world.rows.ids.values()):
        expected, found = rows.find(mask, table, ids, None)
        space = np.zeros((len(ids), world.store.tables[table].row_bytes + padding), np.uint8)
        taken, given, missing = rows.take(mask, table, ids, space, None)
        order = np.argsort(taken)
        np.testing.assert_array_equal(taken[order], ids[found])
        np.testing.assert_array_equal(given[order][:, : expected.shape[1]], expected)
        np.testing.assert_array_equal(np.sort(missing), ids[~found])
        count += len(taken)
    return count


@pytest.mark.parametrize("row_type", ["fp32", "fp16", "bf16", "int8"])
def test_the_same_bytes_for_every_row_type(tmp_path: Path, gpu: SimulatedDriver, row_type: str) -> None:
    world = GpuWorld(tmp_path, gpu, row_type=row_type)
    first, state, mask = world.stage()
    world.serve(state, mask)
    second, state, mask = world.stage(one_in=2)  # The delta changes rows of the same ids, and removes some of them.
    for each in (0, 1 << first, 1 << second, mask):
        assert same_rows(world, each) > 0
        assert same_rows(world, each, padding=16) > 0
    world.store.prepare(1 << first)
    world.serve(state, mask)
    world.store.prepare(mask)
    assert world.look() > 0.5
    world.tier.check_integrity()
    world.close()


def test_rows_of_a_spilled_delta_come_from_ssd(tmp_path: Path, gpu: SimulatedDriver) -> None:
    world = GpuWorld(tmp_path, gpu, filled=False)
    state, delta = world.rows.change(world.state, 1, one_in=3)
    number = world.store.stage(delta, spill=True)
    assert same_rows(world, 1 << number) > 0
    world.look_on_the_host(state, 1 << number)
    world.close()


def test_an_overlay_that_is_merged_or_discarded_meanwhile(
    tmp_path: Path, gpu: SimulatedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = GpuWorld(tmp_path, gpu)
    world.quiet()
    number, state, mask = world.stage()
    find, merged = SnapshotRows.find, False

    def after_a_merge(self: SnapshotRows, *args: Any) -> Any:
        nonlocal merged
        if not merged:
            merged = True
            world.merge(number)
        return find(self, *args)

    rows = SnapshotRows(world.store)
    table, ids = 0, world.rows.ids["user"]
    expected, found = rows.find(mask, table, ids, None)
    monkeypatch.setattr(SnapshotRows, "find", after_a_merge)
    space = np.zeros((len(ids), expected.shape[1]), np.uint8)
    taken, given, missing = rows.take(mask, table, ids, space, None)
    monkeypatch.undo()
    assert merged
    order = np.argsort(taken)
    np.testing.assert_array_equal(taken[order], ids[found])
    np.testing.assert_array_equal(given[order], expected)
    np.testing.assert_array_equal(np.sort(missing), ids[~found])
    world.serve(state, mask)
    gone, _, dropped = world.stage()
    world.store.discard(gone)
    with pytest.raises(StoreError, match="discarded"):
        rows.take(dropped, table, ids, space, None)
    assert same_rows(world, mask) > 0
    world.close()


@pytest.mark.slow
def test_a_discard_waits_until_rows_are_taken(
    tmp_path: Path, gpu: SimulatedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = GpuWorld(tmp_path, gpu)
    inside: list[bool] = []
    turn = Overlays.turn

    class Watched:
        def __init__(self, view: Any) -> None:
            self.view = view

        def slots(self, mask: int) -> int:
            inside.append(turns[-1].inside)
            return int(self.view.slots(mask))

    turns: list[Any] = []

    def watched(self: Overlays) -> Any:
        turns.append(turn(self))
        return turns[-1]

    _, _, mask = world.stage()
    monkeypatch.setattr(Overlays, "turn", watched)
    monkeypatch.setattr(world.store.overlays, "view", Watched(world.store.overlays.view))
    ids = world.rows.ids["user"]
    rows = SnapshotRows(world.store)
    rows.take(mask, 0, ids[:1], np.zeros((1, world.store.tables[0].row_bytes), np.uint8), None)
    assert inside[0]
    assert (turns[0].inside, turns[0].over) == (False, 1)
    monkeypatch.undo()
    world.close()
