"""`emberline config`: what is in force and where it comes from, from files and from a running server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from emberline.cli.frame import command
from tests.integration.serving.live import Live
from tests.integration.serving.planted import NAME


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    with Live(tmp_path, retain_snapshots=3) as running:
        running.version()
        yield running


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(command, ["config", *map(str, arguments)])


def options(*arguments: object) -> dict[str, tuple[Any, str]]:
    done = invoke(*arguments, "--json")
    assert done.exit_code == 0, done.output + str(done.exception)
    return {each["name"]: (each["value"], each["from"]) for each in json.loads(done.output)["options"]}


def test_flags_the_environment_and_defaults_are_told_apart(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBERLINE_STORE", "/var/lib/rows")
    monkeypatch.setenv("EMBERLINE_HOST", "0.0.0.0")
    found = options("--model-repository", live.world.repository, "--max-body", "1MiB", "--host", "127.0.0.1")
    assert found["model_repository"] == (str(live.world.repository), "--model-repository")
    assert found["store"] == ("/var/lib/rows", "EMBERLINE_STORE")
    assert found["host"] == ("127.0.0.1", "--host")
    assert found["max_body_bytes"] == (1 << 20, "--max-body")
    assert found["poll_s"] == (2.0, "default")
    assert found["max_connections_per_address"] == (2048, "default")
    assert "origins" not in found


def test_a_wrong_value_is_named_as_serve_names_it(live: Live) -> None:
    done = invoke("--model-repository", live.world.repository, "--poll", "0")
    assert "--poll: " in str(done.exception)


def test_a_models_options_are_those_of_its_file_and_defaults(live: Live) -> None:
    found = options(NAME, "--model-repository", live.world.repository)
    assert found["retain_snapshots"] == (3, "config.pbtxt")
    assert found["share"] == (1.0, "default")
    assert found["pick"] == ("least_loaded", "default")
    done = invoke("rankr", "--model-repository", live.world.repository)
    assert f"has no model 'rankr'; it has {NAME}" in str(done.exception)


def test_a_server_says_its_ports_and_what_operators_set(live: Live) -> None:
    live.start(max_connections=99, origins={"max_connections": "--max-connections"})
    url = f"http://127.0.0.1:{live.server.http_port}"
    found = options("--url", url)
    assert found["http_port"] == (live.server.http_port, "program")
    assert found["max_connections"] == (99, "--max-connections")
    assert options(NAME, "--url", url)["sessions"][1] != "operator"
    live.repository.set_sessions(NAME, 3)
    live.repository.set_budget(NAME, 1 << 20)
    found = options(NAME, "--url", url)
    assert found["sessions"] == (3, "operator")
    assert found["dram_bytes"] == (1 << 20, "operator")
    live.repository.set_sessions(NAME, None)
    assert options(NAME, "--url", url)["sessions"][1] != "operator"


def test_the_options_of_a_server_are_for_those_who_may_control_it(live: Live, tmp_path: Path) -> None:
    access, tokens = tmp_path / "access.yaml", {}
    for role in ("read", "admin"):
        line = ["token", "new", "--name", role, "--role", role, "--access-file", str(access)]
        tokens[role] = tmp_path / role
        tokens[role].write_text(CliRunner().invoke(command, line).stdout)
    live.start(access_file=access, open_admin=False)
    url = f"http://127.0.0.1:{live.server.http_port}"
    refused = invoke("--url", url, "--token-file", tokens["read"])
    assert refused.exit_code == 1
    assert "the server answered 403" in str(refused.exception)
    assert options("--url", url, "--token-file", tokens["admin"])["access_file"] == (str(access), "program")
    assert options(NAME, "--url", url, "--token-file", tokens["read"])["retain_snapshots"] == (3, "config.pbtxt")
    text = invoke("--url", url, "--token-file", tokens["admin"]).output
    assert all(path.read_text().strip() not in text for path in tokens.values())
