"""Prometheus scrapes a server, and answers every query of the dashboard, the alerts and the autoscalers."""

from __future__ import annotations

import contextlib
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from serving import Server
from tests.integration.serving.live import Live
from tests.integration.serving.planted import NAME, ask
from tests.support.alerts.caused import repeated
from tests.support.alerts.prometheus import RULES, Prometheus
from tests.support.deployment import manifests
from tests.support.deployment.manifests import DEPLOY, KUBERNETES, one
from tests.support.deployment.metrics_page import strings

pytestmark = pytest.mark.slow

DASHBOARDS = {
    path.stem: json.loads(path.read_text()) for path in sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))
}
# Nothing was updated in the meantime, and there is no error.
OF_EVENTS = {"From an event to the score, p99", "Time of updates, by step"}
# From NVIDIA's management library, which a simulated GPU has not.
OF_NVML = {"Utilization", "Memory", "Power"}
BODY = {
    "inputs": [
        {"name": "words", "datatype": "INT64", "shape": [2, 3], "data": [1, 2, 3, 4, 5, 6]},
        {"name": "dense", "datatype": "FP32", "shape": [2, 2], "data": [0.1, 0.2, 0.3, 0.4]},
    ]
}


@pytest.fixture(scope="module")
def prometheus(
    server: Server, on_gpu: Live, with_budget: Live, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    running = Prometheus(tmp_path_factory.mktemp("prometheus"), RULES.read_text())
    # One server twice, as if it were two replicas on Kubernetes.
    pods = [{"instance": pod, "pod": pod, "namespace": "emberline"} for pod in ("emberline-0", "emberline-1")]
    targets: list[tuple[int, dict[str, str]]] = [(server.metrics_port, pod) for pod in pods]
    others = {"gpu": on_gpu, "budget": with_budget}
    running.scrape([*targets, *((live.server.metrics_port, {"instance": name}) for name, live in others.items())])
    with contextlib.closing(running):
        running.wait_for("count(up == 1) == 4")
        rows = with_budget.world.rows_of(next(iter(with_budget.snapshots.values())), 200)

        def ask_both() -> None:
            for live in others.values():
                ask(live.repository, rows)

        for _ in range(20):
            url = f"http://127.0.0.1:{server.http_port}/v2/models/tiny/infer"
            urllib.request.urlopen(urllib.request.Request(url, json.dumps(BODY).encode()), timeout=10).close()
        with repeated(ask_both):
            running.wait_for("min(rate(emberline_requests_success_total{arm='main'}[1m])) > 0")
            running.wait_for("rate(emberline_ssd_reads_total{instance='budget'}[1m]) > 0")
            yield running


@pytest.mark.parametrize("name", DASHBOARDS)
def test_every_query_of_a_dashboard_has_an_answer(name: str, prometheus: Prometheus) -> None:
    empty = []
    for panel in DASHBOARDS[name]["panels"]:
        for query in strings(panel.get("targets", []), "expr"):
            filled = query.replace("$__rate_interval", "1m").replace("$model", ".*")
            result = prometheus.ask("query", query=filled)["result"]
            if panel["title"].startswith("Shadow: ") or panel["title"] in OF_NVML:
                assert not result  # there is none, and there is no error
            elif panel["title"] in OF_EVENTS:
                continue
            elif not result or all(each["value"][1] == "NaN" for each in result):
                empty.append((panel["title"], filled, result))
    assert not empty


def test_every_alert_is_evaluated_and_none_fires_at_a_server_that_is_well(prometheus: Prometheus) -> None:
    # The example model was published long ago, and what is free here is this machine's.
    expected = {"EmberlineSnapshotOld", "EmberlineDiskFull", "EmberlineRepositoryDiskFull"}
    prometheus.wait_for("count(ALERTS) > 0")
    (group,) = prometheus.ask("rules")["groups"]
    failing = {rule["name"]: rule.get("lastError") for rule in group["rules"] if rule["health"] != "ok"}
    assert not failing
    # The two servers of the planted model serve each a version of its own.
    active = {
        rule["name"] for rule in group["rules"] if any(each["labels"].get("model") != NAME for each in rule["alerts"])
    }
    assert active <= expected


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
