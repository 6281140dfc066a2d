"""Describes what a test or a drill needs to know of a fault that it causes."""

from __future__ import annotations

import contextlib
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from serving import Server
from tests.integration.serving.planted import NAME

INSTANCE = "server-1"


@dataclass
class Caused:
    """Servers that are well until `begin` is called, and then in the condition of an alert."""

    #: The HTTP address that an operator asks.
    url: str
    #: Metrics ports by the label `instance`.
    targets: Mapping[str, int]
    begin: Callable[[], object]
    #: Labels that the alert must have.
    labels: Mapping[str, str] = field(default_factory=dict)
    model: str = NAME
    #: HTTP addresses of other replicas.
    others: Sequence[str] = ()
    #: Events that the console sends to a page of the model.
    events: Sequence[str] = ("server", "model")


Cause = Callable[[Path], AbstractContextManager[Caused]]


def of_server(
    server: Server, begin: Callable[[], object], labels: Mapping[str, str] | None = None, *, model: str = NAME
) -> Caused:
    """Returns what is known of a server of this process. labels: of the alert; None: its instance."""
    return Caused(
        f"http://127.0.0.1:{server.http_port}",
        {INSTANCE: server.metrics_port},
        begin,
        {"instance": INSTANCE} if labels is None else labels,
        model,
    )


def sample(port: int, name: str) -> float | None:
    """Returns a sample of a metrics page, by its name with labels; None where it has none."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith(f"{name} "):
                return float(line.rpartition(" ")[2])
    return None


def until(holds: Callable[[], object], timeout_s: float = 60.0, *, raises: bool = True) -> None:
    """Returns when something holds. Raises AssertionError, or returns, when it does not in time."""
    deadline = time.monotonic() + timeout_s
    while not holds() and (raises or time.monotonic() < deadline):
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s"
        time.sleep(0.02)


@contextlib.contextmanager
def repeated(work: Callable[[], object], callers: int = 1, *, pause_s: float = 0.0) -> Iterator[None]:
    """Does something again and again on threads during the block. What it raises ends that thread's turn only.

    pause_s: between two turns of a thread, where it need not keep a core busy.
    """
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            with contextlib.suppress(Exception):
                work()
            stop.wait(pause_s)

    threads = [threading.Thread(target=run, daemon=True) for _ in range(callers)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
