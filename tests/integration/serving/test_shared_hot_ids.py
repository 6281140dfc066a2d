"""Replicas over an object store keep their hot ids there, and a new one fills DRAM with them."""

from __future__ import annotations

import re
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from serving import Server, ServerConfig
from serving.repository import shared_hot_ids
from serving.updates import loading
from storage.errors import NotFound
from storage.objects import ObjectStore
from storage.objects.object_store import ObjectInfo
from storage.objects.published import PublishedModel
from storage.tiers import filling
from storage.tiers.filling import Filler
from storage.tiers.hot_ids import HOT_IDS
from storage.tiers.tiered import TieredStore
from tests.integration.serving.planted import NAME, SPEC, Planted, World, ask, check_answer
from tests.support.faulty_proxy import proxy_of_store

BUDGET = 30_000
KEY = f"{NAME}/{HOT_IDS}"
HOT, OTHERS = np.arange(3000, 3300), np.arange(2000, 2300)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[World, list[Planted]]:
    """Publishes a version, two deltas of it, a version with other features, and one with the same."""
    world = World(tmp_path_factory.mktemp("made") / "models", items=4000)
    world.configure(dram_bytes=BUDGET)
    first = world.publish()
    line = [first, world.change(first)]
    line.append(world.change(line[-1]))
    spec = {**SPEC, "inputs": [SPEC["inputs"][0], {**SPEC["inputs"][1], "max_length": 64}]}
    return world, [*line, world.publish(spec=spec), world.publish()]


class Replicas:
    """A published model, and servers over it, each on a machine of its own."""

    def __init__(self, url: str, folder: Path, world: World, snapshots: list[Planted]) -> None:
        self.url, self.folder, self.world, self.snapshots = url, folder, world, snapshots
        self.objects = ObjectStore(url)
        self.servers: list[Server] = []
        self.put(*snapshots[:3])

    def put(self, *snapshots: Planted) -> None:
        model = PublishedModel(self.objects, NAME)
        for snapshot in snapshots:
            model.put(snapshot.path)

    def configure(self, **parameters: Any) -> None:
        """Replaces the configuration in the store."""
        self.world.configure(dram_bytes=BUDGET, **parameters)
        key, text = f"{NAME}/config.pbtxt", (self.world.model_dir / "config.pbtxt").read_bytes()
        self.objects.edit(key, lambda _: text)

    def start(self) -> Server:
        place = self.folder / f"machine{len(self.servers)}"
        config = ServerConfig(
            model_repository=self.url, mirror_dir=place / "copy", store=place / "store",
            http_port=0, grpc_port=0, metrics_port=0, open_admin=True, poll_s=0.2,
        )  # fmt: skip
        self.servers.append(Server(config).start())
        return self.servers[-1]

    def ask(self, server: Server, items: np.ndarray, batches: int = 1) -> float:
        """Asks for each of the items so often; returns the share of them that DRAM answered, users left out."""
        before = self.store(server).stats().tables["item"].hits
        for _ in range(batches):
            rows = [{"user": 1, "items": part.tolist()} for part in items.reshape(-1, 60)]
            check_answer(ask(server.repository, rows), rows, {each.id: each for each in self.snapshots})
            self.store(server).drain()
        hits = {tier: count - before[tier] for tier, count in self.store(server).stats().tables["item"].hits.items()}
        return hits["dram"] / (hits["dram"] + hits["ssd"])

    def store(self, server: Server) -> TieredStore:
        mount: Any = server.repository._models[NAME].model.default
        return mount.store

    def written(self) -> ObjectInfo | None:
        try:
            return self.objects.stat(KEY)
        except NotFound:
            return None

    def until(self, holds: Callable[[], object], timeout_s: float = 20.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not holds():
            assert time.monotonic() < deadline
            time.sleep(0.01)


def page_of(server: Server) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}/metrics") as page:
        return str(page.read().decode())


@pytest.fixture
def replicas(
    store_url: str, tmp_path: Path, made: tuple[World, list[Planted]], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Replicas]:
    monkeypatch.setattr(shared_hot_ids, "FIRST_S", 0.0)
    monkeypatch.setattr(shared_hot_ids, "EVERY_S", 0.1)
    monkeypatch.setattr(shared_hot_ids, "_TICK_S", 0.02)
    replicas = Replicas(store_url, tmp_path, *made)
    yield replicas
    for server in replicas.servers:
        server.stop()


def test_a_new_replica_answers_from_dram_what_the_others_do(
    replicas: Replicas, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    first = replicas.start()
    assert replicas.ask(first, HOT) < 0.5
    assert replicas.written() is None  # it has not seen enough to know what is hot
    replicas.ask(first, HOT, 100)
    replicas.until(replicas.written)
    second = replicas.start()
    assert "hot ids that other replicas wrote 0 minutes ago came from the object store" in caplog.text
    assert replicas.ask(second, HOT) > 0.95
    expected = replicas.store(second).hot.expected_hit_rate()
    assert expected is not None
    assert expected > 0.7

    # A version that makes other ids of what it is asked for has nothing to do with the list.
    replicas.put(replicas.snapshots[3])
    replicas.until(lambda: replicas.store(second).hot.expected_hit_rate() is None)
    assert "it was written by replicas with a version of other features" in caplog.text
    assert replicas.ask(second, HOT) < 0.5

    # The store of a version that makes the same ids is filled by it, whose budget grows in three steps.
    replicas.put(replicas.snapshots[4])
    replicas.until(lambda: (replicas.store(second).hot.expected_hit_rate() or 0) > 0.7)
    assert replicas.ask(second, HOT) > 0.95


@pytest.mark.parametrize(("ready_when", "held_at"), [("loaded", 0), ("0.3", 500)])
def test_a_model_is_ready_when_its_hit_rate_is(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, ready_when: str, held_at: int
) -> None:
    caplog.set_level("INFO")
    replicas.configure(ready_when=ready_when)
    first = replicas.start()
    assert "emberline_ready_hit_rate{" not in page_of(first)  # nothing is known, and nothing is waited for
    replicas.ask(first, HOT, 100)
    replicas.until(replicas.written)
    go_on = threading.Event()
    real = Filler._install

    def held(self: Filler, *arguments: Any) -> bool | None:
        assert self.installed < held_at or go_on.wait(60)
        return real(self, *arguments)

    monkeypatch.setattr(Filler, "_install", held)
    monkeypatch.setattr(filling, "_READ_IDS", 16)
    monkeypatch.setattr(loading, "_FILL_BYTES", 0)
    second = replicas.start()
    rate = replicas.store(second).hot.expected_hit_rate()
    assert not replicas.store(second).wait_filled(0)
    go_on.set()
    assert rate is not None
    assert (rate >= 0.3) == (ready_when == "0.3")
    page = page_of(second)
    shown = {name: float(value) for name, value in re.findall(r"emberline_(ready_\w+){[^}]*} (\S+)", page)}
    assert shown["ready_hit_rate"] == pytest.approx(rate, abs=0.1)
    assert held_at <= shown["ready_dram_rows"] < 1100
    assert shown["ready_read_bytes"] > 30_000
    assert 0.1 < shown["ready_after_seconds"] < 20
    told = r"ready after \d+\.\d s at 1\.2: 3 versions and deltas came, \d\.\d MiB were read in all, [\d,]+ rows are in"
    assert re.search(told, caplog.text)


def test_a_hit_rate_is_not_waited_for_longer_than_the_configuration_says(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    replicas.configure(ready_when=0.95, ready_timeout_ms=300)
    first = replicas.start()
    replicas.ask(first, HOT, 100)
    replicas.until(replicas.written)
    go_on = threading.Event()
    real = Filler._install
    monkeypatch.setattr(Filler, "_install", lambda *arguments: go_on.wait(60) and real(*arguments))
    replicas.start()
    assert "is still being filled after ready_timeout_ms" in caplog.text
    go_on.set()


def test_a_list_is_replaced_by_one_replica_when_it_is_old_and_the_traffic_is_another(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    pair = [replicas.start(), replicas.start()]
    for server in pair:
        replicas.ask(server, HOT, 100)
    replicas.until(replicas.written)
    for server in pair:
        replicas.ask(server, OTHERS, 200)
    time.sleep(0.5)
    before = replicas.written()
    assert caplog.text.count("hot ids for new replicas") == 1
    monkeypatch.setattr(shared_hot_ids, "LEAST_AGE_S", 0.0)
    replicas.until(lambda: replicas.written() != before)
    # Both have the same traffic, so they end by leaving what the other wrote.
    replicas.until(lambda: replicas.written() == (time.sleep(0.7), replicas.written())[1])
    third = replicas.start()
    assert replicas.ask(third, OTHERS) > 0.95


def test_a_damaged_list_is_left_out_and_replaced(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    replicas.objects.create(KEY, b"EMBHOT2\n" + b"x" * 1000)
    server = replicas.start()
    assert f"{KEY} is left out, published frequencies do for it: its bytes are not those" in caplog.text
    assert server.repository.is_ready()
    monkeypatch.setattr(shared_hot_ids, "LEAST_AGE_S", 0.0)
    replicas.ask(server, HOT, 100)
    replicas.until(lambda: "hot ids for new replicas" in caplog.text)
    assert replicas.ask(replicas.start(), HOT) > 0.95


def test_a_store_that_refuses_the_write_is_no_trouble(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with proxy_of_store() as proxy, proxy.failing("403", lambda method, path: method == "PUT"):
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        server = replicas.start()
        replicas.ask(server, HOT, 100)
        replicas.until(lambda: proxy.met)
        time.sleep(0.5)
        assert len(proxy.met) == 1
        assert caplog.text.count("that needs the right to write this object") == 1
        assert "AccessDenied" in caplog.text
        assert server.repository.snapshots(NAME)["waiting"] is None
        server.stop()
    assert replicas.written() is None
