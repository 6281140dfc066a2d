"""A delta that was tampered with, digests and all, still leads nowhere."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage.checkpoint import DeltaManifest, PublishedDelta, PublishedVersion, open_delta, open_version, write_delta
from storage.checkpoint.folder import MAX_SHARD_BYTES
from storage.checkpoint.signed import MANIFEST
from storage.checkpoint.strict_json import canonical_json
from storage.errors import CheckpointError, IntegrityError, UnsafeArtifact
from tests.support.storage.delta_parts import delta_parts, delta_table, replace_file, resave, rewrite

ROOT = Path(__file__).parents[3]
SHARD = "tables/item.00000-of-00001.safetensors"
Make = Callable[[], Path]


@pytest.fixture(scope="module")
def version(tmp_path_factory: pytest.TempPathFactory, published_once: Path) -> PublishedVersion:
    return open_version(shutil.copytree(published_once, tmp_path_factory.mktemp("hostile") / "ranker" / "1"))


@pytest.fixture(scope="module")
def published_delta(version: PublishedVersion) -> Path:
    return write_delta(version.path, **delta_parts(version))


@pytest.fixture
def make(published_delta: Path, tmp_path: Path) -> Make:
    """Copies one published delta, to be damaged."""
    numbers = iter(range(1000))
    return lambda: Path(shutil.copytree(published_delta, tmp_path / f"copy{next(numbers)}"))


def read_all(delta: PublishedDelta, version: PublishedVersion) -> None:
    """Reads everything that a server reads of a delta."""
    for table in delta.tables:
        list(delta.shards(table.name))
        delta.removed(table.name)
    version.graph().with_weights(delta.weights())
    delta.golden(version.spec, version.manifest.graph)


def read_version(version: PublishedVersion) -> None:
    """Reads everything that a server reads of a version."""
    for table in version.tables:
        list(version.shards(table.name))
    version.golden()
    version.graph()


def files_of(path: Path) -> list[Path]:
    return sorted(entry for entry in path.rglob("*") if entry.is_file())


def test_one_changed_byte_is_noticed_by_name_at_once_or_when_it_is_read(make: Make, version: PublishedVersion) -> None:
    path = make()
    rng = np.random.default_rng(3)
    for file in files_of(path):
        good = file.read_bytes()
        for position in {0, len(good) - 1, *rng.integers(0, len(good), 5).tolist()}:
            bad = bytearray(good)
            bad[position] ^= 1 << int(rng.integers(8))
            file.write_bytes(bad)
            with pytest.raises((IntegrityError, UnsafeArtifact), match=file.name):
                open_delta(path)
            with pytest.raises((IntegrityError, UnsafeArtifact), match=file.name):
                read_all(open_delta(path, verify=False), version)
        file.write_bytes(good)
    read_all(open_delta(path), version)


def test_what_changes_between_the_check_and_the_reading_is_noticed(make: Make, version: PublishedVersion) -> None:
    for name in (SHARD, "dense.safetensors", "golden.safetensors", "removed.safetensors"):
        path = make()
        delta = open_delta(path)
        good = (path / name).read_bytes()
        for bad in (good[:-1] + bytes([good[-1] ^ 1]), good + b"x", good[:-1], b""):
            (path / name).write_bytes(bad)
            with pytest.raises(IntegrityError, match=name):
                read_all(delta, version)
        (path / name).unlink()
        with pytest.raises(IntegrityError, match=f"{name}' is missing"):
            read_all(delta, version)
        os.mkfifo(path / name)
        with pytest.raises(UnsafeArtifact, match="plain file"):
            read_all(delta, version)
        (path / name).unlink()
        (path / name).symlink_to("/etc/passwd")
        with pytest.raises(UnsafeArtifact, match="symbolic link"):
            read_all(delta, version)


def test_a_version_is_checked_as_it_is_read_too(copy_version: Make) -> None:
    version = open_version(copy_version())
    for file in files_of(version.path):
        if file.name == MANIFEST:
            continue
        good = file.read_bytes()
        file.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
        fresh = open_version(version.path, verify=False)
        with pytest.raises(IntegrityError, match=file.name):
            read_version(fresh)
        file.write_bytes(good)


def test_files_that_do_not_belong_there_are_refused_by_name(make: Make, tmp_path: Path) -> None:
    path = make()
    for extra in ("dense.pt2", "features.json", "code.pkl", "tables/x.safetensors", ".hidden"):
        (path / extra).write_bytes(b"x")
        with pytest.raises(IntegrityError, match=extra):
            open_delta(path)
        (path / extra).unlink()
    for extra in ("deltas", "tables/deltas", "code"):
        (path / extra).mkdir()
        with pytest.raises(IntegrityError, match=extra):
            open_delta(path)
        (path / extra).rmdir()
    for file in files_of(path):
        name = str(file.relative_to(path))
        file.rename(tmp_path / "outside")
        with pytest.raises(IntegrityError, match=file.name):
            open_delta(path)
        file.symlink_to(tmp_path / "outside")
        with pytest.raises(UnsafeArtifact, match=f"{name}.*symbolic link"):
            open_delta(path)
        file.unlink()
        os.mkfifo(file)
        with pytest.raises(UnsafeArtifact, match=f"{name}.*plain file"):
            open_delta(path)
        file.unlink()
        (tmp_path / "outside").rename(file)
    (path / "tables").rename(tmp_path / "elsewhere")
    with pytest.raises(IntegrityError, match="tables/item"):
        open_delta(path)
    (path / "tables").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnsafeArtifact, match=r"tables.*symbolic link"):
        open_delta(path)


@pytest.mark.parametrize(
    "path",
    [
        *["../x", "/etc/passwd", "tables/../../x", "tables\\..\\x", "./dense.safetensors", "tables//item.safetensors"],
        *["../../dense.pt2", "deltas/000002/manifest.json", "dense.safetensors\n", "code.pkl", "", 7, None],
    ],
)
def test_a_path_that_leaves_the_delta_is_refused_by_name(make: Make, path: Any) -> None:
    delta = make()
    rewrite(delta, lambda content: content["files"][0].update(path=path))
    with pytest.raises(UnsafeArtifact) as caught:
        open_delta(delta)
    assert repr(path) in str(caught.value)
    assert "may hold" in str(caught.value)


CHANGES: list[tuple[str, Callable[[dict[str, Any]], object]]] = [
    ("format", lambda c: c.update(format="emberline-checkpoint-1")),
    ("format", lambda c: c.update(format="emberline-delta-2")),
    ("snapshot", lambda c: c.update(snapshot="D" * 32)),
    ("snapshot", lambda c: c.update(snapshot=c["base"])),
    ("parent", lambda c: c.update(parent=None)),
    ("parent", lambda c: c.update(parent="../" * 8 + "ab")),
    ("applies_to", lambda c: c.update(applies_to=[])),
    ("applies_to", lambda c: c.update(applies_to=["b" * 32])),
    ("applies_to", lambda c: c["applies_to"].append(c["parent"])),
    ("applies_to", lambda c: c.update(applies_to=[f"{i:032x}" for i in range(4097)])),
    ("snapshot", lambda c: c["applies_to"].append(c["snapshot"])),
    ("version", lambda c: c.update(version=0)),
    ("version", lambda c: c.update(version="1")),
    ("base", lambda c: c.pop("base")),
    ("sequence", lambda c: c.update(sequence=0)),
    ("sequence", lambda c: c.update(sequence=2**63)),
    ("sequence", lambda c: c.update(sequence=True)),
    ("from_sequence", lambda c: c.update(from_sequence=-1)),
    ("from_sequence", lambda c: c.update(from_sequence=c["sequence"])),
    ("created_unix_ms", lambda c: c.update(created_unix_ms=-1)),
    ("hook", lambda c: c.update(hook="__import__('os')")),
    ("files", lambda c: c["files"].append(dict(c["files"][0]))),
    ("files", lambda c: c["files"].pop()),
    ("files", lambda c: c["files"][0].update(path="dense.pt2")),
    ("sha256", lambda c: c["files"][0].update(sha256="")),
    ("size", lambda c: c["files"][0].update(size=-1)),
    ("tables", lambda c: c["tables"].append(dict(c["tables"][0]))),
    ("name", lambda c: c["tables"][0].update(name="../item")),
    ("dim", lambda c: c["tables"][0].update(dim=0)),
    ("dim", lambda c: c["tables"][0].update(dim=4097)),
    ("row_type", lambda c: c["tables"][0].update(row_type="pickle")),
    ("rows", lambda c: c["tables"][0].update(rows=0)),
    ("rows", lambda c: c["tables"][1].update(rows=1)),
    ("rows", lambda c: c["tables"][0].update(rows=-1)),
    ("removed", lambda c: c["tables"][0].update(removed=-1)),
    ("shards", lambda c: c["tables"][0].update(shards=["dense.safetensors"])),
    ("shards", lambda c: c["tables"][0].update(shards=c["tables"][0]["shards"] * 2)),
    ("fingerprint", lambda c: c["tables"][0].update(fingerprint="")),
    ("dense_fingerprint", lambda c: c.update(dense_fingerprint="x" * 16)),
    ("tolerance", lambda c: c["golden"].update(tolerance=1e9)),
    ("batch", lambda c: c["golden"].update(batch=0)),
]


@pytest.mark.parametrize(("where", "change"), CHANGES, ids=[f"{i}-{name}" for i, (name, _) in enumerate(CHANGES)])
def test_a_manifest_out_of_the_schema_is_refused_by_field(
    make: Make, where: str, change: Callable[[dict[str, Any]], object]
) -> None:
    path = make()
    rewrite(path, change)
    with pytest.raises(UnsafeArtifact, match=MANIFEST) as caught:
        open_delta(path)
    assert where in str(caught.value)


def test_a_manifest_in_other_words_is_not_the_published_one(make: Make, version: PublishedVersion) -> None:
    path = make()
    manifest = path / MANIFEST
    content = json.loads(manifest.read_bytes())
    manifest.write_text(json.dumps(content, indent=1))
    with pytest.raises(IntegrityError, match=MANIFEST):
        open_delta(path)
    manifest.write_bytes(canonical_json({**content, "sequence": 7}))
    with pytest.raises(IntegrityError, match=MANIFEST):
        open_delta(path)
    for bad in (b"", b"[]", b"{}", b"\xff", b"[" * 100_000, b'{"a":1,"a":2}', b" " * (17 << 20), b'{"digest":NaN}'):
        manifest.write_bytes(bad)
        with pytest.raises(UnsafeArtifact, match=MANIFEST):
            open_delta(path)
    shutil.copy(version.path / MANIFEST, manifest)
    with pytest.raises(UnsafeArtifact, match=MANIFEST):
        open_delta(path)


def nan_in(key: str, place: Any) -> Callable[[dict[str, np.ndarray]], object]:
    return lambda arrays: arrays[key].__setitem__(place, np.nan)


def removed(*ids: int) -> Callable[[dict[str, np.ndarray]], object]:
    return lambda arrays: arrays.update(item=np.array(ids, np.int64))


BAD_FILES: list[tuple[str, Callable[[dict[str, np.ndarray]], object], type[CheckpointError], str]] = [
    (SHARD, lambda a: a["ids"].__setitem__(3, a["ids"][2]), IntegrityError, "ascending"),
    (SHARD, lambda a: a.update(ids=a["ids"][::-1].copy()), IntegrityError, "ascending"),
    (SHARD, lambda a: a.update({k: v[:-1] for k, v in a.items()}), IntegrityError, "5 rows, its files hold 4"),
    (SHARD, lambda a: a.update(rows=a["rows"][:, :3]), UnsafeArtifact, "rows of 4"),
    (SHARD, lambda a: a.update(rows=a["rows"].astype(np.float64)), UnsafeArtifact, "F64"),
    (SHARD, lambda a: a.update(ids=a["ids"].reshape(5, 1)), UnsafeArtifact, "item"),
    (SHARD, lambda a: a.update(extra=a["freq"]), UnsafeArtifact, "extra"),
    (SHARD, lambda a: a.pop("freq"), UnsafeArtifact, "freq"),
    (SHARD, nan_in("rows", (3, 1)), IntegrityError, "table 'item': the row of id 7"),
    (SHARD, lambda a: a["rows"].__setitem__((4, 0), -np.inf), IntegrityError, f"table 'item'.*id {2**63 - 1}"),
    ("removed.safetensors", removed(3, 3, 4), IntegrityError, "'item' are not strictly ascending"),
    ("removed.safetensors", removed(5, 4, 3), IntegrityError, "'item' are not strictly ascending"),
    ("removed.safetensors", removed(3, 4), UnsafeArtifact, r"I64 \[3\]"),
    ("removed.safetensors", removed(-7, 0, 3), IntegrityError, "id 0 is changed and removed"),
    ("removed.safetensors", lambda a: a.update(item=np.zeros(3)), UnsafeArtifact, "F64"),
    ("removed.safetensors", lambda a: a.pop("empty"), UnsafeArtifact, "'empty'"),
    ("removed.safetensors", lambda a: a.update(other=np.zeros(0, np.int64)), UnsafeArtifact, "'other'"),
    ("dense.safetensors", nan_in("state.linear.weight", (0, 0)), IntegrityError, "state.linear.weight' holds NaN"),
    ("dense.safetensors", lambda a: a["state.shift"].__setitem__(0, np.inf), IntegrityError, "shift' holds infinity"),
    ("dense.safetensors", lambda a: a.pop("state.shift"), UnsafeArtifact, "state.shift"),
    ("dense.safetensors", lambda a: a.update({"state.x": np.zeros(1, np.float32)}), UnsafeArtifact, "state.x"),
    ("dense.safetensors", lambda a: a.update({"state.shift": np.zeros(5, np.float32)}), UnsafeArtifact, r"\[5\]"),
    ("dense.safetensors", lambda a: a.update({"state.shift": np.zeros(4)}), UnsafeArtifact, "float64"),
    ("golden.safetensors", lambda a: a.update({"output.score": np.zeros((4, 1), np.float32)}), UnsafeArtifact, "4, 1"),
    ("golden.safetensors", nan_in("output.score", 0), UnsafeArtifact, "not finite"),
    ("golden.safetensors", lambda a: a.update({"output.x": a["output.score"]}), UnsafeArtifact, "golden"),
    ("golden.safetensors", lambda a: a.update(code=np.zeros(1, np.uint8)), UnsafeArtifact, "'code'"),
    ("golden.safetensors", lambda a: a.update({"input.evil.x": np.zeros(1)}), UnsafeArtifact, "golden"),
]


@pytest.mark.parametrize(("name", "change", "kind", "reason"), BAD_FILES, ids=[str(i) for i in range(len(BAD_FILES))])
def test_a_planted_file_under_a_right_digest_is_refused(
    make: Make,
    version: PublishedVersion,
    name: str,
    change: Callable[[dict[str, np.ndarray]], object],
    kind: type[CheckpointError],
    reason: str,
) -> None:
    path = make()
    resave(path, name, change)
    delta = open_delta(path)
    with pytest.raises(kind, match=reason):
        read_all(delta, version)


def test_ids_may_not_go_back_from_one_shard_to_the_next(version: PublishedVersion, tmp_path: Path) -> None:
    ids = np.arange(10)
    parts = delta_parts(version, tables=[delta_table(ids=ids, removed=ids[:0])], shard_bytes=25 * 5, sequence=99)
    path = write_delta(version.path, **parts).rename(tmp_path / "moved")
    second = "tables/item.00001-of-00002.safetensors"
    resave(path, second, lambda arrays: arrays["ids"].__setitem__(0, 4))
    with pytest.raises(IntegrityError, match=f"{second}: ids are not strictly ascending"):
        list(open_delta(path).shards("item"))


def header(text: bytes, length: int | None = None) -> bytes:
    return (len(text) if length is None else length).to_bytes(8, "little") + text


@pytest.mark.parametrize(
    "data",
    [
        header(b"{}", 2**63),
        header(b"{}", 2**64 - 1),
        header(b'{"__metadata__":{}}'),
        header(b"[" * 10_000),
        header(b'{"item":{"dtype":"I64","shape":[2305843009213693952],"data_offsets":[0,16]}}') + b"\0" * 16,
        header(b'{"item":{"dtype":"I64","shape":[2],"data_offsets":[0,17]}}') + b"\0" * 17,
        header(b'{"item":{"dtype":"PYOBJ","shape":[2],"data_offsets":[0,16]}}') + b"\0" * 16,
        b"\x80\x04\x95",
        b"",
    ],
    ids=str,
)
def test_a_planted_header_is_refused_by_file(make: Make, version: PublishedVersion, data: bytes) -> None:
    for name in (SHARD, "removed.safetensors", "dense.safetensors", "golden.safetensors"):
        path = make()
        replace_file(path, name, data)
        delta = open_delta(path)
        with pytest.raises(UnsafeArtifact, match=Path(name).name):
            read_all(delta, version)


def test_a_file_that_would_fill_the_memory_is_not_read(make: Make) -> None:
    path = make()
    size = MAX_SHARD_BYTES + 1
    with (path / SHARD).open("r+b") as file:
        file.truncate(size)  # sparse: costs nothing
    rewrite(path, lambda c: next(e for e in c["files"] if e["path"] == SHARD).update(size=size))
    with pytest.raises(UnsafeArtifact, match=f"{size} bytes, at most"):
        open_delta(path)
    with pytest.raises(UnsafeArtifact, match=f"{size} bytes, at most"):
        list(open_delta(path, verify=False).shards("item"))


def test_a_delta_is_no_version_and_a_version_no_delta(make: Make, version: PublishedVersion) -> None:
    with pytest.raises(CheckpointError):
        open_version(make())
    with pytest.raises(CheckpointError):
        open_delta(version.path)


def test_the_schema_in_the_documentation_is_the_codes(make: Make) -> None:
    written = json.loads((ROOT / "docs" / "delta-manifest.schema.json").read_text())
    assert written == DeltaManifest.model_json_schema(), "the manifest changed: run the command in docs/format.md"
    content = json.loads((make() / MANIFEST).read_bytes())
    assert set(content) == set(written["properties"]) - {
        "events",
        "dense",
    }  # times of rows, and a difference of weights
    assert set(written["required"]) <= set(content)
