"""A published version holds what was published, appears whole or not at all, and one changed byte is noticed."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from storage.checkpoint import Golden, GraphInput, TableData, open_version, writer
from storage.checkpoint.fingerprint import fingerprint_hex, rows_fingerprint, weights_fingerprint
from storage.checkpoint.signed import digest_of
from storage.checkpoint.strict_json import canonical_json
from storage.checkpoint.tensors import TensorFile, write_bytes, write_tensors
from storage.errors import CheckpointError, ConfigError, IntegrityError, NotFound, ParityError, UnsafeArtifact

Publish = Callable[..., Path]


def test_a_version_is_read_back_as_it_was_published(
    copy_version: Callable[[], Path], published_tables: list[TableData]
) -> None:
    path = copy_version()
    assert path.name == "1"
    version = open_version(path)
    assert [(t.name, t.dim, t.rows) for t in version.tables] == [("item", 4, 100), ("empty", 2, 0)]
    for table in published_tables:
        shards = list(version.shards(table.name))
        np.testing.assert_array_equal(np.concatenate([s.ids for s in shards]), table.ids)
        np.testing.assert_array_equal(np.concatenate([s.rows for s in shards]), table.rows)
        np.testing.assert_array_equal(np.concatenate([s.freq for s in shards]), table.freq)
    golden = version.golden()
    assert golden.batch == 5
    assert set(golden.columns) == {"price", "history"}
    assert golden.outputs["score"].shape == (5, 1)
    assert [feature.name for feature in version.spec.features] == ["price", "history"]
    assert version.manifest.metadata == {"auc": 0.75}
    with pytest.raises(NotFound, match="nothing"):
        next(version.shards("nothing"))


def test_the_graph_of_a_version_runs(
    copy_version: Callable[[], Path],
    attention: torch.nn.Module,
    make_arguments: Callable[..., tuple[torch.Tensor, ...]],
) -> None:
    graph = open_version(copy_version()).graph()
    assert [entry.name for entry in graph.inputs] == ["dense", "history", "history.lengths"]
    tensors = make_arguments(6)
    with torch.inference_mode():
        torch.testing.assert_close(graph.run(tensors)[0], attention(*tensors)["score"], rtol=0, atol=0)


def test_a_table_larger_than_a_shard_is_cut(publish: Publish) -> None:
    version = open_version(publish(shard_bytes=25 * 25))
    shards = list(version.shards("item"))
    assert len(shards) == 4
    assert [path.name for path in sorted((version.path / "tables").glob("item*"))][
        -1
    ] == "item.00003-of-00004.safetensors"
    assert np.concatenate([shard.ids for shard in shards]).shape == (100,)


@pytest.mark.slow
def test_versions_count_up_and_never_change(publish: Publish, tmp_path: Path) -> None:
    first, second, ninth = publish(), publish(), publish(version=9)
    assert [path.name for path in (first, second, ninth, publish())] == ["1", "2", "9", "10"]
    before = (second / "manifest.json").read_bytes()
    with pytest.raises(CheckpointError, match="2 exists"):
        publish(version=2)
    assert (second / "manifest.json").read_bytes() == before
    assert open_version(first).snapshot != open_version(second).snapshot
    assert leftovers(tmp_path / "ranker") == []


def leftovers(model: Path) -> list[str]:
    return [name for name in os.listdir(model) if not name.isdigit() and name != "config.pbtxt"]


@pytest.mark.slow
def test_publishers_at_once_get_different_numbers(publish: Publish, tmp_path: Path) -> None:
    publish()  # torch's export state is warm now; from here on the race is about folders
    with ThreadPoolExecutor(4) as pool:
        names = list(pool.map(lambda _: publish().name, range(3)))
    assert sorted(map(int, names)) == [2, 3, 4]
    for name in names:
        open_version(tmp_path / "ranker" / name)


def test_of_two_publishers_of_one_number_the_loser_is_notified(
    publish: Publish, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.rename

    def rename_after_another_publisher(source: Any, target: Any) -> None:
        if not os.path.lexists(target):
            Path(target).mkdir()
            (Path(target) / "manifest.json").write_text("theirs")
        real(source, target)

    monkeypatch.setattr(os, "rename", rename_after_another_publisher)
    with pytest.raises(CheckpointError, match="choose another number"):
        publish(version=3)
    assert (tmp_path / "ranker" / "3" / "manifest.json").read_text() == "theirs"
    assert leftovers(tmp_path / "ranker") == []


def test_a_failed_publication_leaves_nothing(publish: Publish, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writer, "write_table", full)
    with pytest.raises(CheckpointError, match="No space left"):
        publish()
    assert os.listdir(tmp_path / "ranker") == []


def test_the_manifest_is_written_last_and_the_folder_renamed_after(
    publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    real_bytes, real_rename, real_fsync = write_bytes, os.rename, os.fsync
    monkeypatch.setattr(writer, "write_bytes", lambda p, d: (events.append(p.name), real_bytes(p, d))[1])
    monkeypatch.setattr(os, "rename", lambda a, b: (events.append("rename"), real_rename(a, b))[1])

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            events.append("sync folder")
        real_fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    publish()
    assert events.index("manifest.json") > events.index("features.json")
    tail = events[events.index("manifest.json") :]
    assert tail == ["manifest.json", "sync folder", "sync folder", "rename", "sync folder", "sync folder"]


def test_a_users_config_is_never_touched(publish: Publish, tmp_path: Path) -> None:
    config = tmp_path / "ranker" / "config.pbtxt"
    publish()
    config.write_text("# mine\n")
    publish()
    assert config.read_text() == "# mine\n"


def test_the_first_config_is_what_triton_reads(publish: Publish, tmp_path: Path) -> None:
    publish()
    parsed = text_format.Parse((tmp_path / "ranker" / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())
    assert parsed.name == "ranker"
    assert parsed.backend == "emberline"
    assert parsed.max_batch_size == 1024
    inputs = {entry.name: entry for entry in parsed.input}
    assert list(inputs) == ["price", "price.valid", "history", "history.lengths", "history.valid"]
    assert [name for name, entry in inputs.items() if not entry.optional] == ["price", "history"]
    assert list(inputs["price"].dims) == [3]
    assert list(inputs["history"].dims) == [-1]
    assert inputs["history"].data_type == model_config_pb2.TYPE_INT64
    assert inputs["history.lengths"].data_type == model_config_pb2.TYPE_INT64
    assert parsed.output[0].name == "score"
    assert parsed.instance_group[0].kind == model_config_pb2.ModelInstanceGroup.KIND_AUTO
    assert parsed.HasField("dynamic_batching")


def files_of(path: Path) -> list[Path]:
    return sorted(entry for entry in path.rglob("*") if entry.is_file())


def test_one_changed_byte_in_any_file_is_noticed_by_name(copy_version: Callable[[], Path]) -> None:
    path = copy_version()
    rng = np.random.default_rng(3)
    for file in files_of(path):
        good = file.read_bytes()
        for position in {0, len(good) - 1, *rng.integers(0, len(good), 6).tolist()}:
            bad = bytearray(good)
            bad[position] ^= 1 << int(rng.integers(8))
            file.write_bytes(bad)
            with pytest.raises((IntegrityError, UnsafeArtifact), match=file.name):
                open_version(path)
        file.write_bytes(good)
    open_version(path)


def test_a_missing_or_extra_file_is_noticed_by_name(copy_version: Callable[[], Path]) -> None:
    path = copy_version()
    for file in files_of(path):
        good = file.read_bytes()
        file.unlink()
        with pytest.raises(IntegrityError, match=file.name):
            open_version(path, verify=False)
        file.write_bytes(good[:-1])
        with pytest.raises((IntegrityError, UnsafeArtifact), match=file.name):
            open_version(path, verify=False)
        file.write_bytes(good)
    for extra in ("model.pkl", "tables/x.safetensors", "weights.bin"):
        (path / extra).write_bytes(b"x")
        with pytest.raises(IntegrityError, match=extra):
            open_version(path)
        (path / extra).unlink()
    (path / "code").mkdir()
    with pytest.raises(IntegrityError, match="code"):
        open_version(path)


def test_links_and_odd_files_are_refused_by_name(copy_version: Callable[[], Path], tmp_path: Path) -> None:
    path = copy_version()
    golden = path / "golden.safetensors"
    outside = tmp_path / "outside"
    golden.rename(outside)
    golden.symlink_to(outside)
    with pytest.raises(UnsafeArtifact, match=r"golden\.safetensors.*symbolic link"):
        open_version(path)
    golden.unlink()
    os.mkfifo(golden)
    with pytest.raises(UnsafeArtifact, match=r"golden\.safetensors.*plain file"):
        open_version(path)
    golden.unlink()
    (path / "tables").rename(tmp_path / "elsewhere")
    (path / "tables").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnsafeArtifact, match=r"tables.*symbolic link"):
        open_version(path)


def test_a_folder_under_another_number_is_refused(copy_version: Callable[[], Path]) -> None:
    path = copy_version()
    with pytest.raises(IntegrityError, match="version 1"):
        open_version(path.rename(path.parent / "5"))
    with pytest.raises(NotFound, match="77"):
        open_version(path.parent / "77")


def test_parts_that_do_not_fit_are_refused_before_anything_is_written(
    publish: Publish, published_tables: list[TableData], golden: Golden, tmp_path: Path
) -> None:
    ids = np.array([2, 1])
    with pytest.raises(CheckpointError, match="strictly ascending"):
        TableData("t", 2, ids, np.zeros((2, 2), np.float32), np.zeros(2, np.uint8))
    with pytest.raises(CheckpointError, match="rows must be float32"):
        TableData("t", 2, ids[::-1], np.zeros((2, 2)), np.zeros(2, np.uint8))
    with pytest.raises(ConfigError, match="letters"):
        TableData("../t", 2, ids[:0], np.zeros((0, 2), np.float32), np.zeros(0, np.uint8))
    with pytest.raises(ConfigError, match="looks up the table 'item'"):
        publish(tables=published_tables[1:])
    with pytest.raises(ConfigError, match="stands twice"):
        publish(tables=published_tables * 2)
    with pytest.raises(ConfigError, match="version is 0"):
        publish(version=0)
    inputs = [
        GraphInput(name="dense", kind="dense", source="dense", shape=(-1, 3)),
        GraphInput(name="history", kind="rows", source="histroy", shape=(-1, 5, 4)),
        GraphInput(name="history.lengths", kind="lengths", source="history", shape=(-1,), dtype="INT64"),
    ]
    with pytest.raises(ConfigError, match="histroy"):
        publish(graph_inputs=inputs)
    inputs[1] = GraphInput(name="rows", kind="rows", source="history", shape=(-1, 6, 4))
    with pytest.raises(ConfigError, match=r"declared \[-1, 6, 4\], the feature spec gives \[-1, 5, 4\]"):
        publish(graph_inputs=inputs)
    bad = Golden(golden.columns, golden.batch, {"score": golden.outputs["score"][:, 0]})
    with pytest.raises(CheckpointError, match="golden: output 'score'"):
        publish(golden=bad)
    bad = Golden(golden.columns, golden.batch, {"score": golden.outputs["score"].astype(np.float64)})
    with pytest.raises(CheckpointError, match="float64"):
        publish(golden=bad)
    bad = Golden(golden.columns, golden.batch, {"score": golden.outputs["score"] * np.float32("nan")})
    with pytest.raises(CheckpointError, match="not finite"):
        publish(golden=bad)
    assert not (tmp_path / "ranker").exists() or os.listdir(tmp_path / "ranker") == []


def test_a_version_says_where_it_comes_from(publish: Publish) -> None:
    line = [f"{number:032x}" for number in range(5000)]
    path = publish(
        snapshot="c" * 32, parent=line[0], equals=line[0], descends_from=line, created_unix_ms=1_700_000_000_999
    )
    manifest = open_version(path).manifest
    assert (manifest.snapshot, manifest.parent, manifest.equals) == ("c" * 32, line[0], line[0])
    assert manifest.descends_from == tuple(line[:4096])
    assert (manifest.created_unix, manifest.created_unix_ms) == (1_700_000_000, 1_700_000_000_999)
    with pytest.raises(CheckpointError, match="equals"):
        publish(equals="x")


def test_a_version_carries_the_fingerprints_of_its_tables(publish: Publish, published_tables: list[TableData]) -> None:
    version = open_version(publish())
    item, empty = version.manifest.tables
    assert item.fingerprint == fingerprint_hex(rows_fingerprint(published_tables[0].ids, published_tables[0].rows))
    assert empty.fingerprint == "0" * 16
    assert version.manifest.dense_fingerprint == fingerprint_hex(weights_fingerprint(version.weights()))


def test_one_row_changed_beneath_valid_digests_is_noticed_when_it_is_read(copy_version: Callable[[], Path]) -> None:
    folder = copy_version()
    content = json.loads((folder / "manifest.json").read_text())
    table = next(entry for entry in content["tables"] if entry["rows"] > 0)
    shard = folder / table["shards"][0]
    tensors = {name: array.copy() for name, array in TensorFile.open(shard).arrays.items()}
    tensors["rows"][-1, 0] = np.nextafter(tensors["rows"][-1, 0], np.float32(9))
    shard.unlink()
    written = write_tensors(shard, tensors)
    next(entry for entry in content["files"] if entry["path"] == table["shards"][0])["sha256"] = written.sha256
    content["digest"] = digest_of(content)
    (folder / "manifest.json").write_bytes(canonical_json(content))
    version = open_version(folder)
    with pytest.raises(ParityError, match=f"{table['name']}.*fingerprint"):
        list(version.shards(table["name"]))


def test_rows_that_are_no_numbers_are_not_published(published_tables: list[TableData]) -> None:
    table = published_tables[0]
    for bad in (np.nan, np.inf, -np.inf):
        rows = table.rows.copy()
        rows[41, 3] = bad
        with pytest.raises(CheckpointError, match=f"table 'item': the row of id {table.ids[41]} holds NaN or infinity"):
            TableData("item", 4, table.ids, rows, table.freq)


def test_nothing_of_the_publishers_file_system_is_in_the_version(publish: Publish, tmp_path: Path) -> None:
    for file in files_of(publish()):
        data = file.read_bytes()
        for secret in (str(tmp_path), str(Path(__file__).parent), "conftest", os.uname().nodename):
            assert secret.encode() not in data, f"{file.name} holds {secret}"


def test_metadata_must_be_json(publish: Publish) -> None:
    with pytest.raises((CheckpointError, ConfigError), match="metadata"):
        publish(metadata={"path": Path("/")})
    assert json.loads((publish(metadata={"n": [1, None]}) / "manifest.json").read_bytes())["metadata"] == {
        "n": [1, None]
    }
