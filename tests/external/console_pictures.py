"""Makes the pictures of docs/console.md, and measures the first paint of the console with an empty cache.

    python -m tests.external.console_pictures                      # writes docs/console/*.png and prints the figures
    python -m tests.external.console_pictures --runs 9 --out new   # more measurements, and pictures into another folder

Publishes a small version, a delta and one that is refused, sends requests, and opens the page in headless Chromium.
Exit code 2 where there is no browser.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.peers import PeerMissingError
from tests.e2e.console.pages import address
from tests.integration.serving.http_calls import ask
from tests.integration.serving.live import Live
from tests.integration.serving.planted import NAME
from tests.support.browser import chromium

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

FOLDER = Path(__file__).parents[2] / "docs" / "console"
NAMES = ("model", "memory", "try")
WIDTH, HEIGHT = 1100, 760
MOST_BYTES = 150_000


@dataclass(frozen=True)
class FirstPaints:
    """Has the times that the page takes to show something with an empty cache, and what it loads for that."""

    #: Milliseconds, one number a run.
    paints_ms: tuple[float, ...]
    stored_bytes: int
    sent_bytes: int

    def __str__(self) -> str:
        return (
            f"first paint with an empty cache: {statistics.median(self.paints_ms):.0f} ms in the median of "
            f"{len(self.paints_ms)}, {max(self.paints_ms):.0f} at most; {self.stored_bytes:,} bytes, "
            f"sent as {self.sent_bytes:,}"
        )


class Traffic:
    """Sends requests for hot and cold ids until the end of the `with` block."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Traffic:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        rng = np.random.default_rng(0)
        while not self._ended.wait(0.004 + 0.004 * rng.random()):
            items = np.minimum(rng.zipf(1.3, 40), 200_000).tolist()
            rows = [{"user": int(rng.integers(1, 60)), "items": items} for _ in range(int(rng.integers(1, 40)))]
            ask(self._port, "POST", f"/v1/models/{NAME}:predict", {"instances": rows})


def first_paints(browser: Browser, port: int, runs: int) -> FirstPaints:
    """Measures the first paint some times, each with an empty cache."""
    paints: list[float] = []
    stored = sent = 0
    for _ in range(runs):
        context = browser.new_context()
        page = context.new_page()
        page.goto(address(port))
        page.get_by_role("link", name=NAME).wait_for()
        found: Any = page.evaluate(
            """() => {
              const files = performance.getEntriesByType("resource").filter((each) => !each.name.includes("/events"));
              const all = [...performance.getEntriesByType("navigation"), ...files];
              const paint = performance.getEntriesByName("first-contentful-paint")[0];
              const sum = (key) => all.reduce((total, each) => total + each[key], 0);
              return [paint.startTime, sum("decodedBodySize"), sum("encodedBodySize")];
            }"""
        )
        paints.append(float(found[0]))
        stored, sent = int(found[1]), int(found[2])
        context.close()
    return FirstPaints(tuple(paints), stored, sent)


def picture(page: Page, path: Path, heading: str = "") -> None:
    """Writes one picture. heading: of the section that it begins with, "" for the top of the page."""
    if heading:
        page.get_by_role("heading", name=heading, exact=True).evaluate("(found) => found.scrollIntoView()")
    else:
        page.evaluate("scrollTo(0, 0)")
    page.screenshot(path=path, animations="disabled")
    size = path.stat().st_size
    print(f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}: {size:,} bytes")
    assert size <= MOST_BYTES, "a picture is too large for the repository"


def make(folder: Path, runs: int, traffic_s: float) -> FirstPaints:
    """Writes the pictures NAMES into a folder, and measures the first paint. Raises PeerMissingError without a browser.

    traffic_s: seconds of requests before the pictures, so that charts have something to show.
    """
    folder.mkdir(parents=True, exist_ok=True)
    model, memory, try_it = (folder / f"{name}.png" for name in NAMES)
    with tempfile.TemporaryDirectory() as place, Live(Path(place), dram_bytes=1_000_000) as live:
        live.world.items = 60_000
        first = live.version()
        live.start()
        live.reaches(second := live.delta(first, count=2000))
        live.delta(second, wrong_by=0.5)
        live.until(live.refused)
        with chromium() as browser, Traffic(live.server.http_port):
            port = live.server.metrics_port
            page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
            page.goto(address(port, NAME))
            page.wait_for_timeout(traffic_s * 1e3)
            picture(page, model)
            picture(page, memory, "Memory")
            page.emulate_media(color_scheme="dark")
            page.get_by_role("button", name="Explain").click()
            page.get_by_role("region", name=re.compile("^What each feature adds")).wait_for()
            picture(page, try_it, "Try it")
            return first_paints(browser, port, runs)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=5, help="measurements of the first paint")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the pictures")
    parser.add_argument("--traffic", type=float, default=25.0, help="seconds of requests before the pictures")
    arguments = parser.parse_args(words)
    try:
        print(make(arguments.out, arguments.runs, arguments.traffic))
    except PeerMissingError as error:
        print(f"there is no browser: {error}")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
