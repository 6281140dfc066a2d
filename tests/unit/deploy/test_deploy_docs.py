"""The page about deployment: its checks are run, and it knows every folder and component."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.deployment.manifests import DEPLOY
from tests.support.deployment.programs import ROOT, program

PAGE = (ROOT / "docs" / "deployment.md").read_text()


def checks() -> list[str]:
    """Returns the commands of the section that says how to check what was changed."""
    section = PAGE.split("## Check what you changed")[1].split("\n## ")[0]
    (block,) = re.findall(r"^```sh\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    return [line.strip() for line in block.splitlines()]


def test_the_checks_of_the_page_succeed(tmp_path: Path) -> None:
    # The two others have tests of their own, and this one would run itself.
    elsewhere = ("systemd-analyze", "haproxy", "python")
    run = [line for line in checks() if not line.startswith(elsewhere)]
    assert [shlex.split(line)[0] for line in run] == ["kubectl", "kubernetes-validate", "promtool", "promtool"]
    folders = {str(Path(program(name)).parent) for name in ("kubectl", "promtool")} | {str(Path(sys.executable).parent)}
    (tmp_path / "deploy").symlink_to(DEPLOY)
    done = subprocess.run(
        ["bash", "-c", "set -ex\n" + "\n".join(run)],
        cwd=tmp_path,
        env={**os.environ, "PATH": os.pathsep.join([*folders, os.environ["PATH"]])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_folder_and_component_is_on_the_page() -> None:
    folders = [path for path in DEPLOY.iterdir() if path.is_dir()]
    components = list((DEPLOY / "kubernetes" / "components").iterdir())
    base = [path for path in (DEPLOY / "kubernetes" / "base").iterdir() if path.name != "kustomization.yaml"]
    named = [f"deploy/{path.name}" for path in folders] + [f"`components/{path.name}`" for path in components]
    named += [f"`base/{path.name}`" for path in base]
    missing = [each for each in named if each not in PAGE]
    assert not missing


@pytest.mark.parametrize("option", ["--drain-delay", "--drain-timeout"])
def test_times_on_the_page_are_those_of_the_base(option: str) -> None:
    found = re.search(rf"`{option}` \((\d+) s", re.sub(r"\s+", " ", PAGE))
    assert found is not None
    (stateful_set,) = yaml.safe_load_all((DEPLOY / "kubernetes" / "base" / "statefulset.yaml").read_text())
    (container,) = stateful_set["spec"]["template"]["spec"]["containers"]
    assert f"{option}={found[1]}" in container["args"]
