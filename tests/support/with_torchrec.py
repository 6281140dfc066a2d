"""Runs programs of the tests where TorchRec is installed: in the environment that benchmarks compare with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.peers import PeerMissingError, environment

ROOT = Path(__file__).parents[2]


def run_with_torchrec(module: str, *arguments: object) -> str:
    """Runs a module of the tests as a program, and returns what it prints. Skips the test where TorchRec is missing."""
    try:
        environment.python()
    except PeerMissingError as missing:
        pytest.skip(f"TorchRec: {missing}")
    (site,) = (environment.FOLDER / "lib").glob("python*/site-packages")
    program = [sys.executable, "-W", "ignore", "-m", module, *map(str, arguments)]
    where = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run(program, cwd=ROOT, env=where, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
