"""Runs servers over one object store, HAProxy before them, and a world that publishes for them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from click.testing import CliRunner

from benchmarks.mirror import object_store
from emberline.cli.serve import command as serve
from storage.errors import NotFound
from storage.objects import ObjectStore
from storage.objects.published import PublishedModel
from tests.faults.fleet.waiting import until
from tests.integration.serving.planted import NAME, Planted, World
from tests.support.balancer import NAMES, Balancer, balancer
from tests.support.faulty_proxy import FaultyProxy
from tests.support.server_process import ServerProcess, free_ports

# Snapshots that a server says it has.
RETAINED = 32
# What head.json keeps, so that it stays as small as a trainer's.
_KEPT = 24
_RETAIN_EVERY = 16


@cache
def has_fleet_mode() -> bool:
    """Returns whether this server can switch snapshots together with others."""
    return "--fleet" in CliRunner().invoke(serve, ["--help"]).output


class Fleet:
    """Three servers, or as many as asked for. Publishing and control are for one thread.

    items: rows of the larger table. alone: the servers know nothing of each other. environments: what each of them has
    in its environment. through_proxy: those that reach the store through `proxy`.
    """

    def __init__(
        self,
        folder: Path,
        url: str,
        stack: ExitStack,
        *,
        seed: int = 1,
        items: int = 256,
        count: int = 3,
        alone: bool = False,
        through_proxy: Sequence[str] = (),
        environments: Mapping[str, Mapping[str, str]] | None = None,
        arguments: Sequence[str] = (),
        changes: Sequence[tuple[str, str]] = (),
    ) -> None:
        self.folder, self.url, self.names = folder, url, NAMES[:count]
        self.rng = np.random.default_rng(seed)
        self.world = World(folder / "made", items=items, seed=seed)
        self.world.configure(retain_snapshots=str(RETAINED), min_snapshot_timeout_ms="2000")
        self.model = PublishedModel(ObjectStore(url), NAME)
        #: Every snapshot that was published, by id, and its place in the order of publishing.
        self.snapshots: dict[str, Planted] = {}
        self.places: dict[str, int] = {}
        self.proxy: FaultyProxy | None = None
        self._is_fleet = has_fleet_mode() and not alone
        self._arguments = list(arguments)
        self._environments = {name: dict((environments or {}).get(name, {})) for name in self.names}
        if through_proxy:
            self.proxy = FaultyProxy(_store_port())
            stack.callback(self.proxy.close)
            for name in through_proxy:
                self._environments[name]["AWS_ENDPOINT_URL"] = self.proxy.url
        self.newest = self.note(self.world.publish())
        self.model.put_version(self.newest.path)
        self._ports = {name: _ports() for name in self.names}
        self.servers: dict[str, ServerProcess] = {}
        stack.callback(self.stop)
        with ThreadPoolExecutor(count) as pool:
            list(pool.map(self.start, self.names))
        pairs = [(http, grpc) for http, grpc, _ in self._ports.values()]
        self.balancer: Balancer = stack.enter_context(balancer(folder, pairs, changes))
        self.balancer.wait_for("UP", self.names)

    # Servers

    def start(self, name: str) -> None:
        """Starts a server, and returns when it is ready."""
        fleet = ["--fleet", "--replica-id", name, "--replica-url", self.address(name)] if self._is_fleet else []
        self.servers[name] = ServerProcess(
            self.url,
            self.folder / f"store-{name}",
            self.folder / f"{name}.log",
            open_admin=True,
            arguments=["--mirror-dir", str(self.folder / f"mirror-{name}"), *fleet, *self._arguments],
            ports=self._ports[name],
            environment=self._environments[name],
        )

    def address(self, name: str) -> str:
        """Returns the address of a server over HTTP."""
        return f"http://127.0.0.1:{self._ports[name][0]}"

    def port(self, name: str) -> int:
        """Returns the port of a server for HTTP."""
        return self._ports[name][0]

    def kill(self, name: str) -> None:
        """Kills a server."""
        self.servers[name].kill()

    def is_alive(self, name: str) -> bool:
        """Returns whether the server's process runs."""
        return self.servers[name].process.poll() is None

    def forget(self, name: str) -> None:
        """Deletes what a server that has ended has on its disk."""
        for kind in ("store", "mirror"):
            shutil.rmtree(self.folder / f"{kind}-{name}", ignore_errors=True)

    def restart(self, name: str) -> None:
        """Stops a server as an operator does, and starts it again. The balancer may not have noticed yet."""
        self.servers[name].close()
        self._keep_log(name)
        self.start(name)

    def bring_back(self) -> None:
        """Starts the servers again that are gone, and waits until the balancer sends requests to all."""
        gone = [name for name in self.names if not self.is_alive(name)]
        for name in gone:
            self._keep_log(name)
        with ThreadPoolExecutor(len(self.names)) as pool:
            list(pool.map(self.start, gone))
        self.balancer.wait_for("UP", self.names)

    def stop(self) -> None:
        """Ends all servers at once."""
        for server in self.servers.values():
            server.kill()

    def holder(self, within_s: float = 0.0) -> str:
        """Returns the server that holds the fleet's lease, waiting for one; any server where there is none by then."""
        deadline = time.monotonic() + within_s
        while True:
            with contextlib.suppress(NotFound):
                found = self.model.objects.read(f"{NAME}/lease.json")
                assert found is not None
                lease = json.loads(found.data)
                if lease.get("holder") in self.names and lease.get("until_unix_ms", 0) > time.time() * 1000:
                    return str(lease["holder"])
            if time.monotonic() >= deadline:
                return self.any_name()
            time.sleep(0.01)

    def any_name(self) -> str:
        """Returns the name of some server."""
        return str(self.rng.choice(self.names))

    # Publishing

    def note(self, snapshot: Planted) -> Planted:
        """Remembers a snapshot before anybody can answer from it."""
        self.snapshots[snapshot.id] = snapshot
        self.places[snapshot.id] = len(self.places)
        return snapshot

    def change(self, **options: Any) -> Planted:
        """Makes a delta of the newest snapshot without publishing it."""
        return self.note(self.world.change(self.newest, **options))

    def publish(self, **options: Any) -> Planted:
        """Publishes a delta of the newest snapshot."""
        self.newest = made = self.change(**options)
        self.model.put(made.path)
        if made.sequence % _RETAIN_EVERY == 0:
            self.model.retain([*made.ancestors, made.id], made.version, versions=2, deltas=_KEPT)
        return made

    # What is served

    def report(self, name: str) -> dict[str, Any]:
        """Returns what a server says of its snapshots; {} while it does not answer."""
        try:
            with urllib.request.urlopen(
                f"{self.address(name)}/v2/repository/models/{NAME}/snapshots", timeout=10
            ) as answer:
                found: dict[str, Any] = json.load(answer)
        except (OSError, ValueError):
            return {}
        return found

    def served(self, name: str) -> str:
        """Returns the id of the snapshot that a server serves; "" where it serves none, or does not answer."""
        return str((self.report(name).get("served") or {}).get("id", ""))

    def command(self, name: str, verb: str, content: Mapping[str, Any] | None = None) -> None:
        """Sends a control call to one server, which must succeed."""
        request = urllib.request.Request(
            f"{self.address(name)}/v2/repository/models/{NAME}/{verb}",
            json.dumps(content or {}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            answer.read()

    def reach(self, snapshot: Planted, timeout_s: float, names: Sequence[str] | None = None) -> None:
        """Waits until these servers, by default all, serve a snapshot. Raises AssertionError."""
        left = set(names or self.names)

        def is_everywhere() -> bool:
            for name in list(left):
                if self.served(name) == snapshot.id:
                    left.discard(name)
            return not left

        def what() -> str:
            reports = "; ".join(f"{name}: {json.dumps(self.report(name))[:1000]}" for name in sorted(left))
            return f"{snapshot.name} is not served by {reports}"

        until(is_everywhere, what, timeout_s)

    def _keep_log(self, name: str) -> None:
        log = self.folder / f"{name}.log"
        with (self.folder / f"{name}.all.log").open("a") as kept:
            kept.write(log.read_text(errors="replace"))


@contextlib.contextmanager
def fleet(folder: Path, **options: Any) -> Iterator[Fleet]:
    """Runs a fleet over an object store of its own until the end of the `with` block."""
    with ExitStack() as stack:
        url = stack.enter_context(object_store())
        yield Fleet(folder, url, stack, **options)


def _ports() -> tuple[int, int, int]:
    http, grpc, metrics = free_ports(3)
    return http, grpc, metrics


def _store_port() -> int:
    port = urlsplit(os.environ["AWS_ENDPOINT_URL"]).port
    assert port is not None
    return port
