"""Tests in headless Chromium what the console says of refusals that are no answers of the server, and of bad tokens."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.console.pages import axe_findings, confirm, expect, is_live, opened
from tests.integration.serving.guarded import write_access
from tests.integration.serving.live import Live
from tests.integration.serving.planted import NAME, Planted

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# What nginx answers for `deny all`.
DENIED = (
    "<html>\r\n<head><title>403 Forbidden</title></head>\r\n<body>\r\n<center><h1>403 Forbidden</h1></center>\r\n"
    "<hr><center>nginx/1.24.0</center>\r\n</body>\r\n</html>\r\n"
)


@pytest.mark.parametrize("body", [DENIED, '{"message": "no"}', '{"error": {"code": 403}}', "null", ""])
def test_what_a_proxy_refuses_is_said_with_its_status(browser: Browser, live: Live, first: Planted, body: str) -> None:
    with opened(browser, live.server.metrics_port, NAME) as page:
        for call in ("pause", "explain"):
            page.route(
                f"**/console/v2/repository/models/*/{call}",
                lambda route: route.fulfill(status=403, body=body, content_type="text/html"),
            )
        page.get_by_role("button", name="Pause").click()
        confirm(page, "Pause")
        expect(page.get_by_text(f"pause of {NAME} was refused: The server answered 403 Forbidden.")).to_be_visible()
        page.get_by_role("button", name="Explain").click()
        expect(page.locator("#try ~ div[role=status]")).to_have_text("The server answered 403 Forbidden.")
        page.route(
            "**/console/v2/repository/models/*/pause",
            lambda route: route.fulfill(status=403, body='{"error": "Not from here."}'),
        )
        page.get_by_role("button", name="Pause").click()
        confirm(page, "Pause")
        expect(page.get_by_text(f"pause of {NAME} was refused: Not from here.")).to_be_visible()


def test_a_stream_that_a_proxy_refuses_is_said_with_its_status(browser: Browser, live: Live, first: Planted) -> None:
    with opened(browser, live.server.metrics_port) as page:
        is_live(page)
        page.route("**/console/events*", lambda route: route.fulfill(status=403, body=DENIED))
        page.reload()
        status = page.locator("header").get_by_role("status")
        expect(status).to_have_text("Refused: The server answered 403 Forbidden. Sign in with another token.")


def test_a_token_that_no_header_can_hold_is_refused_at_its_field(
    browser: Browser, live: Live, first: Planted, tmp_path: Path
) -> None:
    live.stop()
    live.start(access_file=write_access(tmp_path / "access.yaml"), open_admin=False)
    with opened(browser, live.server.metrics_port) as page:
        expect(page.get_by_text("Refused: this needs a token")).to_be_visible()
        page.get_by_role("button", name="Sign in").click()
        field = page.get_by_label("Token", exact=True)
        for typed, what in (
            ("\u201cviewer\u201d", "This one holds the character \u201c."),
            ("view er", "This one holds a blank."),
            ("viewer\u200b", "This one holds a character that is not seen."),
            ("adm\N{LATIN SMALL LETTER E WITH ACUTE}r", "This one holds the character \u00e9."),
        ):
            field.fill(typed)
            confirm(page, "Sign in")
            expect(page.get_by_role("alert")).to_contain_text(what)
            expect(field).to_have_value(typed)
            expect(field).to_be_focused()
            expect(field).to_have_attribute("aria-invalid", "true")
            expect(field).to_have_accessible_description(
                f"A token consists of letters, digits and signs of ASCII. {what}"
            )
            assert page.evaluate("sessionStorage.length") == 0
        assert axe_findings(page) == []
        field.fill("  viewer ")
        confirm(page, "Sign in")
        is_live(page)
        # One that an older page has kept.
        page.evaluate("sessionStorage.setItem('emberline-token', '\u201cviewer\u201d')")
        page.reload()
        expect(page.get_by_text("Refused: this needs a token")).to_be_visible()
        assert page.evaluate("sessionStorage.length") == 0
