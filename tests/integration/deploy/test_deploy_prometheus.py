"""Alerts, scrape configuration, dashboard and autoscalers, against promtool and the metrics of a server."""

from __future__ import annotations

import json
import re
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
from tests.support.deployment.programs import ROOT, check, program

PROMETHEUS = DEPLOY / "prometheus"
GRAFANA = DEPLOY / "grafana"
DASHBOARDS: dict[str, Any] = {
    path.stem: json.loads(path.read_text()) for path in sorted((GRAFANA / "dashboards").glob("*.json"))
}
#: From NVIDIA's management library, which a simulated GPU has not.
OF_NVML = {f"nv_gpu_{name}" for name in ("utilization", "power_usage", "memory_used_bytes", "memory_total_bytes")}
RUNBOOK = ROOT / "docs" / "runbook"
#: Units of panels: one for each quantity, so that panels can be compared.
UNITS = {"s", "reqps", "ops", "Bps", "bytes", "percentunit", "short", "none", "watt"}
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
        *strings(DASHBOARDS, "expr"),
        *strings(keda, "query"),
        *strings(adapter, "seriesQuery"),
        *strings(manifests.read(DEPLOY / "kserve" / "inferenceservice.yaml"), "query"),
    ]
    assert len(expressions) > 40
    missing = {each: found for each in expressions if (found := metrics_page.missing(each))}
    assert {name for names in missing.values() for name in names} <= OF_NVML


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
    queries = [each.replace("$__rate_interval", "1m").replace("$model", ".*") for each in strings(DASHBOARDS, "expr")]
    queries += [*_adapter_queries(), *strings(manifests.read(DEPLOY / "kserve" / "inferenceservice.yaml"), "query")]
    rules = [{"record": f"query:{number}", "expr": each} for number, each in enumerate(queries)]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    assert f"{len(queries)} rules found" in check(program("promtool"), "check", "rules", tmp_path / "rules.yml")


def test_there_is_a_dashboard_for_each_part() -> None:
    assert len({each["uid"] for each in DASHBOARDS.values()}) == len(DASHBOARDS) == 5
    assert len({each["title"] for each in DASHBOARDS.values()}) == 5
    assert all("emberline" in each["tags"] for each in DASHBOARDS.values())


@pytest.mark.parametrize("name", DASHBOARDS)
def test_a_dashboard_is_one_that_grafana_loads(name: str) -> None:
    dashboard = DASHBOARDS[name]
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    (source,) = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yaml").read_text())["datasources"]
    assert set(strings(dashboard, "uid")) - {dashboard["uid"]} == {source["uid"]}
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        references = [target["refId"] for target in panel.get("targets", ())]
        assert len(set(references)) == len(references)
        assert set(strings(panel, "unit")) <= UNITS, panel["title"]
        assert references or panel["type"] in ("row", "text")
    overlapping = [
        (one_panel["title"], other["title"])
        for one_panel, other in combinations(panels, 2)
        if _overlap(one_panel["gridPos"], other["gridPos"])
    ]
    assert not overlapping
    variables = {each["name"] for each in dashboard["templating"]["list"]}
    assert variables == {"model", "runbook"}


def test_dashboards_link_to_the_page_of_every_alert_and_to_no_other() -> None:
    linked = {
        page
        for dashboard in DASHBOARDS.values()
        for content in strings(dashboard, "content")
        for page in re.findall(r"\(\$\{runbook\}/(\w+)\.md\)", content)
    }
    assert linked == {path.stem for path in RUNBOOK.glob("Emberline*.md")} == set(_alerts())


def test_every_alert_has_a_page_with_the_same_parts() -> None:
    for name, rule in _alerts().items():
        assert rule["annotations"]["runbook_url"] == f"docs/runbook/{name}.md"
        text = (RUNBOOK / f"{name}.md").read_text()
        assert text.startswith(f"# {name}\n")
        parts = ["What users see", "Confirm", "What to do", "What not to do"]
        assert re.findall(r"^## (.*)$", text, re.MULTILINE) == parts
        assert f"[{name}]({name}.md)" in (RUNBOOK / "README.md").read_text()


def test_pages_name_metrics_that_there_are(metrics_page: MetricsPage) -> None:
    pages = [path.read_text() for path in RUNBOOK.glob("*.md")]
    named = {name for text in pages for name in re.findall(r"`((?:emberline|nv)_\w+)`", text)}
    assert len(named) > 8
    missing = {name for name in named if metrics_page.missing(name)}
    assert missing <= {"emberline_trainer_"}


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


def _alerts() -> dict[str, Any]:
    (group,) = ALERTS["groups"]
    return {rule["alert"]: rule for rule in group["rules"]}


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
