"""Runs docs/newcomer.md as it is written: from a CSV to a served model, whose scores are those of training."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np

from tests.support.server_process import ServerProcess
from tests.support.shown_commands import commands_of
from trainer import load_trained

ROOT = Path(__file__).parents[2]
COMMANDS = [each.text for each in commands_of("docs/newcomer.md")]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}


def test_a_csv_becomes_a_served_model_as_the_page_says(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    answers: list[list[str]] = []
    server: ServerProcess | None = None
    try:
        for line in COMMANDS:
            program, *arguments = shlex.split(line)
            if arguments[0] == "serve":
                server = ServerProcess(tmp_path / "models", tmp_path / "store", tmp_path / "server.log")
                continue
            if arguments[0] == "predict":
                assert server is not None
                arguments += ["--url", server.url]
            target = arguments.pop() if ">" in arguments else None
            arguments = [word for word in arguments if word != ">"]
            call = [sys.executable, *([] if program == "python" else ["-m", "emberline"]), *arguments]
            done = subprocess.run(
                call, capture_output=True, text=True, timeout=120, env=ENVIRONMENT, cwd=tmp_path, check=False
            )
            assert done.returncode == 0, f"{line}\n{done.stderr}"
            if target is not None:
                (tmp_path / target).write_text(done.stdout)
            if arguments[0] == "train":
                found = re.search(r"AUC (0\.\d+)", done.stdout)
                assert found is not None
                assert float(found[1]) > 0.65
            if arguments[0] == "predict":
                answers.append([row.split()[-1] for row in done.stdout.splitlines()])
    finally:
        if server is not None:
            server.close()
    several, one = answers
    assert len(several) == 5
    assert 0.0 < float(one[0]) < 1.0
    trained = load_trained(tmp_path / "runs" / "orders")
    scores = trained.predict(tmp_path / "orders.csv")[:5].ravel()
    np.testing.assert_allclose(np.array(several, np.float64), scores, atol=1e-6)
