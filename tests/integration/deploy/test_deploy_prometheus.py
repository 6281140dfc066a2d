"""Alerts, scrape configuration, dashboard and autoscalers, against promtool and the metrics of a server."""

from __future__ import annotations

import json
import shutil
import urllib.request
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from serving import Server
from tests.support.deployment import manifests
from tests.support.deployment.manifests import DEPLOY, KUBERNETES, one
from tests.support.deployment.metrics_page import MetricsPage, strings
from tests.support.deployment.programs import check, program

PROMETHEUS = DEPLOY / "prometheus"
GRAFANA = DEPLOY / "grafana"
DASHBOARD: dict[str, Any] = json.loads((GRAFANA / "dashboards" / "emberline.json").read_text())
ALERTS: dict[str, Any] = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())


def test_prometheus_takes_the_configuration() -> None:
    assert "is valid" in check(program("promtool"), "check", "config", PROMETHEUS / "prometheus.yml")


def test_every_alert_fires_when_it_should_and_not_before() -> None:
    assert "SUCCESS" in check(program("promtool"), "test", "rules", PROMETHEUS / "alerts_test.yml")
    tests = yaml.safe_load((PROMETHEUS / "alerts_test.yml").read_text())["tests"]
    tried = {case["alertname"] for each in tests for case in each["alert_rule_test"] if case.get("exp_alerts")}
    (group,) = ALERTS["groups"]
    assert tried == {rule["alert"] for rule in group["rules"]}


def test_kubernetes_has_the_same_alerts(tmp_path: Path) -> None:
    rule = one(manifests.with_components(tmp_path, "monitoring"), "PrometheusRule")
    assert rule["spec"] == ALERTS


def test_every_expression_asks_for_metrics_that_a_server_has(metrics_page: MetricsPage, tmp_path: Path) -> None:
    keda = one(manifests.with_components(tmp_path, "autoscaling-keda"), "ScaledObject")
    adapter = yaml.safe_load((KUBERNETES / "components/autoscaling-hpa/prometheus-adapter.yaml").read_text())
    expressions = [
        *strings(ALERTS, "expr"),
        *strings(DASHBOARD, "expr"),
        *strings(keda, "query"),
        *strings(adapter, "seriesQuery"),
        *strings(manifests.read(DEPLOY / "kserve" / "inferenceservice.yaml"), "query"),
    ]
    assert len(expressions) > 40
    missing = {each: found for each in expressions if (found := metrics_page.missing(each))}
    assert not missing


@pytest.mark.parametrize(
    ("expression", "missing"),
    [
        ("rate(emberline_request_success_total[5m])", ["emberline_request_success_total"]),
        ('kube_pod_status{pod="a"} > 0', ["kube_pod_status"]),
        ('sum by (model) (emberline_ready{shard="a"})', ["emberline_ready{shard}"]),
        ("sum by (tire) (emberline_ids_hit_total)", ["tire"]),
    ],
)
def test_what_a_server_does_not_have_is_found(metrics_page: MetricsPage, expression: str, missing: list[str]) -> None:
    assert metrics_page.missing(expression) == missing


def test_every_query_of_the_dashboard_is_promql(tmp_path: Path) -> None:
    queries = [
        each.replace("$__rate_interval", "1m").replace("$model", ".*") for each in strings(DASHBOARD["panels"], "expr")
    ]
    queries += [*_adapter_queries(), *strings(manifests.read(DEPLOY / "kserve" / "inferenceservice.yaml"), "query")]
    rules = [{"record": f"query:{number}", "expr": each} for number, each in enumerate(queries)]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    assert f"{len(queries)} rules found" in check(program("promtool"), "check", "rules", tmp_path / "rules.yml")


def test_the_dashboard_is_one_that_grafana_loads() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    (source,) = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yaml").read_text())["datasources"]
    assert set(strings(DASHBOARD, "uid")) - {DASHBOARD["uid"]} == {source["uid"]}
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references)
    overlapping = [
        (one_panel["title"], other["title"])
        for one_panel, other in combinations(panels, 2)
        if _overlap(one_panel["gridPos"], other["gridPos"])
    ]
    assert not overlapping
    variables = {each["name"] for each in DASHBOARD["templating"]["list"]}
    assert variables == {"model"}


def test_the_probes_of_the_manifests_get_200_from_a_server_that_serves(server: Server) -> None:
    base = manifests.rendered(KUBERNETES / "base")
    runtime = one(manifests.read(DEPLOY / "kserve" / "servingruntime.yaml"), "ServingRuntime")
    containers = [
        *one(base, "StatefulSet")["spec"]["template"]["spec"]["containers"],
        *runtime["spec"]["containers"],
    ]
    paths = set(strings([{name: each[name] for name in each if name.endswith("Probe")} for each in containers], "path"))
    assert paths == {"/v2/health/live", "/v2/health/ready"}
    for path in paths:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.http_port}{path}") as answer:
            assert answer.status == 200


def test_promtool_refuses_a_rule_that_is_wrong(tmp_path: Path) -> None:
    shutil.copy(PROMETHEUS / "alerts.yml", tmp_path)
    text = (tmp_path / "alerts.yml").read_text()
    (tmp_path / "alerts.yml").write_text(text.replace("emberline_ready == 0", "emberline_ready == = 0"))
    with pytest.raises(pytest.fail.Exception, match="unexpected"):
        check(program("promtool"), "check", "rules", tmp_path / "alerts.yml")


def _adapter_queries() -> list[str]:
    rules = yaml.safe_load((KUBERNETES / "components/autoscaling-hpa/prometheus-adapter.yaml").read_text())
    filled = {"<<.LabelMatchers>>": 'namespace="a"', "<<.GroupBy>>": "pod"}
    queries = []
    for rule in rules:
        query = rule["metricsQuery"].replace("<<.Series>>", rule["seriesQuery"].partition("{")[0])
        for name, value in filled.items():
            query = query.replace(name, value)
        queries.append(query)
    return queries


def _overlap(one_place: dict[str, int], other: dict[str, int]) -> bool:
    return all(
        one_place[start] < other[start] + other[size] and other[start] < one_place[start] + one_place[size]
        for start, size in (("x", "w"), ("y", "h"))
    )
