"""The short form of the soak; `make soak` runs it for ten minutes."""

from __future__ import annotations

from pathlib import Path

from tests.integration.serving.conftest import Published
from tests.simulated_gpu import SimulatedGpus
from tests.soak import connections
from tests.soak.gpu import GpuSoak
from tests.soak.publishing import PublishingSoak
from tests.soak.store import Soak

SECONDS = 15.0


def test_every_row_is_its_snapshots_own_and_nothing_grows(tmp_path: Path) -> None:
    soak = Soak(tmp_path / "store")
    wanted = ("lookups", "deltas", "merges", "rollbacks", "reopened", "budget changes", "compactions")
    soak.run(SECONDS, wanted)
    for what in wanted:
        assert soak.counts[what] > 0, f"no {what}: {soak.counts}"


def test_answers_of_a_simulated_gpu_are_their_snapshots_own_and_its_memory_comes_back(tmp_path: Path) -> None:
    gpus = SimulatedGpus(schedule="random", seed=1)
    soak = GpuSoak(tmp_path, gpus)
    soak.run(SECONDS / 2)
    for what in ("answers", "deltas", "rollbacks", "resized", "weight uploads"):
        assert soak.counts[what] > 0, f"no {what}: {soak.counts}"
    gpus.driver(0).enter_thread()
    gpus.driver(0).finish()
    assert not gpus.driver(0).errors


def test_neither_a_publisher_nor_the_server_that_follows_it_grows(tmp_path: Path) -> None:
    soak = PublishingSoak(tmp_path)
    soak.run(24, 12)
    assert soak.counts == {"deltas": 24, "versions": 12}
    assert soak.server is not None
    assert max(soak.server.samples["rings"]) > 0
    assert soak.server.samples["rings"][-1] <= 2


def test_crowds_of_idle_and_slow_clients_stop_nobody(tmp_path: Path) -> None:
    Published(3).publish(tmp_path / "models" / "ranker")
    checks = (
        (connections.idle, 200),
        (connections.idle_grpc, 100),
        (connections.handed_over, 100),
        (connections.slow_writers, 30),
        (connections.slow_readers, 20),
        (connections.bytes_in_flight, 100),
    )
    limits = {"max_connections": 1000, "max_connections_per_address": 1000}
    with connections.running(tmp_path, max_inflight_bytes=connections.INFLIGHT, **limits) as site:
        for check, count in checks:
            assert f"{count} " in check(site, count)
    assert "200 connections" in connections.bounded(tmp_path)
