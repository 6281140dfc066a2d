"""Tests that run on the machine's first GPU; where there is none that can be used, each says why."""

from __future__ import annotations

import pytest

from serving.gpu.cards import find_gpus
from serving.gpu.driver import Driver


@pytest.fixture(scope="session", autouse=True)
def card() -> Driver:
    gpus = find_gpus()
    if gpus.why_none:
        pytest.skip(f"no GPU can be used: {gpus.why_none}")
    return gpus.driver(gpus.infos[0].index)


@pytest.fixture
def driver(card: Driver) -> Driver:
    card.enter_thread()
    return card
