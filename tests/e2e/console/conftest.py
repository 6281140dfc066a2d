"""A browser, and a server of a version that it looks at."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.peers import PeerMissingError
from tests.integration.serving.live import Live
from tests.integration.serving.planted import Planted
from tests.support.browser import chromium

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with contextlib.ExitStack() as stack:
        try:
            running = stack.enter_context(chromium())
        except PeerMissingError as error:
            pytest.skip(f"there is no browser: {error}")
        yield running


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    with Live(tmp_path) as running:
        yield running


@pytest.fixture
def first(live: Live) -> Planted:
    version = live.version()
    live.start()
    return version
