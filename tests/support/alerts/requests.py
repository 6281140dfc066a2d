"""Causes alerts about requests, connections, crashes and GPUs."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

from tests.integration.serving.live import Live
from tests.integration.serving.planted import NAME, World, ask
from tests.simulated_gpu import SimulatedGpus
from tests.support.alerts.caused import INSTANCE, Caused, of_server, repeated, until
from tests.support.server_process import ServerProcess

#: So long that the client is still there when the commands of the page run.
BODY_TIMEOUT_S = 300.0


@contextlib.contextmanager
def queue_time(folder: Path) -> Iterator[Caused]:
    """Sixteen callers of a slow network with one session."""
    with contextlib.ExitStack() as stack:
        live = stack.enter_context(Live(folder))
        live.world.configure("instance_group { count: 1 }")
        version = live.version(work=1200)
        live.start()
        rows = live.world.rows_of(version, 200)
        ask(live.repository, rows[:2])
        yield of_server(
            live.server, lambda: stack.enter_context(repeated(lambda: ask(live.repository, rows), callers=16))
        )


@contextlib.contextmanager
def errors(folder: Path) -> Iterator[Caused]:
    """Callers that ask for a snapshot which does not come."""
    with contextlib.ExitStack() as stack:
        live = stack.enter_context(Live(folder, min_snapshot_timeout_ms=20))
        version = live.version()
        live.start()
        rows = live.world.rows_of(version, 2)
        ask(live.repository, rows)
        yield of_server(
            live.server,
            lambda: stack.enter_context(repeated(lambda: ask(live.repository, rows, min_snapshot="1.99"))),
        )


@contextlib.contextmanager
def stuck_client(folder: Path) -> Iterator[Caused]:
    """A client that sends the head of a request and never its body."""
    with contextlib.ExitStack() as stack:
        live = stack.enter_context(Live(folder))
        live.version()
        live.start(body_timeout_s=BODY_TIMEOUT_S)
        head = f"POST /v2/models/{NAME}/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n".encode()

        def begin() -> None:
            end = stack.enter_context(socket.create_connection(("127.0.0.1", live.server.http_port)))
            end.sendall(head)

        yield of_server(live.server, begin, {"instance": INSTANCE, "client": "127.0.0.1", "transport": "http"})


@contextlib.contextmanager
def connections_full(folder: Path) -> Iterator[Caused]:
    """A client that keeps all connections that it opened."""
    with contextlib.ExitStack() as stack:
        live = stack.enter_context(Live(folder))
        live.version()
        live.start(max_connections=64, max_connections_per_address=64)

        def begin() -> None:
            for _ in range(60):
                stack.enter_context(socket.create_connection(("127.0.0.1", live.server.http_port)))

        yield of_server(live.server, begin, {"instance": INSTANCE, "transport": "http"})


@contextlib.contextmanager
def gpu_lost(folder: Path) -> Iterator[Caused]:
    """A simulated GPU that is lost while sessions use it; the processor answers from then on."""
    gpus = SimulatedGpus(schedule="lazy", seed=1)
    with Live(folder, gpus=gpus, on_gpu_failure="cpu") as live:
        live.world.configure("instance_group { kind: KIND_GPU count: 1 }", on_gpu_failure="cpu")
        version = live.version()
        live.start()
        rows = live.world.rows_of(version, 3)
        ask(live.repository, rows)

        def begin() -> None:
            gpus.driver(0).lose()
            for _ in range(3):
                with contextlib.suppress(Exception):
                    ask(live.repository, rows)

        yield of_server(live.server, begin, {"instance": INSTANCE, "gpu": "0"})


@contextlib.contextmanager
def crashing(folder: Path) -> Iterator[Caused]:
    """A process that is killed twice."""
    world = World(folder / "models")
    world.publish()
    with ServerProcess(world.repository, folder / "store", folder / "log") as process:

        def begin() -> None:
            for _ in range(2):
                pid = process.serving_pid
                os.kill(pid, signal.SIGKILL)

                def is_back(pid: int = pid) -> bool:
                    with contextlib.suppress(OSError, ValueError):
                        return process.serving_pid != pid and bool(process.metrics())
                    return False

                until(is_back)

        yield Caused(process.url, {INSTANCE: process.metrics_port}, begin, {"instance": INSTANCE})
