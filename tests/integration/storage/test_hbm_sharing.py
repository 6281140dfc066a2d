"""Tests GPUs that share the rows of a store; the GPUs are simulated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from storage.errors import ConfigError, DeviceError
from storage.hbm.sharing import MOST_GPUS, Placement, sharing_of
from tests.simulated_gpu.driver import SimulatedDriver
from tests.simulated_gpu.gpus import SimulatedGpus
from tests.support.hbm.sharing import (  # noqa: F401
    HALF_BYTES,
    test_a_gpu_that_does_not_know_a_snapshot_is_not_asked_for_it,
    test_a_gpu_that_is_closed_leaves_its_part_to_the_others,
    test_a_gpu_that_shares_nothing_has_what_fits_on_it_alone,
    test_a_session_holds_up_changes_of_the_gpus_that_it_reads_from,
    test_a_session_that_looks_on_its_own_gpu_alone_gets_what_it_asks_for,
    test_cold_rows_are_on_one_gpu_and_every_gpu_finds_them,
    test_every_row_is_its_snapshots_own_while_gpus_share_them,
    test_rows_are_shared_from_now_on_and_not_any_more,
    test_sessions_that_look_for_the_first_time_while_both_gpus_change,
    test_snapshots_are_distinguished_on_every_gpu,
    test_the_wish_of_the_last_owner_holds_until_it_leaves,
    test_what_a_session_finds_elsewhere_counts_as_used_there,
    test_what_is_missed_on_one_gpu_comes_to_the_gpu_whose_part_it_is,
    test_what_one_gpu_asks_for_often_comes_to_it_as_well,
)
from tests.support.hbm.world import GpuWorld


@pytest.fixture
def devices() -> Iterator[Sequence[SimulatedDriver]]:
    """Yields two GPUs; any error on them fails the test, even one that was caught elsewhere."""
    drivers = SimulatedGpus(2, schedule="random", seed=11).drivers
    drivers[0].enter_thread()
    yield drivers
    for driver in drivers:
        if not driver.lost:
            driver.enter_thread()
            driver.finish()
        assert not driver.errors


def test_a_gpu_that_is_given_up_is_missed_and_nothing_is_wrong(
    tmp_path: Path, devices: Sequence[SimulatedDriver]
) -> None:
    world = GpuWorld(tmp_path, *devices, hbm_bytes=HALF_BYTES)
    world.quiet()
    devices[1].lose()
    devices[1].lose()
    world.tiers[1].read_marks()
    assert world.tiers[1].trouble
    devices[0].enter_thread()
    assert 0.3 < world.look() < 0.7
    assert not world.tiers[0].trouble
    world.close()


@pytest.mark.slow
def test_gpus_that_cannot_read_each_other_share_nothing(tmp_path: Path, devices: Sequence[SimulatedDriver]) -> None:
    world = GpuWorld(tmp_path, devices[0], hbm_bytes=HALF_BYTES)
    devices[1].refuse_peers = True
    with pytest.raises(DeviceError, match=r"GPU 1 \(Simulated\) cannot read the memory of GPU 0"):
        sharing_of(world.store).share_rows(devices)
    assert sharing_of(world.store).placement is None
    devices[0].enter_thread()
    world.look()
    world.close()


@pytest.mark.parametrize("gpus", [(), (3,), (1, 0), (0, 0, 1), tuple(range(MOST_GPUS + 1))])
def test_a_placement_is_over_gpus_in_order(gpus: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="hbm_placement: rows are shared by 2 to 16 GPUs"):
        Placement(gpus)


def test_parts_are_even_and_an_ids_own() -> None:
    placement = Placement((0, 2, 5))
    ids = np.arange(-30_000, 30_000)
    parts = placement.parts(4, ids)
    assert np.bincount(parts).min() > 19_000
    assert (parts == placement.parts(4, ids)).all()
    assert (parts != placement.parts(5, ids)).mean() > 0.6
    assert [placement.part_of(gpu) for gpu in (0, 1, 2, 5)] == [0, None, 1, 2]
