"""Runs the README's commands twice; in between, everything from the first run but the default store is removed."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SHELL = "\n".join(re.findall(r"```sh\n(.*?)```", README, re.DOTALL)).replace("\\\n", "")
COMMANDS = [line for line in SHELL.splitlines() if line.startswith("emberline ")]
ASKS_SERVER = {"predict", "snapshots", "rollback", "resume"}


class Walk:
    """One run of the walkthrough, in a folder with its own home directory."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.seed = folder, seed
        self.server: ServerProcess | None = None
        self.printed: dict[str, list[str]] = {}

    def run(self) -> None:
        try:
            for line in COMMANDS:
                self._step(line)
        finally:
            if self.server is not None:
                self.server.close()

    def _step(self, line: str) -> None:
        name, *arguments = shlex.split(line.replace("movielens", "synthetic"))[1:]
        if name == "serve":
            assert arguments == ["--model-repository", "build/models", "&"]
            self.server = ServerProcess(Path("build/models"), None, self.folder / "server.log")
            return
        if name == "data":
            arguments += ["--rows", "20000", "--ids", "5000", "--seed", str(self.seed)]
        if name in ASKS_SERVER:
            assert self.server is not None
            arguments += ["--url", self.server.url]
        done = subprocess.run(
            [sys.executable, "-m", "emberline", name, *arguments],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        log = self.folder / "server.log"
        assert done.returncode == 0, f"{line}\n{done.stderr}\n{log.read_text() if log.exists() else ''}"
        self.printed.setdefault(name, []).append(done.stdout + done.stderr)


def walk(folder: Path, seed: int) -> tuple[Walk, str]:
    """Runs the walkthrough; returns it and the snapshot id of the version that it published."""
    done = Walk(folder, seed)
    done.run()
    manifest = json.loads((folder / "build" / "models" / "synthetic" / "1" / "manifest.json").read_text())
    return done, manifest["snapshot"]


def test_the_second_walk_is_answered_by_what_it_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trainer").symlink_to(ROOT / "trainer")
    first, first_id = walk(tmp_path, 1)
    assert (tmp_path / "home" / ".cache" / "emberline" / "stores").is_dir()
    shutil.rmtree(tmp_path / "build" / "run")
    shutil.rmtree(tmp_path / "build" / "models")
    shutil.rmtree(tmp_path / "build" / "synthetic")
    second, second_id = walk(tmp_path, 2)
    assert first_id != second_id
    for done, snapshot in ((first, first_id), (second, second_id)):
        before, after = done.printed["predict"]
        assert f"answered by snapshot 1.0 ({snapshot})" in before, before
        assert "answered by snapshot 1.1" in after
    assert first.printed["predict"][0].splitlines()[:5] != second.printed["predict"][0].splitlines()[:5]
    assert "is not in" in (tmp_path / "server.log").read_text()
