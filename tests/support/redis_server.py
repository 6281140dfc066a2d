"""Runs Debian's redis-server, unpacked under build/redis; nothing is installed."""

from __future__ import annotations

import os
import socket
import subprocess
from functools import partial
from pathlib import Path

import redis

from benchmarks.peers import PeerMissingError
from tests.support.debian import unpack
from tests.support.proxies import LIBRARIES, listens, wait_until

FOLDER = Path(__file__).parents[2] / "build" / "redis"
PACKAGES = ("redis-server", "redis-tools", "liblzf1")


def fetch() -> None:
    """Downloads and unpacks the program, once. Raises PeerMissingError."""
    program = FOLDER / "usr" / "bin" / "redis-server"
    unpack(FOLDER, PACKAGES, program)
    done = subprocess.run([program, "--version"], env=environment(), capture_output=True, check=False)
    if done.returncode:
        raise PeerMissingError(f"redis-server does not start: {done.stderr.decode()[:200]}")


class RedisServer:
    """A server on a free port, with a file of what is in it, so that it may be stopped and started again."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self.port: int = found.getsockname()[1]
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.client = redis.Redis(port=self.port)
        self.start()

    def start(self) -> None:
        """Starts the server with what is in its file, and waits until it answers."""
        command = [str(FOLDER / "usr/bin/redis-server"), "--port", str(self.port), "--bind", "127.0.0.1"]
        command += ["--dir", str(self._folder), "--appendonly", "yes", "--save", ""]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment())
        wait_until(partial(listens, self.port), "redis-server")
        self.client.ping()

    def stop(self) -> None:
        """Ends the server; what is in it stays in the file."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(20)


def environment() -> dict[str, str]:
    """Returns the environment that the programs need: their libraries, where they were unpacked."""
    return {**os.environ, "LD_LIBRARY_PATH": str(FOLDER / LIBRARIES)}
