"""Tests in headless Chromium that the console shows drift, the memory of a GPU, faults of machines, and a canary's end.

What needs a GPU or a bad disk is written into the events of a healthy server.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.e2e.console.pages import axe_findings, confirm, expect, give_share, opened, rolled_back, serves, snapshot_row
from tests.integration.serving.http_calls import ask as call
from tests.integration.serving.live import Live
from tests.integration.serving.planted import NAME, Planted

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def test_drift_is_shown_the_largest_first(browser: Browser, tmp_path: Path) -> None:
    with Live(tmp_path, feedback_share=1) as live:
        live.version()
        live.start()
        with opened(browser, live.server.metrics_port, NAME) as page:
            table = page.get_by_role("region", name="Drift from training, the largest first")
            expect(table.get_by_role("row").nth(1)).to_contain_text("too few rows")
            # The golden requests have many users: these are of one, and a quarter are without items.
            rows = {"instances": [{"user": 7, "items": [1] if row % 4 else None} for row in range(200)]}
            for _ in range(4):
                assert call(live.server.http_port, "POST", f"/v1/models/{NAME}:predict", rows).status == 200
                time.sleep(0.05)
            expect(table.get_by_role("row").nth(1)).to_contain_text("worth a look")
            expect(table.get_by_role("row").filter(has_text="800")).to_have_count(3)  # all that was sent is shown
            lines = [line.get_by_role("cell").all_inner_texts() for line in table.get_by_role("row").all()[1:]]
            names = table.get_by_role("rowheader").all_inner_texts()
            assert sorted(zip(names, (line[0] for line in lines), strict=True)) == [
                ("items", "input"),
                ("score", "score"),
                ("user", "input"),
            ]
            drift = live.report()["drift"]
            more = {each["name"]: each["psi"] - each["by_chance"] for each in (*drift["inputs"], *drift["scores"])}
            assert names == sorted(more, key=lambda name: -more[name])
            for name, line in zip(names, lines, strict=True):
                assert line[1] == f"{more[name]:.4f}"
                assert line[2] == ("worth a look" if more[name] > 0.25 else "usual")
                assert line[3] == "800"
            assert lines[names.index("items")][4] == "25.0 %"
            assert axe_findings(page) == []


def test_the_memory_of_tables_has_the_gpu_and_the_overlay(browser: Browser, live: Live, first: Planted) -> None:
    with opened(browser, live.server.metrics_port, NAME) as page:
        table = page.get_by_role("region", name="Tables of version 1")
        expect(table).to_contain_text("Bytes in DRAM")
        for name in ("HBM", "in HBM", "Bytes in HBM", "Unresolved", "in overlay"):
            expect(table.get_by_role("columnheader", name=name, exact=True)).to_have_count(0)
        second = live.delta(first)
        serves(live, second)
        expect(table.get_by_role("columnheader", name="in overlay", exact=True)).to_be_visible()
        expect(table.get_by_role("columnheader", name="Bytes in overlay", exact=True)).to_be_visible()
    gpu = [
        ('"hits":{"hbm":0,"overlay":0,"dram":0', '"hits":{"hbm":6,"overlay":0,"dram":2'),
        ('"unresolved":0', '"unresolved":2'),
        ('"rows":{"hbm":0', '"rows":{"hbm":5'),
        ('"bytes":{"hbm":0', '"bytes":{"hbm":2048'),
    ]
    with opened(browser, live.server.metrics_port, NAME, gpu) as page:
        table = page.get_by_role("region", name="Tables of version 1")
        expect(table.get_by_role("columnheader", name="Bytes in HBM", exact=True)).to_be_visible()
        names = table.get_by_role("columnheader").all_inner_texts()
        cells = table.get_by_role("row").nth(1).locator("th, td").all_inner_texts()
        shown = dict(zip(names, cells, strict=True))
        assert shown["Ids"] == "10"
        shares = [float(shown[name].split()[0]) for name in ("HBM", "DRAM", "Unresolved")]
        assert shares == [60.0, 20.0, 20.0]
        assert (shown["in HBM"], shown["Bytes in HBM"]) == ("5", "2.0 KiB")
        assert axe_findings(page) == []


def test_slow_disks_and_lost_gpus_are_said(browser: Browser, live: Live, first: Planted) -> None:
    lost = '{"version":"1","gpu":%d,"what":"%s","reason":"CUDA error 999"}'
    gpus = f"[{lost % (0, 'everything')},{lost % (1, 'rows')}]"
    waiting = "the disk has answered no write for 31 s"
    changes = [
        ('"gpus_given_up":[]', f'"gpus_given_up":{gpus}'),
        ('"disk_wait_ms":null', '"disk_wait_ms":83.0'),
        ('"disk_slow_since_unix_ms":null', '"disk_slow_since_unix_ms":1795276800000'),
        ('"waiting":null', f'"waiting":"{waiting}"'),
    ]
    with opened(browser, live.server.metrics_port, NAME, changes) as page:
        note = page.locator("main .note")
        since = page.evaluate("() => new Date(1795276800000).toLocaleString()")
        expect(note).to_have_text(
            "GPU 0 is not used any more for version 1: CUDA error 999. "
            "GPU 1 holds no rows any more for version 1: CUDA error 999. "
            f"The disk is slow since {since}: lookups that read from it wait 83 ms. {waiting}"
        )
        assert axe_findings(page) == []
    with opened(browser, live.server.metrics_port, "", changes) as page:
        row = page.get_by_role("row").filter(has=page.get_by_role("link", name=NAME))
        expect(row).to_contain_text("GPU 0 is not used any more for version 1: CUDA error 999. GPU 1 holds no rows")
        expect(row).to_contain_text(f"The disk is slow since {since}: lookups that read from it wait 83 ms. {waiting}")
    with opened(browser, live.server.metrics_port, NAME, [('"disk_wait_ms":null', '"disk_wait_ms":83.0')]) as page:
        expect(snapshot_row(page, first.name)).to_contain_text("served")
        expect(page.locator("main .note")).to_have_count(0)


def test_a_canary_is_stopped(browser: Browser, live: Live, first: Planted) -> None:
    second = rolled_back(live, first)
    with opened(browser, live.server.metrics_port, NAME) as page:
        give_share(page, "Canary", second, "25")
        time.sleep(2.5)  # what is typed outlasts the events of these seconds
        expect(page.get_by_label("Share of the requests, in percent")).to_have_value("25")
        confirm(page, "Canary with")
        expect(snapshot_row(page, second.name)).to_contain_text("canary")
        page.get_by_role("button", name="Stop the canary").click()
        confirm(page, "Stop the canary")
        expect(page.get_by_text(f"Stop the canary of {NAME}: done.")).to_be_visible()
        expect(snapshot_row(page, second.name)).to_contain_text("held")
        expect(page.locator("dl")).not_to_contain_text(re.compile("canary"))
        expect(page.get_by_role("button", name="Stop the canary")).to_have_count(0)
        assert live.report()["canary"] is None
        serves(live, first)
