"""Tests GPUs that share the rows of a store: two of this machine's, or one that stands for two.

With one GPU the caches of both lie in its memory: reads across GPUs then exercise everything but the link.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from serving.gpu.driver import Driver, Gpus
from storage.errors import DeviceError
from storage.hbm.device import Device
from tests.support.hbm.sharing import (  # noqa: F401
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


class SameGpu:
    """Presents a GPU under another number; the peer memory that it reaches is its own."""

    def __init__(self, driver: Driver, index: int) -> None:
        self.info = replace(driver.info, index=index)
        self._driver = driver

    def reach(self, other: Device) -> None:
        assert isinstance(other, SameGpu)
        kernels = getattr(self._driver, "_kernels", None)
        if kernels is not None:  # as the driver does, before sessions are inside
            kernels.load_across()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)


@pytest.fixture
def devices(driver: Driver, all_gpus: Gpus, request: pytest.FixtureRequest) -> Sequence[Device]:
    if request.config.getoption("--simulated", default=False):
        from tests.simulated_gpu import SimulatedGpus

        all_gpus = SimulatedGpus(2, schedule="random", seed=1)
        driver = all_gpus.driver(0)
    if len(all_gpus.infos) > 1:
        other = all_gpus.driver(all_gpus.infos[1].index)
        # The other one entered this thread when it was made, and access is requested by the current GPU.
        driver.enter_thread()
        try:
            driver.reach(other)
        except DeviceError as error:
            pytest.skip(str(error))
        driver.enter_thread()
        return driver, other
    return [cast(Device, SameGpu(driver, index)) for index in range(2)]
