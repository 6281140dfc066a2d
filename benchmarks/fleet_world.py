"""Runs servers of one fleet in this process, and makes replica objects and heads of a fleet that is larger."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks.counted_store import Asked, CountedStore
from benchmarks.delta_world import DeltaWorld
from serving import Server, ServerConfig
from storage.objects import ObjectStore
from storage.objects.fleet import Replica
from storage.objects.head import DeltaObject, Head, Leaving, VersionObject
from storage.objects.published import PublishedModel
from storage.objects.served import Served

NAME = "ranker"
ROWS = 20_000
# Until what a snapshot costs afterwards has been asked, too.
REST_S = 3.0
_WAIT_S = 90.0


@dataclass(frozen=True)
class Taken:
    """Says what a snapshot cost a fleet, its publisher included."""

    asked: Asked
    #: Seconds from the end of its publishing until all serve it, and in which `asked` was asked.
    served_s: float
    span_s: float
    #: Bytes of its files.
    bytes: int


class RunningFleet:
    """Servers that serve one model as a fleet, and its publisher."""

    def __init__(self, store: CountedStore, folder: Path, count: int) -> None:
        self._store = store
        self._world = DeltaWorld(folder / "made", NAME, ROWS)
        self._model = PublishedModel(ObjectStore(store.url), NAME)
        self._model.put(self._world.version)
        self.servers: list[Server] = []
        try:
            for number in range(count):
                self.servers.append(_server(store.url, folder / f"replica{number}", f"r{number}"))
                self.servers[-1].start()
            self._wait_until_served()
        except BaseException:
            self.close()
            raise
        time.sleep(REST_S)

    def close(self) -> None:
        """Stops the servers."""
        for server in self.servers:
            server.stop()

    def idle(self, seconds: float) -> Asked:
        """Returns what is asked while nothing is published."""
        before = self._store.asked()
        time.sleep(seconds)
        return self._store.asked() - before

    def take(self, kind: Literal["delta", "cumulative", "version"], changed: int) -> Taken:
        """Publishes a snapshot in which so many rows have changed, and waits until all serve it."""
        if changed:
            self._world.change(changed)
        folder = self._world.publisher.publish(kind)
        before, began = self._store.asked(), time.monotonic()
        self._model.put(folder)
        published = time.monotonic()
        self._wait_until_served()
        served_s = time.monotonic() - published
        time.sleep(REST_S)
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        return Taken(self._store.asked() - before, served_s, time.monotonic() - began, size)

    def _wait_until_served(self) -> None:
        newest = self._world.publisher.lineage.newest
        assert newest is not None
        deadline = time.monotonic() + _WAIT_S
        while not all(_served(server) == newest.snapshot for server in self.servers):
            if time.monotonic() > deadline:
                raise AssertionError(f"{newest.name} is not served by all after {_WAIT_S:g} s")
            time.sleep(0.005)


@contextmanager
def running_fleet(store: CountedStore, folder: Path, count: int) -> Iterator[RunningFleet]:
    """Runs a fleet of so many servers while the context is open. folder: where their copies and stores lie."""
    fleet = RunningFleet(store, folder, count)
    try:
        yield fleet
    finally:
        fleet.close()


def _server(url: str, folder: Path, name: str) -> Server:
    return Server(
        ServerConfig.model_validate(
            {
                "model_repository": url,
                "mirror_dir": folder / "copy",
                "store": folder / "store",
                "fleet": True,
                "replica_id": name,
                "http_port": 0,
                "grpc_port": 0,
                "metrics_port": 0,
                "drain_delay_s": 0,
            }
        )
    )


def _served(server: Server) -> str:
    served = server.repository.snapshots(NAME)["served"]
    return str(served["id"]) if isinstance(served, dict) else ""


def replica_object(number: int) -> Replica:
    """Returns what a replica says of itself while it has staged a delta."""
    return Replica(
        id=f"ranker-{number}",
        url=f"http://10.0.{number // 256}.{number % 256}:8000",
        wake="a" * 32,
        served="b" * 32,
        staged="c" * 32,
        unix_ms=1_795_000_000_000,
    )


def head_with(versions: int, count: int, leaving: int) -> Head:
    """Returns a head with `count` deltas of its newest version."""
    entries = [
        DeltaObject(sequence=at, snapshot=f"{at:032x}", manifest=f"{at:064x}", from_sequence=at - 1, bytes=27_500_000)
        for at in range(1, count + 1)
    ]
    return Head(
        generation=12_345,
        versions=tuple(
            VersionObject(
                version=at,
                snapshot=f"{at + (1 << 64):032x}",
                manifest=f"{at:064x}",
                bytes=265_000_000_000,
                deltas=tuple(entries) if at == versions else (),
            )
            for at in range(1, versions + 1)
        ),
        last_version=versions,
        last_sequences={str(at): count for at in range(1, versions + 1)},
        leaving=tuple(Leaving(path=f"1/deltas/{at + 1:06d}", since_unix_ms=1_795_000_000_000) for at in range(leaving)),
        served=Served(snapshot="a" * 32, previous="b" * 32, epoch=99, commit_at_unix_ms=1_795_000_000_000, by="r-1"),
    )
