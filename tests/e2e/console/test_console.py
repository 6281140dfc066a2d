"""Tests the console in headless Chromium as a person uses it: by mouse and keyboard, live, with and without roles."""

from __future__ import annotations

import contextlib
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.console.pages import (
    address,
    axe_findings,
    confirm,
    expect,
    give_share,
    is_live,
    opened,
    rolled_back,
    serves,
    snapshot_row,
)
from tests.integration.serving.fleets import Replicas
from tests.integration.serving.guarded import write_access
from tests.integration.serving.http_calls import ask as call
from tests.integration.serving.identity_models import write_identity
from tests.integration.serving.live import Live
from tests.integration.serving.planted import NAME, Planted
from tests.support.faulty_proxy import proxy_of_store
from tests.support.server_process import free_ports

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Route

HOSTILE = "<img src=x onerror=alert(1)>\"'&amp;"
EDGE = 2**63 - 1


def test_the_list_leads_to_a_model(browser: Browser, live: Live, first: Planted) -> None:
    with opened(browser, live.server.metrics_port) as page:
        is_live(page)
        row = page.get_by_role("row").filter(has_text=NAME)
        expect(row).to_contain_text("READY")
        expect(row).to_contain_text(first.name)
        page.get_by_role("link", name=NAME).click()
        expect(page.get_by_role("heading", level=2).first).to_contain_text(NAME)
        expect(snapshot_row(page, first.name)).to_contain_text("served")
        page.get_by_role("link", name="All models").click()
        expect(page.get_by_role("heading", name="Models", exact=True)).to_be_visible()
        page.goto(address(live.server.metrics_port, "nobody"))
        expect(page.get_by_text("This server has no such model, or this token may not see it.")).to_be_visible()


def test_a_sample_is_predicted_and_explained(browser: Browser, live: Live, first: Planted) -> None:
    with opened(browser, live.server.metrics_port, NAME) as page:
        request = page.get_by_label("The inputs of one row, as JSON")
        expect(request).to_have_value(re.compile('"user"'))
        # An id that JavaScript's numbers cannot hold: the answer shows whether it came to the server as it was typed.
        request.fill(f'{{"user": {EDGE}, "items": [{EDGE}, 7]}}')
        page.get_by_role("button", name="Predict").click()
        expect(page.get_by_text(f"Snapshot {first.name} answered.")).to_be_visible()
        trace = first.answer([{"user": EDGE, "items": [EDGE, 7]}])["trace"][0].tolist()
        answer = page.get_by_role("region", name="Answer")
        shown = answer.get_by_role("row").filter(has_text="trace").get_by_role("cell").inner_text()
        assert [float(each) for each in shown.split(", ")] == pytest.approx(trace, abs=1e-5)
        page.get_by_role("button", name="Explain").click()
        adds = page.get_by_role("region", name="What each feature adds")
        expect(adds.get_by_role("row").filter(has_text="items")).to_contain_text(f"{EDGE} (dram")
        request.fill('{"user": "<b>nobody</b>"}')
        page.get_by_role("button", name="Predict").click()
        expect(page.get_by_text("expected INT64, got str")).to_be_visible()


def test_what_is_typed_before_the_sample_comes_stays(browser: Browser, live: Live, first: Planted) -> None:
    with opened(browser, live.server.metrics_port) as page:
        held: list[Route] = []
        page.route("**/sample", lambda route: held.append(route))
        with page.expect_request("**/sample"):
            page.get_by_role("link", name=NAME).click()
        inputs = page.get_by_label("The inputs of one row, as JSON")
        inputs.fill("{}")
        held[0].continue_()
        expect(page.get_by_label("Sample row")).to_be_visible()
        expect(inputs).to_have_value("{}")
        with page.expect_request("**/sample"):
            page.get_by_role("button", name="Load a sample").click()
        expect(inputs).to_have_value("{}")
        held[1].continue_()
        expect(inputs).not_to_have_value("{}")


def test_load_is_shown_while_it_comes(browser: Browser, live: Live, first: Planted) -> None:
    with opened(browser, live.server.metrics_port, NAME) as page:
        request = page.get_by_label("The inputs of one row, as JSON")
        expect(request).to_have_value(re.compile('"user"'))
        page.get_by_role("button", name="Predict").click()
        expect(page.get_by_role("region", name="Answer")).to_be_visible()
        sessions = page.get_by_role("region", name="Sessions")
        expect(sessions.get_by_role("row").nth(1).get_by_role("cell").nth(1)).to_have_text(re.compile("^[1-9]"))
        expect(page.get_by_role("img", name=re.compile("^Latency .*p50 [0-9.]+ ms"))).to_be_visible()
        expect(page.locator("canvas").first).to_be_visible()
        expect(page.get_by_role("region", name="Tiers of version 1")).to_contain_text("DRAM")
        expect(page.get_by_role("region", name=re.compile("^Hottest ids"))).to_contain_text(str(EDGE))


def test_a_delta_is_seen_and_rolled_back(browser: Browser, live: Live, first: Planted) -> None:
    with opened(browser, live.server.metrics_port, NAME) as page:
        expect(snapshot_row(page, first.name)).to_contain_text("served")
        second = live.delta(first)
        expect(snapshot_row(page, second.name)).to_contain_text("served")
        expect(snapshot_row(page, first.name)).to_contain_text("base")
        page.get_by_role("button", name=f"Roll back to {first.name}").click()
        confirm(page, "Roll back to")
        expect(page.get_by_text(f"Roll back to {first.name} of {NAME}: done.")).to_be_visible()
        expect(snapshot_row(page, second.name)).to_contain_text("held")
        serves(live, first)
        expect(page.locator("dl")).to_contain_text("held")
        page.get_by_role("button", name="Resume").click()
        confirm(page, "Resume")
        expect(snapshot_row(page, second.name)).to_contain_text("served")


def test_a_canary_is_begun_and_promoted(browser: Browser, live: Live, first: Planted) -> None:
    second = rolled_back(live, first)
    with opened(browser, live.server.metrics_port, NAME) as page:
        give_share(page, "Canary", second, "25")
        confirm(page, "Canary with")
        expect(page.locator("dl")).to_contain_text(f"canary {second.name} (25 %)")
        page.get_by_role("button", name="Promote the canary").click()
        confirm(page, "Promote the canary")
        expect(snapshot_row(page, second.name)).to_contain_text("served")
        serves(live, second)


def test_pausing_pinning_and_unloading(browser: Browser, live: Live, first: Planted) -> None:
    with opened(browser, live.server.metrics_port, NAME) as page:
        page.get_by_role("button", name=f"Pin {first.name}").click()
        confirm(page, "Pin")
        expect(page.locator("dl")).to_contain_text("pinned")
        page.get_by_role("button", name="Pause").click()
        confirm(page, "Pause")
        expect(page.get_by_text(f"Pause of {NAME}: done.")).to_be_visible()
        page.get_by_role("button", name="Unload").click()
        confirm(page, "Unload")
        expect(page.get_by_role("heading", level=2).first).to_contain_text("UNAVAILABLE")
        page.get_by_role("button", name="Load", exact=True).click()
        confirm(page, "Load")
        expect(page.get_by_role("heading", level=2).first).to_contain_text("READY")


def test_a_bad_delta_is_shown_with_its_reason(browser: Browser, live: Live, first: Planted) -> None:
    with opened(browser, live.server.metrics_port, NAME) as page:
        expect(page.get_by_text("No version and no delta is refused.")).to_be_visible()
        bad = live.delta(first, wrong_by=0.5)
        refused = page.get_by_role("region", name=re.compile("^Versions and deltas that are refused"))
        expect(refused).to_contain_text("golden requests")
        expect(refused).to_contain_text(bad.path.name)


def test_a_role_that_is_missing_closes_buttons_and_the_server_refuses(
    browser: Browser, live: Live, first: Planted, tmp_path: Path
) -> None:
    live.stop()
    live.start(access_file=write_access(tmp_path / "access.yaml"), open_admin=False)
    with opened(browser, live.server.metrics_port, NAME) as page:
        expect(page.get_by_text("Refused: this needs a token")).to_be_visible()
        page.get_by_role("button", name="Sign in").click()
        page.get_by_label("Token", exact=True).fill("viewer")
        confirm(page, "Sign in")
        is_live(page)
        expect(page.get_by_text("viewer (read)")).to_be_visible()
        for name in ("Load", "Unload", "Pause", "Roll back", f"Pin {first.name} of {NAME}", "Predict", "Explain"):
            expect(page.get_by_role("button", name=name, exact=True).first).to_be_disabled()
        expect(page.get_by_text("This needs the role admin.").first).to_be_visible()
        status = page.evaluate(
            """async (name) => (await fetch(`console/v2/repository/models/${name}/pause`,
            {method: "POST", headers: {authorization: "Bearer viewer"}, body: "{}"})).status""",
            NAME,
        )
        assert status == 403
        assert live.report()["mode"] == "following"
        # The token ends: what was shown goes on no longer.
        write_access(tmp_path / "access.yaml", [])
        expect(page.get_by_text("the token is not one of this server's")).to_be_visible()


def test_a_lost_server_is_said_and_found_again(browser: Browser, live: Live, first: Planted) -> None:
    (port,) = free_ports(1)
    live.stop()
    live.start(metrics_port=port)
    with opened(browser, port, NAME) as page:
        is_live(page)
        live.stop()
        expect(page.get_by_text("Connection lost, trying again.")).to_be_visible()
        expect(page.get_by_role("button", name="Pause")).to_be_disabled()
        live.start(metrics_port=port)
        is_live(page)
        second = live.delta(first)
        expect(snapshot_row(page, second.name)).to_contain_text("served")


def test_names_and_errors_are_text(browser: Browser, live: Live, first: Planted) -> None:
    live.stop()
    write_identity(live.world.repository, HOSTILE, {"x": ("FP32", [3])})
    live.start()
    with opened(browser, live.server.metrics_port) as page:
        page.get_by_role("link", name=HOSTILE).click()
        expect(page.get_by_role("heading", level=2).first).to_contain_text(HOSTILE)
        page.get_by_role("button", name="Unload").click()
        expect(page.get_by_role("dialog")).to_contain_text(f"Unload of {HOSTILE}")
        page.keyboard.press("Escape")
        page.get_by_label("The inputs of one row, as JSON").fill('{"<script>alert(1)</script>": 1}')
        page.get_by_role("button", name="Predict").click()
        expect(page.locator("#try ~ div[role=status]")).to_contain_text(re.compile("identity|v2"))
        assert page.locator("img:not([role])").count() == 0
        assert page.locator("main script").count() == 0
    with opened(browser, live.server.metrics_port, NAME) as page:
        page.get_by_label("The inputs of one row, as JSON").fill('{"<script>alert(1)</script>": 1}')
        page.get_by_role("button", name="Predict").click()
        expect(page.locator("#try ~ div[role=status]")).to_contain_text("<script>alert(1)</script>")


def test_a_shadow_is_begun_and_judged(browser: Browser, live: Live, first: Planted) -> None:
    second = rolled_back(live, first)
    with opened(browser, live.server.metrics_port, NAME) as page:
        give_share(page, "Shadow", second, "100")
        confirm(page, "Shadow with")
        shadow = page.get_by_role("region", name="Shadow", exact=True)
        expect(shadow).to_contain_text("not enough requests")
        page.get_by_role("button", name="Predict").click()
        expect(shadow).to_contain_text("of which 1 were compared")
        expect(page.get_by_role("region", name=re.compile("^Outputs of the shadow"))).to_contain_text("score")
        page.get_by_role("button", name="Stop the shadow").click()
        confirm(page, "Stop the shadow")
        expect(shadow).to_be_hidden()


def test_the_replicas_of_a_fleet_are_shown(browser: Browser, store_url: str, tmp_path: Path) -> None:
    replicas = Replicas(store_url, tmp_path)
    with contextlib.ExitStack() as stack:
        stack.callback(replicas.stop)
        first = replicas.put(replicas.world.publish())
        proxy = stack.enter_context(proxy_of_store())
        replicas.start("one")
        replicas.start_behind(proxy, "two")
        second = replicas.put(replicas.world.change(first))
        replicas.until(lambda: {replicas.served(name) for name in ("one", "two")} == {second.id})
        with opened(browser, replicas.servers["one"].metrics_port, NAME) as page:
            rows = page.get_by_role("region", name="Replicas").get_by_role("row")
            for name in ("one", "two"):
                expect(rows.filter(has_text=name)).to_contain_text(second.name)
            page.get_by_role("button", name="Roll back", exact=True).first.click()
            confirm(page, "Roll back")
            replicas.until(lambda: {replicas.served(name) for name in ("one", "two")} == {first.id})
            expect(rows.filter(has_text="two")).to_contain_text(first.name)
        with opened(browser, replicas.servers["two"].metrics_port, NAME) as page:
            rows = page.get_by_role("region", name="Replicas").get_by_role("row")
            expect(rows.filter(has_text="one")).to_contain_text(first.name)
            with proxy.failing("403", lambda method, path: True):
                told = page.get_by_text("two has not been able to read the object store since")
                expect(told).to_contain_text("AccessDenied")
                # That one says itself what it serves.
                expect(rows.filter(has_text="one")).to_contain_text(first.name)
                expect(rows.filter(has_text="two")).to_contain_text(first.name)
                assert axe_findings(page) == []
            expect(told).to_be_hidden()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(browser: Browser, live: Live, first: Planted, scheme: str) -> None:
    live.delta(first, wrong_by=0.5)
    live.until(live.refused)
    with opened(browser, live.server.metrics_port, color_scheme=scheme) as page:
        expect(page.get_by_role("link", name=NAME)).to_be_visible()
        assert axe_findings(page) == []
        page.get_by_role("link", name=NAME).click()
        expect(page.get_by_role("region", name=re.compile("^Versions and deltas that are refused"))).to_be_visible()
        page.get_by_role("button", name="Predict").click()
        expect(page.get_by_role("region", name="Answer")).to_be_visible()
        assert axe_findings(page) == []
        page.get_by_role("button", name="Pause").click()
        expect(page.get_by_role("dialog")).to_be_visible()
        assert axe_findings(page) == []


def test_everything_is_reached_by_keyboard(browser: Browser, live: Live, first: Planted) -> None:
    with opened(browser, live.server.metrics_port, NAME) as page:
        expect(page.get_by_label("The inputs of one row, as JSON")).to_have_value(re.compile('"user"'))
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator("main")).to_be_focused()
        wanted = page.locator("main button:enabled, main a, main textarea, main select").count()
        reached = set()
        for _ in range(4 * wanted):
            page.keyboard.press("Tab")
            found = page.evaluate(
                """() => {
                  const at = document.activeElement;
                  const isOurs = at.matches("main button, main a, main textarea, main select");
                  return [isOurs, isOurs ? at.outerHTML : "", getComputedStyle(at).outlineStyle];
                }"""
            )
            if found[0]:
                assert found[2] != "none", found
                reached.add(found[1])
        assert len(reached) == wanted
        pause = page.get_by_role("button", name="Pause")
        pause.focus()
        page.keyboard.press("Enter")
        expect(page.get_by_role("dialog")).to_be_visible()
        page.keyboard.press("Escape")
        expect(pause).to_be_focused()
        page.keyboard.press("Enter")
        page.get_by_role("dialog").get_by_role("button", name="Pause").focus()
        page.keyboard.press("Enter")
        expect(page.locator("dl")).to_contain_text("paused")


def test_a_narrow_screen_shows_all_without_scrolling_sideways(browser: Browser, live: Live, first: Planted) -> None:
    with opened(browser, live.server.metrics_port, NAME, viewport={"width": 340, "height": 700}) as page:
        expect(snapshot_row(page, first.name)).to_be_visible()
        expect(page.locator("canvas").first).to_be_visible()
        widths = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
        assert widths[0] <= widths[1]


def test_an_address_that_names_no_model_shows_the_list(browser: Browser, live: Live, first: Planted) -> None:
    with opened(browser, live.server.metrics_port, "%") as page:
        is_live(page)
        expect(page.get_by_role("heading", name="Models", exact=True)).to_be_visible()


def test_feedback_and_a_stuck_client_are_shown(browser: Browser, tmp_path: Path) -> None:
    options: dict[str, Any] = {"feedback_share": 1, "feature_log_share": 1, "feature_log_every_s": 0.05}
    with Live(tmp_path, **options) as live, contextlib.ExitStack() as stack:
        version = live.version()
        live.start(feature_log=tmp_path / "log", body_timeout_s=60.0)
        port = live.server.http_port
        rows = {"instances": [{"user": user, "items": [2]} for user in range(4)]}
        assert call(port, "POST", f"/v1/models/{NAME}:predict", rows, {"X-Request-Id": "a"}).status == 200
        labels = {"id": "a", "labels": [1, 0, 0, 1], "output": "score"}
        assert call(port, "POST", f"/v2/models/{NAME}/feedback", labels).status == 200
        stuck = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        stuck.sendall(f"POST /v2/models/{NAME}/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n".encode())
        with opened(browser, live.server.metrics_port, NAME) as page:
            row = page.get_by_role("region", name="Scores beside the labels that came").get_by_role("row").nth(1)
            expect(row).to_contain_text(version.name)
            expect(row.get_by_role("cell").nth(2)).to_have_text("4")
            expect(page.get_by_text("100.0 % of the requests are logged")).to_be_visible()
            expect(page.get_by_text("127.0.0.1 does not send its requests or read its answers: 1")).to_be_visible()
            assert axe_findings(page) == []


def test_integers_of_64_bits_survive(browser: Browser, live: Live, first: Planted) -> None:
    with opened(browser, live.server.metrics_port) as page:
        script = page.locator("script[type=module]").get_attribute("src")
        assert script is not None
        found = page.evaluate(
            """async ([address, text]) => {
              const {instances, parse} = await import(new URL(address, document.baseURI));
              return [instances(text), parse(text).instances];
            }""",
            [
                script.replace("app.js", "json.js"),
                f'{{"instances": [{{"a": [{EDGE}, -1.5e3], "b": "x, \\"]}}: {EDGE}", "c": null}}, {{}}]}}',
            ],
        )
    row = f'{{\n  "a": [{EDGE}, -1.5e3],\n  "b": "x, \\"]}}: {EDGE}",\n  "c": null\n}}'
    assert found == [[row, "{\n  \n}"], [{"a": [str(EDGE), -1500], "b": f'x, "]}}: {EDGE}', "c": None}, {}]]
