"""The stream for one page: what waits is bounded, nothing old follows what is newer, and nothing comes twice."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving import ServerConfig
from serving.console.feed import MAX_PAGES, Feed, Page
from serving.console.state import Seen
from serving.engine.statistics import FINE_BUCKETS_MS, LATENCY_BUCKETS_MS, ModelStatistics
from serving.security.gate import Gate
from serving.security.principals import NOBODY
from storage.errors import Overloaded, Unavailable


class CountingLook:
    """Stands for the repository: says how often it was looked at."""

    def __init__(self) -> None:
        self.looks = 0
        self.watched: set[frozenset[str]] = set()

    def now(self, watched: Iterable[str]) -> Seen:
        self.looks += 1
        self.watched.add(frozenset(watched))
        return Seen(float(self.looks), {"a": b'{"name":"a"}'}, {("model", name): b"{}" for name in watched})

    def slowly(self, watched: Iterable[str]) -> dict[tuple[str, str], bytes]:
        return {("memory", name): b"1" for name in watched}


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(ServerConfig(model_repository=tmp_path))


def new_page() -> Page:
    class Nobody:
        def leave(self, page: Page) -> None:
            """Has no pages."""

    nobody: Any = Nobody()
    return Page(nobody, "", None, NOBODY)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2), st.booleans())))
def test_a_page_ends_with_the_newest_of_each_event(steps: list[tuple[str, int, bool]]) -> None:
    async def run() -> None:
        page = new_page()
        newest: dict[str, bytes] = {}
        got: dict[str, bytes] = {}

        async def read() -> None:
            for block in (await page.next()).decode().split("\n\n")[:-1]:
                event, data = block.split("\n")
                name, content = event.removeprefix("event: "), data.removeprefix("data: ").encode()
                assert got.get(name) != content
                got[name] = content

        for name, number, is_read in steps:
            page.offer(name, b"%d" % number)
            newest[name] = b"%d" % number
            assert len(page._waiting) <= 3
            if is_read and page._waiting:
                await read()
        if page._waiting:
            await read()
        assert got == newest
        page.close()
        assert await page.next() == b""

    asyncio.run(run())


def test_one_look_is_for_all_pages_and_ends_with_them(gate: Gate) -> None:
    async def run() -> None:
        look = CountingLook()
        feed = Feed(gate, look)  # type: ignore[arg-type]
        pages = [feed.join("a", None, NOBODY) for _ in range(MAX_PAGES)]
        with pytest.raises(Overloaded):
            feed.join("a", None, NOBODY)
        first = [await page.next() for page in pages]
        assert look.looks == 1
        assert len(set(first)) == 1
        assert first[0].startswith(b"event: hello\n")
        assert b"event: models\ndata: " in first[0]
        for page in pages:
            page.close()
        task = feed._task
        assert task is not None
        await task
        assert feed._task is None
        looks = look.looks
        page = feed.join("", None, NOBODY)
        await page.next()
        assert look.looks == looks + 1
        feed.close()
        while await page.next():
            pass
        with pytest.raises(Unavailable):
            feed.join("", None, NOBODY)
        page.close()

    asyncio.run(run())


def test_a_failing_look_is_tried_again(gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    class Failing(CountingLook):
        def now(self, watched: Iterable[str]) -> Seen:
            seen = super().now(watched)
            if self.looks == 1:
                raise RuntimeError("a bug")
            return seen

    async def run() -> None:
        feed = Feed(gate, Failing())  # type: ignore[arg-type]
        page = feed.join("", None, NOBODY)
        assert b"event: models" in await page.next()
        page.close()

    asyncio.run(run())
    assert "could not look at the server" in caplog.text


def test_fine_buckets_divide_the_coarse_ones() -> None:
    assert set(LATENCY_BUCKETS_MS) <= set(FINE_BUCKETS_MS)
    assert list(FINE_BUCKETS_MS) == sorted(set(FINE_BUCKETS_MS))
    statistics = ModelStatistics()
    for place, bound in enumerate(FINE_BUCKETS_MS):
        statistics.finished(round(bound * 1e6))
        assert statistics.fine_latencies[place] == 1
    statistics.succeeded([round(FINE_BUCKETS_MS[-1] * 1e6) + 1])
    counts, total = [], 0
    for bound in LATENCY_BUCKETS_MS:
        below = sum(each <= bound for each in FINE_BUCKETS_MS)
        counts.append(below - total)
        total = below
    assert statistics.latencies == [*counts, 1]
