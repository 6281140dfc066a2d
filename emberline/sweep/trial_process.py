"""A trial: one `emberline train` in a process and a folder of its own."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

_PR_SET_PDEATHSIG = 1
_LOG_BYTES = 4096
_LAST_LINES = 5
# A training saves its state when it is interrupted; one that takes longer is killed, and resumes from an older commit.
_SAVING_S = 60.0


class TrialProcess:
    """Trains in FOLDER/run what FOLDER/config.yaml describes; what it prints goes to FOLDER/log.txt.

    A trial that was stopped goes on from its last commit. arguments: more of `emberline train`.
    """

    def __init__(self, folder: Path, content: Mapping[str, Any], arguments: Sequence[str]) -> None:
        self.run = folder / "run"
        self._log = folder / "log.txt"
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / "config.yaml"
        write_config(config, content)
        command = [sys.executable, "-m", "emberline", "train", str(config), "--output", str(self.run), "--quiet"]
        command += [*arguments, *(["--resume"] if _commits(self.run) else [])]
        self._began = time.monotonic()
        self._interrupted = False
        with self._log.open("ab") as log:
            # In a session of its own, so that Ctrl-C reaches the sweep alone, which then stops its trials.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )

    @property
    def seconds(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self._began

    def ended(self) -> bool:
        """Returns whether the process is no more."""
        return self._process.poll() is not None

    def failure(self) -> str:
        """Returns why it failed, with the last lines that it printed; nothing when it did not."""
        code = self._process.wait()
        if code == 0:
            return ""
        if code < 0:
            name = signal.Signals(-code).name
            hint = " (the kernel sends it when memory is used up)" if -code == signal.SIGKILL else ""
            return "\n".join([f"killed by {name}{hint}", *self._last_lines()])
        return "\n".join(self._last_lines()) or f"ended with status {code}"

    def interrupt(self) -> None:
        """Asks the training, once, to save its state and to end: a second SIGINT would end it without."""
        if not self._interrupted:
            self._interrupted = True
            self._process.send_signal(signal.SIGINT)

    def stop(self) -> None:
        """Interrupts the training, and returns when it has ended."""
        self.interrupt()
        try:
            self._process.wait(_SAVING_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _last_lines(self) -> list[str]:
        with self._log.open("rb") as log:
            log.seek(max(0, self._log.stat().st_size - _LOG_BYTES))
            text = log.read().decode(errors="replace")
        return [line.rstrip() for line in text.splitlines() if line.strip()][-_LAST_LINES:]


def begun_with(folder: Path) -> dict[str, Any] | None:
    """Returns the configuration of a trial that has saved a commit, which goes on with it; None for any other.

    It has the threads of the jobs that there were.
    """
    if not _commits(folder / "run"):
        return None
    found: dict[str, Any] = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    return found


def _commits(run: Path) -> bool:
    return any(run.glob("checkpoints/commit-*"))


def write_config(path: Path, content: Mapping[str, Any], comment: str = "") -> None:
    """Writes a configuration as YAML, whole or not at all. comment: lines above it."""
    head = "".join(f"# {line}\n" for line in comment.splitlines())
    text = yaml.safe_dump(dict(content), sort_keys=False, default_flow_style=None, width=110)
    new = path.with_name(f".{path.name}.new")
    new.write_text(head + text, encoding="utf-8")
    os.replace(new, path)


def _end_with_parent() -> None:
    # A sweep that is killed takes its trials along; they save their state, from which they are resumed.
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGINT))
