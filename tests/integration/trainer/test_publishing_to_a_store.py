"""Training publishes into an object store what it publishes into a folder, also after a crash and elsewhere."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import cast

import pytest

from storage.objects import ObjectStore
from storage.objects.mirror import RepositoryMirror
from storage.objects.published import PublishedModel
from tests.e2e.planted_world import World, snapshot_of
from tests.support.object_store import DyingStore, keys_of
from trainer.publishing import target as targets

NAME = "planted"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Gives the test a cache folder of its own."""
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def copied(url: str, root: Path) -> list[str]:
    """Mirrors a repository, and returns the folders that have come."""
    mirror = RepositoryMirror(url, root)
    mirror.once()
    mirror.stop()
    folders = [*(root / NAME).glob("[1-9]*"), *(root / NAME).glob("*/deltas/[0-9]*")]
    return sorted(str(folder.relative_to(root / NAME)) for folder in folders)


def world_at(url: str, seed: int = 1) -> World:
    return World(cast(Path, url), NAME, seed=seed)


def test_the_store_has_what_a_folder_has(store_url: str, tmp_path: Path) -> None:
    remote, local = world_at(store_url), World(tmp_path / "local", NAME)
    for kind in ("version", "delta", "cumulative", "delta", "version"):
        for world in (remote, local):
            world.plant(40, removed=5)
            world.publish(kind)
    assert copied(store_url, tmp_path / "copy") == ["2"]
    for copy in (tmp_path / "copy" / NAME).rglob("*.safetensors"):
        assert (
            copy.read_bytes() == (tmp_path / "local" / NAME / copy.relative_to(tmp_path / "copy" / NAME)).read_bytes()
        )
    head = PublishedModel(ObjectStore(store_url), NAME).head()
    assert [(each.version, len(each.deltas)) for each in head.versions] == [(1, 3), (2, 0)]
    assert [each.snapshot for each in head.versions] == [remote.order[0], remote.order[-1]]


def test_a_trainer_on_another_machine_goes_on(store_url: str, tmp_path: Path, home: Path) -> None:
    world = world_at(store_url)
    world.publish("version")
    world.plant(10, removed=0)
    world.publish("delta")
    shutil.rmtree(home / ".cache")
    world.plant(10, removed=1)
    snapshot, folder = world.publish("delta")
    assert copied(store_url, tmp_path / "copy") == ["1", "1/deltas/000001", "1/deltas/000002"]
    assert snapshot_of(tmp_path / "copy" / NAME / "1/deltas/000002") == snapshot == snapshot_of(folder)


def test_an_emptied_store_gets_a_version(store_url: str, tmp_path: Path) -> None:
    world = world_at(store_url)
    world.publish("version")
    ObjectStore(store_url).delete(keys_of(store_url))
    world.plant(10, removed=0)
    world.publish("auto")
    assert copied(store_url, tmp_path / "copy") == ["1"]
    assert snapshot_of(tmp_path / "copy" / NAME / "1") == world.order[-1]


@pytest.mark.parametrize("lost", [False, True], ids=["its copy is there", "its copy is lost"])
def test_a_publisher_that_ends_between_any_two_writes_finishes_what_was_pending(
    store_url: str, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    monkeypatch.setattr(targets, "ObjectStore", DyingStore)
    monkeypatch.setattr(DyingStore, "left", 10**6)
    world = world_at(store_url)
    world.publish("version")
    deltas = 0
    writes = 0
    while True:
        world.plant(10, removed=1)
        pending = world.publisher.prepare("delta")
        world.note(pending.snapshot)
        DyingStore.left = writes
        died = False
        try:
            world.publisher.write()
        except KeyboardInterrupt:
            died = True
            DyingStore.left = 10**6
            if lost:
                shutil.rmtree(home / ".cache")
            world.publisher.write()
        deltas += 1
        head = PublishedModel(ObjectStore(store_url), NAME).head()
        assert [delta.snapshot for delta in head.versions[0].deltas] == world.order[1:]
        assert [delta.sequence for delta in head.versions[0].deltas] == list(range(1, deltas + 1))
        if not died:
            break
        writes += 1
    assert writes > 5
    assert len(copied(store_url, tmp_path / "copy")) == deltas + 1


def test_two_trainers_of_one_model_take_turns(store_url: str, tmp_path: Path) -> None:
    first, second = world_at(store_url), world_at(store_url, seed=2)
    for world in (first, second, first, second):
        world.publish("version")
    head = PublishedModel(ObjectStore(store_url), NAME).head()
    assert [each.snapshot for each in head.versions] == [
        first.order[0],
        second.order[0],
        first.order[1],
        second.order[1],
    ]
