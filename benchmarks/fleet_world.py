"""Starts servers of one fleet in this process, and makes replica objects and heads of a fleet that is larger."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from serving import Server, ServerConfig
from storage.objects.fleet import Replica
from storage.objects.head import DeltaObject, Head, Leaving, VersionObject
from storage.objects.served import Served

NAME = "ranker"
_WAIT_S = 60.0


def start_server(url: str, folder: Path, name: str) -> Server:
    """Starts a replica of the repository at `url`, whose copy and store lie in `folder`."""
    config = ServerConfig.model_validate(
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
    server = Server(config)
    server.start()
    return server


def served_by(server: Server) -> str:
    """Returns the snapshot that a server answers from; "" for none."""
    served = server.repository.snapshots(NAME)["served"]
    return str(served["id"]) if isinstance(served, dict) else ""


def wait_until(holds: Callable[[], bool], what: str) -> None:
    """Waits until `holds` does. Raises AssertionError after a minute. what: named in the error."""
    deadline = time.monotonic() + _WAIT_S
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} is not served by all after {_WAIT_S:g} s")
        time.sleep(0.005)


def replica_object(number: int) -> Replica:
    """Returns what a replica says of itself while it has staged a delta."""
    return Replica(
        id=f"ranker-{number}",
        url=f"http://10.0.{number // 256}.{number % 256}:8000",
        wake="a" * 32,
        served="b" * 32,
        served_name="3.17",
        staged="c" * 32,
        staged_name="3.18",
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
