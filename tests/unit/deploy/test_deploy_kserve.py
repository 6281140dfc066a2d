"""The files of deploy/kserve: valid, and true to the server."""

from __future__ import annotations

import copy
from typing import Any

import jsonschema_rs
import pytest

from tests.support.deployment import manifests
from tests.support.deployment.command_lines import server_config
from tests.support.deployment.custom_resources import check_custom
from tests.support.deployment.manifests import DEPLOY, KUBERNETES, one

RUNTIME = one(manifests.read(DEPLOY / "kserve" / "servingruntime.yaml"), "ServingRuntime")
SERVICE = one(manifests.read(DEPLOY / "kserve" / "inferenceservice.yaml"), "InferenceService", "ranking")


def test_both_are_valid() -> None:
    check_custom(RUNTIME)
    check_custom(SERVICE)


def test_a_misspelt_field_is_found() -> None:
    wrong = copy.deepcopy(SERVICE)
    wrong["spec"]["predictor"]["minReplica"] = 1
    with pytest.raises(jsonschema_rs.ValidationError, match="minReplica"):
        check_custom(wrong)


def test_the_service_asks_for_what_the_runtime_offers() -> None:
    model = SERVICE["spec"]["predictor"]["model"]
    assert model["runtime"] == RUNTIME["metadata"]["name"]
    formats = [(each["name"], each["version"]) for each in RUNTIME["spec"]["supportedModelFormats"]]
    assert (model["modelFormat"]["name"], model["modelFormat"]["version"]) in formats
    assert model["protocolVersion"] in RUNTIME["spec"]["protocolVersions"]
    # KServe would copy it before the start, and never again.
    assert "storageUri" not in model


def test_the_server_follows_the_bucket_and_listens_on_the_ports() -> None:
    # KServe lays the variables of the service over those of the runtime.
    (container,) = copy.deepcopy(RUNTIME["spec"]["containers"])
    container["env"] += SERVICE["spec"]["predictor"]["model"]["env"]
    variables = manifests.environment(container, [])
    config = server_config(manifests.arguments(container, variables), variables)
    assert config.repository_url == "s3://shop-models/ranking"
    assert config.host == "0.0.0.0"
    ports = [each["containerPort"] for each in container["ports"]]
    # The first one is port 80 of KServe's Service.
    assert ports == [config.http_port, config.grpc_port, config.metrics_port]
    assert RUNTIME["spec"]["annotations"]["prometheus.kserve.io/port"] == str(config.metrics_port)


def test_a_replica_is_that_of_the_base() -> None:
    base = one(manifests.rendered(KUBERNETES / "base"), "StatefulSet")["spec"]["template"]["spec"]
    (theirs,) = base["containers"]
    (ours,) = RUNTIME["spec"]["containers"]
    same: tuple[str, ...] = ("args", "resources", "volumeMounts")
    assert {name: ours[name] for name in same} == {name: theirs[name] for name in same}
    assert ours["securityContext"].items() >= theirs["securityContext"].items()
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert _by_number(ours[name]) == _by_number(theirs[name])
    grace = "terminationGracePeriodSeconds"
    assert SERVICE["spec"]["predictor"][grace] == base[grace]


def _by_number(probe: dict[str, Any]) -> dict[str, Any]:
    """Returns a probe with the number of its port."""
    request = probe["httpGet"]
    return {**probe, "httpGet": {**request, "port": {"http": 8000}.get(request["port"], request["port"])}}
