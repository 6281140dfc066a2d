"""A store with a cache on a real card: the same checks as on the simulated one."""

from __future__ import annotations

import pytest

from serving.gpu.driver import Driver
from tests.hbm.behaviour import *  # noqa: F403


@pytest.fixture
def card(driver: Driver) -> Driver:
    return driver
