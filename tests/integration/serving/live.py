"""Runs a server over a planted repository, with what tests need to query and control it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from serving import Server, ServerConfig
from serving.gpu.driver import Gpus
from serving.updates.steps import OnStep
from tests.integration.serving.planted import NAME, Planted, World, ask, check_answer

# Of a model's store, beside the folders.
FILES = ("LOCK", "state.json", "state.json.copy")


class Live:
    """A world, a server over it that can be stopped and started again, and every snapshot that was published."""

    def __init__(self, folder: Path, *, gpus: Gpus | None = None, **parameters: Any) -> None:
        self.folder = folder
        self.world = World(folder / "repository")
        if parameters:
            self.world.configure(**parameters)
        self.snapshots: dict[str, Planted] = {}
        self.gpus = gpus
        self._server: Server | None = None
        self.on_step: OnStep | None = None

    @property
    def server(self) -> Server:
        assert self._server is not None
        return self._server

    @property
    def repository(self) -> Any:
        return self.server.repository

    def start(self, **options: Any) -> Live:
        usual = {"http_port": 0, "grpc_port": 0, "metrics_port": 0, "open_admin": True, "poll_s": 0.5}
        config = ServerConfig(
            model_repository=self.world.repository, store=self.folder / "store", **{**usual, **options}
        )
        self._server = Server(config, on_step=self.on_step, gpus=self.gpus)
        self._server.start()
        return self

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = None

    def __enter__(self) -> Live:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def know(self, snapshot: Planted) -> Planted:
        self.snapshots[snapshot.id] = snapshot
        return snapshot

    def version(self, *arguments: Any, **options: Any) -> Planted:
        """Publishes a version."""
        return self.know(self.world.publish(*arguments, **options))

    def delta(self, parent: Planted, **options: Any) -> Planted:
        """Publishes a delta that changes some rows, or what `options` say."""
        publish = self.world.publish_delta if options.keys() & {"changed", "removed"} else self.world.change
        return self.know(publish(parent, **options))

    def chain(self, parent: Planted, length: int) -> list[Planted]:
        """Publishes deltas, each on the one before."""
        published = [parent]
        for _ in range(length):
            published.append(self.delta(published[-1]))
        return published[1:]

    def served(self, **options: Any) -> Planted:
        """Returns the snapshot that answers now; its answer is checked against exactly that snapshot's reference."""
        rows = self.world.rows_of(next(iter(self.snapshots.values())), 12)
        return check_answer(ask(self.repository, rows, **options), rows, self.snapshots)

    def reaches(self, snapshot: Planted, timeout_s: float = 20.0) -> None:
        """Waits until exactly this snapshot is served."""
        self.until(
            lambda: self.report()["served"] is not None and self.report()["served"]["id"] == snapshot.id, timeout_s
        )
        assert self.served() is snapshot

    def until(self, holds: Callable[[], object], timeout_s: float = 20.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not holds():
            assert time.monotonic() < deadline, self.report()
            time.sleep(0.01)

    def in_store(self) -> set[str]:
        """Returns the names in the model's store.

        While the state is written, there is one more file for a moment.
        """
        return {path.name for path in (self.folder / "store" / NAME).iterdir()}

    def report(self) -> Any:
        return self.repository.snapshots(NAME)

    def states(self) -> dict[str, str]:
        """Returns the state of every snapshot that is there, by name."""
        return {entry["name"]: entry["state"] for entry in self.report()["snapshots"]}

    def refused(self) -> list[str]:
        """Returns the reasons of what is quarantined."""
        return [entry["reason"] for entry in self.report()["quarantined"]]
