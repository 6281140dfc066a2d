"""Tests what replicas write: what is found done, and what another replica of the same name keeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.errors import Conflict
from storage.objects import ObjectStore
from storage.objects.fleet import FleetObjects, Replica
from storage.objects.head import VersionObject
from storage.objects.published import PublishedModel
from storage.objects.served import Served

IDS = [f"{number:032x}" for number in range(1, 4)]


@pytest.fixture
def objects(tmp_path: Path) -> FleetObjects:
    return FleetObjects(PublishedModel(ObjectStore(f"file://{tmp_path}"), "ranker"))


def test_a_write_is_found_done_although_a_snapshot_was_refused_since(objects: FleetObjects) -> None:
    version = VersionObject(version=1, snapshot=IDS[1], manifest="0" * 64, bytes=1)
    objects.model.update(lambda head: head.with_version(version))
    seen = Served()
    wanted = seen.changed(snapshot=IDS[0], by="a", written_unix_ms=7)
    objects.write(seen, lambda _: wanted)
    objects.refuse(IDS[1], "b: no")
    objects.refuse(IDS[2], "b: it has left the store")
    assert objects.write(seen, lambda _: wanted).served.refused == {IDS[1]: ("b: no",)}
    with pytest.raises(Conflict):
        objects.write(seen, lambda _: seen.changed(snapshot=IDS[0], by="c", written_unix_ms=7))


def test_one_that_leaves_does_not_take_its_successor_along(objects: FleetObjects) -> None:
    objects.report(Replica(id="a", wake="new"))
    objects.leave("a", "old")
    assert [each.wake for each in objects.replicas()] == ["new"]
    objects.leave("a", "new")
    assert objects.replicas() == []
