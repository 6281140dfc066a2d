"""Runs `emberline update --follow` in processes of its own, as a supervisor would start it again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


class TrainerProcess:
    """The command over `place / "run"`, publishing into `place / "models"`. options: more of the command.

    before: is called in the new process before the command begins. log: where it writes; None: for `end`.
    """

    def __init__(
        self,
        place: Path,
        stream: Path | str,
        *options: str,
        before: Callable[[], None] | None = None,
        log: Path | None = None,
    ) -> None:
        command = [sys.executable, "-m", "emberline", "update", str(place / "run"), "--follow", str(stream), "--quiet"]
        command += ["--repository", str(place / "models"), *options]
        self._log = log
        output = subprocess.PIPE if log is None else log.open("ab")
        self.process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=before,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        if log is not None:
            output.close()  # type: ignore[union-attr]

    def rank(self, number: int) -> int | None:
        """Returns the process of a rank; None while there is none."""
        for pid in descendants(self.process.pid):
            with suppress(OSError):
                if f"RANK={number}" in Path(f"/proc/{pid}/environ").read_text().split("\0"):
                    return pid
        return None

    def kill(self) -> None:
        """Kills the command and all that it has started."""
        for pid in [self.process.pid, *descendants(self.process.pid)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.end()

    def end(self, how: signal.Signals | None = None, timeout_s: float = 120.0) -> str:
        """Waits for the end, of a process that gets the signal first, and returns what it said."""
        if how is not None:
            self.process.send_signal(how)
        said = self.process.communicate(timeout=timeout_s)[0]
        return said.decode() if self._log is None else self._log.read_text(encoding="utf-8", errors="replace")


def descendants(pid: int) -> list[int]:
    """Returns all processes that a process has started, and that these have."""
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += [int(child), *descendants(int(child))]
    return found
