"""docs/clients.md cut into its blocks, and a way to run them against a server on other ports."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from serving import Server

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "docs" / "examples" / "clients"
GUIDE = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8")
WORDS = np.array([[1, 2, 99], [4, 5, 6]])
DENSE = np.array([[0.5, 0.25], [0.5, 0.25]], np.float32)
_COMMANDS = ("bash ", "curl ", "python ")


def blocks(language: str) -> list[str]:
    """Returns the text of the guide's blocks in a language."""
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)


def commands() -> list[str]:
    """Returns the shell blocks; a block that is a list of plain commands is split into lines."""
    found: list[str] = []
    for block in blocks("sh"):
        lines = block.splitlines()
        if all(line.startswith(_COMMANDS) and not line.endswith(("\\", "|", "{")) for line in lines):
            found += lines
        else:
            found.append(block)
    return found


def run(command: str, folder: Path, server: Server, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    """Runs a block unchanged except for the ports, in a folder where `docs` is this repository's."""
    if not (folder / "docs").exists():
        (folder / "docs").symlink_to(ROOT / "docs")
    for port, own in ((8000, server.http_port), (8001, server.grpc_port), (8002, server.metrics_port)):
        command = command.replace(f"127.0.0.1:{port}", f"127.0.0.1:{own}")
    # `python` is the one that runs this; it needs nothing of ours.
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def need(*programs: str, files: tuple[Path, ...] = ()) -> None:
    """Skips the test with a reason when something is not installed."""
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed (docs/clients.md names the packages)")
    for file in files:
        if not file.exists():
            pytest.skip(f"{file} is not there: this is no Debian 12 with the packages that docs/clients.md names")


def numbers(text: str) -> np.ndarray:
    """Returns every number with a decimal point in a text."""
    return np.array([float(found) for found in re.findall(r"-?\d+\.\d+(?:e-?\d+)?", text)])


def tiny_scores() -> np.ndarray:
    """Computes the scores of `tiny` for WORDS and DENSE from its published files, with none of our code: (2,)."""
    folder = ROOT / "model_repo" / "tiny" / "1"
    table = load_file(folder / "tables" / "words.00000-of-00001.safetensors")
    weights = {name.rpartition("head.")[2]: value for name, value in load_file(folder / "dense.safetensors").items()}
    rows = dict(zip(table["ids"].tolist(), table["rows"], strict=True))
    bags = np.array([[rows[word] for word in bag] for bag in WORDS]).mean(axis=1)
    hidden = np.maximum(np.concatenate([bags, DENSE], axis=1) @ weights["0.weight"].T + weights["0.bias"], 0)
    logits = hidden @ weights["2.weight"].T + weights["2.bias"]
    return np.asarray(1 / (1 + np.exp(-logits[:, 0])))


def assert_tiny_scores(text: str, rows: int = 2) -> None:
    """Asserts that a text has the first scores."""
    found = numbers(text)
    for score in tiny_scores()[:rows]:
        assert np.abs(found - score).min(initial=1.0) <= 1e-6, text
