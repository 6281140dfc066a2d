"""A repository in an object store: what publishers, crashes and damage leave there, and what a mirror makes of it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from obstore.exceptions import BaseError
from obstore.store import HTTPStore

from storage.checkpoint import open_delta, open_version
from storage.errors import (
    CheckpointError,
    ConfigError,
    IntegrityError,
    NotFound,
    ObjectStoreError,
    UnsafeArtifact,
    Unsupported,
)
from storage.objects import ObjectStore
from storage.objects.catalog import ModelNames
from storage.objects.fetching import UNFINISHED
from storage.objects.mirror import RepositoryMirror
from storage.objects.object_store import Changed, Taken
from storage.objects.published import PublishedModel
from storage.objects.requests import reason_of
from tests.integration.serving.planted import NAME, Planted, World
from tests.support.object_store import DyingStore, cut_off, keys_of


def put(model: PublishedModel, snapshot: Planted) -> None:
    if snapshot.sequence:
        assert model.claim_sequence(snapshot.version, snapshot.id, snapshot.sequence) == snapshot.sequence
        model.put_delta(snapshot.path)
    else:
        assert model.claim_version(snapshot.id, snapshot.version) == snapshot.version
        model.put_version(snapshot.path)


def mirror_of(url: str, root: Path, **options: Any) -> RepositoryMirror:
    return RepositoryMirror(url, root, **options)


def here(root: Path) -> list[str]:
    """Returns the versions and deltas that a reader of the folder sees."""
    folders = [*(root / NAME).glob("[1-9]*"), *(root / NAME).glob("*/deltas/[0-9]*")]
    return sorted(str(folder.relative_to(root / NAME)) for folder in folders)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[World, Planted, Planted]:
    """Publishes two versions."""
    world = World(tmp_path_factory.mktemp("made") / "models")
    return world, world.publish(), world.publish()


@pytest.fixture
def world(made: tuple[World, Planted, Planted], tmp_path: Path) -> World:
    return made[0].copied(tmp_path / "made")


@pytest.fixture
def first(made: tuple[World, Planted, Planted], world: World) -> Planted:
    return replace(made[1], path=world.model_dir / "1")


@pytest.fixture
def second(made: tuple[World, Planted, Planted], world: World) -> Planted:
    return replace(made[2], path=world.model_dir / "2")


@pytest.fixture
def model(store_url: str) -> PublishedModel:
    return PublishedModel(ObjectStore(store_url), NAME)


def test_a_mirror_has_what_a_server_needs_and_it_is_what_was_published(
    world: World, first: Planted, second: Planted, model: PublishedModel, tmp_path: Path
) -> None:
    put(model, first)
    new = second
    put(model, new)
    line = [world.change(new)]
    put(model, line[0])
    line.append(world.change(line[0]))
    put(model, line[1])
    line.append(world.publish_delta(line[1], since=new, changed={"item": [1]}))  # cumulative
    put(model, line[2])
    line.append(world.change(line[2]))
    put(model, line[3])

    mirror = mirror_of(model.objects.url, tmp_path / "copy")
    mirror.once()

    # Neither the version before, nor the deltas that the cumulative one replaces.
    assert here(tmp_path / "copy") == ["2", "2/deltas/000003", "2/deltas/000004"]
    copy = tmp_path / "copy" / NAME
    open_version(copy / "2", verify=True)
    for snapshot in line[2:]:
        assert open_delta(copy / "2" / "deltas" / f"{snapshot.sequence:06d}", verify=True).snapshot == snapshot.id
    for file in sorted(path for path in (world.model_dir / "2").rglob("*") if path.is_file()):
        at = copy / "2" / file.relative_to(world.model_dir / "2")
        if at.parent.name not in ("000001", "000002") and "000001" not in at.parts and "000002" not in at.parts:
            assert at.read_bytes() == file.read_bytes()
    assert (copy / "config.pbtxt").read_bytes() == (world.model_dir / "config.pbtxt").read_bytes()
    mirror.stop()


def test_a_delta_whose_number_is_taken_keeps_no_other_number(
    world: World, first: Planted, store_url: str, tmp_path: Path
) -> None:
    model = PublishedModel(ObjectStore(store_url), NAME)
    model.put(first.path)
    other = world.copied(tmp_path / "other")
    mine, theirs = world.change(first), other.change(first)
    model.put(mine.path)
    with pytest.raises(CheckpointError, match=r"another publisher's delta 1\.1"):
        model.put(theirs.path)
    model.put(world.change(mine).path)
    assert [each.sequence for each in model.head().versions[0].deltas] == [1, 2]


@pytest.mark.parametrize("is_delta", [False, True])
def test_a_publisher_that_dies_before_any_write_leaves_nothing_half_and_goes_on(
    world: World,
    first: Planted,
    store_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_delta: bool,
) -> None:
    alive = PublishedModel(ObjectStore(store_url), NAME)
    before: list[str] = []
    snapshot = first
    if is_delta:
        put(alive, first)
        snapshot, before = world.change(first), ["1"]
    writes = 0
    while True:
        monkeypatch.setattr(DyingStore, "left", writes)
        try:
            put(PublishedModel(DyingStore(store_url), NAME), snapshot)
            break
        except KeyboardInterrupt:
            writes += 1
        mirror = mirror_of(store_url, tmp_path / f"copy{writes}")
        try:
            mirror.once()
        except NotFound:
            assert not before
        published = here(tmp_path / f"copy{writes}")
        # The last write of a first version names the model, after head.json has it.
        assert published in ([*before], [*before, "1/deltas/000001"] if is_delta else ["1"])
        mirror.stop()
    assert writes > 6
    mirror = mirror_of(store_url, tmp_path / "copy")
    mirror.once()
    assert here(tmp_path / "copy") == (["1", "1/deltas/000001"] if is_delta else ["1"])
    mirror.stop()
    # A claim goes with the number that it was for.
    assert not [key for key in keys_of(store_url) if "/claims/" in key]


def test_two_publishers_never_have_one_number(model: PublishedModel, store_url: str) -> None:
    numbers: list[int] = []

    def claim(place: int) -> None:
        own = PublishedModel(ObjectStore(store_url), NAME)
        numbers.extend(own.claim_version(f"{place:016x}{each:016x}") for each in range(3))

    threads = [threading.Thread(target=claim, args=[place]) for place in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(numbers) == list(range(1, 10))


def test_a_number_is_not_used_again(first: Planted, model: PublishedModel) -> None:
    put(model, first)
    # Another publisher had looked before, and claims what is published by now.
    with pytest.raises(CheckpointError, match=r"/1 was published before .* choose one above 1, or none"):
        model.claim_version("0" * 32, 1)
    assert model.claim_version("0" * 32) == 2
    assert model.claim_version(first.id) == 1  # its own


def test_what_another_publisher_wrote_stays(first: Planted, model: PublishedModel, tmp_path: Path) -> None:
    put(model, first)
    other = World(tmp_path / "other").publish()
    with pytest.raises(CheckpointError, match="holds another snapshot; what is published never changes"):
        model.put_version(other.path)


def test_older_ones_leave_the_head_at_once_and_the_store_later(
    world: World,
    first: Planted,
    second: Planted,
    model: PublishedModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    snapshots = [first]
    put(model, first)
    for _ in range(5):
        snapshots.append(world.change(snapshots[-1]))
        put(model, snapshots[-1])
    snapshots.append(second)
    put(model, second)
    mirror = mirror_of(model.objects.url, tmp_path / "copy", choose=lambda folder, numbers: numbers)
    mirror.once()
    assert len(here(tmp_path / "copy")) == 7

    line = [snapshot.id for snapshot in snapshots]
    objects = len(keys_of(model.objects.url))
    model.retain(line, 2, versions=2, deltas=2)
    # Chained deltas are reached through each other.
    assert [delta.sequence for delta in model.head().versions[0].deltas] == [1, 2, 3, 4, 5]
    model.retain(line, 2, versions=1, deltas=2)
    head = model.head()
    assert [version.version for version in head.versions] == [2]
    assert len(head.leaving) == 6
    assert len(keys_of(model.objects.url)) == objects
    mirror.once()
    assert here(tmp_path / "copy") == ["2"]

    monkeypatch.setattr("storage.objects.published.GRACE_S", -1.0)
    model.retain(line, 2, versions=1, deltas=2)
    assert model.head().leaving == ()
    left = keys_of(model.objects.url)
    assert {key.split("/")[1] for key in left if key.startswith(f"{NAME}/")} == {"2", "head.json", "config.pbtxt"}
    assert model.claim_version("0" * 32) == 3
    mirror.stop()


def test_versions_of_another_trainer_stay(first: Planted, second: Planted, model: PublishedModel) -> None:
    put(model, first)
    put(model, second)
    model.retain([second.id], 2, versions=1, deltas=1)
    assert [version.version for version in model.head().versions] == [1, 2]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:-1], "ends after"),
        (lambda data: b"", "ends after|cannot read it now"),
        (lambda data: data[:100] + bytes([data[100] ^ 1]) + data[101:], "is not what was published"),
    ],
    ids=["cut", "empty", "a bit"],
)
def test_a_damaged_object_does_not_come_and_is_tried_again(
    first: Planted,
    model: PublishedModel,
    tmp_path: Path,
    damage: Callable[[bytes], bytes],
    message: str,
) -> None:
    put(model, first)
    key = next(key for key in keys_of(model.objects.url) if "/tables/item" in key)
    found = model.objects.read(key)
    assert found is not None
    model.objects.replace(key, damage(found.data), found.tag)
    mirror = mirror_of(model.objects.url, tmp_path / "copy")
    with pytest.raises((IntegrityError, ObjectStoreError), match=message):
        mirror.once()
    assert here(tmp_path / "copy") == []
    broken = model.objects.read(key)
    assert broken is not None
    model.objects.replace(key, found.data, broken.tag)
    before = mirror.traffic.bytes_read
    mirror.once()
    assert here(tmp_path / "copy") == ["1"]
    # What had come whole before is not asked for again.
    whole = sum(path.stat().st_size for path in (tmp_path / "copy" / NAME / "1").rglob("*") if path.is_file())
    assert mirror.traffic.bytes_read - before < whole
    assert not list((tmp_path / "copy" / NAME).glob(f"{UNFINISHED}*"))
    mirror.stop()


@pytest.mark.parametrize(
    ("key", "content", "message"),
    [
        ("head.json", b"{}x", "head.json"),
        ("head.json", b'{"format":2}', r"its format is 2, this release reads 1"),
        ("head.json", b'{"format":1,"versions":[{"version":"../x"}]}', "head.json: versions.0"),
        ("1/manifest.json", b"{}", "is not the one that head.json names"),
    ],
)
def test_a_hostile_object_is_refused_by_name(
    first: Planted, model: PublishedModel, tmp_path: Path, key: str, content: bytes, message: str
) -> None:
    put(model, first)
    found = model.objects.read(f"{NAME}/{key}")
    assert found is not None
    model.objects.replace(f"{NAME}/{key}", content, found.tag)
    mirror = mirror_of(model.objects.url, tmp_path / "copy")
    with pytest.raises((IntegrityError, UnsafeArtifact), match=message):
        mirror.once()
    assert here(tmp_path / "copy") == []
    mirror.stop()


def test_names_of_models_that_leave_the_folder_are_refused(store_url: str, tmp_path: Path) -> None:
    ObjectStore(store_url).create("models.json", b'{"format":1,"models":["../../etc"]}')
    mirror = mirror_of(store_url, tmp_path / "copy")
    with pytest.raises(UnsafeArtifact, match=r"models.json: is not a list of models"):
        mirror.once()
    mirror.stop()


def test_nothing_is_asked_for_but_the_head_while_nothing_is_published(
    first: Planted, model: PublishedModel, tmp_path: Path
) -> None:
    put(model, first)
    mirror = mirror_of(model.objects.url, tmp_path / "copy", models=[NAME])
    follower = mirror._new(NAME)
    follower.look()
    follower.bring()
    before = mirror.traffic.requests, mirror.traffic.bytes_read
    for _ in range(20):
        follower.look()
        follower.bring()
    assert (mirror.traffic.requests - before[0], mirror.traffic.bytes_read - before[1]) == (20, 0)
    mirror.stop()


def test_a_lost_answer_is_recognised(world: World, first: Planted, store_url: str) -> None:
    class Deaf(ObjectStore):
        """Every write arrives, and every second answer says that another writer was first."""

        count = 0

        def replace(self, key: str, data: bytes, tag: str) -> str:
            tag = super().replace(key, data, tag)
            self.count += 1
            if self.count % 2:
                raise Changed(key)
            return tag

        def create(self, key: str, data: bytes) -> str:
            tag = super().create(key, data)
            if key.endswith("head.json"):
                raise Taken(key)
            return tag

    model = PublishedModel(Deaf(store_url), NAME)
    put(model, first)
    put(model, world.change(first))
    head = model.head()
    assert head.generation == 2
    assert [delta.sequence for delta in head.versions[0].deltas] == [1]
    assert ModelNames(model.objects).read() == (NAME,)


def test_a_store_without_conditional_writes_is_refused(store_url: str) -> None:
    class Loose(ObjectStore):
        def create(self, key: str, data: bytes) -> str:
            try:
                return super().create(key, data)
            except Taken:
                return "overwritten"

    with pytest.raises(Unsupported, match=r"does not enforce put-if-absent .If-None-Match."):
        Loose(store_url).check_conditional_writes()
    ObjectStore(store_url).check_conditional_writes()
    assert keys_of(store_url) == []


def test_a_file_url_is_a_store_too(world: World, first: Planted, tmp_path: Path) -> None:
    objects = ObjectStore(f"file://{tmp_path}/shared")
    objects.check_conditional_writes()
    model = PublishedModel(objects, NAME)
    put(model, first)
    put(model, world.change(first))
    mirror = mirror_of(objects.url, tmp_path / "copy")
    mirror.once()
    assert here(tmp_path / "copy") == ["1", "1/deltas/000001"]
    mirror.stop()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3:///models", "the bucket is missing"),
        ("ftp://host/models", "expected a URL of an object store, one of s3://, gs://, az://, file://"),
        ("s3://me:secret@bucket/models", "credentials and endpoints come from the environment"),
        ("s3://bucket/models?secret=1", "credentials and endpoints come from the environment"),
    ],
)
def test_a_wrong_url_is_named_without_its_secrets(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        ObjectStore(url)
    assert "secret" not in str(raised.value)


def test_secrets_are_in_no_error(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_off(monkeypatch)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "very-secret-token")
    with pytest.raises(ObjectStoreError, match=f"{store_url}/x: cannot read it now: ") as raised:
        ObjectStore(store_url, retry_s=0.1).read("x")
    assert "hush" not in str(raised.value)
    assert "very-secret-token" not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_folder_in_other_use_is_no_mirror(store_url: str, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "precious").touch()
    with pytest.raises(ConfigError, match="holds something else; a mirror removes what is not in the store"):
        mirror_of(store_url, tmp_path / "models")
    mirror_of(store_url, tmp_path / "copy").stop()
    with pytest.raises(ConfigError, match=f"is a copy of {store_url}; choose another folder"):
        mirror_of(f"{store_url}x", tmp_path / "copy")


def test_words_of_a_store_are_passed_on(store_url: str) -> None:
    missing = store_url.rpartition("/")[0] + "-missing/x"
    with pytest.raises(ObjectStoreError, match=r"NoSuchBucket|there is no such bucket"):
        ObjectStore(missing, retry_s=0.1).create("x", b"")
    with pytest.raises(ObjectStoreError, match=r"there is no such bucket"):
        ObjectStore(missing, retry_s=0.1).read("x")
    assert reason_of(ValueError("a?X-Amz-Signature=abc b\n\nDebug source:\nsecret")) == "a b"


@pytest.mark.parametrize(("listens", "cause"), [(False, "Connection refused"), (True, "no answer in time")])
def test_the_cause_of_a_broken_connection_is_said(listens: bool, cause: str) -> None:
    once: Any = {"max_retries": 0, "retry_timeout": timedelta(seconds=1)}
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if listens:
            server.listen()  # and answers nothing
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        store = HTTPStore(address, client_options={"allow_http": True, "timeout": "300ms"}, retry_config=once)
        with pytest.raises(BaseError) as raised:
            store.get("x")
    assert reason_of(raised.value) == f"HTTP error: error sending request: {cause} ({address})"


def test_missing_credentials_are_said() -> None:
    text = (
        "Generic S3 error: Error performing GET http://169.254.169.254/latest/api/token in 60s - 403 Forbidden: denied"
    )
    assert reason_of(ValueError(text)) == (
        "there are no credentials: the environment has none, nor does the machine's metadata service: "
        "403 Forbidden: denied (http://169.254.169.254)"
    )
