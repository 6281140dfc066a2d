"""Every alert fires when its condition is caused on a real server that Prometheus scrapes, and none where all is well.

The rules are those of deploy/; only their times are shorter (`tests/support/alerts/shortened.py`). A GPU is simulated.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from storage.errors import Unavailable
from tests.integration.serving.live import Live
from tests.integration.serving.planted import ask
from tests.support.alerts.caused import Caused, repeated, until
from tests.support.alerts.causes import CAUSES
from tests.support.alerts.prometheus import RULES, Prometheus

pytestmark = pytest.mark.slow

NAMES = [rule["alert"] for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]]
#: Those whose test is not among the long ones.
SOME = {"EmberlineDown", "EmberlineSnapshotRefused", "EmberlineDiskFull", "EmberlineFleetMemberLate"}
#: Of the machine that runs the tests, where it is short of space.
OF_THE_MACHINE = {"EmberlineDiskFull", "EmberlineRepositoryDiskFull"}

#: The server of no cause, whose alerts in the last minutes are its own.
WELL = "server-that-is-well"


def test_every_alert_has_a_cause() -> None:
    assert list(CAUSES) == NAMES
    assert set(NAMES) >= SOME


@pytest.mark.parametrize("name", [pytest.param(each, marks=() if each in SOME else pytest.mark.long) for each in NAMES])
def test_an_alert_fires_for_its_cause(name: str, prometheus: Prometheus, tmp_path: Path) -> None:
    try:
        with CAUSES[name](tmp_path) as caused:
            scrape(prometheus, caused)
            if name not in ("EmberlineSnapshotOld", *(OF_THE_MACHINE if is_short(tmp_path) else ())):
                # That of no server at all ends when the first one is there.
                until(lambda: name not in {each["labels"]["alertname"] for each in prometheus.alerts()}, 10)
            caused.begin()
            alert = prometheus.wait_alert(name, caused.labels, 90)
    except Unavailable as error:
        pytest.skip(f"no small file system can be mounted here: {error}")
    finally:
        prometheus.scrape([])
    assert alert["annotations"]["runbook_url"] == f"docs/runbook/{name}.md"
    for text in alert["annotations"].values():
        assert text
        assert "<no value>" not in text
    prometheus.wait_for('absent(up{job="emberline"})')


def test_none_fires_at_a_server_that_is_well_under_load_and_updates(prometheus: Prometheus, tmp_path: Path) -> None:
    with Live(tmp_path, dram_bytes=4000, retain_snapshots=2) as live:
        newest = live.version()
        live.start()
        rows = live.world.rows_of(newest, 20)
        prometheus.scrape([(live.server.metrics_port, {"instance": WELL})])
        prometheus.wait_for(f'up{{instance="{WELL}"}} == 1')
        with repeated(lambda: ask(live.repository, rows), pause_s=0.02):
            for _ in range(12):
                newest = live.delta(newest)
                live.reaches(newest)
            merged = f'emberline_merges_total{{instance="{WELL}"}} > 3'
            prometheus.wait_for(merged)
            busy = f'rate(emberline_requests_success_total{{instance="{WELL}", arm="main"}}[5s]) > 1'
            prometheus.wait_for(busy)
        fired = prometheus.result(f'max_over_time(ALERTS{{alertstate="firing", instance="{WELL}"}}[2m])')
        names = {each["metric"]["alertname"] for each in fired}
        assert names <= (OF_THE_MACHINE if is_short(tmp_path) else set())
        prometheus.scrape([])


def scrape(prometheus: Prometheus, caused: Caused) -> None:
    """Scrapes the servers, and returns when each of them has been."""
    prometheus.scrape([(port, {"instance": instance}) for instance, port in caused.targets.items()])
    prometheus.wait_for(f'count(up{{job="emberline"}} == 1) == {len(caused.targets)}')


def is_short(folder: Path) -> bool:
    status = os.statvfs(folder)
    return status.f_bavail / status.f_blocks < 0.15
