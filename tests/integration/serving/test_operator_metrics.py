"""Metrics that operators look at: ages, steps of updates, the disk, connections, and the curve of the cache."""

from __future__ import annotations

import json
import os
import socket
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving import Server
from serving.http.cache_curves import SHARES
from serving.updates.steps import TAKING
from storage.checkpoint.event_times import EventTimes
from tests.integration.serving.fleets import Replicas
from tests.integration.serving.live import Live
from tests.integration.serving.planted import NAME, ask
from tests.support.server_process import ServerProcess


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    with Live(tmp_path) as live:
        yield live


def metrics(server: Server) -> dict[str, float]:
    """Returns every sample of the metrics page by its name with labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}/metrics", timeout=20) as answer:
        lines = [line for line in answer.read().decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_ages_are_those_of_the_served_snapshot_and_of_its_events(live: Live) -> None:
    first = live.version()
    live.start()
    live.reaches(first)
    events = EventTimes.of(np.array([(time.time() - 500) * 1000], np.int64))
    delta = live.delta(first, events=events)
    published = time.time()
    live.reaches(delta)
    reached = time.time()
    found = metrics(live.server)
    age = found[f'emberline_snapshot_age_seconds{{arm="main",model="{NAME}",version="1"}}']
    applied = found[f'emberline_snapshot_applied_age_seconds{{model="{NAME}"}}']
    behind = found[f'emberline_events_behind_seconds{{model="{NAME}"}}']
    now = time.time()
    assert 0 <= applied <= age <= now - published + 5
    assert applied <= now - reached + 20
    assert 500 <= behind <= 500 + now - published + 5


def test_the_steps_of_updates_take_time_that_is_counted_once(live: Live) -> None:
    first = live.version()
    live.start()
    live.reaches(first)
    live.repository.pause(NAME)
    before, began = metrics(live.server), time.monotonic()
    live.repository.resume(NAME)
    live.reaches(live.delta(first))
    took = time.monotonic() - began
    after = metrics(live.server)
    names = [f'emberline_update_step_seconds_total{{model="{NAME}",step="{step}"}}' for step in TAKING]
    spent = [after[name] - before[name] for name in names]
    assert min(spent) >= 0
    assert 0 < sum(spent) <= took
    assert after[f'emberline_overlay_rows{{model="{NAME}"}}'] > 0


def test_both_disks_are_shown(live: Live) -> None:
    live.version()
    live.start()
    found = metrics(live.server)
    room = os.statvfs(live.world.repository)
    assert found["emberline_repository_disk_bytes"] == room.f_blocks * room.f_frsize
    assert 0 < found["emberline_repository_disk_free_bytes"] <= found["emberline_repository_disk_bytes"]


def test_reads_of_the_disk_and_the_curve_of_the_cache(tmp_path: Path) -> None:
    with Live(tmp_path, dram_bytes=4000) as live:
        version = live.version()
        live.start()
        rows = live.world.rows_of(version, 200)
        last = f'emberline_cache_curve_bytes{{model="{NAME}",share="1",tables="user,item",version="1"}}'
        live.until(lambda: bool(ask(live.repository, rows)) and last in metrics(live.server))
        found = metrics(live.server)
        of = f'model="{NAME}",version="1"'
        reads = found[f"emberline_ssd_reads_total{{{of}}}"]
        assert 0 < reads <= found[f"emberline_ssd_read_rows_total{{{of}}}"]
        assert found[f"emberline_ssd_read_seconds_total{{{of}}}"] > 0
        points = [
            (
                found[
                    f'emberline_cache_curve_bytes{{model="{NAME}",share="{share:g}",tables="user,item",version="1"}}'
                ],
                found[
                    f'emberline_cache_curve_miss_ratio{{model="{NAME}",share="{share:g}",tables="user,item",version="1"}}'
                ],
            )
            for share in SHARES
        ]
        assert [size for size, _ in points] == sorted({size for size, _ in points})
        assert [misses for _, misses in points] == sorted((misses for _, misses in points), reverse=True)
        assert points[-1][1] == pytest.approx(0, abs=1e-9)
        assert 0 < found[f'emberline_cache_bytes{{model="{NAME}",tables="user,item",version="1"}}'] <= 4000


def test_a_store_without_a_budget_has_no_curve(live: Live) -> None:
    live.version()
    live.start()
    assert not [name for name in metrics(live.server) if name.startswith("emberline_cache_")]


BODY = json.dumps({"inputs": [{"name": "user", "datatype": "INT64", "shape": [1, 1], "data": [1]}]}).encode()
HEAD = f"POST /v2/models/{NAME}/infer HTTP/1.1\r\nHost: a\r\nContent-Length: {len(BODY)}\r\n"


@pytest.mark.parametrize("path", ["native", "python"])
def test_a_client_that_does_not_finish_its_request_is_named(live: Live, path: str) -> None:
    live.version()
    live.start(body_timeout_s=4.0)
    # Version 1 of the protocol is for Python.
    head = HEAD if path == "native" else HEAD.replace(f"/v2/models/{NAME}/infer", f"/v1/models/{NAME}:predict")
    with (
        socket.create_connection(("127.0.0.1", live.server.http_port)) as stuck,
        socket.create_connection(("127.0.0.1", live.server.http_port)),
    ):
        stuck.sendall(f"{head}\r\n".encode() + BODY[:5])
        name = 'emberline_stuck_clients{client="127.0.0.1",transport="http"}'
        live.until(lambda: metrics(live.server).get(name) == 1)
        found = metrics(live.server)
        assert found['emberline_connections{transport="http"}'] == 2
        assert found['emberline_connections_limit{transport="http"}'] == live.server.config.max_connections
        assert found['emberline_connections_stuck{transport="http"}'] == 1
        stuck.sendall(BODY[5:])
        assert stuck.recv(100).startswith(b"HTTP/1.1 ")
        live.until(lambda: metrics(live.server)['emberline_connections_stuck{transport="http"}'] == 0)
    live.until(lambda: metrics(live.server)['emberline_connections{transport="http"}'] == 0)


def test_a_client_that_does_not_read_is_named(live: Live) -> None:
    version = live.version()
    live.start(body_timeout_s=4.0)
    rows = 1000
    users = {"name": "user", "datatype": "INT64", "shape": [rows, 1], "data": [1] * rows}
    body = json.dumps({"inputs": [users]}).encode()
    whole = f"POST /v2/models/{NAME}/infer HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    with socket.socket() as mute:
        mute.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        mute.connect(("127.0.0.1", live.server.http_port))
        mute.settimeout(0.2)
        for _ in range(200):
            try:
                mute.sendall(whole)
            except TimeoutError:
                break
        live.until(lambda: metrics(live.server)['emberline_connections_stuck{transport="http"}'] == 1)
    live.until(lambda: metrics(live.server)['emberline_connections_stuck{transport="http"}'] == 0)
    assert version


@pytest.mark.slow
def test_a_fleet_says_for_whom_it_waits(store_url: str, tmp_path: Path) -> None:
    replicas = Replicas(store_url, tmp_path)
    first = replicas.put(replicas.world.publish())
    three = tmp_path / "three"
    three.mkdir()
    options = ["--fleet", "--replica-id", "three", "--mirror-dir", str(three / "copy")]
    with ServerProcess(store_url, three / "store", tmp_path / "log", arguments=options) as process:
        try:
            replicas.start("one", "two")
            replicas.reach(first)
            os.kill(process.serving_pid, 19)  # SIGSTOP
            delta = replicas.put(replicas.world.change(first))

            def waits() -> list[dict[str, float]]:
                pages = [metrics(server) for server in replicas.servers.values()]
                of = f'model="{NAME}",replica="three"'
                return [page for page in pages if page.get(f"emberline_fleet_waits_for{{{of}}}") == 1]

            replicas.until(waits)
            (holder,) = waits()
            assert holder[f'emberline_fleet_members_behind{{model="{NAME}"}}'] == 1
            os.kill(process.serving_pid, 18)  # SIGCONT
            replicas.reach(delta)
            pages: list[dict[str, Any]] = [metrics(server) for server in replicas.servers.values()]
            for page in pages:
                assert page[f'emberline_fleet_members_behind{{model="{NAME}"}}'] == 0
                assert page[f'emberline_fleet_epochs_behind{{model="{NAME}"}}'] == 0
        finally:
            os.kill(process.serving_pid, 18)
            replicas.stop()
