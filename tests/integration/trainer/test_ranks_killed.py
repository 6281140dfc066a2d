"""Ranks that are killed or interrupted, as torchrun and `--nproc` start them: they train to the same bytes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.integration.trainer.test_ranks import CONFIG
from trainer import load_trained
from trainer.checkpoint import TrainingState, checkpoints, read_commit

# Python imports it at the start of each rank. KILLS has entries ATTEMPT:RANK:EVENT:TIMES:TEXT: at the start of that
# number the rank is killed where an audit event of that name comes for the time TIMES with TEXT in an argument.
_KILLS = """
import os, signal, sys

def watch(event, times, text):
    left = [times]
    def seen(name, arguments):
        if name == event and any(text in str(each) for each in arguments):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(seen)

for entry in os.environ.get("KILLS", "").split():
    attempt, rank, event, times, text = entry.split(":")
    if (os.environ.get("TORCHELASTIC_RESTART_COUNT"), os.environ.get("RANK")) == (attempt, rank):
        watch(event, int(times), text)
"""
# Each commit opens it once for writing, and rank 1 once to force its names to the disk, behind its own file.
_OWN_FILE_WRITTEN = "0:1:open:4:tables/items"
_BEFORE_RENAME = "1:0:os.rename:2:commit-"

Torchrun = Callable[..., Path]


@pytest.fixture(scope="module")
def torchrun(clicks: Path, tmp_path_factory: pytest.TempPathFactory) -> Torchrun:
    """Trains with two ranks of torchrun in an output folder of that name, and returns the folder.

    kills: those of `_KILLS`. kill_at: rank 1 is killed from outside when there are so many commits.
    """
    place = tmp_path_factory.mktemp("torchrun")
    (place / "sitecustomize.py").write_text(_KILLS)
    config = CONFIG.replace("DROPOUT", "0.2").replace("checkpoint_every_steps: 50", "checkpoint_every_steps: 20")
    (place / "clicks.yaml").write_text(config)

    def train(name: str, *, kills: str = "", kill_at: int = 0) -> Path:
        output = place / name
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        command += ["--max-restarts", "3", "-m", "emberline", "train", str(place / "clicks.yaml"), "--data"]
        command += [str(clicks), "--output", str(output), "--quiet"]
        environment = {**os.environ, "KILLS": kills, "PYTHONPATH": str(place), "OMP_NUM_THREADS": "1"}
        with (place / f"{name}.log").open("wb") as log:
            running = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
            if kill_at:
                while len(checkpoints(output)) < kill_at:
                    assert running.poll() is None
                    time.sleep(0.005)
                os.kill(_rank_of(running.pid, 1), signal.SIGKILL)
            code = running.wait(300.0)
        text = (place / f"{name}.log").read_text()
        assert code == 0, text
        assert text.count("exitcode: -9") == len(kills.split()) + bool(kill_at), text
        return output

    return train


@pytest.fixture(scope="module")
def undisturbed(torchrun: Torchrun) -> Path:
    """Trains without a kill."""
    return torchrun("undisturbed")


def _rank_of(parent: int, rank: int) -> int:
    """Returns the process that is this rank, of those that a process has started."""
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == parent and f"RANK={rank}" in (entry / "environ").read_text().split("\0"):
                return int(entry.name)
        except (OSError, IndexError):
            continue
    raise AssertionError(f"{parent} has no rank {rank}")


@pytest.mark.long
@pytest.mark.slow
def test_nproc_ends_at_sigterm_with_a_commit_and_goes_on(clicks: Path, undisturbed: Path) -> None:
    place = undisturbed.parent
    command = [sys.executable, "-m", "emberline", "train", str(place / "clicks.yaml"), "--data", str(clicks)]
    command += ["--output", str(place / "stopped"), "--quiet", "--nproc", "2"]
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while not checkpoints(place / "stopped"):
        assert running.poll() is None
        time.sleep(0.005)
    running.send_signal(signal.SIGTERM)
    _, said = running.communicate(timeout=120.0)
    assert running.returncode == 130, said
    assert said.strip().startswith("emberline: stopped after step"), said
    assert "rank 1" not in said
    subprocess.run([*command, "--resume", "--max-restarts", "0"], check=True)
    a, b = load_trained(undisturbed), load_trained(place / "stopped")
    for name, table in a.tables.items():
        for one, other in zip(table.export_rows()[:4], b.tables[name].export_rows()[:4], strict=True):
            np.testing.assert_array_equal(one, other)
    weights = b.model.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in a.model.state_dict().items())


def _last(output: Path) -> tuple[int, TrainingState, dict[str, str]]:
    commit = read_commit(checkpoints(output)[-1])
    state = replace(commit.state, position=replace(commit.state.position, seconds=0.0))
    return commit.number, state, commit.files


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(None, id="a step"),
        pytest.param(f"{_OWN_FILE_WRITTEN} {_BEFORE_RENAME}", id="twice, in commits"),
    ],
)
def test_killed_ranks_train_to_the_same_bytes(torchrun: Torchrun, undisturbed: Path, kills: str | None) -> None:
    output = torchrun("killed", kill_at=3) if kills is None else torchrun("killed", kills=kills)
    assert _last(output) == _last(undisturbed)
    names = {entry.name for entry in (output / "checkpoints").iterdir()}
    assert names == {entry.name for entry in (undisturbed / "checkpoints").iterdir()}
    shutil.rmtree(output)


_TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "3"]


def _emberline(place: Path, launcher: str, *arguments: object, kills: str = "") -> subprocess.CompletedProcess[str]:
    """Runs a command of two ranks, started by torchrun or by the command."""
    by_torchrun = launcher == "torchrun"
    command = [sys.executable, *(_TORCHRUN if by_torchrun else ()), "-m", "emberline", *map(str, arguments), "--quiet"]
    environment = {**os.environ, "KILLS": kills, "PYTHONPATH": str(place), "OMP_NUM_THREADS": "1"}
    command += () if by_torchrun else ("--nproc", "2")
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300.0)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["--nproc", "torchrun"])
def test_an_update_of_the_same_rows_whose_ranks_are_killed_at_its_start_is_not_taken_for_done(
    clicks: Path, undisturbed: Path, tmp_path: Path, launcher: str
) -> None:
    run = Path(shutil.copytree(undisturbed, tmp_path / "run"))
    update = ["update", run, "--data", clicks, "--repository", tmp_path / "models"]
    place = undisturbed.parent
    assert _emberline(place, launcher, *update).returncode == 0
    first = read_commit(checkpoints(run)[-1]).state
    # Before it has joined the others, and while it reads the commit that the update begins from.
    kills = "0:1:open:1:update_run 1:1:open:1:dense.safetensors"
    again = _emberline(place, launcher, *update, kills=kills)
    assert again.returncode == 0, again.stderr
    assert again.stderr.count("ended by SIGKILL" if launcher == "--nproc" else "exitcode: -9") == 2, again.stderr
    second = read_commit(checkpoints(run)[-1]).state
    assert first.update is not None
    assert second.update is not None
    assert (first.update.number, second.update.number, second.update.done) == (1, 2, True)
    assert second.position.rows - second.update.start_rows == first.position.rows - first.update.start_rows > 0


@pytest.mark.long
@pytest.mark.slow
def test_a_training_that_is_refused_is_not_resumed_when_torchrun_starts_it_again(
    clicks: Path, undisturbed: Path, tmp_path: Path
) -> None:
    """torchrun starts ranks again after errors, too; each start says it once."""
    run = Path(shutil.copytree(undisturbed, tmp_path / "run"))
    place, before = undisturbed.parent, _last(run)
    other = place / "other.yaml"
    other.write_text((place / "clicks.yaml").read_text().replace("epochs: ", "epochs: 1"))
    ended = _emberline(place, "torchrun", "train", other, "--data", clicks, "--output", run)
    assert ended.returncode == 1
    assert ended.stderr.count("holds checkpoints of a run already") == 4, ended.stderr
    assert _last(run) == before
