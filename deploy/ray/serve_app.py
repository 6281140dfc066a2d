"""Lets Ray start and supervise servers, one on a node. An example, for teams whose machines are a Ray cluster.

    cd deploy/ray && serve deploy serve.yaml      # serve.yaml has the bucket and the number of servers

Ray starts `emberline serve` as a child of an actor, asks whether it is healthy, and starts another one where it is not.
Requests go to the server's own ports on each node, never through Ray: a proxy written in Python would cost many times
what the server itself takes. Ray's own HTTP port answers with the address of one of the servers, for whom needs them.

Every node needs this file and the package, and credentials for the bucket in the environment of Ray's processes.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HEALTH_TIMEOUT_S = 5.0
# Before a server listens, it imports for a few seconds and asks the object store which models there are.
START_TIMEOUT_S = 120.0
# --drain-delay, --drain-timeout, and closing the stores.
STOP_TIMEOUT_S = 75.0


class ServerUnhealthyError(RuntimeError):
    """The server has ended, or does not answer."""


class Launcher:
    """One server on this machine, as a child of this process. Not thread-safe."""

    def __init__(self, options: Mapping[str, str], host: str, *, http_port: int = 8000) -> None:
        """Starts it, and returns when it listens. Raises ServerUnhealthyError.

        options: of `emberline serve`, without the dashes. The calling thread must live as long as the server: the
        kernel ends the server with it, so that none is left on the ports when Ray kills this process.
        """
        # The command that was installed beside this Python.
        beside = Path(sys.executable).with_name("emberline")
        program = str(beside) if beside.exists() else shutil.which("emberline") or "emberline"
        given = {**options, "host": host, "http-port": str(http_port)}
        self.url = f"http://{host}:{http_port}"
        self._process = subprocess.Popen(["setpriv", "--pdeathsig", "TERM", program, "serve", *flags(given)])
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                return self.check()
            except ServerUnhealthyError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    self.stop()
                    raise
            time.sleep(0.1)

    def check(self) -> None:
        """Raises ServerUnhealthyError where the server has ended or does not answer. What it serves does not matter."""
        code = self._process.poll()
        if code is not None:
            raise ServerUnhealthyError(f"emberline serve ended with {code}; its log says why")
        try:
            urllib.request.urlopen(f"{self.url}/v2/health/live", timeout=HEALTH_TIMEOUT_S).close()
        except OSError as error:
            raise ServerUnhealthyError(f"{self.url}/v2/health/live: {error}") from None

    def stop(self) -> int:
        """Lets the server drain, and returns its exit code; kills it when that takes too long."""
        if self._process.poll() is None:
            self._process.terminate()
        try:
            return self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


class Replica:
    """Holds a server. Ray makes an actor of it on each node."""

    def __init__(self, options: dict[str, str], http_port: int) -> None:
        """Starts the server on this node. Raises ServerUnhealthyError, upon which Ray tries again."""
        import ray.util

        self._launcher = Launcher(options, ray.util.get_node_ip_address(), http_port=http_port)

    async def __call__(self, _: Any) -> dict[str, str]:
        """Returns the address of this server."""
        return {"url": self._launcher.url}

    def check_health(self) -> None:
        """Raises where Ray has to start another server. It does so after three failures."""
        self._launcher.check()

    def __del__(self) -> None:
        """Drains the server. Ray calls it when the replica goes."""
        if hasattr(self, "_launcher"):
            self._launcher.stop()


def app(arguments: dict[str, Any]) -> Any:
    """Returns the application, as `serve deploy` asks for it.

    arguments: repository, replicas (1), cpus of a replica (2), http_port (8000), and options of `emberline serve` such
    as store or mirror_dir.
    """
    from ray import serve

    options, of_ray = split(arguments)
    deployment = serve.deployment(
        name="emberline",
        num_replicas=int(of_ray["replicas"]),
        # The ports are those of the node.
        max_replicas_per_node=1,
        ray_actor_options={"num_cpus": float(of_ray["cpus"])},
        health_check_period_s=2,
        health_check_timeout_s=2 * HEALTH_TIMEOUT_S,
        graceful_shutdown_timeout_s=STOP_TIMEOUT_S + 5,
    )(Replica)
    return deployment.bind(options, int(of_ray["http_port"]))


def split(arguments: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Returns the options of the server, and replicas, cpus and http_port."""
    options = {name: str(value) for name, value in arguments.items()}
    options["model_repository"] = options.pop("repository")
    of_ray = {"replicas": "1", "cpus": "2", "http_port": "8000"}
    return options, {name: options.pop(name, value) for name, value in of_ray.items()}


def flags(options: Mapping[str, str]) -> list[str]:
    """Returns options as arguments of a command; one that is "True" is a switch."""
    names = ((f"--{name.replace('_', '-')}", value) for name, value in options.items())
    return [name if value == "True" else f"{name}={value}" for name, value in names]
