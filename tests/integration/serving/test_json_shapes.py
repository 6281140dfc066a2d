"""Compares the keys of what `--json` prints with those that docs/cli.md lists, for a server and for files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from emberline.cli.frame import command
from tests.integration.serving.live import Live
from tests.integration.serving.planted import NAME

PAGE = (Path(__file__).parents[3] / "docs" / "cli.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("## JSON")[2].partition("\n## ")[0]


def documented() -> dict[str, list[str]]:
    """Returns the keys of each command, as the page lists them."""
    found = {}
    for commands, keys in re.findall(r"^\| (`.*) \| (`.*) \|$", TABLE, re.MULTILINE):
        if ":" in keys:
            continue
        kind = re.search(r" of an? (.*)| of (data)", commands)
        for name in re.findall(r"`([^`]+)`", commands):
            found[name if kind is None else f"{name} {kind[1] or kind[2]}"] = re.findall(r"`([^`]+)`", keys)
    return found


SHAPES = documented()


def test_the_page_lists_keys_in_their_order() -> None:
    assert len(SHAPES) > 20
    for name, keys in SHAPES.items():
        assert keys == sorted(set(keys)), name


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with Live(tmp_path_factory.mktemp("shapes"), retain_snapshots=4) as running:
        version = running.version()
        running.start()
        running.reaches(version)
        running.reaches(running.delta(version))
        yield running


def printed(*arguments: object) -> Any:
    done = CliRunner().invoke(command, [str(each) for each in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert done.stdout.count("\n") == 1
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "line",
    [
        "status",
        "top --once --interval 0.1",
        "config",
        f"snapshots {NAME}",
        f"shadow {NAME}",
        f"sessions {NAME}",
        f"budget {NAME}",
        f"plan {NAME}",
        f"rollback {NAME}",
        f"resume {NAME}",
        f"pause {NAME}",
        f"pin {NAME}",
    ],
)
def test_a_server(live: Live, line: str) -> None:
    name, *rest = line.split()
    found = printed(name, *rest, "--url", f"http://127.0.0.1:{live.server.http_port}", "--json")
    assert sorted(found) == SHAPES["top --once" if name == "top" else name]


def test_files(live: Live, tmp_path: Path) -> None:
    repository = live.world.repository
    version = repository / NAME / "1"
    for path, kind in (
        (repository, "repository"),
        (version, "version"),
        (next((version / "deltas").iterdir()), "delta"),
    ):
        found = printed("inspect", path, "--json", "-")
        assert found["kind"] == kind
        assert sorted(found) == SHAPES[f"inspect {kind}"]
    (tmp_path / "rows.csv").write_text("user,item\n1,2\n")
    assert sorted(printed("inspect", tmp_path / "rows.csv", "--json", "-")) == SHAPES["inspect data"]
    access = tmp_path / "access.yaml"
    made = CliRunner().invoke(command, ["token", "new", "--name", "a", "--role", "read", "--access-file", str(access)])
    tokens = printed("token", "list", "--access-file", access, "--json")
    assert tokens == {"tokens": [{"name": "a", "roles": ["read"], "models": ["*"]}]}
    assert made.stdout.strip() not in json.dumps(tokens)
    for option in ({"of": "server"}, {"of": "model"}):
        model = [NAME] if option["of"] == "model" else []
        found = printed("config", *model, "--model-repository", repository, "--json")
        assert found["of"] == option["of"]
        assert sorted(found) == SHAPES["config"]
        assert all(sorted(each) == ["from", "name", "value"] for each in found["options"])


def test_what_is_inspected_is_written_to_a_file(live: Live, tmp_path: Path) -> None:
    target = tmp_path / "version.json"
    arguments = ["inspect", str(live.world.repository), "--json", str(target)]
    done = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert done.output == ""
    assert json.loads(target.read_text())["kind"] == "repository"
    again = CliRunner().invoke(command, arguments)
    assert "is there already; --overwrite replaces it" in str(again.exception)
