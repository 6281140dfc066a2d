"""Provides the machine's first GPU to the tests; where none can be used, each test says why.

With `-p tests.gpu.telling --simulated` the simulated GPU replaces it: a rehearsal of the harness, not a result.
"""

from __future__ import annotations

import pytest

from serving.gpu.driver import Driver, Gpus
from serving.gpu.gpus import find_gpus


@pytest.fixture(scope="session")
def all_gpus(request: pytest.FixtureRequest) -> Gpus:
    """Returns the GPUs of this machine, or a simulated one."""
    if request.config.getoption("--simulated", default=False):
        from tests.simulated_gpu import SimulatedGpus

        return SimulatedGpus(schedule="random", seed=1)
    gpus = find_gpus()
    if gpus.why_none:
        pytest.skip(f"no GPU can be used: {gpus.why_none}")
    return gpus


@pytest.fixture(scope="session", autouse=True)
def gpu(all_gpus: Gpus) -> Driver:
    return all_gpus.driver(all_gpus.infos[0].index)


@pytest.fixture
def driver(gpu: Driver) -> Driver:
    gpu.enter_thread()
    return gpu
