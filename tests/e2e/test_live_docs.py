"""Runs the walkthrough of docs/live.md unchanged on a small planted set, and parses its other commands.

Every option and metric must be in the table of its page.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from emberline.cli.frame import command
from tests.support.page_commands import run_commands
from tests.support.server_process import ServerProcess

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "live.md").read_text(encoding="utf-8")
WALKTHROUGH, *OTHERS = [block.splitlines() for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)]
FEEDBACK = (ROOT / "docs" / "feedback.md").read_text(encoding="utf-8")
SERVING = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")


def test_the_walkthrough_works_as_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "trainer").symlink_to(ROOT / "trainer")

    def more(name: str, server: ServerProcess | None) -> list[str]:
        return ["--rows", "40000", "--ids", "20000"] if name == "data" else []

    printed: dict[str, list[str]] = {}
    for name, output, errors in run_commands(
        [line.replace("movielens", "synthetic") for line in WALKTHROUGH], tmp_path, more
    ):
        printed.setdefault(name, []).append(output + errors)
    before, after, beside = printed["predict"]
    assert "answered by snapshot 1.0" in before
    assert "answered by snapshot 1.1" in after
    assert before.splitlines()[:3] != after.splitlines()[:3]
    assert "held, serves 1.0" in printed["rollback"][0]
    assert "answered by snapshot 1.0" in beside
    began, compared, stopped = printed["shadow"]
    assert "shadow 1.1 of 1 of the requests" in began
    assert "50 rows compared, 0 dropped" in compared
    assert "not enough requests" in compared
    assert "top overlap" in compared
    assert "shadow" not in stopped
    assert "following, serves 1.1" in printed["resume"][0]


@pytest.mark.parametrize("line", [line for block in OTHERS for line in block])
def test_every_other_command_is_understood(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "build" / "run").mkdir(parents=True)
    (tmp_path / "build" / "models" / "movielens").mkdir(parents=True)
    (tmp_path / "build" / "movielens").mkdir()
    for name in ("newer.parquet", "in.parquet", "build/movielens/test.parquet"):
        (tmp_path / name).touch()
    program, name, *arguments = shlex.split(line, comments=True)
    assert program == "emberline"
    context = click.Context(command)
    found = command.get_command(context, name)
    assert found is not None, line
    found.make_context(name, arguments, parent=context)


def test_every_option_of_a_model_stands_in_the_table() -> None:
    from serving.model_config.options import ModelOptions

    elsewhere = {
        "dram_bytes",
        "hbm_bytes",
        "hbm_placement",
        "timeout_ms",
        "max_wait_ms",
        "lookup_timeout_ms",
        "precision",
        "precision_tolerance",
        "runners",
        "on_gpu_failure",
        "torch_threads",
        "ready_when",
        "ready_timeout_ms",
        "pick",
        "cpus",
        "max_sessions",
        "share",
    }
    # Their default has a unit, or is said in words.
    in_words = {
        name for name in ModelOptions.model_fields if name.startswith(("feature_log_", "feedback_", "live_auc_"))
    }
    for name in elsewhere:
        assert re.search(rf"^\| `{name}` \| [^|]+ \|", SERVING, re.MULTILINE), name
    for name, field in ModelOptions.model_fields.items():
        if name not in elsewhere:
            row = re.search(rf"^\| `{name}` \| ([^|]+) \|", PAGE + FEEDBACK, re.MULTILINE)
            assert row is not None, name
            if name in in_words:
                continue
            default = field.default
            shown = (
                "256MiB"
                if name == "overlay_bytes"
                else str(default).lower()
                if default in (True, False)
                else str(default)
            )
            assert row[1] == shown, name


def test_every_metric_of_updates_stands_in_the_table() -> None:
    from serving.http import metrics

    names = [entry[0] for entry in (*metrics._OF_UPDATES, *metrics._OF_SNAPSHOTS, *metrics._OF_ARMS)]
    for name in (*names, "updates_refused_total", "canary_fraction", "stage_seconds_total"):
        assert f"`{name}`" in PAGE or f"`emberline_{name}`" in FEEDBACK, name


def test_every_option_of_the_server_stands_in_the_table() -> None:
    rows = "\n".join(line for line in SERVING.splitlines() if line.startswith("| `--"))
    found = command.get_command(click.Context(command), "serve")
    assert found is not None
    flags = [flag for option in found.params for flag in option.opts if flag != "--help"]
    assert len(flags) > 15
    for flag in flags:
        assert re.search(rf"`{flag}\b", rows), flag


def test_every_metric_of_requests_sessions_and_gpus_stands_in_its_table() -> None:
    from serving.http import metrics, server_metrics

    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    of_gpus = (*metrics._OF_GPUS, *metrics._OF_HBM, *metrics._OF_HBM_TABLES)
    of_requests = (*metrics._OF_ARMS, *metrics._OF_SESSIONS)
    names = [entry[0] for entry in (*of_gpus, *of_requests, *server_metrics._OF_STARTS)]
    for name in (*names, "gpu_batches_total", "stage_seconds_total", "queue_length", "sessions", "ready_hit_rate"):
        assert f"`emberline_{name}`" in page, name


def test_every_publishing_option_stands_in_the_table() -> None:
    from trainer.config import PublishConfig

    rows = [line for line in PAGE.splitlines() if line.startswith("|")]
    for name, field in PublishConfig.model_fields.items():
        if name not in {"golden_requests", "max_batch_size", "tolerance", "row_types"}:  # docs/training.md
            row = next((row for row in rows if f"`{name}`" in row), None)
            assert row is not None, name
            place = re.findall(r"`(\w+)`", row).index(name)
            said = row.split("|")[2].split(",")[place].strip()
            assert (None if said == "none" else float(said)) == field.default, name
