"""A repository in an object store behind a network that breaks: what publishers and mirrors make of it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from storage.errors import ConfigError, IntegrityError, NotFound, StoreError, UnsafeArtifact
from storage.objects import ObjectStore
from storage.objects.catalog import ModelNames
from storage.objects.mirror import RepositoryMirror
from storage.objects.published import PublishedModel
from tests.integration.serving.planted import NAME, Planted, World
from tests.support.faulty_proxy import Fault, FaultyProxy, proxy_of_store
from tests.support.object_store import keys_of


@contextmanager
def mirrored(mirror: RepositoryMirror) -> Iterator[RepositoryMirror]:
    """Follows a repository for the block."""
    try:
        mirror.start(mirror.find_models())
        yield mirror
    finally:
        mirror.stop()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[World, list[Planted]]:
    """Publishes a version, two deltas of it, and another version."""
    world = World(tmp_path_factory.mktemp("made") / "models")
    line = [world.publish()]
    line.append(world.change(line[0]))
    line.append(world.change(line[1]))
    return world, [*line, world.publish()]


@pytest.fixture
def snapshots(made: tuple[World, list[Planted]]) -> list[Planted]:
    return made[1]


@pytest.fixture
def proxy(s3: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    """Stands between this process and the store."""
    with proxy_of_store() as proxy, monkeypatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", proxy.url)
        yield proxy


def put(url: str, *snapshots: Planted) -> None:
    model = PublishedModel(ObjectStore(url), NAME)
    for snapshot in snapshots:
        model.put(snapshot.path)


def here(root: Path) -> list[str]:
    folders = [*(root / NAME).glob("[1-9]*"), *(root / NAME).glob("*/deltas/[0-9]*")]
    return sorted(str(folder.relative_to(root / NAME)) for folder in folders)


@pytest.mark.parametrize("fault", ["lost", "cut", "503"])
def test_publishing_outlives_each_request_that_breaks(
    fault: Fault, snapshots: list[Planted], proxy: FaultyProxy, store_url: str
) -> None:
    seen: set[tuple[str, str]] = set()

    def first_time(method: str, path: str) -> bool:
        is_new = (method, path) not in seen
        seen.add((method, path))
        return is_new

    with proxy.failing(fault, first_time):
        put(store_url, *snapshots[:2])
    assert len(proxy.met) > 12
    head = PublishedModel(ObjectStore(store_url), NAME).head()
    assert [(each.version, len(each.deltas), head.generation) for each in head.versions] == [(1, 1, 2)]
    assert ModelNames(ObjectStore(store_url)).read() == (NAME,)
    assert not [key for key in keys_of(store_url) if "/claims/" in key]


def test_a_store_is_probed_over_a_broken_network(proxy: FaultyProxy, store_url: str) -> None:
    seen: set[str] = set()

    def first_writes(method: str, path: str) -> bool:
        count = len(seen)
        seen.add(f"{method}{count}")
        return method == "PUT" and count in (0, 3)

    with proxy.failing("lost", first_writes):
        ObjectStore(store_url).check_conditional_writes()
    assert len(proxy.met) == 2


def test_a_damaged_delta_does_not_hold_up_the_next_version(
    snapshots: list[Planted], proxy: FaultyProxy, store_url: str, tmp_path: Path
) -> None:
    put(store_url, snapshots[0])
    mirror = RepositoryMirror(store_url, tmp_path / "copy", choose=lambda folder, numbers: numbers)
    mirror.once()
    put(store_url, *snapshots[1:])
    ObjectStore(store_url).delete([f"{NAME}/1/deltas/000001/manifest.json"])
    with pytest.raises((IntegrityError, NotFound), match=r"1/deltas/000001/manifest.json is not there"):
        mirror.once()
    assert here(tmp_path / "copy") == ["1", "2"]
    mirror.stop()


def test_a_folder_that_cannot_be_written_is_said_and_tried_again(
    snapshots: list[Planted], store_url: str, tmp_path: Path
) -> None:
    put(store_url, snapshots[0])
    mirror = RepositoryMirror(store_url, tmp_path / "copy")
    (tmp_path / "copy" / NAME).write_bytes(b"in the way")
    follower = mirror._new(NAME)
    follower.look()
    with pytest.raises(StoreError, match="cannot be written: File exists"):
        follower.bring()
    assert "cannot be written: File exists" in follower.status.text
    (tmp_path / "copy" / NAME).unlink()
    follower.bring()
    assert follower.status.text == ""
    assert here(tmp_path / "copy") == ["1"]
    mirror.stop()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("file://models/x", r"expected a whole path, such as file:///shared/models"),
        ("file:///proc/models", r"file:///proc/models: cannot be used: No such file or directory"),
        ("s3://bucket/a/../b", r"has '.' or '..' in it"),
    ],
)
def test_a_url_that_means_another_place_is_refused(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ObjectStore(url)


@pytest.mark.parametrize("held", ["head.json", "/tables/"])
def test_a_mirror_ends_at_once_while_the_store_does_not_answer(
    held: str, snapshots: list[Planted], proxy: FaultyProxy, store_url: str, tmp_path: Path
) -> None:
    put(store_url, snapshots[0])
    mirror = RepositoryMirror(store_url, tmp_path / "copy")
    with proxy.failing("hang", lambda method, path: held in path):
        mirror.start([NAME])
        until(lambda: proxy.met)
        began = time.monotonic()
        mirror.stop()
        assert time.monotonic() - began < 5.0
    assert here(tmp_path / "copy") == []
    # What had come whole before is not asked for again.
    mirror = RepositoryMirror(store_url, tmp_path / "copy")
    mirror.once()
    assert here(tmp_path / "copy") == ["1"]
    mirror.stop()


def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_folder_is_kept_by_one_mirror(snapshots: list[Planted], store_url: str, tmp_path: Path) -> None:
    put(store_url, snapshots[0])
    first = RepositoryMirror(store_url, tmp_path / "copy")
    with pytest.raises(ConfigError, match=rf"is kept by another process \({os.getpid()} on .*; serve that copy with"):
        RepositoryMirror(store_url, tmp_path / "copy")
    first.once()
    release = threading.Timer(0.2, first.stop)
    release.start()
    second = RepositoryMirror(store_url, tmp_path / "copy", waits=True)
    second.once()
    second.stop()
    assert here(tmp_path / "copy") == ["1"]


def test_a_restart_outlives_a_list_of_models_that_is_damaged_or_gone(
    snapshots: list[Planted], store_url: str, tmp_path: Path
) -> None:
    put(store_url, snapshots[0])
    with mirrored(RepositoryMirror(store_url, tmp_path / "copy")) as mirror:
        mirror.wait_first(NAME)
    objects = ObjectStore(store_url)
    found = objects.read("models.json")
    assert found is not None
    objects.replace("models.json", b"{}x", found.tag)
    mirror = RepositoryMirror(store_url, tmp_path / "copy")
    assert mirror.find_models() == (NAME,)
    mirror.stop()
    with pytest.raises(UnsafeArtifact, match=r"models.json: is not a list of models"):
        RepositoryMirror(store_url, tmp_path / "other").find_models()


def test_publishing_goes_on_after_the_head_was_deleted_by_hand(
    snapshots: list[Planted], store_url: str, tmp_path: Path
) -> None:
    put(store_url, *snapshots[:3])
    with mirrored(RepositoryMirror(store_url, tmp_path / "copy")) as mirror:
        mirror.wait_first(NAME)
        assert here(tmp_path / "copy") == ["1", "1/deltas/000001", "1/deltas/000002"]
    model = PublishedModel(ObjectStore(store_url), NAME)
    before = model.head()
    model.objects.delete([f"{NAME}/head.json"])
    assert model.claim_version("0" * 32) == 2  # 1 has objects of another snapshot
    # A copy brings back what was published.
    for path in ("1", "1/deltas/000001", "1/deltas/000002"):
        model.put(tmp_path / "copy" / NAME / path)
    assert model.head().versions == before.versions


def test_an_edited_configuration_comes_at_once_when_it_is_asked_for(
    snapshots: list[Planted], store_url: str, tmp_path: Path
) -> None:
    put(store_url, snapshots[0])
    with mirrored(RepositoryMirror(store_url, tmp_path / "copy")) as mirror:
        mirror.wait_first(NAME)
        found = mirror.objects.read(f"{NAME}/config.pbtxt")
        assert found is not None
        mirror.objects.replace(f"{NAME}/config.pbtxt", found.data + b"# mended\n", found.tag)
        mirror.look(NAME)
        assert (tmp_path / "copy" / NAME / "config.pbtxt").read_bytes() == found.data + b"# mended\n"
