"""Prometheus scrapes a server, and answers every query of the dashboard, the alerts and the autoscalers."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from serving import Server
from tests.support.deployment import manifests
from tests.support.deployment.manifests import DEPLOY, KUBERNETES, one
from tests.support.deployment.metrics_page import strings
from tests.support.deployment.programs import program
from tests.support.server_process import free_ports

pytestmark = pytest.mark.slow

DASHBOARD = json.loads((DEPLOY / "grafana" / "dashboards" / "emberline.json").read_text())
# Of versions that have the times of their events, which the example model has not.
OF_SHADOWS = {panel["title"] for panel in DASHBOARD["panels"] if panel["title"].startswith("Shadow: ")}
OF_EVENTS = {"From an event to the score, p99", "Age of the newest event served"}
BODY = {
    "inputs": [
        {"name": "words", "datatype": "INT64", "shape": [2, 3], "data": [1, 2, 3, 4, 5, 6]},
        {"name": "dense", "datatype": "FP32", "shape": [2, 2], "data": [0.1, 0.2, 0.3, 0.4]},
    ]
}


class Prometheus:
    """A Prometheus that scrapes one server twice, as if it were two replicas on Kubernetes."""

    def __init__(self, server: Server, folder: Path) -> None:
        (port,) = free_ports(1)
        self._url = f"http://127.0.0.1:{port}/api/v1"
        shutil.copy(DEPLOY / "prometheus" / "alerts.yml", folder)
        lines = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
        lines["global"] = {"scrape_interval": "200ms", "scrape_timeout": "200ms", "evaluation_interval": "200ms"}
        (scrape,) = lines["scrape_configs"]
        scrape["static_configs"] = [
            {
                "targets": [f"127.0.0.1:{server.metrics_port}"],
                "labels": {"instance": pod, "pod": pod, "namespace": "emberline"},
            }
            for pod in ("emberline-0", "emberline-1")
        ]
        (folder / "prometheus.yml").write_text(yaml.safe_dump(lines))
        self._log = folder / "log"
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [
                    program("prometheus"),
                    f"--config.file={folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={folder / 'data'}",
                    f"--web.listen-address=127.0.0.1:{port}",
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def ask(self, path: str, **parameters: str) -> Any:
        """Returns the data of an answer of its API."""
        with urllib.request.urlopen(f"{self._url}/{path}?{urllib.parse.urlencode(parameters)}", timeout=5) as answer:
            return json.load(answer)["data"]

    def wait_for(self, query: str) -> None:
        """Returns when a query has a result."""
        deadline = time.monotonic() + 30
        while True:
            assert self.process.poll() is None, self._log.read_text()[-2000:]
            assert time.monotonic() < deadline, self._log.read_text()[-2000:]
            try:
                if self.ask("query", query=query)["result"]:
                    return
            except OSError:  # it does not listen yet
                pass
            time.sleep(0.1)


@pytest.fixture(scope="module")
def prometheus(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    running = Prometheus(server, tmp_path_factory.mktemp("prometheus"))
    try:
        running.wait_for("count(up == 1) == 2")
        for _ in range(20):
            url = f"http://127.0.0.1:{server.http_port}/v2/models/tiny/infer"
            urllib.request.urlopen(urllib.request.Request(url, json.dumps(BODY).encode()), timeout=10).close()
        running.wait_for("min(rate(emberline_requests_success_total{arm='main'}[1m])) > 0")
        yield running
    finally:
        running.process.terminate()
        running.process.wait(20)


def test_every_query_of_the_dashboard_has_an_answer(prometheus: Prometheus) -> None:
    empty = []
    for panel in DASHBOARD["panels"]:
        for query in strings(panel["targets"], "expr"):
            filled = query.replace("$__rate_interval", "1m").replace("$model", ".*")
            result = prometheus.ask("query", query=filled)["result"]
            if panel["title"] in OF_SHADOWS:
                assert not result  # the example model has no shadow, and there is no error
            elif panel["title"] in OF_EVENTS:
                assert all(each["value"][1] == "NaN" for each in result)  # nothing to divide, and no error
            elif not result or any(each["value"][1] == "NaN" for each in result):
                empty.append((panel["title"], filled, result))
    assert not empty


def test_every_alert_is_evaluated_and_none_fires_at_a_server_that_is_well(prometheus: Prometheus) -> None:
    # The example model was published long ago, and what is free here is this machine's.
    expected = {"EmberlineSnapshotOld", "EmberlineDiskFull"}
    prometheus.wait_for("count(ALERTS) > 0")
    (group,) = prometheus.ask("rules")["groups"]
    failing = {rule["name"]: rule.get("lastError") for rule in group["rules"] if rule["health"] != "ok"}
    assert not failing
    assert {rule["name"] for rule in group["rules"] if rule["alerts"]} <= expected


def test_the_autoscalers_get_a_number(prometheus: Prometheus, tmp_path: Path) -> None:
    keda = one(manifests.with_components(tmp_path, "autoscaling-keda"), "ScaledObject")
    (query,) = strings(keda, "query")
    (total,) = prometheus.ask("query", query=query)["result"]
    assert 0 <= float(total["value"][1]) < 1
    (rule,) = yaml.safe_load((KUBERNETES / "components/autoscaling-hpa/prometheus-adapter.yaml").read_text())
    filled = rule["metricsQuery"].replace("<<.Series>>", rule["seriesQuery"].partition("{")[0])
    filled = filled.replace("<<.LabelMatchers>>", 'namespace="emberline"').replace("<<.GroupBy>>", "pod")
    answers = prometheus.ask("query", query=filled)["result"]
    assert {each["metric"]["pod"] for each in answers} == {"emberline-0", "emberline-1"}
    assert prometheus.ask("query", query=rule["seriesQuery"])["result"]
