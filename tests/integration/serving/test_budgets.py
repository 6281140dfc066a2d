"""Tests a model's DRAM budget: set in config.pbtxt, changed by a command, shared, and exceeded by at most a tenth."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from emberline.cli import budget, plan
from storage.errors import EmberlineError, NotFound, StoreError
from storage.tiers.tiered import TieredStore
from tests.integration.serving.live import Live
from tests.integration.serving.planted import NAME

TOTAL = 12_000


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    with Live(tmp_path, dram_bytes=TOTAL, version_reuse_share=0) as running:
        yield running


class Ledger:
    """Records the budgets of the open stores after every change."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stores: list[TieredStore] = []
        self.sums: list[int] = []
        self.parts: list[tuple[int, ...]] = []
        self._lock = threading.Lock()
        real_init, real_set, real_close = TieredStore.__init__, TieredStore.set_dram_bytes, TieredStore.close

        def init(store: TieredStore, *arguments: Any) -> None:
            real_init(store, *arguments)
            with self._lock:
                self.stores.append(store)
            self.note()

        def change(store: TieredStore, dram_bytes: int | None) -> None:
            real_set(store, dram_bytes)
            self.note()

        def close(store: TieredStore) -> None:
            real_close(store)
            with self._lock:
                if store in self.stores:
                    self.stores.remove(store)

        monkeypatch.setattr(TieredStore, "__init__", init)
        monkeypatch.setattr(TieredStore, "set_dram_bytes", change)
        monkeypatch.setattr(TieredStore, "close", close)

    def note(self) -> None:
        with self._lock:
            parts = tuple(store.dram_bytes or 0 for store in self.stores)
            self.parts.append(parts)
            self.sums.append(sum(parts))


def run(found: Any, live: Live, *arguments: str) -> Result:
    url = f"http://127.0.0.1:{live.server.http_port}"
    return CliRunner().invoke(found, [*arguments, "--url", url], catch_exceptions=False)


def test_while_a_version_takes_over_the_sum_stays_within_a_tenth(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(monkeypatch)
    live.version()
    live.start()
    other = live.version()
    live.reaches(other)
    live.until(lambda: len(ledger.stores) == 1)
    live.until(lambda: live.repository.budget(NAME)["stores"][0]["dram_bytes"] == TOTAL)
    assert max(ledger.sums) <= TOTAL * 1.1
    # The new store gets a tenth, then both have half, then the old one has a tenth.
    assert (TOTAL, TOTAL // 10) in ledger.parts
    assert (TOTAL // 2, TOTAL // 2) in ledger.parts
    assert (TOTAL // 10, TOTAL) in ledger.parts


def test_a_version_that_is_refused_gives_its_part_back(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(monkeypatch)
    start = live.version()
    live.start()
    live.version(wrong_by=0.5)
    live.until(lambda: live.report()["quarantined"])
    live.until(lambda: len(ledger.stores) == 1)
    assert live.served() is start
    assert live.repository.budget(NAME)["stores"][0]["dram_bytes"] == TOTAL
    assert max(ledger.sums) <= TOTAL * 1.1


def test_versions_that_are_served_together_share_the_budget(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(monkeypatch)
    live.world.configure("version_policy { latest { num_versions: 2 } }", dram_bytes=TOTAL, version_reuse_share=0)
    one, two = live.version(), live.version()
    live.start()

    def shares() -> list[tuple[str, int]]:
        return [(s["version"], s["dram_bytes"]) for s in live.repository.budget(NAME)["stores"]]

    live.until(lambda: shares() == [("2", TOTAL // 2), ("1", TOTAL // 2)])
    live.stop()
    live.start()
    live.until(lambda: shares() == [("2", TOTAL // 2), ("1", TOTAL // 2)])
    three = live.version()
    live.reaches(three)
    live.until(lambda: shares() == [("3", TOTAL // 2), ("2", TOTAL // 2)])
    assert max(ledger.sums) <= TOTAL * 1.1
    assert {live.served(version="2"), live.served()} == {two, three}
    assert one not in (two, three)


def test_a_budget_that_was_said_outlives_a_restart_until_the_file_says_otherwise(live: Live) -> None:
    start = live.version()
    live.start()
    said = live.repository.set_budget(NAME, 7000)
    assert (said["dram_bytes"], said["configured_bytes"]) == (7000, TOTAL)
    assert said["stores"][0]["dram_bytes"] == 7000
    assert said["used_bytes"] > 0
    delta = live.delta(start)
    live.reaches(delta)
    live.stop()
    live.start()
    assert live.served() is delta
    assert live.repository.budget(NAME)["stores"][0]["dram_bytes"] == 7000
    live.world.configure(dram_bytes=9000, version_reuse_share=0)
    live.until(lambda: live.repository.budget(NAME)["stores"][0]["dram_bytes"] == 9000)
    live.repository.set_budget(NAME, 8000)
    assert live.repository.set_budget(NAME, None)["dram_bytes"] == 9000
    assert live.served() is delta


def test_a_model_without_a_budget_gets_one_and_loses_it(tmp_path: Path) -> None:
    with Live(tmp_path) as live:
        start = live.version()
        live.start()
        assert live.repository.budget(NAME)["dram_bytes"] is None
        whole = live.repository.budget(NAME)["stores"][0]["rows"]
        assert whole["dram"] == whole["ssd"]
        url = f"http://127.0.0.1:{live.server.http_port}"
        shown = CliRunner().invoke(plan.command, [NAME, "--url", url])
        assert shown.exit_code == 0, shown.output
        assert "as the training data did" in shown.output
        assert "cannot be told" in shown.output
        bounded = live.repository.set_budget(NAME, 5000)["stores"][0]
        assert 0 < bounded["rows"]["dram"] < whole["dram"]
        assert live.served() is start
        live.repository.set_budget(NAME, None)
        live.until(lambda: live.repository.budget(NAME)["stores"][0]["rows"]["dram"] == whole["dram"])
        assert live.served() is start


def test_what_cannot_be_changed_stays(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    live.version()
    live.start()
    with pytest.raises(NotFound):
        live.repository.set_budget("nope", 5)

    def full(*_: object) -> None:
        raise StoreError("no memory")

    monkeypatch.setattr(TieredStore, "set_dram_bytes", full)
    with pytest.raises(EmberlineError, match="no memory"):
        live.repository.set_budget(NAME, 5000)
    monkeypatch.undo()
    assert live.repository.budget(NAME)["dram_bytes"] == TOTAL
    live.stop()
    live.start()
    assert live.repository.budget(NAME)["dram_bytes"] == TOTAL


def test_over_http_and_by_command(live: Live) -> None:
    live.version()
    live.start()
    live.served()
    url = f"http://127.0.0.1:{live.server.http_port}/v2/repository/models/{NAME}/budget"

    def call(content: object = None) -> tuple[int, Any]:
        body = None if content is None else json.dumps(content).encode()
        try:
            with urllib.request.urlopen(urllib.request.Request(url, body)) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    status, state = call()
    assert (status, state["dram_bytes"]) == (200, TOTAL)
    assert call({"dram_bytes": "8KiB"})[1]["dram_bytes"] == 8192
    for wrong, text in (
        ({}, "dram_bytes"),
        ({"dram_bytes": "much"}, "number of bytes"),
        ({"dram_bytes": -1}, "greater than or equal to 0"),
        ({"dram_bytes": True}, "number of bytes"),
        ({"dram_byte": 5}, "did you mean 'dram_bytes'"),
    ):
        status, answer = call(wrong)
        assert status == 400
        assert text in answer["error"]
    with urllib.request.urlopen(f"http://127.0.0.1:{live.server.metrics_port}/metrics") as answer:
        page = answer.read().decode()
    assert f'emberline_dram_budget_bytes{{model="{NAME}"}} 8192' in page
    for name in ("ids_hit_total", "rows", "bytes"):
        for tier in ("dram", "overlay"):
            assert f'emberline_table_{name}{{model="{NAME}",table="item",tier="{tier}",version="1"}} ' in page
    for name in ("ids_absent", "ids_unresolved", "promotions", "evictions"):
        assert f'emberline_table_{name}_total{{model="{NAME}",table="user",version="1"}} ' in page
    assert f"{NAME}: budget 8.0 KiB" in run(budget.command, live, NAME).output
    said = run(budget.command, live, NAME).output
    state = call()[1]
    assert 0 < state["used_bytes"] <= 8192
    assert state["fixed_bytes"] > 100_000
    assert f"{state['used_bytes'] / 1024:.1f} KiB used" in said
    assert f"{state['fixed_bytes'] / 1024:.1f} KiB beside it for empty caches" in said
    assert "config.pbtxt says 11.7 KiB" in run(budget.command, live, NAME, "--dram-bytes", "9KiB").output
    assert json.loads(run(budget.command, live, NAME, "--json").output)["dram_bytes"] == 9 << 10
    assert run(budget.command, live, NAME, "--configured").output.startswith(f"{NAME}: budget 11.7 KiB")
    assert run(budget.command, live, NAME, "--configured", "--dram-bytes", "1").exit_code == 2
    assert run(budget.command, live, NAME, "--dram-bytes", "x").exit_code == 2
