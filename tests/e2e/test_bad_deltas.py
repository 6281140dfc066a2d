"""Bad deltas of every kind, many in a row: the server serves what it served, says why, and takes the next good one."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.planted_world import TOLERANCE, World
from tests.e2e.storm_clients import Operator, answered, difference, until
from tests.e2e.tampering import KINDS, no_manifest, write_copy
from tests.e2e.test_storm import set_options
from tests.support.server_process import ServerProcess

IN_A_ROW = 16
# A server waits until its files have rested, as it does for all that may be half of a copy.
COPIED = "a file cut short"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("bad") / "made", "main", ids=150, seed=5)


def refused(server: ServerProcess) -> int:
    """Returns how many updates the server has refused."""
    samples = server.metrics().items()
    return int(sum(value for name, value in samples if name.startswith("emberline_updates_refused_total")))


def has_refused(server: ServerProcess, wanted: int) -> bool:
    return refused(server) >= wanted


def describe(server: ServerProcess, operator: Operator, kind: str) -> str:
    return f"{kind}: {refused(server)}, {operator.state()}"


def test_every_kind_of_bad_delta_is_refused_and_nothing_else_happens(live: World, tmp_path: Path) -> None:
    world, models = live, tmp_path / "models"
    _, version = world.publish("version")
    first = world.order[-1]
    shutil.copytree(version.parent, models / "main")
    set_options(models / "main", {"live_guard": "false"})
    world.plant(60, removed=5)
    good_snapshot, good = world.publish("delta")
    deltas = models / "main" / "1" / "deltas"
    deltas.mkdir(exist_ok=True)
    rows = [world.row() for _ in range(50)]
    sequence = 1
    with (
        ServerProcess(models, tmp_path / "store", tmp_path / "server.log") as server,
        Operator(server.http_port, "main") as operator,
    ):
        operator.wait_for(first)
        for number, (kind, (change, signed)) in enumerate(KINDS.items()):
            paths = set()
            for _ in range(IN_A_ROW):
                write_copy(good, deltas, sequence, change, signed=signed, rested=kind != COPIED)
                paths.add(f"{sequence:06d}")
                sequence += 1
            wanted = (number + 1) * IN_A_ROW
            until(
                partial(has_refused, server, wanted),
                partial(describe, server, operator, kind),
            )
            state = operator.state()
            named = [entry for entry in state["quarantined"] if Path(entry["path"]).name in paths]
            assert named, kind
            assert all(entry["reason"] for entry in named)
            assert state["served"]["id"] == first, kind
            status, content = operator.infer("main", rows)
            assert status == 200, kind
            assert answered(content)[0] == first
            for entry in list(deltas.iterdir()):
                # Removed in one step, as retention does it: half a folder would be one more bad delta.
                hidden = entry.rename(entry.with_name(f".{entry.name}"))
                shutil.rmtree(hidden)
        # A folder without a manifest was never published completely: there is nothing to refuse and nothing to serve.
        before = refused(server)
        write_copy(good, deltas, sequence, no_manifest, signed=False)
        snapshot = write_copy(good, deltas, sequence + 1, lambda folder, manifest: None)
        world.answers[snapshot] = world.answers[good_snapshot]
        operator.wait_for(snapshot)
        status, content = operator.infer("main", rows)
        assert status == 200
        assert answered(content)[0] == snapshot
        assert difference(world.answers[snapshot], rows, answered(content)[1]) <= TOLERANCE
        assert refused(server) == before
        assert server.process.poll() is None
    log = (tmp_path / "server.log").read_text()
    assert log.count("refused") >= len(KINDS)


def test_an_index_names_what_was_refused(live: World, tmp_path: Path) -> None:
    world, models = live, tmp_path / "models"
    if not world.order:
        world.publish("version")
    shutil.copytree(world.repository / "main", models / "main", ignore=shutil.ignore_patterns("deltas"))
    set_options(models / "main", {"live_guard": "false"})
    world.plant(20, removed=0)
    _, good = world.publish("delta", from_snapshot=world.order[0])
    deltas = models / "main" / "1" / "deltas"
    deltas.mkdir(exist_ok=True)
    with (
        ServerProcess(models, tmp_path / "store", tmp_path / "server.log") as server,
        Operator(server.http_port, "main") as operator,
    ):
        operator.wait_for(world.order[0])
        change, signed = KINDS["one row beneath valid digests"]
        write_copy(good, deltas, 7, change, signed=signed)
        until(lambda: operator.state()["quarantined"], "it is refused")
        status, index = operator.post("/v2/repository/index", {})
        assert status == 200
        entry = next(entry for entry in index if entry["name"] == "main" and entry["version"] == "1")
        assert entry["state"] == "READY"
        assert "1.7" in entry["reason"]
        assert "golden requests: table 'item'" in entry["reason"]
