"""Builds deltas of the published test version, and tampers with them as an attacker who can compute digests would."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from storage.checkpoint import DeltaTable, PublishedVersion
from storage.checkpoint.signed import MANIFEST, digest_of
from storage.checkpoint.strict_json import canonical_json
from storage.checkpoint.tensors import TensorFile, write_tensors

IDS = np.array([-(2**63), -1, 0, 7, 2**63 - 1])
REMOVED = np.array([-5, 3, 2**62])


def rows_for(ids: np.ndarray, dim: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((len(ids), dim)).astype(np.float32)


def delta_table(
    name: str = "item", dim: int = 4, ids: np.ndarray = IDS, removed: np.ndarray = REMOVED, **changes: Any
) -> DeltaTable:
    parts: dict[str, Any] = {"rows": rows_for(ids, dim), "freq": np.arange(len(ids)).astype(np.uint8), **changes}
    return DeltaTable(name, dim, ids, removed=removed, **parts)


def delta_parts(version: PublishedVersion, **changes: Any) -> dict[str, Any]:
    """Returns the arguments of write_delta for a delta of every table of the version."""
    weights = {name: tensor.numpy() for name, tensor in version.weights().items()}
    weights["state.linear.weight"] = weights["state.linear.weight"] + np.float32(0.25)
    parts: dict[str, Any] = {
        "snapshot": "d" * 32,
        "base": version.snapshot,
        "parent": version.snapshot,
        "applies_to": [version.snapshot],
        "from_sequence": 0,
        "sequence": 1,
        "tables": [delta_table(), delta_table("empty", 2, np.empty(0, np.int64), np.empty(0, np.int64))],
        "weights": weights,
        "weight_dtypes": {},
        "golden": version.golden(),
        "outputs": version.manifest.graph.outputs,
    }
    return {**parts, **changes}


def rewrite(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes a manifest and signs it again."""
    content = json.loads((folder / MANIFEST).read_bytes())
    change(content)
    content["digest"] = digest_of(content)
    (folder / MANIFEST).write_bytes(canonical_json(content))


def replace_file(folder: Path, name: str, data: bytes) -> None:
    """Changes a file and signs it again."""
    (folder / name).write_bytes(data)

    def change(content: dict[str, Any]) -> None:
        for entry in content["files"]:
            if entry["path"] == name:
                entry.update(size=len(data), sha256=hashlib.sha256(data).hexdigest())

    rewrite(folder, change)


def resave(folder: Path, name: str, change: Callable[[dict[str, np.ndarray]], object]) -> None:
    """Changes the tensors of a file and signs it again."""
    arrays = {key: array.copy() for key, array in TensorFile.open(folder / name).arrays.items()}
    change(arrays)
    scratch = folder.parent / "scratch"
    scratch.unlink(missing_ok=True)
    write_tensors(scratch, arrays)
    data = scratch.read_bytes()
    scratch.unlink()
    replace_file(folder, name, data)
