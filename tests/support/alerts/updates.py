"""Causes alerts about readiness, snapshots and updates."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from serving import Server, ServerConfig
from storage.checkpoint.event_times import EventTimes
from tests.integration.serving.identity_models import write_identity
from tests.integration.serving.live import Live
from tests.integration.serving.planted import NAME
from tests.support.alerts.caused import INSTANCE, Caused, of_server
from tests.support.deployment.programs import ROOT

_PORTS = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}


@contextlib.contextmanager
def down(folder: Path) -> Iterator[Caused]:
    """A server that stops."""
    with Live(folder) as live:
        live.version()
        live.start()
        yield of_server(live.server, live.stop)


@contextlib.contextmanager
def not_ready(folder: Path) -> Iterator[Caused]:
    """A server with a model that cannot be loaded."""
    repository = folder / "models"
    write_identity(repository, "echo", {"A": ("FP32", [4])})
    config = ServerConfig(model_repository=repository, store=folder / "store", poll_s=0.25, **_PORTS)

    def begin() -> None:
        (repository / "broken" / "1").mkdir(parents=True)
        (repository / "broken" / "1" / "manifest.json").write_text("{}")

    with Server(config) as server:
        yield of_server(server, begin, model="broken")


@contextlib.contextmanager
def none_ready(folder: Path) -> Iterator[Caused]:
    """The only server has a model that cannot be loaded."""
    with not_ready(folder) as caused:
        caused.labels = {"job": "emberline"}
        yield caused


@contextlib.contextmanager
def snapshot_old(folder: Path) -> Iterator[Caused]:
    """A server of a model that was published long ago, and whose trainer has ended."""
    config = ServerConfig(model_repository=ROOT / "model_repo", store=folder / "store", **_PORTS)
    with Server(config) as server:
        yield of_server(server, lambda: None, {"instance": INSTANCE, "model": "tiny"}, model="tiny")


@contextlib.contextmanager
def events_old(folder: Path) -> Iterator[Caused]:
    """A delta that was trained on events of three hours ago."""
    with Live(folder) as live:
        first = live.version()
        live.start()

        def begin() -> None:
            events = EventTimes.of(np.array([(time.time() - 3 * 3600) * 1000], np.int64))
            live.reaches(live.delta(first, events=events))

        yield of_server(live.server, begin)


@contextlib.contextmanager
def replicas_differ(folder: Path) -> Iterator[Caused]:
    """Two servers of one folder, one of which is paused when a delta comes."""
    with Live(folder) as live:
        first = live.version()
        live.start()
        config = ServerConfig(
            model_repository=live.world.repository, store=folder / "other", open_admin=True, poll_s=0.25, **_PORTS
        )
        with Server(config) as other:

            def begin() -> None:
                other.repository.pause(NAME)
                live.reaches(live.delta(first))

            caused = of_server(other, begin, {"model": NAME})
            caused.targets = {INSTANCE: other.metrics_port, "server-2": live.server.metrics_port}
            yield caused


@contextlib.contextmanager
def bad_delta(folder: Path) -> Iterator[Caused]:
    """A delta whose golden scores the server does not get."""
    with Live(folder) as live:
        first = live.version()
        live.start()

        def begin() -> None:
            live.delta(first, wrong_by=0.5)
            live.until(live.refused)

        yield of_server(live.server, begin, {"instance": INSTANCE, "reason": "ParityError"})


@contextlib.contextmanager
def update_waiting(folder: Path) -> Iterator[Caused]:
    """A delta that comes while updates are paused."""
    with Live(folder) as live:
        first = live.version()
        live.start()

        def begin() -> None:
            live.repository.pause(NAME)
            live.delta(first)

        yield of_server(live.server, begin)
