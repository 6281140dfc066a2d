"""Tests the command line as a newcomer meets it: help, wrong words, wrong files. Each runs in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

import click
import pytest

from emberline.cli import frame
from emberline.guard import HiddenPackageError, check_packages

ROOT = Path(__file__).parents[3]
# So that it also runs in a checkout that is built but not installed.
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
LIVE = ["snapshots", "rollback", "resume", "pause", "pin", "canary", "shadow", "allow", "budget", "plan"]
LIVE += ["load", "unload"]
COMMANDS = ["data", "train", "update", "publish", "serve", "predict", "inspect", "doctor", "health", *LIVE]


def emberline(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "emberline", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=cwd, env=ENVIRONMENT, check=False)


def test_help_lists_every_command_and_the_steps_and_needs_no_torch() -> None:
    code = (
        "import sys, emberline.cli\n"
        "try: emberline.cli.main(['--help'])\n"
        "except SystemExit: pass\n"
        "print('torch loaded' if 'torch' in sys.modules else 'no torch')"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=ENVIRONMENT, check=True)
    assert done.stdout.rstrip().endswith("no torch")
    for name in COMMANDS:
        assert f"  {name} " in done.stdout
    assert "emberline train trainer/configs/movielens.yaml" in done.stdout


def test_rows_for_a_request_are_read_without_torch() -> None:
    """It takes a command longer to load than all else that `emberline predict` does."""
    code = "import sys; sys.modules['torch'] = None; from emberline.cli.data_options import data_options as options;"
    done = subprocess.run(
        [sys.executable, "-c", f"{code} print(options(None).delimiter)"],
        capture_output=True,
        text=True,
        timeout=60,
        env=ENVIRONMENT,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_every_help_keeps_the_lines_of_its_examples() -> None:
    whole = click.Context(frame.command)
    found = [(name, frame.command.get_command(whole, name)) for name in frame.COMMANDS]
    for name, command in found:
        assert command is not None
        if isinstance(command, click.Group):
            context = click.Context(command)
            found += [(f"{name} {each}", command.get_command(context, each)) for each in command.list_commands(context)]
            continue
        shown = command.get_help(click.Context(command, info_name=name, terminal_width=200))
        assert "\\b" not in shown, name
        assert "Example" not in shown or re.search(rf"^ +emberline {name}\b", shown, re.MULTILINE), name


@pytest.mark.slow
@pytest.mark.parametrize("name", [*COMMANDS, "data movielens", "data synthetic", "data wide"])
def test_every_help_shows_an_example(name: str) -> None:
    done = emberline(*name.split(), "--help")
    assert done.returncode == 0
    assert f"emberline {name}" in done.stdout.partition("Usage")[2].partition("\n")[2]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["sevre"], "Did you mean 'serve'?"),
        (["serve"], "--model-repository"),
        (["serve", "--modl-repository", "x"], "--model-repository"),
        (["inspect", "no/such/place"], "does not exist"),
        (["predict", "m"], "give either --data FILE or --instances ROWS"),
        (["data", "wide", "out", "--rows", "5"], "--rows"),
        (["rollback", "m", "--to", "1.0", "--steps", "2"], "--to and --steps"),
        (["canary", "m"], "--fraction, --promote and --stop"),
        (["canary", "m", "--promote", "--to", "1.0"], "--to goes with --fraction"),
        (["canary", "m", "--fraction", "0"], "--fraction"),
        (["shadow", "m", "1.1"], "TO and --share go together"),
        (["shadow", "m", "1.1", "--share", "0.1", "--for", "soon"], "such as 30m"),
        (["allow", "m", "--version", "2"], "--input"),
    ],
)
def test_wrong_usage_is_said_in_words_with_exit_code_2(arguments: list[str], expected: str, tmp_path: Path) -> None:
    done = emberline(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["serve", "--model-repository", "no/such/place"], "no/such/place"),
        (["serve", "--model-repository", ".", "--max-body", "many"], "--max-body: "),
        (["publish", ".", "--repository", "models"], "train"),
        (["inspect", "."], "holds no published version"),
        (["predict", "m", "--instances", "{", "--url", "http://127.0.0.1:9"], "127.0.0.1:9"),
        (["serve", "--model-repository", ".", "--host", "300.1.1.1"], "--http-port: cannot listen"),
        (["predict", "m", "--instances", "{}", "--url", "localhost:8000"], "--url: expected http://HOST:PORT"),
        (["predict", "m", "--instances", "{}", "--url", "ftp://x"], "--url: expected http://HOST:PORT"),
        (["train", "bad.yaml", "--data", ".", "--output", "run"], "bad.yaml: not YAML: expected the node content"),
        (["train", "config.yaml", "--data", ".", "--output", "run"], "inputs: missing"),
    ],
)
def test_what_cannot_be_done_is_one_line_with_exit_code_1(arguments: list[str], expected: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("model_name: m\n")
    (tmp_path / "bad.yaml").write_text("x: [\n")
    done = emberline(*arguments, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("emberline: ")
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_of_the_users_that_hides_ours_is_named(tmp_path: Path) -> None:
    def find(name: str) -> ModuleSpec | None:
        return PathFinder.find_spec(name, [str(tmp_path), str(ROOT)])

    check_packages(find)
    (tmp_path / "serving").mkdir()
    (tmp_path / "serving" / "__init__.py").write_text("")
    with pytest.raises(HiddenPackageError, match=r"/serving hides emberline's package 'serving'"):
        check_packages(find)


def test_a_package_of_ours_that_is_gone_is_named() -> None:
    with pytest.raises(HiddenPackageError, match="'serving' of emberline is not installed"):
        check_packages(lambda name: None)


def test_a_file_cut_short_by_the_reader_is_no_error(tmp_path: Path) -> None:
    command = f"{sys.executable} -m emberline --help | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=True)
    assert "Traceback" not in done.stderr
