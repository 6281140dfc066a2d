"""Replicas of one repository in an object store, in this process, with what tests need to query and control them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from serving import Server, ServerConfig
from storage.objects import ObjectStore
from storage.objects.fleet import FleetObjects
from storage.objects.published import PublishedModel
from tests.integration.serving.planted import NAME, Planted, World, ask, check_answer
from tests.support.faulty_proxy import FaultyProxy


class Replicas:
    """A world whose snapshots are uploaded, and servers that serve it as one fleet."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder = url, folder
        self.world = World(folder / "made")
        self.model = PublishedModel(ObjectStore(url), NAME)
        self.objects = FleetObjects(self.model)
        self.snapshots: dict[str, Planted] = {}
        self.servers: dict[str, Server] = {}

    def put(self, snapshot: Planted) -> Planted:
        self.snapshots[snapshot.id] = snapshot
        self.model.put(snapshot.path)
        return snapshot

    def start(self, *names: str, **options: Any) -> None:
        for name in names:
            usual: dict[str, Any] = {
                "replica_id": name,
                "http_port": 0,
                "grpc_port": 0,
                "metrics_port": 0,
                "open_admin": True,
                "drain_delay_s": 0,
                "poll_s": 0.25,
            }
            config = ServerConfig(
                model_repository=self.url,
                mirror_dir=self.folder / name / "copy",
                store=self.folder / name / "store",
                fleet=True,
                **{**usual, **options},
            )
            self.servers[name] = Server(config)
            self.servers[name].start()

    def start_behind(self, proxy: FaultyProxy, *names: str) -> None:
        """Starts replicas that reach the object store through a proxy."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AWS_ENDPOINT_URL", proxy.url)
            self.start(*names)

    def serve(self, *names: str, deltas: int = 0) -> list[Planted]:
        """Publishes a version, starts replicas of it, and publishes deltas, each of which all of them reach."""
        line = [self.put(self.world.publish())]
        self.start(*names)
        self.reach(line[0])
        for _ in range(deltas):
            line.append(self.put(self.world.change(line[-1])))
            self.reach(line[-1])
        return line

    def stop(self, *names: str) -> None:
        for name in names or list(self.servers):
            self.servers.pop(name).stop()

    def report(self, name: str) -> Any:
        return self.servers[name].repository.snapshots(NAME)

    def served(self, name: str) -> str:
        served = self.report(name)["served"]
        return "" if served is None else str(served["id"])

    def until(self, holds: Callable[[], object], timeout_s: float = 30.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not holds():
            assert time.monotonic() < deadline, (
                {name: self.report(name) for name in self.servers},
                self.model.head().served,
                self.objects.replicas(),
            )
            time.sleep(0.005)

    def reach(self, snapshot: Planted, *names: str) -> None:
        """Waits until these replicas, or all, serve a snapshot and are ready, and checks an answer of each."""
        for name in names or list(self.servers):
            self.until(lambda name=name: self.served(name) == snapshot.id)  # type: ignore[misc]
            self.until(self.servers[name].repository.is_ready)
            rows = self.world.rows_of(snapshot, 12)
            assert check_answer(ask(self.servers[name].repository, rows), rows, self.snapshots) is snapshot
