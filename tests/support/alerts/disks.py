"""Causes alerts about disks that are full, slow, or cannot be written."""

from __future__ import annotations

import contextlib
import itertools
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from tests.faults.injector import slow_reads
from tests.integration.serving.live import Live
from tests.integration.serving.planted import NAME, World
from tests.support.alerts.caused import INSTANCE, Caused, of_server, repeated, until
from tests.support.server_process import ServerProcess
from tests.support.small_disk import SmallDisk

_READ_MS = 120


@contextlib.contextmanager
def disk_full(folder: Path) -> Iterator[Caused]:
    """A store on a file system that fills up before the next delta comes."""
    with contextlib.closing(SmallDisk(folder / "store", 96)) as disk, Live(folder, dram_bytes=4000) as live:
        first = live.version()
        live.start()

        def begin() -> None:
            disk.fill()
            live.delta(first)
            live.until(lambda: "No space left" in (live.report()["waiting"] or ""))

        yield of_server(live.server, begin)
        live.stop()


@contextlib.contextmanager
def repository_disk_full(folder: Path) -> Iterator[Caused]:
    """A repository on a file system that fills up."""
    with contextlib.closing(SmallDisk(folder / "repository", 48)) as disk, Live(folder) as live:
        live.version()
        live.start()
        yield of_server(live.server, disk.fill)
        live.stop()


@contextlib.contextmanager
def merge_failing(folder: Path) -> Iterator[Caused]:
    """A store on a file system that is full when a delta has been served and the one before is to be merged."""
    with contextlib.closing(SmallDisk(folder / "store", 96)) as disk, Live(folder) as live:
        live.world.configure(retain_snapshots=1, dram_bytes=4000)
        is_armed = False

        def fill(model: str, step: str) -> None:
            if is_armed and step == "switched":
                disk.fill()

        live.on_step = fill
        first = live.version()
        live.start()
        newest = live.delta(first)
        live.reaches(newest)

        def begin() -> None:
            nonlocal is_armed, newest
            is_armed = True
            for _ in range(3):
                if not live.repository.update_counters(NAME).merge_failing:
                    newest = live.delta(newest)
                    until(lambda: live.repository.update_counters(NAME).merge_failing, 3, raises=False)

        yield of_server(live.server, begin)
        live.stop()


@contextlib.contextmanager
def disk_slow(folder: Path, lookup_timeout_ms: float = 10_000) -> Iterator[Caused]:
    """A disk that takes a tenth of a second for each read, under a caller whose rows are not in DRAM."""
    world = World(folder / "models", items=4000)
    world.configure(dram_bytes=4000, lookup_timeout_ms=lookup_timeout_ms)
    version = world.publish()
    switch = folder / "slow"
    with contextlib.ExitStack() as stack:
        process = stack.enter_context(
            ServerProcess(
                world.repository,
                folder / "store",
                folder / "log",
                environment=slow_reads(folder, switch, _READ_MS),
            )
        )
        users = itertools.cycle(sorted(version.tables["user"]))
        items = itertools.cycle(sorted(version.tables["item"]))

        def ask() -> None:
            inputs = [
                {"name": "user", "datatype": "INT64", "shape": [1, 1], "data": [next(users)]},
                {"name": "items", "datatype": "INT64", "shape": [1, 4], "data": [next(items) for _ in range(4)]},
            ]
            url = f"{process.url}/v2/models/{NAME}/infer"
            body = json.dumps({"inputs": inputs}).encode()
            urllib.request.urlopen(urllib.request.Request(url, body), timeout=30).close()

        ask()
        stack.enter_context(repeated(ask))
        until(lambda: process.metrics()[f'emberline_ssd_reads_total{{model="{NAME}",version="1"}}'] > 0)
        yield Caused(process.url, {INSTANCE: process.metrics_port}, switch.touch, {"instance": INSTANCE, "model": NAME})
        switch.unlink(missing_ok=True)


@contextlib.contextmanager
def unresolved_ids(folder: Path) -> Iterator[Caused]:
    """The same disk, where lookups wait for it for 20 ms alone."""
    with disk_slow(folder, lookup_timeout_ms=20) as caused:
        yield caused
