"""Tests deltas, rollbacks, re-bases, versions, loads and unloads under 16 clients: each answer is of one snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from serving import Server, ServerConfig
from tests.e2e.planted_world import World
from tests.e2e.storm_clients import Clients, Operator
from tests.simulated_gpu import SimulatedGpus
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.long

CLIENTS = 16
ROUNDS = 3
# Planted generations shift every score by design, which is what the live guard refuses.
OPTIONS = {"live_guard": "false", "retain_snapshots": "3"}


def set_options(model: Path, options: dict[str, str]) -> None:
    """Adds options to a model's config.pbtxt."""
    config = model / "config.pbtxt"
    lines = [f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n' for key, value in options.items()]
    config.write_text(config.read_text() + "".join(lines))


@contextmanager
def serving(place: str, repository: Path, folder: Path) -> Iterator[ServerProcess | Server]:
    """Runs a server process, or a server in this process whose sessions are on a simulated GPU."""
    if place != "a simulated GPU":
        with ServerProcess(repository, folder / "store", folder / "server.log") as server:
            yield server
            assert server.process.poll() is None
        return
    gpus = SimulatedGpus(schedule="random", seed=2)
    config = ServerConfig(
        model_repository=repository, store=folder / "store", http_port=0, grpc_port=0, metrics_port=0, open_admin=True
    )
    with Server(config, gpus=gpus) as running:
        yield running
        for loaded in running.repository.loaded():
            gpu = loaded.parts.devices.models[0]
            assert not gpu.given_up
            assert not gpu.counters.on_processor
    gpus.driver(0).enter_thread()
    gpus.driver(0).finish()
    assert not gpus.driver(0).errors


@pytest.mark.parametrize(
    ("place", "dram_bytes"),
    [("all rows in DRAM", ""), ("mostly on SSD", "12000"), ("a simulated GPU", "12000")],
    ids=["all rows in DRAM", "mostly on SSD", "a simulated GPU"],
)
def test_every_answer_comes_from_exactly_one_snapshot(tmp_path: Path, place: str, dram_bytes: str) -> None:
    repository = tmp_path / "models"
    world, second = World(repository, "main", seed=3), World(repository, "second", ids=60, seed=4)
    options = OPTIONS | ({"dram_bytes": dram_bytes} if dram_bytes else {})
    for each in (world, second):
        each.publish("version")
        set_options(repository / each.name, options)
    rng = np.random.default_rng(8)
    with (
        serving(place, repository, tmp_path) as server,
        Operator(server.http_port, "main") as main,
        Operator(server.http_port, "second") as other,
    ):
        main.wait_for(world.order[-1])
        with (
            Clients(server.http_port, world, CLIENTS) as clients,
            Clients(server.http_port, second, 2, may_be_away=True) as others,
        ):
            for turn in range(ROUNDS):
                for _ in range(4):
                    world.plant(int(rng.integers(20, 300)), removed=int(rng.integers(0, 40)))
                    snapshot, _ = world.publish("delta")
                    main.wait_for(snapshot)
                back = world.order[-1 - int(rng.integers(1, 3))]
                main.command("rollback", {"to": back})
                assert main.served() == back
                if turn % 3 == 0:
                    main.command("resume")
                    main.wait_for(world.order[-1])
                # What the trainer makes next continues what is served, also when that is an older snapshot.
                world.plant(100, removed=10)
                snapshot, _ = world.publish("delta", from_snapshot=main.served())
                main.wait_for(snapshot)
                other.command("unload")
                second.plant(30, removed=3)
                second.publish("delta")
                other.command("load")
                other.wait_for(second.order[-1])
                world.plant(200 if turn % 2 else len(world.ids), removed=0)
                snapshot, _ = world.publish("version" if turn % 2 else "cumulative")
                main.wait_for(snapshot)
        assert not clients.wrong, clients.wrong[:3]
        assert not others.wrong, others.wrong[:3]
        assert set(clients.statuses) == {200}
        assert len(clients.snapshots) > 3 * ROUNDS, "the clients saw too few of the snapshots to prove anything"
        assert others.statuses[200] > 0
