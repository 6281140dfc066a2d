"""Runs the commands of docs/logging.md and docs/tracing.md beside the server that each of them starts."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.support.server_process import ServerProcess

ROOT = Path(__file__).parents[2]
REQUEST = {
    "inputs": [
        {"name": "words", "shape": [1, 3], "datatype": "INT64", "data": [1, 2, 99]},
        {"name": "dense", "shape": [1, 2], "datatype": "FP32", "data": [0.5, 0.25]},
    ]
}


def lines_of(page: str) -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "docs" / page).read_text(encoding="utf-8"), re.DOTALL)
    return [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]


def run(line: str, server: ServerProcess, folder: Path) -> str:
    """Runs a command for the server's ports; returns what it printed."""
    port = str(server.http_port)
    line = line.replace("localhost:8000", f"127.0.0.1:{port}").replace("tokens/8000", f"tokens/{port}")
    if line.startswith("emberline "):
        line = f"{shlex.quote(sys.executable)} -m {line} --url {server.url}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-ec", line], capture_output=True, text=True, timeout=120, cwd=folder, env=environment, check=False
    )
    assert done.returncode == 0, f"{line}\n{done.stderr}\n{server.log.read_text()}"
    return done.stdout


@pytest.mark.parametrize("page", ["logging.md", "tracing.md"])
def test_the_commands_of_the_page_work(page: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "model_repo", tmp_path / "build" / "models")
    serve, *others = [line for line in lines_of(page) if not line.startswith("pip ")]
    program, command, option, models, *arguments = shlex.split(serve)
    assert (program, command, option, models) == ("emberline", "serve", "--model-repository", "build/models")
    arguments = [str(tmp_path / each) if each.startswith("build/") else each for each in arguments]
    log = tmp_path / "server.log"
    printed: list[Any] = []
    with ServerProcess(tmp_path / models, tmp_path / "store", log, arguments=arguments) as server:
        body = json.dumps(REQUEST).encode()
        with urllib.request.urlopen(f"{server.url}/v2/models/tiny/infer", body, timeout=30) as answer:
            assert answer.status == 200
        for line in others:
            said = run(line, server, tmp_path)
            printed.append(json.loads(said) if line.startswith("curl ") else said)
    if page == "logging.md":
        before, after = printed
        assert before["log_info"] is True
        assert after["log_level.emberline.storage"] == "debug"
        entries = [json.loads(line) for line in log.read_text().splitlines()]
        assert {"time", "level", "logger", "message"} <= entries[0].keys()
        access = [json.loads(line) for line in (tmp_path / "build" / "access.log").read_text().splitlines()]
        assert [(line["call"], line["status"]) for line in access] == [
            ("infer", 200),
            ("GET /v2/logging", 200),
            ("POST /v2/logging", 200),
        ]
    else:
        before, after, recorded = printed
        assert (before["trace_rate"], after["trace_rate"]) == ("100", "10")
        assert re.fullmatch(r"wrote build/trace\.json: \d+ requests\n", recorded)
        assert json.loads((tmp_path / "build" / "trace.json").read_text())["traceEvents"]
