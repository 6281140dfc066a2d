"""Scores raw rows with a published version."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.reference.files import read_table, read_tensors
from tests.reference.initial import absent_row, of_feature, rounded
from tests.reference.models import MODELS, sigmoid
from tests.reference.transforms import run_feature, run_weighted


class ReferenceScorer:
    """din_target: the pooled feature that DIN's attention asks with."""

    def __init__(self, version: Path, din_target: str = "item") -> None:
        manifest = json.loads((version / "manifest.json").read_text())
        self.spec = json.loads((version / "features.json").read_text())
        self.tables = {entry["name"]: read_table(version, entry) for entry in manifest["tables"]}
        self.entries = {entry["name"]: entry for entry in manifest["tables"]}
        self.weights = read_weights(version)
        self.kinds = {entry["name"]: entry.get("kind", {}) for entry in manifest["tables"]}
        self.model = MODELS[manifest["metadata"]["model"]]
        self.din_target = din_target

    def apply(self, delta: Path) -> None:
        """From now on the snapshot that a delta leads to."""
        manifest = json.loads((delta / "manifest.json").read_text())
        removed = read_tensors(delta / "removed.safetensors")
        for entry in manifest["tables"]:
            self.tables[entry["name"]].update(read_table(delta, entry))
            for gone in removed[entry["name"]].tolist():
                self.tables[entry["name"]].pop(gone, None)
        self.weights = read_weights(delta)

    def score(self, rows: Sequence[dict[str, Any]]) -> np.ndarray:
        """rows: raw inputs by name, None for null. Returns (N,) float64."""
        return np.array([self.one(row) for row in rows])

    def one(self, row: dict[str, Any]) -> float:
        pooled: list[np.ndarray] = []
        parts: list[tuple[str, dict[str, Any]]] = []  # of each pooled lookup: its feature, and the kind of its table
        groups: dict[str, list[float]] = {}
        sequence: list[np.ndarray] = []
        target = 0
        for feature in self.spec["features"]:
            if feature.get("weights"):
                total = np.zeros(self.entries[feature["table"]]["dim"])
                for value, weight in run_weighted(self.spec, feature, row):
                    total = total + weight * self.row(feature, value)
                pooled.append(total)
                parts.append((feature["name"], self.kinds[feature["table"]]))
                continue
            values = run_feature(self.spec, feature, row)
            if feature["output"] == "dense":
                groups.setdefault(feature["group"], []).extend(values)
                continue
            found = [self.row(feature, value) for value in values]
            if feature["pooling"] == "none":
                sequence = found[: feature["length"]]
                continue
            if feature["name"] == self.din_target:
                target = len(pooled)
            total = sum(found, np.zeros(self.entries[feature["table"]]["dim"]))
            pooled.append(total / len(found) if feature["pooling"] == "mean" and found else total)
            parts.append((feature["name"], self.kinds[feature["table"]]))
        dense = np.concatenate([np.array(group) for group in groups.values()]) if groups else np.zeros(0)
        pooled = self.combined(pooled, parts)
        return float(sigmoid(self.model(self.weights, pooled, dense, (sequence, target)))[0])

    def combined(self, pooled: list[np.ndarray], parts: list[tuple[str, dict[str, Any]]]) -> list[np.ndarray]:
        """Puts together what was looked up in the tables that are parts of one."""
        made: dict[str, np.ndarray] = {}
        for row, (name, kind) in zip(pooled, parts, strict=True):
            if "table" not in kind:
                made[name] = row
                continue
            name = name.rpartition(":")[0]
            if kind["type"] == "classes" and kind["part"] == "cold":
                row = self.weights[f"features.combining.tables.of_{kind['table']}.project.weight"] @ row
            if name not in made:
                made[name] = row
            elif kind.get("combine") == "concat":
                made[name] = np.concatenate([made[name], row])
            else:
                made[name] = made[name] * row if kind.get("combine") == "mult" else made[name] + row
        return list(made.values())

    def row(self, feature: dict[str, Any], value: int) -> np.ndarray:
        """The row that an id of a feature reads as, (D,) float64."""
        entry = self.entries[feature["table"]]
        found = self.tables[entry["name"]].get(value)
        if found is not None:
            return found
        absent = absent_row(of_feature(feature, entry), entry["dim"], value)
        return rounded(entry.get("row_type", "fp32"), absent)


def read_weights(folder: Path) -> dict[str, np.ndarray]:
    """The dense weights of a version or a delta by their names in the module."""
    return {
        name.rpartition("module.")[2]: tensor.astype(np.float64)
        for name, tensor in read_tensors(folder / "dense.safetensors").items()
    }
