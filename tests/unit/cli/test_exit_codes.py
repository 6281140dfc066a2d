"""Exit codes, and how a command ends that is interrupted or whose reader goes away."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from emberline.cli.ending import is_reader_gone
from emberline.cli.frame import command

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "cli.md").read_text()
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
EMBERLINE = (sys.executable, "-m", "emberline")


def test_the_codes_stand_in_one_table() -> None:
    codes = re.findall(r"^\| (\d+)[^|]* \|", PAGE, re.MULTILINE)
    assert codes == ["0", "1", "2", "3", "120", "128", "130"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["publish", "x.py:make", "--delta-only"],
        ["publish", "x.py:make", "--repository", "m", "--delta", "--cumulative"],
        ["import", "numpy", "x.npz", "--check", "--partial"],
        ["import", "numpy", "x.npz", "--check", "--rows", "a=b"],
        ["import", "numpy", "x.npz", "--check", "--delta"],
        ["mirror", "a", "b"],
        ["status", "--jsn"],
        ["top", "--json"],
        ["top"],
        ["config"],
        ["config", "--url", "http://127.0.0.1:1", "--http-port", "1"],
        ["completion", "csh"],
        ["top", "--once", "--interval", "nan"],
        ["status", "--timeout", "inf"],
        ["status", "--timeout", "1e30"],
        ["health", "--timeout", "1e30"],
        ["token", "new", "--name", "x", "--role", "read", "--requests-per-second", "nan", "--access-file", "a.yaml"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_2(arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EMBERLINE_MODEL_REPOSITORY", raising=False)
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code == 2, done.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name", ["status", "snapshots m", "sessions m", "fleet m", "shadow m", "top --once", "budget m"]
)
def test_with_json_an_error_is_a_line_on_standard_error(name: str) -> None:
    done = subprocess.run(
        [*EMBERLINE, *name.split(), "--json", "--url", "http://127.0.0.1:1"],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("emberline: no answer from http://127.0.0.1:1/")
    assert done.stderr.count("\n") == 1


def test_interrupted_is_130_without_a_traceback() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        process = subprocess.Popen(
            [*EMBERLINE, "status", "--url", url],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        )
        server.settimeout(60)
        connection, _ = server.accept()  # it waits for an answer that does not come
        with connection:
            connection.recv(1 << 16)
            process.send_signal(signal.SIGINT)
            output, errors = process.communicate(timeout=60)
    assert (process.returncode, output) == (130, "")
    assert errors == "emberline: interrupted\n"


@pytest.mark.parametrize("arguments", [["--help"], ["config", "--model-repository", "."], ["doctor", "--json"]])
def test_a_reader_that_has_gone_is_silent(arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [*EMBERLINE, *arguments], stdout=writing, stderr=subprocess.PIPE, env=ENVIRONMENT, timeout=120, check=False
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_pipe_of_another_that_broke_is_an_error() -> None:
    assert not is_reader_gone()
    code = (
        "import os, emberline.cli.frame as frame\n"
        "def fail(): raise BrokenPipeError(32, 'a peer went away')\n"
        "frame.check_packages = fail\n"
        "frame.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert done.returncode == 1
    assert done.stderr == "emberline: a peer went away\n"
