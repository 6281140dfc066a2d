"""The unit for systemd: valid, confined, and true to the server."""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.deployment.command_lines import server_config
from tests.support.deployment.manifests import DEPLOY
from tests.support.deployment.programs import program

UNIT = DEPLOY / "systemd" / "emberline.service"
PROGRAM = "/opt/emberline/bin/emberline"
# Of systemd-analyze, in tenths: 10.0 is a service without any confinement, and that of most web servers is over 9.
EXPOSURE_AT_MOST = 20


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The unit, with a program that is there."""
    unit = tmp_path / "emberline.service"
    unit.write_text(UNIT.read_text().replace(PROGRAM, str(Path(sys.executable).with_name("emberline"))))
    return unit


def analyze(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [program("systemd-analyze"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_systemd_takes_the_unit(installed: Path) -> None:
    done = analyze("verify", "--man=no", installed)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    installed.write_text(installed.read_text().replace("TimeoutStopSec", "TimeoutStopSecs"))
    assert "TimeoutStopSecs" in analyze("verify", "--man=no", installed).stderr


def test_the_service_is_confined(installed: Path) -> None:
    done = analyze("security", "--offline=yes", "--no-pager", f"--threshold={EXPOSURE_AT_MOST}", installed)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_environment_file_is_one_that_the_server_takes() -> None:
    unit = service()
    variables = dict(
        line.split("=", 1)
        for line in (DEPLOY / "systemd" / "emberline.env").read_text().splitlines()
        if line and not line.startswith("#")
    )
    options = variables.pop("OPTIONS").split()
    command = unit["ExecStart"].replace("$OPTIONS", " ".join(options)).split()
    assert command.pop(0) == PROGRAM
    config = server_config(["emberline", *command], variables)
    state = Path("/var/lib") / unit["StateDirectory"]
    assert config.store_dir.is_relative_to(state)
    assert config.mirror_dir is not None
    assert config.mirror_dir.is_relative_to(state)
    assert config.drain_timeout_s + 30 <= int(unit["TimeoutStopSec"])
    assert config.max_connections < int(unit["LimitNOFILE"])
    # Where `emberline rollback` of the same user looks for the server's own token.
    assert unit["Environment"] == f"HOME={state}"


def test_the_supervisor_is_started_as_its_page_says() -> None:
    said = re.search(r"Under systemd, use `(Type=\w+)` and\s+`(Restart=[\w-]+)`", page())
    assert said is not None
    unit = service()
    assert {f"{name}={unit[name]}" for name in ("Type", "Restart")} == set(said.groups())


def page() -> str:
    return (DEPLOY.parent / "docs" / "serving.md").read_text()


def service() -> configparser.SectionProxy:
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(UNIT.read_text())
    return parser["Service"]
