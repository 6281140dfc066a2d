"""Opens the console in a browser, and fails a test in whose pages a script failed or the browser refused something."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.integration.serving.live import Live
from tests.integration.serving.planted import NAME, Planted

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

# The browser reports each response with an error status as one, and a server that is gone.
EXPECTED = ("Failed to load resource",)
# Rewrites each event of the server before the page reads it.
REWRITE = """
const [real, changes] = [window.fetch, %s];
window.fetch = async (...given) => {
  const answer = await real(...given);
  if (!String(given[0]).includes("console/events") || !answer.ok) return answer;
  let rest = "";
  const rewritten = new TransformStream({
    transform(text, out) {
      const events = (rest + text).split("\\n\\n");
      rest = events.pop();
      for (const event of events) {
        out.enqueue(changes.reduce((old, [from, to]) => old.replaceAll(from, to), event) + "\\n\\n");
      }
    },
  });
  const decoded = answer.body.pipeThrough(new TextDecoderStream()).pipeThrough(rewritten);
  return new Response(decoded.pipeThrough(new TextEncoderStream()), {headers: answer.headers});
};
"""


def expect(what: Any) -> Any:
    # Where playwright is not there, every test is skipped before this.
    from playwright.sync_api import expect as of_playwright

    of_playwright.set_options(timeout=20_000)
    return of_playwright(what, None)


def is_live(page: Page) -> None:
    expect(page.locator("header").get_by_role("status")).to_have_text("Live")


def snapshot_row(page: Page, name: str) -> Locator:
    table = page.get_by_role("region", name=re.compile("^Versions and deltas that can be served"))
    return table.get_by_role("row").filter(has=page.get_by_role("rowheader", name=name, exact=True))


def serves(live: Live, snapshot: Planted) -> None:
    live.until(lambda: live.report()["served"]["id"] == snapshot.id)


def rolled_back(live: Live, first: Planted) -> Planted:
    """Serves a delta of a snapshot, and rolls back to that; returns the delta, which can be tried again then."""
    second = live.delta(first)
    serves(live, second)
    live.repository.rollback(NAME)
    return second


def give_share(page: Page, verb: str, snapshot: Planted, percent: str) -> None:
    """Opens the dialog of a canary or a shadow, and gives its share; `confirm` begins it."""
    page.get_by_role("button", name=f"{verb} with {snapshot.name}").click()
    page.get_by_label("Share of the requests, in percent").fill(percent)


def confirm(page: Page, verb: str) -> None:
    page.get_by_role("dialog").get_by_role("button", name=verb, exact=True).click()


@contextlib.contextmanager
def opened(
    browser: Browser, port: int, model: str = "", changes: Sequence[tuple[str, str]] = (), **options: Any
) -> Iterator[Page]:
    """Opens the page, of a model where one is named, with an empty cache.

    changes: texts in the server's events, and what the page reads instead. options: of the browser's context.
    """
    faults: list[str] = []
    with contextlib.closing(browser.new_context(**options)) as context:
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda line: faults.append(line.text) if line.type in ("error", "warning") else None)
        page.on("dialog", lambda dialog: faults.append(f"a script opened a dialog: {dialog.message}"))
        if changes:
            page.add_init_script(REWRITE % json.dumps(changes))
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
