"""A manifest that was tampered with, digests and all, still leads nowhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage.checkpoint import Golden, open_version
from storage.checkpoint.manifest import MANIFEST, Manifest
from storage.checkpoint.strict_json import canonical_json
from storage.errors import IntegrityError, UnsafeArtifact
from tests.support.storage.delta_parts import replace_file, resave, rewrite

Copy = Callable[[], Path]
ROOT = Path(__file__).parents[3]
Change = Callable[[dict[str, Any]], None]


def putting(name: str, array: np.ndarray) -> Callable[[dict[str, np.ndarray]], None]:
    """Puts an array among others."""

    def put(arrays: dict[str, np.ndarray]) -> None:
        arrays[name] = array

    return put


@pytest.mark.parametrize(
    "path",
    [
        "../x",
        "/etc/passwd",
        "tables/../../x",
        "tables\\..\\x",
        "./dense.pt2",
        "tables//item.00000-of-00001.safetensors",
        "file:///etc/passwd",
        "code.pkl",
        "dense.pt2\n",
        "deltas/000001/manifest.json",
        "",
        7,
    ],
)
def test_a_path_that_leaves_the_layout_is_refused_by_name(copy_version: Copy, tmp_path: Path, path: Any) -> None:
    version = copy_version()
    (version.parent / "x").write_text("secret")
    rewrite(version, lambda content: content["files"][0].update(path=path))
    with pytest.raises(UnsafeArtifact) as caught:
        open_version(version)
    assert repr(path) in str(caught.value)
    assert "may hold" in str(caught.value)


CHANGES: list[tuple[str, Change]] = [
    ("format", lambda c: c.update(format="emberline-checkpoint-2")),
    ("snapshot", lambda c: c.update(snapshot="x" * 32)),
    ("hook", lambda c: c.update(hook="__import__('os')")),
    ("version", lambda c: c.update(version=True)),
    ("files", lambda c: c["files"].append(dict(c["files"][0]))),
    ("files", lambda c: c["files"].pop()),
    ("sha256", lambda c: c["files"][0].update(sha256="")),
    ("size", lambda c: c["files"][0].update(size=-1)),
    ("shards", lambda c: c["tables"][0].update(shards=["dense.pt2"])),
    ("shards", lambda c: c["tables"][0].update(shards=[])),
    ("tables", lambda c: c["tables"].append(dict(c["tables"][0]))),
    ("name", lambda c: c["tables"][0].update(name="../item")),
    ("shape", lambda c: c["graph"]["inputs"][0].update(shape=[3, -1])),
    ("dtype", lambda c: c["graph"]["inputs"][0].update(dtype="PYOBJ")),
    ("graph.inputs", lambda c: c["graph"]["inputs"].append(dict(c["graph"]["inputs"][0]))),
    ("tolerance", lambda c: c["golden"].update(tolerance=1e9)),
    ("files", lambda c: c["files"].append({**c["files"][0], "path": "removed.safetensors"})),
    ("parent", lambda c: c.update(parent=c["snapshot"][:31])),
    ("equals", lambda c: c.update(equals="../" * 10 + "ab")),
    ("snapshot", lambda c: c.update(equals=c["snapshot"])),
    ("snapshot", lambda c: c.update(descends_from=[c["snapshot"]])),
    ("descends_from", lambda c: c.update(descends_from=["a" * 32] * 2)),
    ("descends_from", lambda c: c.update(descends_from=[f"{i:032x}" for i in range(4097)])),
    ("created_unix_ms", lambda c: c.update(created_unix_ms=-1)),
    ("fingerprint", lambda c: c["tables"][0].update(fingerprint="0" * 15)),
    ("dense_fingerprint", lambda c: c.update(dense_fingerprint="G" * 16)),
]


@pytest.mark.parametrize(("where", "change"), CHANGES, ids=[f"{i}-{name}" for i, (name, _) in enumerate(CHANGES)])
def test_a_manifest_out_of_the_schema_is_refused_by_field(copy_version: Copy, where: str, change: Change) -> None:
    version = copy_version()
    rewrite(version, change)
    with pytest.raises(UnsafeArtifact, match=MANIFEST) as caught:
        open_version(version)
    assert where in str(caught.value)


def test_a_manifest_in_other_words_is_not_the_published_one(copy_version: Copy) -> None:
    version = copy_version()
    content = json.loads((version / MANIFEST).read_bytes())
    (version / MANIFEST).write_text(json.dumps(content, indent=1))
    with pytest.raises(IntegrityError, match=MANIFEST):
        open_version(version)
    content["max_batch_size"] = 7
    (version / MANIFEST).write_bytes(canonical_json(content))
    with pytest.raises(IntegrityError, match=MANIFEST):
        open_version(version)
    (version / MANIFEST).write_bytes(b" " * (17 << 20))
    with pytest.raises(UnsafeArtifact, match=MANIFEST):
        open_version(version)


def test_inputs_that_are_not_the_graphs_are_refused(copy_version: Copy) -> None:
    version = copy_version()
    rewrite(version, lambda c: c["graph"]["inputs"][0].update(placeholder="nobody"))
    with pytest.raises(UnsafeArtifact, match=r"graph\.inputs"):
        open_version(version).graph()
    rewrite(version, lambda c: c["graph"]["outputs"].append({"name": "y", "shape": [-1], "dtype": "FP32"}))
    with pytest.raises(UnsafeArtifact):
        open_version(version).graph()


def test_a_golden_of_another_type_or_shape_is_refused(copy_version: Copy, golden: Golden) -> None:
    good = golden.outputs["score"]
    for bad, reason in (
        (good.astype(np.float64), "float64"),
        (good[:4], r"\[4, 1\]"),
        (good.reshape(-1), r"\[5\]"),
        (np.full_like(good, np.inf), "not finite"),
    ):
        version = copy_version()
        resave(version, "golden.safetensors", putting("output.score", bad))
        with pytest.raises(UnsafeArtifact, match=rf"golden\.safetensors.*{reason}"):
            open_version(version).golden()
    for name in ("output.other", "code", "input.price.evil"):
        version = copy_version()
        resave(version, "golden.safetensors", putting(name, np.zeros(1, np.uint8)))
        with pytest.raises(UnsafeArtifact, match=r"golden\.safetensors"):
            open_version(version).golden()


def test_rows_that_are_not_a_sorted_table_are_refused_by_file(copy_version: Copy) -> None:
    name = "tables/item.00000-of-00001.safetensors"

    def unsorted(arrays: dict[str, np.ndarray]) -> None:
        arrays["ids"][3] = arrays["ids"][2]

    def fewer(arrays: dict[str, np.ndarray]) -> None:
        for key in arrays:
            arrays[key] = arrays[key][:-1]

    for change, kind, reason in (
        (unsorted, IntegrityError, "ascending"),
        (fewer, IntegrityError, "100 rows"),
        (lambda a: a.update(rows=a["rows"][:, :3]), UnsafeArtifact, "item"),
        (lambda a: a.update(rows=a["rows"].astype(np.float64)), UnsafeArtifact, "F64"),
        (lambda a: a.update(extra=a["freq"]), UnsafeArtifact, "extra"),
    ):
        version = copy_version()
        resave(version, name, change)
        with pytest.raises(kind, match=reason):
            list(open_version(version).shards("item"))


def test_rows_and_weights_that_are_no_numbers_are_refused_by_name(copy_version: Copy) -> None:
    version = copy_version()
    resave(version, "tables/item.00000-of-00001.safetensors", lambda a: a["rows"].__setitem__((50, 1), np.inf))
    opened = open_version(version)
    with pytest.raises(IntegrityError, match=r"table 'item': the row of id -?[0-9]+ in tables/item.* holds NaN or inf"):
        list(opened.shards("item"))
    for value in (np.nan, np.inf):
        version = copy_version()

        def spoil(arrays: dict[str, np.ndarray], value: float = value) -> None:
            arrays["state.linear.bias"][2] = value

        resave(version, "dense.safetensors", spoil)
        with pytest.raises(IntegrityError, match=r"state\.linear\.bias' holds"):
            open_version(version).graph()


def test_a_manifest_from_before_deltas_is_read(copy_version: Copy) -> None:
    version = copy_version()

    def older(content: dict[str, Any]) -> None:
        for key in ("equals", "descends_from", "created_unix_ms", "dense_fingerprint"):
            del content[key]
        for table in content["tables"]:
            del table["fingerprint"]

    rewrite(version, older)
    manifest = open_version(version).manifest
    assert (manifest.equals, manifest.descends_from, manifest.created_unix_ms) == (None, (), 0)
    assert (manifest.dense_fingerprint, manifest.tables[0].fingerprint) == ("", "")


def test_weights_that_are_not_the_graphs_are_refused(copy_version: Copy) -> None:
    def rename(arrays: dict[str, np.ndarray]) -> None:
        arrays["state.other"] = arrays.pop("state.linear.weight")

    for change, reason in (
        (rename, "linear.weight"),
        (lambda a: a.update({"state.extra": np.zeros(1, np.float32)}), "state.extra"),
        (lambda a: a.update({"state.linear.weight": np.zeros((4, 4), np.float32)}), "linear.weight"),
        (lambda a: a.update({"state.linear.weight": np.zeros((4, 3))}), "float64"),
    ):
        version = copy_version()
        resave(version, "dense.safetensors", change)
        with pytest.raises(UnsafeArtifact, match=reason):
            open_version(version).graph()


@pytest.mark.parametrize("name", ["dense.pt2", "dense.safetensors", "golden.safetensors", "features.json"])
def test_a_pickle_in_place_of_a_file_does_not_run(copy_version: Copy, tmp_path: Path, name: str) -> None:
    import pickle

    class Payload:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "ran",)

    version = copy_version()
    replace_file(version, name, pickle.dumps(Payload()))
    opened = open_version(version)
    read = {"golden.safetensors": opened.golden, "features.json": lambda: opened.spec}.get(name, opened.graph)
    with pytest.raises(UnsafeArtifact, match=name):
        read()
    assert not (tmp_path / "ran").exists()


def test_the_schema_in_the_documentation_is_the_codes() -> None:
    written = json.loads((ROOT / "docs" / "manifest.schema.json").read_text())
    assert written == Manifest.model_json_schema(), "the manifest changed: run the command in docs/format.md"


def test_a_published_manifest_fits_the_documented_schema(copy_version: Copy) -> None:
    schema = json.loads((ROOT / "docs" / "manifest.schema.json").read_text())
    content = json.loads((copy_version() / MANIFEST).read_bytes())
    # Only where times of rows are known, or ids were forgotten.
    assert set(content) == set(schema["properties"]) - {"events", "erased_unix_ms"}
    assert set(schema["required"]) <= set(content)
