"""`python -m benchmarks` as it is typed, and the commands of docs/benchmarks.md."""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
DOCUMENT = ROOT / "docs" / "benchmarks.md"
KEYS = {"claim", "ours", "other", "ratio", "target", "holds", "spread", "repeats"}


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT, env=ENVIRONMENT, check=False)


def documented() -> list[list[str]]:
    """Returns the commands in the page's shell blocks."""
    blocks = re.findall(r"```sh\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.S)
    lines = [line.split("#")[0].strip() for block in blocks for line in block.splitlines()]
    return [shlex.split(line) for line in lines if line]


def test_list_has_one_line_for_each_and_a_wrong_name_is_answered() -> None:
    done = bench("--list")
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == [
        "lookup",
        "pooling",
        "session",
        "ssd",
        "tiered",
        "plan_accuracy",
        "fallback",
        "snapshot_reads",
        "update",
        "train",
        "ranks",
        "data",
        "any_model_delta",
        "mirror",
        "replica",
        "fleet",
        "scaling",
        "drift",
        "films",
        "freshness",
        "zoo",
        "features",
        "engine",
        "transports",
        "observing",
        "shadow",
        "sessions_by_load",
        "triton",
        "load_generators",
        "held_rate",
        "bulk_load",
        "import_tables",
        "gpu_sessions",
        "gpu_lookup",
        "gpu_training",
        "gpu_tiers",
    ]
    wrong = bench("bulkload")
    assert wrong.returncode == 2
    assert "did you mean 'bulk_load'?" in wrong.stderr
    refused = bench("lookup", "--rows", "7")
    assert refused.returncode == 1
    assert "--rows is 7" in refused.stderr


@pytest.mark.parametrize("name", ["bulk_load", "tiered"])
def test_a_quick_run_writes_rows(name: str, tmp_path: Path) -> None:
    done = bench(name, "--quick", "--rows", "20000", "--json", str(tmp_path / "rows.json"), "--work", str(tmp_path))
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert rows
    for row in rows:
        assert row.keys() >= KEYS
    assert "quick: rough figures" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["rows.json"]  # temporary stores are gone


def test_an_interrupted_run_prints_and_writes_what_it_has(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks", "update", "--rows", "20000", "--repeats", "1000"]
    command += ["--json", str(tmp_path / "rows.json"), "--work", str(tmp_path)]
    process = subprocess.Popen(
        command, cwd=ROOT, env=ENVIRONMENT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    machine = process.stdout.readline()  # printed just before it begins to measure
    process.send_signal(signal.SIGTERM)
    printed, errors = process.communicate(timeout=120)
    assert "cores" in machine
    assert process.returncode == 130
    assert errors.strip() == "emberline: interrupted; the rows above are complete"
    assert re.search(r"update, interrupted: \d rows are complete", printed)
    assert isinstance(json.loads((tmp_path / "rows.json").read_text()), list)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.* found in sys.modules:RuntimeWarning")
def test_the_commands_of_the_page_exist(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Runs the module of each command with its real options and --help, within this process: imports take long."""
    commands = [command[2:] for command in documented() if command[0] == "python"]
    assert len(commands) >= 5
    for module, *options in commands:
        monkeypatch.setattr(sys, "argv", [module, *options, "--help"])
        code: object = 0
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as ended:
            code = ended.code
        assert code in (0, None), module
        printed = capsys.readouterr().out
        for option in (word for word in options if word.startswith("--")):
            assert option in printed or option == "--list", f"{module} {option}"
