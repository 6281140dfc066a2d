"""Kept deltas, the catalog of a folder, and which signatures go together."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from serving.protocol.signature import ModelSignature, OutputSignature
from serving.updates.catalog import ModelFolder
from serving.updates.keep import collect, keep, kept_folder
from serving.updates.signatures import check_signature
from serving.updates.stamps import files_stamp
from serving.updates.steps import STEPS, check_step
from storage.errors import IntegrityError, SignatureError, StoreError
from storage.features import InputSpec


def test_a_kept_delta_outlives_its_source_and_is_collected(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "tables").mkdir(parents=True)
    (source / "manifest.json").write_text("m")
    (source / "tables" / "t").write_text("rows")
    kept = keep(source, kept_folder(tmp_path / "store", "aa"))
    assert (kept / "tables" / "t").stat().st_nlink == 2
    (source / "manifest.json").unlink()
    assert (kept / "manifest.json").read_text() == "m"
    with pytest.raises(FileNotFoundError):
        keep(tmp_path / "gone", kept_folder(tmp_path / "store", "bb"))
    keep(source, kept_folder(tmp_path / "store", "cc"))
    collect(tmp_path / "store", {"cc"})
    assert [path.name for path in (tmp_path / "store" / "deltas").iterdir()] == ["cc"]
    collect(tmp_path / "nothing", ())


def test_collecting_leaves_what_is_being_linked(tmp_path: Path) -> None:
    source, kept = tmp_path / "delta", kept_folder(tmp_path / "store", "cc")
    (source / "tables").mkdir(parents=True)
    for name in ("manifest.json", "tables/item.safetensors"):
        (source / name).write_text(name)
    link = os.link

    def link_while_somebody_collects(*args: Any, **options: Any) -> None:
        link(*args, **options)
        collect(tmp_path / "store", {"cc"})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "link", link_while_somebody_collects)
        keep(source, kept)
    assert (kept / "tables" / "item.safetensors").read_text() == "tables/item.safetensors"
    # What a crash left half linked goes with the rest.
    (kept.parent / ".dd.new").mkdir()
    collect(tmp_path / "store", {"cc"})
    assert sorted(entry.name for entry in kept.parent.iterdir()) == ["cc"]


def test_where_links_cannot_be_made_the_files_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    source = tmp_path / "source"
    source.mkdir()
    (source / "manifest.json").write_text("m")
    kept = keep(source, kept_folder(tmp_path / "store", "aa"))
    assert (kept / "manifest.json").stat().st_nlink == 1
    assert (kept / "manifest.json").read_text() == "m"


def test_a_folder_that_cannot_be_listed_is_not_kept_as_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, kept = tmp_path / "source", kept_folder(tmp_path / "store", "aa")
    (source / "tables").mkdir(parents=True)
    for name in ("manifest.json", "tables/item.safetensors"):
        (source / name).write_text(name)
    scandir = os.scandir
    for failing in (source, source / "tables"):

        def fail(path: Any, failing: Path = failing) -> Any:
            if path in (failing, str(failing)):
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
            return scandir(path)

        with monkeypatch.context() as patch:
            patch.setattr(os, "scandir", fail)
            with pytest.raises(StoreError, match=r"keeping .*source in .*deltas: .*Input/output error"):
                keep(source, kept)
        assert not kept.exists()
    keep(source, kept)
    assert (kept / "tables" / "item.safetensors").exists()


def test_a_folder_is_listed_with_what_cannot_be_read(tmp_path: Path) -> None:
    for folder in ("1/deltas/000001", "1/deltas/000002", "1/deltas/.publish-x", "1/deltas/7", "2", "007", ".publish-y"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "2" / "manifest.json").write_text("{}")
    for sequence in (1, 2):
        (tmp_path / "1" / "deltas" / f"{sequence:06d}" / "manifest.json").write_text("{}")
    # Neither a folder without a manifest nor a link is a delta.
    (tmp_path / "1" / "deltas" / "000003").mkdir()
    (tmp_path / "1" / "deltas" / "000004").symlink_to(tmp_path / "1" / "deltas" / "000002")
    found = ModelFolder(tmp_path).scan({1: 1})
    assert sorted(found.versions) == [1, 2]
    assert isinstance(found.versions[1].error, IntegrityError)
    assert "not published to the end" in str(found.versions[1].error)
    assert [(delta.sequence, delta.error is not None) for delta in found.deltas(1)] == [(2, True)]
    assert found.deltas(2) == ()
    assert found.deltas(9) == ()
    with pytest.raises(FileNotFoundError):
        ModelFolder(tmp_path / "nothing").scan()


def test_a_folder_with_another_manifest_is_another_one(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    folder = ModelFolder(tmp_path)
    first = folder.scan().versions[1]
    assert folder.scan().versions[1].key == first.key
    stamp = files_stamp(tmp_path / "1")
    (tmp_path / "1" / "manifest.json").write_text("x")
    second = folder.scan().versions[1]
    assert second.key != first.key
    assert files_stamp(tmp_path / "1") != stamp


def test_steps_are_a_closed_list() -> None:
    assert [check_step(step) for step in STEPS] == list(STEPS)
    with pytest.raises(ValueError, match="no step"):
        check_step("merge")


# ---- signatures


def signature(*inputs: InputSpec, outputs: tuple[OutputSignature, ...] = (), size: int = 8) -> ModelSignature:
    return ModelSignature("m", inputs, outputs or (OutputSignature("score", "FP32", (1,)),), size)


USER = InputSpec(name="user", dtype="INT64", column_type="integer")
TAGS = InputSpec(name="tags", dtype="BYTES", kind="list", missing="null")


@pytest.mark.parametrize(
    "new",
    [
        signature(USER, TAGS),
        signature(TAGS, USER, InputSpec(name="extra", dtype="FP32", missing="null")),
        signature(InputSpec(name="user", dtype="INT64", missing="null"), TAGS, size=16),
        signature(USER, TAGS, outputs=(OutputSignature("more", "FP32", (2,)), OutputSignature("score", "FP32", (1,)))),
    ],
)
def test_what_clients_do_not_notice_is_compatible(new: ModelSignature) -> None:
    check_signature(signature(USER, TAGS), new, 2, ())


@pytest.mark.parametrize(
    ("new", "fault"),
    [
        (signature(USER), "tags"),
        (signature(InputSpec(name="user", dtype="INT64", column_type="timestamp"), TAGS), "user"),
        (signature(USER, InputSpec(name="labels", dtype="BYTES", kind="list", missing="null")), "tags"),
        (signature(InputSpec(name="user", dtype="BYTES"), TAGS), "user"),
        (signature(USER, InputSpec(name="tags", dtype="BYTES", missing="null")), "tags"),
        (signature(USER, InputSpec(name="tags", dtype="BYTES", kind="list")), "tags"),
        (signature(USER, TAGS, InputSpec(name="extra", dtype="FP32")), "extra"),
        (signature(USER, TAGS, outputs=(OutputSignature("like", "FP32", (1,)),)), "score"),
        (signature(USER, TAGS, outputs=(OutputSignature("score", "FP64", (1,)),)), "score"),
        (signature(USER, TAGS, size=4), "max_batch_size"),
    ],
)
def test_what_breaks_clients_waits_until_it_is_allowed_by_name(new: ModelSignature, fault: str) -> None:
    with pytest.raises(SignatureError, match=fault):
        check_signature(signature(USER, TAGS), new, 2, ("another",))
    check_signature(signature(USER, TAGS), new, 2, (fault,))
