"""A delta is read back as it was published, appears whole or not at all, and every byte of it is what was hashed."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from storage.checkpoint import (
    Golden,
    PublishedVersion,
    delta_writer,
    list_deltas,
    next_sequence,
    open_delta,
    open_version,
    write_delta,
)
from storage.checkpoint.fingerprint import fingerprint_hex, table_fingerprint, weights_fingerprint
from storage.checkpoint.install import move_into_place
from storage.checkpoint.tensors import write_bytes
from storage.errors import (
    CheckpointError,
    ConfigError,
    IntegrityError,
    LineageError,
    NotFound,
    ParityError,
    UnsafeArtifact,
)
from tests.support.storage.delta_parts import IDS, REMOVED, delta_parts, delta_table, rows_for

Write = Callable[..., Path]


@pytest.fixture
def version(copy_version: Callable[[], Path]) -> PublishedVersion:
    return open_version(copy_version())


@pytest.fixture
def write(version: PublishedVersion) -> Write:
    """Publishes a delta of this test's version, with changed parts if given."""
    return lambda **changes: write_delta(version.path, **delta_parts(version, **changes))


def test_a_delta_is_read_back_as_it_was_published(write: Write, version: PublishedVersion) -> None:
    ancestors = [version.snapshot, "a" * 32, "b" * 32]
    path = write(sequence=17, from_sequence=3, parent="b" * 32, applies_to=ancestors, metadata={"step": 12})
    assert path == version.path / "deltas" / "000017"
    delta = open_delta(path)
    assert (delta.version, delta.sequence, delta.snapshot) == (1, 17, "d" * 32)
    assert (delta.parent, delta.applies_to, delta.base) == ("b" * 32, tuple(ancestors), version.snapshot)
    assert (delta.manifest.from_sequence, delta.manifest.metadata) == (3, {"step": 12})
    assert [(t.name, t.dim, t.rows) for t in delta.tables] == [("item", 4, 5), ("empty", 2, 0)]
    (shard,) = delta.shards("item")
    np.testing.assert_array_equal(shard.ids, IDS)
    np.testing.assert_array_equal(shard.rows, rows_for(IDS, 4))
    np.testing.assert_array_equal(shard.freq, [0, 1, 2, 3, 4])
    np.testing.assert_array_equal(delta.removed("item"), REMOVED)
    assert list(delta.shards("empty")) == []
    assert delta.removed("empty").shape == (0,)
    assert delta.size_bytes == sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    assert [file.name for file in (path / "tables").iterdir()] == ["item.00000-of-00001.safetensors"]
    golden = delta.golden(version.spec, version.manifest.graph)
    np.testing.assert_array_equal(golden.outputs["score"], version.golden().outputs["score"])
    for name in ("shards", "removed"):
        with pytest.raises(NotFound, match="nothing"):
            list(getattr(delta, name)("nothing"))


def test_what_a_reader_gets_cannot_be_written_to(write: Write) -> None:
    delta = open_delta(write())
    (shard,) = delta.shards("item")
    assert not any(array.flags.writeable for array in (shard.ids, shard.rows, shard.freq, delta.removed("item")))


def test_the_graph_runs_on_the_deltas_weights(
    write: Write, version: PublishedVersion, make_arguments: Callable[..., tuple[torch.Tensor, ...]]
) -> None:
    before = version.graph()
    delta = open_delta(write())
    after = before.with_weights(delta.weights())
    tensors = make_arguments(6)
    old, new = before.run(tensors)[0], after.run(tensors)[0]
    assert not torch.equal(old, new)
    assert torch.equal(before.run(tensors)[0], old), "the graph that was there changed"
    back = after.with_weights(before.weights())
    assert torch.equal(back.run(tensors)[0], old)
    assert (after.inputs, after.outputs, after.weight_bytes()) == (before.inputs, before.outputs, before.weight_bytes())
    assert delta.manifest.dense_fingerprint == fingerprint_hex(weights_fingerprint(after.weights()))
    assert version.manifest.dense_fingerprint == fingerprint_hex(weights_fingerprint(before.weights()))


def test_a_delta_without_a_change_is_one_too(write: Write) -> None:
    path = write(tables=[delta_table(ids=IDS[:0], removed=REMOVED[:0])])
    delta = open_delta(path)
    assert not (path / "tables").exists()
    assert delta.tables[0].rows == 0
    assert delta.manifest.tables[0].fingerprint == "0" * 16
    assert open_delta(write(tables=[], sequence=2, snapshot="e" * 32)).tables == ()


def test_many_rows_are_cut_into_shards(write: Write) -> None:
    ids = np.arange(-500, 500)
    delta = open_delta(write(tables=[delta_table(ids=ids, removed=ids[:0] - 1000)], shard_bytes=25 * 300))
    assert [len(shard.ids) for shard in delta.shards("item")] == [300, 300, 300, 100]
    np.testing.assert_array_equal(np.concatenate([shard.rows for shard in delta.shards("item")]), rows_for(ids, 4))


def test_what_does_not_have_the_trainers_own_fingerprint_is_not_published(
    write: Write, version: PublishedVersion
) -> None:
    item = table_fingerprint(IDS, rows_for(IDS, 4), REMOVED)
    computed = open_delta(write()).manifest
    assert computed.tables[0].fingerprint == fingerprint_hex(item)
    dense = int(computed.dense_fingerprint, 16)
    given = open_delta(write(sequence=2, fingerprints={"item": item, "empty": 0}, dense_fingerprint=dense)).manifest
    assert (given.tables, given.dense_fingerprint) == (computed.tables, computed.dense_fingerprint)
    with pytest.raises(ParityError, match=f"table 'item': .* is {item:016x}, the trainer's own is {item - 1:016x}"):
        write(sequence=3, fingerprints={"item": item - 1})
    with pytest.raises(ParityError, match="table 'empty'"):
        write(sequence=3, fingerprints={"item": item, "empty": 1})
    with pytest.raises(ParityError, match="dense weights"):
        write(sequence=3, dense_fingerprint=dense ^ 1)
    with pytest.raises(CheckpointError, match="'itme'"):
        write(sequence=3, fingerprints={"itme": 1})
    assert list_deltas(version.path) == [1, 2]


def test_the_same_parts_make_the_same_bytes(write: Write) -> None:
    first = write(created_unix_ms=1_700_000_000_123)
    kept = {file.relative_to(first): file.read_bytes() for file in first.rglob("*") if file.is_file()}
    for file in sorted(first.rglob("*"), reverse=True):
        file.unlink() if file.is_file() else file.rmdir()
    first.rmdir()
    second = write(created_unix_ms=1_700_000_000_123)
    assert {file.relative_to(second): file.read_bytes() for file in second.rglob("*") if file.is_file()} == kept
    assert open_delta(second).manifest.created_unix_ms == 1_700_000_000_123


def test_deltas_are_listed_and_a_version_with_them_opens(write: Write, version: PublishedVersion) -> None:
    assert list_deltas(version.path) == []
    assert next_sequence(version.path) == 1
    for sequence in (2, 10, 1, 1_000_000):
        write(sequence=sequence)
    deltas = version.path / "deltas"
    for name in (".publish-1", "3", "0000000", "000000", "000004", "00000a", "0000011", "9" * 30):
        (deltas / name).mkdir()
        if name != "000004":
            (deltas / name / "manifest.json").write_text("{}")
    (deltas / "000005").write_text("no folder")
    (deltas / "000006").symlink_to(deltas / "000001")
    assert list_deltas(version.path) == [1, 2, 10, 1_000_000]
    assert next_sequence(version.path) == 1_000_001
    assert open_version(version.path).snapshot == version.snapshot
    assert open_version(version.path).size_bytes == version.size_bytes
    with pytest.raises(UnsafeArtifact, match="symbolic link"):
        open_delta(deltas / "000006")
    with pytest.raises(NotFound, match="000077"):
        open_delta(deltas / "000077")
    with pytest.raises(IntegrityError, match=r"manifest\.json is missing"):
        open_delta(deltas / "000004")


def test_the_deltas_of_a_version_lie_in_it(write: Write, version: PublishedVersion, tmp_path: Path) -> None:
    path = write()
    (version.path / "deltas").rename(tmp_path / "elsewhere")
    (version.path / "deltas").symlink_to(tmp_path / "elsewhere")
    assert list_deltas(version.path) == []
    with pytest.raises(UnsafeArtifact, match=r"deltas.*symbolic link"):
        open_version(version.path)
    with pytest.raises(CheckpointError, match=r"deltas is a symbolic link"):
        write(sequence=2)
    (version.path / "deltas").unlink()
    (version.path / "deltas").write_text("")
    assert list_deltas(version.path) == []
    with pytest.raises(IntegrityError, match="deltas"):
        open_version(version.path)
    with pytest.raises(CheckpointError, match="deltas"):
        write(sequence=2)
    assert not path.exists()


def test_a_delta_is_opened_elsewhere_but_not_under_another_number(write: Write, tmp_path: Path) -> None:
    path = write(sequence=5)
    elsewhere = path.rename(tmp_path / ("7" * 32))
    assert open_delta(elsewhere).sequence == 5
    with pytest.raises(IntegrityError, match="sequence 5"):
        open_delta(elsewhere.rename(path.with_name("000006")))
    other = tmp_path / "ranker" / "2" / "deltas"
    other.mkdir(parents=True)
    with pytest.raises(IntegrityError, match="version 1"):
        open_delta(path.with_name("000006").rename(other / "000005"))


def test_a_sequence_is_used_once(write: Write) -> None:
    path = write(sequence=4)
    before = (path / "manifest.json").read_bytes()
    with pytest.raises(CheckpointError, match="000004 exists"):
        write(sequence=4, snapshot="e" * 32)
    assert (path / "manifest.json").read_bytes() == before
    (path.parent / "000009").mkdir()
    with pytest.raises(CheckpointError, match="000009 exists"):
        write(sequence=9)
    assert sorted(os.listdir(path.parent)) == ["000004", "000009"]


def test_of_two_publishers_of_one_sequence_one_is_notified(write: Write, version: PublishedVersion) -> None:
    def attempt(number: int) -> str:
        try:
            return open_delta(write(snapshot=f"{number:032x}")).snapshot
        except CheckpointError as error:
            return str(error)

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(attempt, range(8)))
    won = [answer for answer in answers if "used once" not in answer]
    assert won == [open_delta(version.path / "deltas" / "000001").snapshot]
    assert os.listdir(version.path / "deltas") == ["000001"]


def test_a_rename_takes_no_name_that_is_in_use(tmp_path: Path) -> None:
    for name in ("made", "taken", "made/inside"):
        (tmp_path / name).mkdir()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name in ("taken", "dangling"):  # a rename would replace the first, because it is empty
        assert not move_into_place(tmp_path / "made", tmp_path / name)
    assert move_into_place(tmp_path / "made", tmp_path / "free")
    assert sorted(os.listdir(tmp_path)) == ["dangling", "free", "taken"]


def test_the_manifest_is_written_last_and_the_folder_renamed_after(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(sequence=1)
    events: list[str] = []
    real_bytes, real_rename, real_fsync = write_bytes, os.rename, os.fsync
    monkeypatch.setattr(delta_writer, "write_bytes", lambda p, d: (events.append(p.name), real_bytes(p, d))[1])
    monkeypatch.setattr(os, "rename", lambda a, b: (events.append("rename"), real_rename(a, b))[1])

    def fsync(descriptor: int) -> None:
        events.append("sync folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "sync file")
        real_fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    write(sequence=2)
    assert events == [
        *["sync file"] * 4,
        *["manifest.json", "sync file", "sync folder", "sync folder", "rename", "sync folder", "sync folder"],
    ]


def test_a_failed_publication_leaves_nothing(
    write: Write, version: PublishedVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(delta_writer, "write_table", full)
    with pytest.raises(CheckpointError, match="No space left"):
        write()
    assert os.listdir(version.path / "deltas") == []


def test_parts_that_do_not_fit_are_refused_where_they_are_made(write: Write, version: PublishedVersion) -> None:
    good = version.golden()
    weights = delta_parts(version)["weights"]
    nan = rows_for(IDS, 4)
    nan[3, 2] = np.nan
    for reason, table in (
        ("removed must be strictly ascending", lambda: delta_table(removed=REMOVED[::-1])),
        ("removed must be strictly ascending", lambda: delta_table(removed=np.array([3, 3]))),
        ("removed must be int64", lambda: delta_table(removed=REMOVED.astype(np.float64))),
        (r"removed must be int64 \[m\]", lambda: delta_table(removed=REMOVED.reshape(1, -1))),
        ("id -1 stands both", lambda: delta_table(removed=np.array([-1, 7]))),
        ("ids must be strictly ascending", lambda: delta_table(ids=IDS[::-1])),
        ("row of id 7 holds NaN", lambda: delta_table(rows=nan)),
        ("rows must be float32", lambda: delta_table(rows=rows_for(IDS, 3))),
        ("letters", lambda: delta_table("../item")),
    ):
        with pytest.raises((CheckpointError, ConfigError), match=reason):
            table()
    inf = dict(weights, **{"state.norm.running_var": np.full(4, np.inf, np.float32)})
    short = {name: array for name, array in weights.items() if name != "state.shift"}
    for reason, changes in (
        ("'other' of dim 4 is not in the version", {"tables": [delta_table("other")]}),
        ("'item' of dim 3 is not in the version", {"tables": [delta_table(dim=3)]}),
        ("stands twice", {"tables": [delta_table(), delta_table()]}),
        ("state.shift", {"weights": short}),
        ("state.more", {"weights": dict(weights, **{"state.more": np.zeros(1, np.float32)})}),
        (r"state.shift.*\[5\]", {"weights": dict(weights, **{"state.shift": np.zeros(5, np.float32)})}),
        ("state.shift.*float64", {"weights": dict(weights, **{"state.shift": np.zeros(4)})}),
        ("running_var' holds infinity", {"weights": inf}),
        ("constant.*NaN", {"weights": {k: v * np.nan if "constant" in k else v for k, v in weights.items()}}),
        ("golden: the outputs", {"outputs": ()}),
        ("golden: output", {"golden": Golden(good.columns, good.batch, {"score": good.outputs["score"][:, 0]})}),
        ("snapshot", {"snapshot": "x"}),
        ("parent", {"parent": "b" * 32}),
        ("applies_to", {"applies_to": []}),
        ("applies_to", {"applies_to": [version.snapshot] * 2}),
        ("another snapshot", {"snapshot": version.snapshot}),
        ("from_sequence", {"from_sequence": 1}),
        ("sequence", {"sequence": 0}),
        ("sequence", {"sequence": -1}),
        ("metadata", {"metadata": {"path": Path("/")}}),
    ):
        with pytest.raises(CheckpointError, match=reason):
            write(**changes)
    with pytest.raises(LineageError, match=version.snapshot):
        write(base="b" * 32)
    with pytest.raises(NotFound, match="not a published version"):
        write_delta(version.path.parent, **delta_parts(version))
    assert not (version.path / "deltas").exists() or os.listdir(version.path / "deltas") == []


def test_infinity_in_a_constant_is_a_mask(write: Write, version: PublishedVersion) -> None:
    weights: dict[str, Any] = delta_parts(version)["weights"]
    name = next(key for key in weights if key.startswith("constant."))
    delta = open_delta(write(weights=dict(weights, **{name: np.full_like(weights[name], -np.inf)})))
    assert torch.isinf(delta.weights()[name]).all()


def test_a_delta_that_goes_while_it_is_read_is_not_found(write: Write, version: PublishedVersion) -> None:
    delta = open_delta(write())
    delta.path.rename(version.path / "gone")
    for read in (lambda: list(delta.shards("item")), lambda: delta.removed("item"), delta.weights):
        with pytest.raises(NotFound, match="removed while it was read"):
            read()


def test_nothing_of_the_publishers_file_system_is_in_a_delta(write: Write, tmp_path: Path) -> None:
    for file in write().rglob("*.*"):
        for secret in (str(tmp_path), os.uname().nodename, "conftest"):
            assert secret.encode() not in file.read_bytes(), f"{file.name} holds {secret}"
