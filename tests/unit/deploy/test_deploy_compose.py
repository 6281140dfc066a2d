"""The compose file: valid, true to the server, and together with HAProxy's and Prometheus' configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import compose_spec
import pytest
import yaml

from serving.server import DRAIN_DELAY_S
from tests.support.deployment.command_lines import parse, server_config
from tests.support.deployment.interpolation import interpolate
from tests.support.deployment.manifests import DEPLOY
from tests.support.deployment.programs import ROOT

COMPOSE = DEPLOY / "compose"
HAPROXY = DEPLOY / "haproxy" / "haproxy.cfg"
SERVERS = ("server-1", "server-2", "server-3")


def settings() -> dict[str, str]:
    """The lines of example.env."""
    lines = [line.partition("=") for line in (COMPOSE / "example.env").read_text().splitlines() if line[:1].isalpha()]
    return {name: value for name, _, value in lines}


def composed(variables: Mapping[str, str]) -> dict[str, Any]:
    """The file with its variables filled in."""
    return dict(yaml.safe_load(interpolate((COMPOSE / "compose.yaml").read_text(), variables)))


@pytest.fixture(params=["without settings", "example.env"])
def variables(request: pytest.FixtureRequest) -> dict[str, str]:
    return settings() if request.param == "example.env" else {}


def test_the_file_is_valid_compose(variables: dict[str, str]) -> None:
    text = interpolate((COMPOSE / "compose.yaml").read_text(), variables)
    options = compose_spec.PyOptions(apply_merge=True)
    options.from_yaml(text).validate()
    with pytest.raises(ValueError, match="imagee"):
        options.from_yaml(text.replace("image: haproxy", "imagee: haproxy"))


def test_every_setting_is_one_that_the_file_reads() -> None:
    text = (COMPOSE / "compose.yaml").read_text()
    passed_on = {name for name, value in composed({})["services"]["server-1"]["environment"].items() if value is None}
    assert {*re.findall(r"\$\{(\w+)", text), *passed_on} == settings().keys()


def test_the_servers_take_their_command_lines(variables: dict[str, str]) -> None:
    services = composed(variables)["services"]
    ports = set()
    for name in SERVERS:
        service = services[name]
        given = {key: variables.get(key) if value is None else value for key, value in service["environment"].items()}
        environment = {key: value for key, value in given.items() if value is not None}
        config = server_config(["emberline", "serve", *service["command"]], environment)
        assert config.repository_url == variables.get("EMBERLINE_MODEL_REPOSITORY", "file:///models")
        written = {config.store_dir.parts[1], config.model_repository.parts[1]}
        mounts = dict(reversed(each.split(":")[:2]) for each in service["volumes"])
        assert written == {"store"}, "hard links end at the border of a volume"
        assert mounts["/store"] == name.replace("server", "store")
        # HAProxy asks for readiness, so the server waits as long as it does by default.
        assert config.drain_delay_s is None
        assert _seconds(service["stop_grace_period"]) >= DRAIN_DELAY_S + config.drain_timeout_s + 30
        assert config.connections_per_address == config.max_connections, "all of them come from HAProxy"
        assert config.fleet
        assert config.replica_id == name
        address = service["networks"]["servers"]["ipv4_address"]
        assert config.replica_url == f"http://{address}:{config.http_port}"
        ports.add((config.http_port, config.grpc_port, config.metrics_port))
    assert ports == {(8000, 8001, 8002)}


def test_without_settings_the_example_is_published_where_the_servers_look() -> None:
    services = composed({})["services"]
    publish = services["publish"]
    options = parse([*publish["entrypoint"], *publish["command"]], {}).params
    assert options["target"] == services["server-1"]["environment"]["EMBERLINE_MODEL_REPOSITORY"]
    mounts = dict(reversed(each.split(":")[:2]) for each in publish["volumes"])
    assert (COMPOSE / mounts[str(options["source"])]).resolve() == ROOT / "model_repo"
    # A named volume takes the owner of the image's folder, and only of one that the image has.
    folder = str(options["target"]).removeprefix("file://")
    assert folder in re.findall(r"install --directory --owner emberline (.*)", (ROOT / "Dockerfile").read_text())[0]
    assert all(f"repository:{folder}" in services[name]["volumes"] for name in (*SERVERS, "publish"))


def test_files_that_are_mounted_are_there(variables: dict[str, str]) -> None:
    composition = composed(variables)
    named = set(composition["volumes"])
    for service in composition["services"].values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source == "../haproxy/haproxy.cfg" and not HAPROXY.exists():
                continue
            assert source in named or (COMPOSE / source).exists(), source


def test_prometheus_and_haproxy_know_the_servers() -> None:
    services = composed({})["services"]
    scraped = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    (targets,) = (each["static_configs"][0]["targets"] for each in scraped if each["job_name"] == "emberline")
    assert targets == [f"{name}:8002" for name in SERVERS]
    if HAPROXY.exists():
        addresses = {services[name]["networks"]["servers"]["ipv4_address"] for name in SERVERS}
        asked = re.findall(r"^\s+server \S+ ([\d.]+):(\d+)", HAPROXY.read_text(), re.MULTILINE)
        assert {address for address, _ in asked} == addresses
        assert {port for _, port in asked} == {"8000", "8001"}


def test_grafana_finds_its_files_and_prometheus() -> None:
    services = composed({})["services"]
    mounts = [each.split(":") for each in services["grafana"]["volumes"]]
    (dashboards,) = (Path(source) for source, target, *_ in mounts if target == "/var/lib/grafana/dashboards")
    (provider,) = yaml.safe_load((DEPLOY / "grafana/provisioning/dashboards/emberline.yaml").read_text())["providers"]
    assert provider["options"]["path"] == "/var/lib/grafana/dashboards"
    home = Path(services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert (COMPOSE / dashboards / home.relative_to(provider["options"]["path"])).exists()
    (source,) = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/prometheus.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert "prometheus" in services


def _seconds(duration: str) -> float:
    return float(compose_spec.parse_duration(duration))
