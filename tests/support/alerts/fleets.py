"""Causes alerts about replicas that agree on a snapshot, and about the object store."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from storage.objects import ObjectStore
from tests.integration.serving.fleets import Replicas
from tests.integration.serving.planted import NAME
from tests.support.alerts.caused import Caused, until
from tests.support.faulty_proxy import FaultyProxy, proxy_of_store
from tests.support.object_store import keys_of, s3_server
from tests.support.server_process import ServerProcess


@contextlib.contextmanager
def _replicas(folder: Path) -> Iterator[Replicas]:
    with s3_server() as bucket:
        url = f"{bucket}/{os.urandom(8).hex()}"
        replicas = Replicas(url, folder)
        try:
            yield replicas
        finally:
            replicas.stop()
            ObjectStore(url).delete(keys_of(url))


def _process(replicas: Replicas, name: str, environment: dict[str, str] | None = None) -> ServerProcess:
    place = replicas.folder / name
    place.mkdir()
    options = ["--fleet", "--replica-id", name, "--mirror-dir", str(place / "copy"), "--poll", "0.25"]
    return ServerProcess(
        replicas.url, place / "store", place / "log", arguments=options, open_admin=True, environment=environment
    )


@contextlib.contextmanager
def member_late(folder: Path) -> Iterator[Caused]:
    """A replica that answers requests, and does not get a delta from the object store; the others wait for it."""
    with _replicas(folder) as replicas, contextlib.ExitStack() as stack:
        first = replicas.put(replicas.world.publish())
        replicas.start("one", "two")
        replicas.reach(first)
        proxy = stack.enter_context(proxy_of_store())
        stack.enter_context(_process(replicas, "three", {"AWS_ENDPOINT_URL": proxy.url}))

        def begin() -> None:
            stack.enter_context(proxy.failing("hang", lambda method, path: method == "GET" and "/deltas/" in path))
            replicas.put(replicas.world.change(first))

        targets = {name: server.metrics_port for name, server in replicas.servers.items()}
        url, *others = (f"http://127.0.0.1:{server.http_port}" for server in replicas.servers.values())
        yield Caused(url, targets, begin, {"model": NAME, "replica": "three"}, others=others)


@contextlib.contextmanager
def fleet_waiting(folder: Path) -> Iterator[Caused]:
    """The same: all that Prometheus reaches have staged the delta."""
    with member_late(folder) as caused:
        caused.labels = {"model": NAME}
        yield caused


@contextlib.contextmanager
def _cut_off(folder: Path) -> Iterator[tuple[Replicas, ServerProcess, FaultyProxy, contextlib.ExitStack]]:
    """A replica in this process, and another that reaches the object store through a proxy."""
    with _replicas(folder) as replicas, contextlib.ExitStack() as stack:
        first = replicas.put(replicas.world.publish())
        replicas.start("one")
        replicas.reach(first)
        second = replicas.put(replicas.world.change(first))
        replicas.reach(second)
        proxy = stack.enter_context(proxy_of_store())
        process = stack.enter_context(_process(replicas, "two", {"AWS_ENDPOINT_URL": proxy.url}))
        faults = stack.enter_context(contextlib.ExitStack())
        yield replicas, process, proxy, faults


@contextlib.contextmanager
def member_behind(folder: Path) -> Iterator[Caused]:
    """A replica that the object store does not answer, while the others are rolled back."""
    with _cut_off(folder) as (replicas, process, proxy, faults):
        one = replicas.servers["one"]

        def begin() -> None:
            faults.enter_context(proxy.failing("503", lambda method, path: True))
            one.repository.rollback(NAME)

        targets = {"two": process.metrics_port, "one": one.metrics_port}
        others = [f"http://127.0.0.1:{one.http_port}"]
        labels, events = {"instance": "two", "model": NAME}, ("server", "model", "fleet")
        yield Caused(process.url, targets, begin, labels, others=others, events=events)


@contextlib.contextmanager
def mirror_failing(folder: Path) -> Iterator[Caused]:
    """An object store that refuses what a server asks."""
    with _cut_off(folder) as (_, process, proxy, faults):
        yield Caused(
            process.url,
            {"two": process.metrics_port},
            lambda: faults.enter_context(proxy.failing("403", lambda method, path: True)),
            {"instance": "two", "model": NAME},
        )


@contextlib.contextmanager
def mirror_silent(folder: Path) -> Iterator[Caused]:
    """An object store that does not answer at all."""
    with _cut_off(folder) as (_, process, proxy, faults):

        def begin() -> None:
            faults.enter_context(proxy.failing("hang", lambda method, path: True))
            until(lambda: proxy.met)

        yield Caused(process.url, {"two": process.metrics_port}, begin, {"instance": "two", "model": NAME})
