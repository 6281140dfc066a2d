"""A GPU for stores that have a cache on one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.simulated_gpu import SimulatedDriver, SimulatedGpus


@pytest.fixture
def gpu() -> Iterator[SimulatedDriver]:
    """Simulates a GPU; any error on it fails the test, even one that was caught elsewhere."""
    driver = SimulatedGpus(schedule="random", seed=3).driver(0)
    driver.enter_thread()
    yield driver
    if not driver.lost:
        driver.enter_thread()
        driver.finish()
    assert not driver.errors
