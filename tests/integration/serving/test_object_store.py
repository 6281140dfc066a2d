"""A server over a repository in an object store: it follows what is published there, and outlives the store."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from serving import Server, ServerConfig
from storage.errors import ObjectStoreError
from storage.objects import ObjectStore
from storage.objects.published import PublishedModel
from tests.integration.serving.planted import NAME, Planted, World, ask, check_answer
from tests.support.object_store import cut_off


class Remote:
    """A world whose snapshots are uploaded, and a server over the store."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder = url, folder
        self.world = World(folder / "made")
        self.model = PublishedModel(ObjectStore(url), NAME)
        self.snapshots: dict[str, Planted] = {}
        self.server: Server | None = None

    def put(self, snapshot: Planted) -> Planted:
        self.snapshots[snapshot.id] = snapshot
        if snapshot.sequence:
            self.model.put_delta(snapshot.path)
        else:
            self.model.put_version(snapshot.path)
        return snapshot

    def start(self, **options: Any) -> Server:
        usual: dict[str, Any] = {"http_port": 0, "grpc_port": 0, "metrics_port": 0, "open_admin": True, "poll_s": 0.2}
        config = ServerConfig(
            model_repository=self.url,
            mirror_dir=self.folder / "copy",
            store=self.folder / "store",
            **{**usual, **options},
        )
        self.server = Server(config)
        return self.server.start()

    def stop(self) -> None:
        if self.server is not None:
            self.server.stop()
            self.server = None

    def until(self, holds: Callable[[], object], timeout_s: float = 30.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not holds():
            assert time.monotonic() < deadline, self.report()
            time.sleep(0.01)

    def report(self) -> Any:
        assert self.server is not None
        return self.server.repository.snapshots(NAME)

    def reaches(self, snapshot: Planted) -> None:
        self.until(lambda: self.report()["served"] is not None and self.report()["served"]["id"] == snapshot.id)
        rows = self.world.rows_of(snapshot, 12)
        assert self.server is not None
        assert check_answer(ask(self.server.repository, rows), rows, self.snapshots) is snapshot


@pytest.fixture
def remote(store_url: str, tmp_path: Path) -> Iterator[Remote]:
    remote = Remote(store_url, tmp_path)
    yield remote
    remote.stop()


def test_a_server_follows_the_store(remote: Remote) -> None:
    first = remote.put(remote.world.publish())
    server = remote.start()
    remote.reaches(first)
    assert server.repository.is_ready()
    line = [first]
    for _ in range(3):
        line.append(remote.put(remote.world.change(line[-1])))
        remote.reaches(line[-1])
    second = remote.put(remote.world.publish())
    remote.reaches(second)
    assert remote.report()["waiting"] is None

    with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}/metrics") as page:
        metrics = page.read().decode()
    assert f'emberline_mirror_folders_total{{model="{NAME}"}} 5' in metrics
    assert "emberline_object_store_failures_total 0" in metrics

    # What an operator wants holds, whatever comes.
    server.repository.pause(NAME)
    third = remote.put(remote.world.change(second))
    remote.until(lambda: (remote.folder / "copy" / NAME / "2/deltas/000001").is_dir())
    time.sleep(0.5)
    assert remote.report()["served"]["id"] == second.id
    server.repository.resume(NAME)
    remote.reaches(third)


def test_a_server_starts_before_anything_is_published(remote: Remote) -> None:
    server = remote.start(models=(NAME,))
    assert not server.repository.is_ready()
    assert f"{remote.url}/{NAME}: nothing is published there" in remote.report()["waiting"]
    first = remote.put(remote.world.publish())
    remote.reaches(first)


def test_a_new_model_is_loaded_by_its_name_at_once(remote: Remote) -> None:
    server = remote.start()
    assert server.repository.names == []
    first = remote.put(remote.world.publish())
    server.repository.load(NAME)
    remote.reaches(first)


def test_a_server_outlives_its_store(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    first = remote.put(remote.world.publish())
    remote.start()
    remote.reaches(first)
    remote.stop()
    with monkeypatch.context() as patch:
        cut_off(patch)
        server = remote.start()
        remote.reaches(first)
        assert server.repository.is_ready()
        remote.until(lambda: remote.report()["waiting"])
        assert "the object store cannot be followed: " in remote.report()["waiting"]
        assert "hush" not in remote.report()["waiting"]
        remote.stop()
    second = remote.put(remote.world.change(first))
    remote.start()
    remote.reaches(second)


def test_a_server_without_a_copy_says_why_it_cannot_start(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_off(monkeypatch)
    with pytest.raises(ObjectStoreError, match=r"models.json: cannot read it now: "):
        remote.start()


def test_an_edited_configuration_comes_with_the_next_snapshot(remote: Remote) -> None:
    first = remote.put(remote.world.publish())
    server = remote.start()
    remote.reaches(first)
    found = remote.model.objects.read(f"{NAME}/config.pbtxt")
    assert found is not None
    edited = found.data + b'parameters { key: "retain_snapshots" value { string_value: "2" } }\n'
    remote.model.objects.replace(f"{NAME}/config.pbtxt", edited, found.tag)
    second = remote.put(remote.world.change(first))
    remote.reaches(second)
    loaded = server.repository.get(NAME)
    assert (remote.folder / "copy" / NAME / "config.pbtxt").read_bytes() == edited
    assert loaded is not None
