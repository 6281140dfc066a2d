"""The manifests under deploy/kubernetes: rendered by kustomize, valid, and true to the server that they run."""

from __future__ import annotations

import copy
import itertools
import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from serving.config import ServerConfig
from tests.support.deployment import manifests
from tests.support.deployment.command_lines import parse, server_config
from tests.support.deployment.custom_resources import check_custom, is_custom
from tests.support.deployment.manifests import KUBERNETES, Object, one

PORTS = {"http": 8000, "grpc": 8001, "metrics": 8002}
EXAMPLE = KUBERNETES / "overlays" / "example"
VARIANTS = [
    (),
    ("autoscaling-hpa", "monitoring"),
    ("autoscaling-keda", "monitoring", "node-mirror"),
    ("monitoring", "access-tls"),
    ("node-mirror", "access-tls"),
]


@pytest.fixture(scope="module", params=VARIANTS, ids="+".join)
def objects(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Object]:
    """The base with some components."""
    return manifests.with_components(tmp_path_factory.mktemp("overlay"), *request.param)


@pytest.fixture(scope="module")
def example() -> list[Object]:
    return manifests.rendered(EXAMPLE)


@pytest.fixture(scope="module")
def base() -> list[Object]:
    return manifests.rendered(KUBERNETES / "base")


def test_every_object_is_valid_for_kubernetes(objects: list[Object], example: list[Object]) -> None:
    for each in [*objects, *example]:
        if is_custom(each):
            check_custom(each)
        else:
            kubernetes_validate.validate(each, kubernetes_validate.latest_version(), strict=True)


def test_a_misspelt_field_is_found(base: list[Object]) -> None:
    wrong = copy.deepcopy(one(base, "StatefulSet"))
    wrong["spec"]["template"]["spec"]["terminationGraceSeconds"] = 10
    with pytest.raises(kubernetes_validate.ValidationError, match="terminationGraceSeconds"):
        kubernetes_validate.validate(wrong, kubernetes_validate.latest_version(), strict=True)


def test_every_component_is_tried_and_every_file_is_rendered() -> None:
    there = {path.name for path in (KUBERNETES / "components").iterdir()}
    assert there == {name for variant in VARIANTS for name in variant}
    for folder in [KUBERNETES / "base", EXAMPLE, *(KUBERNETES / "components").iterdir()]:
        (lines,) = manifests.read(folder / "kustomization.yaml")
        named = {"kustomization.yaml", "prometheus-adapter.yaml", *lines.get("resources", ())}
        named |= {patch["path"] for patch in lines.get("patches", ()) if "path" in patch}
        assert {path.name for path in folder.iterdir()} <= named, folder


def test_every_command_line_is_one_that_the_command_takes(objects: list[Object], example: list[Object]) -> None:
    for rendered in (objects, example):
        for template in manifests.pod_templates(rendered):
            for container in template["spec"]["containers"]:
                variables = manifests.environment(container, rendered)
                parse(manifests.arguments(container, variables), variables)


def test_the_server_listens_where_the_manifests_say(base: list[Object]) -> None:
    config, container = serves(base)
    assert {each["name"]: each["containerPort"] for each in container["ports"]} == PORTS
    assert (config.http_port, config.grpc_port, config.metrics_port) == tuple(PORTS.values())
    assert config.host == "0.0.0.0"
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[name]["httpGet"]["port"] in PORTS
    for service in (each for each in base if each["kind"] == "Service"):
        for port in service["spec"]["ports"]:
            assert PORTS[port["targetPort"]] == port["port"]
            assert port["name"] == port["targetPort"]


def test_whoever_asks_a_server_asks_as_it_answers(objects: list[Object]) -> None:
    config, container = serves(objects)
    is_tls = config.tls_certificate is not None
    assert is_tls == (config.access_file is not None)
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[name]["httpGet"].get("scheme", "HTTP") == ("HTTPS" if is_tls else "HTTP")
    for each in objects:
        if each["kind"] == "Service":
            protocols = {port["name"]: port.get("appProtocol") for port in each["spec"]["ports"]}
            assert protocols["http"] == protocols.get("metrics", protocols["http"]) == ("https" if is_tls else "http")
            assert protocols["grpc"] == (None if is_tls else "kubernetes.io/h2c")
        if each["kind"] == "ServiceMonitor":
            (endpoint,) = each["spec"]["endpoints"]
            assert ("authorization" in endpoint) == ("tlsConfig" in endpoint) == is_tls
            assert endpoint.get("scheme", "http") == ("https" if is_tls else "http")
    files = [path for path in (config.tls_certificate, config.tls_key, config.access_file) if path is not None]
    mounts = {Path(each["mountPath"]): each for each in container["volumeMounts"]}
    assert all(mount_of(path, mounts)["readOnly"] for path in files)


def test_services_budget_and_policy_select_the_pods(objects: list[Object]) -> None:
    (pod,) = (each for each in manifests.pod_templates(objects) if "emberline" in names_of(each))
    selectors = [
        *(each["spec"]["selector"] for each in objects if each["kind"] == "Service"),
        one(objects, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        one(objects, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
        one(objects, "StatefulSet")["spec"]["selector"]["matchLabels"],
        *(each["labelSelector"]["matchLabels"] for each in pod["spec"]["topologySpreadConstraints"]),
    ]
    assert all(manifests.selects(labels, pod) for labels in selectors)
    others = [each for each in manifests.pod_templates(objects) if each is not pod]
    assert not any(manifests.selects(labels, other) for labels, other in itertools.product(selectors, others))
    assert one(objects, "StatefulSet")["spec"]["serviceName"] in {
        each["metadata"]["name"] for each in objects if each["kind"] == "Service" and "clusterIP" in each["spec"]
    }


def test_the_network_policy_opens_exactly_the_ports(base: list[Object]) -> None:
    spec = one(base, "NetworkPolicy")["spec"]
    opened = {port["port"]: rule["from"] for rule in spec["ingress"] for port in rule["ports"]}
    assert opened.keys() == set(PORTS.values())
    assert all(opened.values()), "an empty `from` opens the port to everybody"
    assert opened[PORTS["metrics"]] != opened[PORTS["http"]]
    assert set(spec["policyTypes"]) == {"Ingress", "Egress"}


def test_replicas_of_a_bucket_are_a_fleet(objects: list[Object]) -> None:
    config, _ = serves(objects)
    assert config.fleet == (config.repository_url is not None)
    if config.fleet:
        assert config.replica_id == manifests.POD_FIELDS["metadata.name"]
        scheme = "http" if config.tls_certificate is None else "https"
        assert config.replica_url == f"{scheme}://{manifests.POD_FIELDS['status.podIP']}:{config.http_port}"
        policy = one(objects, "NetworkPolicy")["spec"]
        to_each_other = {
            port["port"] for rule in policy["egress"] for port in rule["ports"] if _selects_all(rule, policy)
        }
        assert to_each_other == {config.http_port}


def test_a_pod_may_write_where_the_server_writes_and_nowhere_else(objects: list[Object]) -> None:
    config, container = serves(objects)
    mounts = {Path(each["mountPath"]): each for each in container["volumeMounts"]}
    written = [config.store_dir, Path("/tmp"), Path("/home/emberline/.cache/emberline/tokens")]
    if config.repository_url is not None:
        written.append(config.model_repository)
        # The store keeps versions by hard links, which end at the border of a volume.
        assert mount_of(config.store_dir, mounts) == mount_of(config.model_repository, mounts)
    else:
        assert mounts[config.model_repository]["readOnly"]
    for path in written:
        assert not mount_of(path, mounts).get("readOnly"), path
    for template in manifests.pod_templates(objects):
        for each in template["spec"]["containers"]:
            security = {**template["spec"]["securityContext"], **each["securityContext"]}
            assert security["runAsNonRoot"] is True
            assert security["runAsUser"] == image_user()
            assert security["seccompProfile"] == {"type": "RuntimeDefault"}
            assert security["readOnlyRootFilesystem"] is True
            assert security["allowPrivilegeEscalation"] is security["privileged"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}


def test_a_pod_has_time_to_drain(base: list[Object]) -> None:
    config, container = serves(base)
    (template,) = manifests.pod_templates(base)
    probe = container["readinessProbe"]
    # Until nobody sends to it: a failed probe and the news of it, on every node.
    assert config.drain_delay_s is not None
    assert config.drain_delay_s >= 2 * probe["periodSeconds"] * probe["failureThreshold"]
    # Loads cannot be interrupted; half a minute is for closing stores.
    needed = config.drain_delay_s + config.drain_timeout_s + 30
    assert template["spec"]["terminationGracePeriodSeconds"] >= needed


def test_the_mirror_of_a_node_brings_what_the_servers_read(tmp_path: Path) -> None:
    objects = manifests.with_components(tmp_path, "node-mirror")
    config, server = serves(objects)
    mirror = one(objects, "DaemonSet", "emberline-mirror")["spec"]["template"]["spec"]
    (container,) = mirror["containers"]
    variables = manifests.environment(container, objects)
    options = parse(manifests.arguments(container, variables), variables).params
    assert options["source"] == variables["EMBERLINE_MODEL_REPOSITORY"]
    assert str(options["source"]).startswith("s3://")
    pod = one(objects, "StatefulSet")["spec"]["template"]["spec"]
    here, there = (
        host_path(spec, part, path)
        for spec, part, path in (
            (pod, server, config.model_repository),
            (mirror, container, Path(options["target"])),
        )
    )
    assert here == there
    assert host_path(mirror, mirror["initContainers"][0], Path(mirror["initContainers"][0]["command"][-1])) == here


def test_the_example_changes_what_a_team_has_to_change(example: list[Object]) -> None:
    config, container = serves(example)
    assert config.repository_url == "s3://shop-models/ranking"
    assert container["image"] == "registry.example/recommendations/emberline:0.2.0"
    assert {each["metadata"].get("namespace", "emberline") for each in example} == {"emberline"}
    memory = container["resources"]
    assert memory["requests"]["memory"] == memory["limits"]["memory"]
    replicas = one(example, "HorizontalPodAutoscaler")["spec"]
    assert 2 <= replicas["minReplicas"] <= replicas["maxReplicas"]
    assert "replicas" not in one(example, "StatefulSet")["spec"], "the autoscaler and the manifest would fight"


def test_autoscalers_ask_for_what_prometheus_has(example: list[Object], tmp_path: Path) -> None:
    (rule,) = yaml.safe_load((KUBERNETES / "components/autoscaling-hpa/prometheus-adapter.yaml").read_text())
    (metric,) = (
        each["pods"]["metric"]["name"]
        for each in one(example, "HorizontalPodAutoscaler")["spec"]["metrics"]
        if each["type"] == "Pods"
    )
    assert rule["name"]["as"] == metric
    keda = manifests.with_components(tmp_path, "autoscaling-keda")
    for scaler in (one(example, "HorizontalPodAutoscaler"), one(keda, "ScaledObject")):
        target = scaler["spec"]["scaleTargetRef"]
        assert one(keda, target["kind"], target["name"])["apiVersion"] == target["apiVersion"]
    query = one(keda, "ScaledObject")["spec"]["triggers"][0]["metadata"]["query"]
    assert f'namespace="{one(keda, "StatefulSet")["metadata"]["namespace"]}"' in query


def test_the_monitor_finds_each_pod_once(tmp_path: Path) -> None:
    objects = manifests.with_components(tmp_path, "monitoring")
    monitor = one(objects, "ServiceMonitor")["spec"]
    (service,) = (
        each
        for each in objects
        if each["kind"] == "Service" and manifests.selects(monitor["selector"]["matchLabels"], each)
    )
    (endpoint,) = monitor["endpoints"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}


def serves(objects: list[Object]) -> tuple[ServerConfig, Object]:
    """Returns the configuration of the servers, and their container."""
    (container,) = one(objects, "StatefulSet")["spec"]["template"]["spec"]["containers"]
    variables = manifests.environment(container, objects)
    return server_config(manifests.arguments(container, variables), variables), container


def names_of(template: Object) -> set[str]:
    return {each["name"] for each in template["spec"]["containers"]}


def mount_of(path: Path, mounts: dict[Path, Object]) -> Any:
    """Returns the mount that a path lies in."""
    return next(mounts[each] for each in (path, *path.parents) if each in mounts)


def host_path(pod: Object, container: Object, path: Path) -> str:
    """Returns the folder of the node that a container has under a path."""
    (mount,) = (each["name"] for each in container["volumeMounts"] if each["mountPath"] == str(path))
    (volume,) = (each for each in pod["volumes"] if each["name"] == mount)
    return str(volume["hostPath"]["path"])


def image_user() -> int:
    """Returns the user of the image."""
    found = re.search(r"useradd .*--uid (\d+) emberline", (KUBERNETES.parents[1] / "Dockerfile").read_text())
    assert found is not None
    return int(found[1])


def _selects_all(rule: Object, policy: Object) -> bool:
    """Returns whether a rule of a policy is about the pods that the policy is for."""
    return {"podSelector": policy["podSelector"]} in rule.get("to", ())
