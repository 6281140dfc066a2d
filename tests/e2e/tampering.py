"""Deltas that are wrong in one way each, most of them beneath digests that hold."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from storage.checkpoint.signed import digest_of
from storage.checkpoint.strict_json import canonical_json
from storage.checkpoint.tensors import TensorFile, write_tensors

Change = Callable[[Path, dict[str, Any]], None]


def write_copy(
    good: Path, deltas: Path, sequence: int, change: Change, *, signed: bool = True, rested: bool = True
) -> str:
    """Publishes a changed copy of the delta `good` under another number; returns its snapshot.

    change: gets the folder and its manifest as a dict. signed: sizes and digests are made to fit what it did. rested:
    its files are an hour old, so that a server does not wait for them as for files that are still being copied.
    """
    hidden = deltas / f".publish-{secrets.token_hex(8)}"
    shutil.copytree(good, hidden)
    manifest = json.loads((hidden / "manifest.json").read_text())
    manifest["sequence"] = sequence
    manifest["snapshot"] = secrets.token_hex(16)
    if signed:
        change(hidden, manifest)
        sign(hidden, manifest)
    else:
        sign(hidden, manifest)
        change(hidden, manifest)
    if rested:
        an_hour_ago = time.time() - 3600.0
        for path in (*hidden.rglob("*"), hidden):
            os.utime(path, (an_hour_ago, an_hour_ago))
    hidden.rename(deltas / f"{sequence:06d}")
    return str(manifest["snapshot"])


def sign(folder: Path, manifest: dict[str, Any]) -> None:
    """Writes the manifest with the sizes and digests that the files now have."""
    for entry in manifest["files"]:
        if (path := folder / entry["path"]).is_file():
            data = path.read_bytes()
            entry["size"], entry["sha256"] = len(data), hashlib.sha256(data).hexdigest()
    manifest["digest"] = digest_of(manifest)
    (folder / "manifest.json").write_bytes(canonical_json(manifest))


def edit_tensors(path: Path, edit: Callable[[dict[str, np.ndarray]], None]) -> None:
    """Rewrites a safetensors file with its tensors changed."""
    tensors = {name: array.copy() for name, array in TensorFile.open(path).arrays.items()}
    edit(tensors)
    path.unlink()
    write_tensors(path, tensors)


def a_shard(folder: Path, table: str = "item") -> Path:
    """Returns the first shard of a table."""
    return next((folder / "tables").glob(f"{table}.*"))


def one_row(folder: Path, _: dict[str, Any]) -> None:
    def edit(tensors: dict[str, np.ndarray]) -> None:
        tensors["rows"][len(tensors["rows"]) // 2, 0] += 0.5

    edit_tensors(a_shard(folder), edit)


def one_weight(folder: Path, _: dict[str, Any]) -> None:
    def edit(tensors: dict[str, np.ndarray]) -> None:
        name = sorted(name for name, value in tensors.items() if value.dtype == np.float32)[0]
        tensors[name].reshape(-1)[0] += 0.5

    edit_tensors(folder / "dense.safetensors", edit)


def one_row_nan(folder: Path, _: dict[str, Any]) -> None:
    def edit(tensors: dict[str, np.ndarray]) -> None:
        tensors["rows"][0, 1] = np.nan

    edit_tensors(a_shard(folder), edit)


def one_weight_infinite(folder: Path, _: dict[str, Any]) -> None:
    def edit(tensors: dict[str, np.ndarray]) -> None:
        next(value for value in tensors.values() if value.dtype == np.float32).reshape(-1)[0] = np.inf

    edit_tensors(folder / "dense.safetensors", edit)


def one_score(folder: Path, _: dict[str, Any]) -> None:
    def edit(tensors: dict[str, np.ndarray]) -> None:
        next(value for name, value in tensors.items() if name.startswith("output."))[3] += 1.0

    edit_tensors(folder / "golden.safetensors", edit)


def ids_in_disorder(folder: Path, _: dict[str, Any]) -> None:
    def edit(tensors: dict[str, np.ndarray]) -> None:
        tensors["ids"][[0, 1]] = tensors["ids"][[1, 0]]

    edit_tensors(a_shard(folder), edit)


def another_dim(folder: Path, manifest: dict[str, Any]) -> None:
    def edit(tensors: dict[str, np.ndarray]) -> None:
        tensors["rows"] = np.zeros((len(tensors["ids"]), 5), np.float32)

    edit_tensors(a_shard(folder), edit)
    next(entry for entry in manifest["tables"] if entry["name"] == "item")["dim"] = 5


def another_table(folder: Path, manifest: dict[str, Any]) -> None:
    entry = next(entry for entry in manifest["tables"] if entry["name"] == "item")
    entry["name"] = "unheard"
    for path in list(entry["shards"]):
        (folder / path).rename(folder / path.replace("item.", "unheard."))
        for file in manifest["files"]:
            file["path"] = file["path"].replace("item.", "unheard.")
    entry["shards"] = [path.replace("item.", "unheard.") for path in entry["shards"]]


def another_weight(folder: Path, _: dict[str, Any]) -> None:
    edit_tensors(folder / "dense.safetensors", lambda tensors: tensors.update(unheard=np.zeros(3, np.float32)))


def flipped_byte(folder: Path, _: dict[str, Any]) -> None:
    path = a_shard(folder)
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(bytes(data))


def cut_short(folder: Path, _: dict[str, Any]) -> None:
    path = a_shard(folder)
    path.write_bytes(path.read_bytes()[:-7])


def missing_file(folder: Path, _: dict[str, Any]) -> None:
    (folder / "golden.safetensors").unlink()


def extra_file(folder: Path, _: dict[str, Any]) -> None:
    (folder / "model.pkl").write_bytes(b"\x80\x04.")


def garbled_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    (folder / "manifest.json").write_text(f'{{"format": "emberline-delta-1", "snapshot": "{manifest["snapshot"]}", ')


def no_manifest(folder: Path, _: dict[str, Any]) -> None:
    (folder / "manifest.json").unlink()


# name -> (change, whether the digests are made to fit, a word of the reason)
KINDS: dict[str, tuple[Change, bool]] = {
    "one row beneath valid digests": (one_row, True),
    "one dense weight beneath valid digests": (one_weight, True),
    "one golden score beneath valid digests": (one_score, True),
    "a row that is NaN": (one_row_nan, True),
    "a weight that is infinite": (one_weight_infinite, True),
    "ids in disorder": (ids_in_disorder, True),
    "rows of another size": (another_dim, True),
    "a table that the version has not": (another_table, True),
    "a weight that the graph has not": (another_weight, True),
    "a flipped byte": (flipped_byte, False),
    "a file cut short": (cut_short, False),
    "a missing file": (missing_file, False),
    "a file that nobody named": (extra_file, False),
    "a garbled manifest": (garbled_manifest, False),
}
