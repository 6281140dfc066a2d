"""Opens the console in a browser, and fails a test in whose pages a script failed or the browser refused something."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.peers import PeerMissingError
from tests.support.browser import chromium

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# The browser reports each response with an error status as one, and a server that is gone.
EXPECTED = ("Failed to load resource",)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with contextlib.ExitStack() as stack:
        try:
            running = stack.enter_context(chromium())
        except PeerMissingError as error:
            pytest.skip(f"there is no browser: {error}")
        yield running


@contextlib.contextmanager
def opened(browser: Browser, port: int, model: str = "", **options: Any) -> Iterator[Page]:
    """Opens the page, of a model where one is named, with an empty cache. options: of the browser's context."""
    faults: list[str] = []
    with contextlib.closing(browser.new_context(**options)) as context:
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda line: faults.append(line.text) if line.type in ("error", "warning") else None)
        page.on("dialog", lambda dialog: faults.append(f"a script opened a dialog: {dialog.message}"))
        page.goto(address(port, model))
        yield page
    assert not [fault for fault in faults if not fault.startswith(EXPECTED)]


def address(port: int, model: str = "") -> str:
    return f"http://127.0.0.1:{port}/console" + (f"#/model/{model}" if model else "")


def axe_findings(page: Page) -> list[str]:
    """Returns what axe-core finds that is serious or critical."""
    import axe_playwright_python

    script = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
    page.evaluate(script)
    found = page.evaluate("() => axe.run()")
    assert len(found["passes"]) > 5, "axe has looked at nothing"
    return [
        f"{each['id']}: {each['help']}: {[node['html'][:200] for node in each['nodes'][:3]]}"
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
    ]
