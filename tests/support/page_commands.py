"""Runs the commands of a page of the documentation as a reader does, one after the other, beside a server."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.support.server_process import ServerProcess

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
#: Commands of emberline that ask a server.
ASKS_SERVER = ("predict", "snapshots", "rollback", "resume", "shadow")

Before = Callable[[str, ServerProcess | None], Sequence[str]]


def run_commands(
    lines: Sequence[str], folder: Path, before: Before = lambda name, server: ()
) -> list[tuple[str, str, str]]:
    """Runs lines `emberline COMMAND ...` and `python FILE ...` in a folder; `emberline serve` runs until all are done.

    before: is called with the name of a command before it runs, and returns more arguments for it. Returns the name of
    each command but `serve`, with what it printed and its errors. Fails for one that does not end well.
    """
    printed: list[tuple[str, str, str]] = []
    server: ServerProcess | None = None
    log = folder / "server.log"
    try:
        for line in lines:
            program, name, *arguments = shlex.split(line)
            if (program, name) == ("emberline", "serve"):
                assert arguments == ["--model-repository", "build/models", "&"]
                server = ServerProcess(folder / "build" / "models", folder / "store", log)
                continue
            arguments += before(name, server)
            if name in ASKS_SERVER:
                assert server is not None, line
                arguments += ["--url", server.url]
            start = [name] if program == "python" else ["-m", "emberline", name]
            done = subprocess.run(
                [sys.executable, *start, *arguments],
                capture_output=True,
                text=True,
                timeout=300,
                env=ENVIRONMENT,
                cwd=folder,
                check=False,
            )
            assert done.returncode == 0, f"{line}\n{done.stderr}\n{log.read_text() if log.exists() else ''}"
            printed.append((name, done.stdout, done.stderr))
    finally:
        if server is not None:
            server.close()
    return printed
