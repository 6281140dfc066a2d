"""Follows files of clicks, and measures how long each takes until the server answers from what it taught."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from examples.quickstart.newer import WAIT_S, snapshots
from storage.errors import DeadlineExceeded, EmberlineError
from tests.support.server_process import ServerProcess

FILES, ROWS = 5, 500
EVERY_SECONDS = 1.0


@dataclass(frozen=True)
class StreamFindings:
    """Seconds from the appearance of each file until a snapshot that was trained on it was served."""

    seconds: list[float]

    @property
    def median_s(self) -> float:
        """The median."""
        return sorted(self.seconds)[len(self.seconds) // 2]


def follow_clicks(server: ServerProcess, *, model: str, run: Path, repository: Path, data: Path) -> StreamFindings:
    """Follows a folder with `emberline update --follow` while files of clicks are moved into it, one by one."""
    folder = run.parent / "clicks"
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    command = [sys.executable, "-m", "emberline", "update", str(run), "--follow", str(folder)]
    command += ["--repository", str(repository), "--every-seconds", f"{EVERY_SECONDS:g}", "--quiet"]
    log = run.parent / "follow.log"
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        table, seconds = pq.read_table(data), []
        for number in range(FILES + 1):
            path = folder / f".{number}.parquet"
            pq.write_table(table.slice(number * ROWS, ROWS), path)
            before = _served(server, model)
            path.rename(folder / f"{number}.parquet")
            began = time.monotonic()
            while _served(server, model) == before:
                if process.poll() is not None:
                    raise EmberlineError(f"the training on the stream ended: {log.read_text()[-500:]}")
                if time.monotonic() - began > WAIT_S:
                    raise DeadlineExceeded(f"{model}: no snapshot with new clicks within {WAIT_S:g} s")
                time.sleep(0.01)
            if number:  # the first one has waited for the program to start
                seconds.append(time.monotonic() - began)
    finally:
        process.terminate()
        process.wait(60)
    return StreamFindings(seconds)


def _served(server: ServerProcess, model: str) -> str:
    return str(snapshots(server, model)["served"]["id"])
