"""Completion in real shells: commands, options, files, and the models and snapshots of a running server."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.serving.live import Live
from tests.integration.serving.planted import NAME
from tests.support.terminal import Terminal

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with Live(tmp_path_factory.mktemp("completion")) as running:
        version = running.version()
        running.start()
        running.reaches(version)
        running.reaches(running.delta(version))
        yield running


@pytest.fixture
def environment(live: Live, tmp_path: Path) -> dict[str, str]:
    """An environment whose PATH has `emberline`, and a home without settings of a shell."""
    program = tmp_path / "bin" / "emberline"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m emberline "$@"\n')
    program.chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "HOME": str(tmp_path),
        "ZDOTDIR": str(tmp_path),
        "TERM": "xterm",
        "EMBERLINE_URL": f"http://127.0.0.1:{live.server.http_port}",
    }


SHELLS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], "source <(emberline completion bash)"),
    "zsh": (["zsh", "-f", "-i"], "autoload -U compinit && compinit -u; source <(emberline completion zsh)"),
    "fish": (["fish", "--no-config", "-i"], "emberline completion fish | source"),
}


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest, environment: dict[str, str], tmp_path: Path) -> Iterator[Terminal]:
    command, prepare = SHELLS[request.param]
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    with Terminal(command, environment, (40, 200)) as terminal:
        terminal.type(f"cd {tmp_path}; {prepare}; echo rea''dy\n")
        terminal.wait_for("ready")
        terminal.clear()
        yield terminal


def completes(shell: Terminal, typed: str, wanted: str) -> None:
    """Types a part of a line and a tab, waits for the rest of the word, and removes the line."""
    shell.clear()
    shell.type(f"{typed}\t")
    shell.wait_for(wanted)
    shell.type("\x15")


def test_commands_options_models_and_snapshots(shell: Terminal, live: Live) -> None:
    completes(shell, "emberline snaps", "emberline snapshots")
    completes(shell, "emberline serve --model-repo", "--model-repository")
    completes(shell, "emberline train --track tens", "tensorboard")
    completes(shell, f"emberline snapshots {NAME[:3]}", f"emberline snapshots {NAME}")
    completes(shell, f"emberline pin {NAME} 1", f"emberline pin {NAME} 1.")
    completes(
        shell, f"emberline serve --model-repository {live.world.repository} --model {NAME[:2]}", f"--model {NAME}"
    )


def test_a_server_is_named_by_its_address_and_one_that_is_away_says_nothing(shell: Terminal, live: Live) -> None:
    url = f"http://127.0.0.1:{live.server.http_port}"
    completes(shell, f"unset EMBERLINE_URL; emberline snapshots --url {url} {NAME[:3]}", f"{url} {NAME}")
    shell.clear()
    shell.type(f"emberline snapshots --url http://127.0.0.1:1 {NAME[:3]}\tx")
    text = shell.wait_for(f"127.0.0.1:1 {NAME[:3]}x")
    assert "no answer" not in text
    assert "Traceback" not in text


def test_files_are_completed_by_the_shell(shell: Terminal, tmp_path: Path) -> None:
    (tmp_path / "clicks-of-today.csv").write_text("")
    completes(shell, "emberline inspect clicks-of-t", "emberline inspect clicks-of-today.csv")
