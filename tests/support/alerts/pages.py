"""Reads the pages of the runbook, and runs the commands in them against a server."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from click.testing import CliRunner

from emberline.cli.frame import command as emberline
from tests.support.deployment.programs import ROOT

# docs/cli.md describes it.
_NOT_WHOLE = 3

RUNBOOK = ROOT / "docs" / "runbook"


def page(alert: str) -> str:
    """Returns the text of an alert's page, without the wrapping of its lines."""
    return re.sub(r"(?<!\n)\n(?!\n|```)", " ", (RUNBOOK / f"{alert}.md").read_text())


def commands(path: Path) -> list[str]:
    """Returns the lines of the blocks of commands of a page."""
    blocks = re.findall(r"^```sh\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line]


def run(command: str, *, url: str, metrics_port: int, model: str) -> str:
    """Runs one line of a page as somebody at a terminal would, and returns what it prints, errors included.

    url: of the server; model: stands for `movielens`. Raises AssertionError when the command fails; exit code 3 is no
    failure, but an answer that is not whole. A line that only calls `emberline` runs in this process, for one that
    starts takes seconds on a busy machine. One thread at a time.
    """
    line = command.replace("localhost:8002", f"127.0.0.1:{metrics_port}").replace("movielens", model)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    variables = {"EMBERLINE_URL": url, "COLUMNS": "200", "NO_COLOR": "1", "PATH": path}
    program, *arguments = shlex.split(line)
    if program == "emberline" and "|" not in arguments:
        # Other servers run on a machine that runs tests.
        arguments += ["--http-port", url.rpartition(":")[2]] if arguments == ["health"] else []
        called = CliRunner().invoke(emberline, arguments, env=variables)
        assert called.exit_code in (0, _NOT_WHOLE), f"{command}: {called.output[-1500:]}{called.exception or ''}"
        return called.output
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-1500:]}{done.stderr[-1500:]}"
    return done.stdout + done.stderr


def console(metrics_port: int, model: str, events: Sequence[str]) -> str:
    """Returns the events of the console that are named, as a page that shows a model gets them first."""
    url = f"http://127.0.0.1:{metrics_port}/console/events?model={model}"
    awaited = {f"event: {each}\n".encode() for each in events}
    with urllib.request.urlopen(url, timeout=20) as stream:
        said = ""
        for line in stream:
            if line in awaited:
                said += next(stream).decode()
                awaited.remove(line)
            if not awaited:
                return said
    raise AssertionError(f"the console ended its events before it sent {awaited}")
