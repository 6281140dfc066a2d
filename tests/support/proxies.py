"""Runs Debian's nginx and HAProxy, unpacked under build/proxies; nothing is installed."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.peers import PeerMissingError
from tests.support.debian import unpack

FOLDER = Path(__file__).parents[2] / "build" / "proxies"
PACKAGES = ("nginx", "haproxy", "liblua5.3-0", "libopentracing-c-wrapper0", "libopentracing1")
LIBRARIES = "usr/lib/x86_64-linux-gnu"


def fetch() -> None:
    """Downloads and unpacks the programs, once. Raises PeerMissingError."""
    unpack(FOLDER, PACKAGES, FOLDER / "usr" / "sbin" / "haproxy")
    for name in ("nginx", "haproxy"):
        done = subprocess.run(
            [FOLDER / "usr" / "sbin" / name, "-v"], env=environment(), capture_output=True, check=False
        )
        if done.returncode:
            raise PeerMissingError(f"{name} does not start: {(done.stderr or done.stdout).decode()[:200]}")


def environment() -> dict[str, str]:
    """Returns the environment that both programs need."""
    return {**os.environ, "LD_LIBRARY_PATH": str(FOLDER / LIBRARIES)}


@contextlib.contextmanager
def running(command: list[Any], log: Path, ports: list[int]) -> Iterator[None]:
    """Runs a program for the length of the `with` block, which begins once the program listens."""
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment())
    try:
        for port in ports:
            wait_until(partial(listens, port), f"port {port}; {log.read_text()[-500:]}")
        yield
    finally:
        process.terminate()
        process.wait(20)


def listens(port: int) -> bool:
    """Returns whether a process listens on the port."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def wait_until(holds: Callable[[], bool], what: str) -> None:
    """Waits at most 20 seconds until the condition holds. Raises AssertionError."""
    end = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end, f"waited for {what}"
        time.sleep(0.05)
