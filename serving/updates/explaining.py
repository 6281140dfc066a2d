"""Explains the score of one row of a request: its ids, where their rows lie and what changed them, and its parts.

It runs on the caller's thread beside live traffic, over pipelines that no session uses.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import torch
from pydantic import JsonValue

from serving.engine.model import LoadedModel
from serving.pipeline.snapshot import Snapshot
from serving.pipeline.user_side import take_rows
from serving.protocol.signature import ModelSignature
from serving.updates.live_model import LiveModel
from serving.updates.mount import MountedStore, StagedSnapshot
from storage.errors import InvalidInput, StoreError, Unavailable
from storage.features import Column, FeatureBatch, FeatureSpec, Jagged
from storage.features.fallback import MEAN, MEAN_ID, level_ids
from storage.tiers.locating import locate

# Ids of a row that are explained, of all features together.
MOST_IDS = 4096
_ATTEMPTS = 3

#: Makes columns and the number of rows of a request, for the signature of the model that is asked.
Decode = Callable[[ModelSignature], tuple[Mapping[str, Column], int]]


def explain(model: LiveModel, decode: Decode, row: int, min_snapshot: str = "") -> dict[str, JsonValue]:
    """Returns the explanation of a row of a request, from 0; docs/explain.md describes it.

    min_snapshot: "" or a snapshot, by id or as "V.S", that the served one must not be older than. Raises InvalidInput
    for a row that is not there, or with too many ids, and Unavailable when nothing is served, or an older snapshot.
    """
    for _ in range(_ATTEMPTS):
        with model.lock:
            mount = model.default
        if mount is None:
            raise Unavailable(f"model {model.name!r}: {model.why_not() or 'nothing is served'}")
        with mount.asked_lock:  # the store is not closed meanwhile
            if mount.closed:
                continue
            view = mount.view
            entry, before = view.current, view.entries[: view.served + 1]
            loaded = entry.loaded.model
            if min_snapshot:
                loaded.history.require(entry.snapshot, min_snapshot)
            columns, rows = decode(loaded.signature)
            if not 0 <= row < rows:
                there = f"the rows 0 to {rows - 1}" if rows else "no rows"
                raise InvalidInput(f"row is {row}, and the request has {there}", field="row")
            try:
                found = _Explanation(mount, entry, before, loaded).of(_one(columns, rows, row))
            except StoreError:
                if mount.view is view:
                    raise
                continue  # an overlay that the snapshot shows was dropped
            if mount.view.entries[0] is before[0]:
                return found
            # What was merged meanwhile would be taken for what the base had before.
    raise Unavailable(f"model {model.name!r} is being replaced; ask again")


def _one(columns: Mapping[str, Column], rows: int, row: int) -> dict[str, Column]:
    # An input of one row stands for all rows.
    return {
        name: column.slice(row, row + 1) if column.rows == rows else column.slice(0, 1)
        for name, column in columns.items()
    }


class _Explanation:
    """Explains rows on one snapshot."""

    def __init__(
        self, mount: MountedStore, entry: StagedSnapshot, entries: tuple[StagedSnapshot, ...], loaded: LoadedModel
    ) -> None:
        self._mount = mount
        self._entry = entry
        self._loaded = loaded
        self._spec: FeatureSpec = loaded.parts.spec
        self._base = entries[0]
        self._of_overlay = {each.overlay: each for each in entries if each.overlay is not None}

    def of(self, columns: Mapping[str, Column]) -> dict[str, JsonValue]:
        """Returns the explanation of a request of one row."""
        torch.set_num_threads(1)
        snapshot = self._entry.snapshot
        started = time.perf_counter_ns()
        features = self._loaded.parts.features(columns, 1)
        made = time.perf_counter_ns()
        count = sum(len(features.ids[feature.name].values) for feature in self._spec.ids_features)
        if count > MOST_IDS:
            raise InvalidInput(f"the row has {count:,} ids; at most {MOST_IDS:,} are explained", field="row")
        # Before they are looked up, which may bring them into DRAM.
        told = self._features(features, snapshot)
        looked = time.perf_counter_ns()
        tensors = self._loaded.parts.graph_inputs(features, snapshot)
        found = time.perf_counter_ns()
        scores = self._run(tensors, snapshot)
        done = time.perf_counter_ns()
        for name, changes in self._without(features, scores, snapshot):
            told[name]["adds"] = {output: [float(each) for each in change] for output, change in changes.items()}
        return {
            "model": self._loaded.name,
            "snapshot": _named(self._entry),
            "outputs": {name: [float(each) for each in values] for name, values in scores.items()},
            "features": list(told.values()),
            "times_us": {
                "features": (made - started) / 1e3,
                "lookup": (found - looked) / 1e3,
                "dense": (done - found) / 1e3,
            },
        }

    def _features(self, features: FeatureBatch, snapshot: Snapshot) -> dict[str, dict[str, JsonValue]]:
        """Returns what is said of each feature, by name: ids, tiers, and changes; of numbers their values."""
        told: dict[str, dict[str, JsonValue]] = {}
        for feature in self._spec.features:
            entry: dict[str, JsonValue] = {"name": feature.name, "inputs": list(feature.inputs)}
            if feature.output == "dense":
                group, columns = self._columns(feature.name)
                entry.update(group=group, values=[float(each) for each in features.dense[group][0, columns]])
            elif feature.output == "integers":
                entry.update(values=features.ids[feature.name].values.tolist())
            else:
                ids = features.ids[feature.name].values
                used = ids[: feature.length] if feature.pooling == "none" else ids
                ids_told = self._ids(feature.table, used, snapshot)
                self._fall_back(feature.name, ids_told, features, snapshot.mask)
                entry.update(table=feature.table, pooling=feature.pooling, ids=ids_told)  # type: ignore[arg-type]
                if len(used) < len(ids):
                    entry["left_out"] = len(ids) - len(used)
            told[feature.name] = entry
        return told

    def _ids(self, table: str, ids: np.ndarray, snapshot: Snapshot) -> list[dict[str, JsonValue]]:
        located = locate(self._mount.store, table, ids, snapshot.mask)
        on_gpu = self._on_gpu(table, ids)
        told: list[dict[str, JsonValue]] = []
        for place, number in enumerate(ids.tolist()):
            overlay = located.overlays[place]
            entry = self._base if overlay is None else self._of_overlay.get(overlay, self._base)
            tier = "hbm" if on_gpu[place] and located.tiers[place] != "absent" else located.tiers[place]
            changed: JsonValue = {**_named(entry), "or_before": entry is self._base}
            # Of an id that the base has not, nothing is known to have changed it.
            nobody = tier == "absent" and overlay is None
            told.append({"id": number, "tier": tier, "changed": None if nobody else changed})
        return told

    def _fall_back(self, name: str, told: list[dict[str, JsonValue]], features: FeatureBatch, mask: int) -> None:
        """Adds what the ids of a feature that have no row read instead, level by level, where it has levels."""
        own = features.ids[name]
        for place, entry in enumerate(told):
            if entry["tier"] != "absent":
                continue
            for level in self._spec.lookup(name).fallback:
                ids, has = np.array([MEAN_ID]), np.ones(1, np.bool_)
                if level.feature:
                    bags = features.ids[level.feature]
                    ids, has = level_ids(own, np.array([place]), bags, level.parallel)
                tier = locate(self._mount.store, level.table, ids, mask).tiers[0] if has[0] else "absent"
                if tier != "absent":
                    called = level.feature or MEAN
                    entry["reads"] = {"level": called, "table": level.table, "id": int(ids[0]), "tier": tier}
                    break

    def _on_gpu(self, table: str, ids: np.ndarray) -> np.ndarray:
        found = np.zeros(len(ids), np.bool_)
        for device in self._loaded.parts.devices.models.values():
            if device.gpu is not None and not device.given_up:
                found |= device.gpu.tier.has(table, ids)
        return found

    def _without(
        self, features: FeatureBatch, scores: Mapping[str, np.ndarray], snapshot: Snapshot
    ) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
        """Yields how much each feature adds to each output: the output less the one without the feature."""
        for feature in self._spec.features:
            left = take_rows(features, np.zeros(1, np.int64))
            dense, ids = {name: values.copy() for name, values in left.dense.items()}, dict(left.ids)
            if feature.output == "dense":
                group, columns = self._columns(feature.name)
                dense[group][:, columns] = 0.0
            elif feature.output == "integers":
                whole = ids[feature.name]
                ids[feature.name] = Jagged(np.zeros_like(whole.values), whole.offsets)
            else:
                weights = None if ids[feature.name].weights is None else np.empty(0, np.float32)
                ids[feature.name] = Jagged(np.empty(0, np.int64), np.zeros(2, np.int64), weights)
            tensors = self._loaded.parts.graph_inputs(FeatureBatch(1, dense, ids), snapshot)
            other = self._run(tensors, snapshot)
            yield feature.name, {name: values - other[name] for name, values in scores.items()}

    def _run(self, tensors: list[torch.Tensor], snapshot: Snapshot) -> dict[str, np.ndarray]:
        outputs = snapshot.graph.run(tensors)
        names = [entry.name for entry in self._loaded.parts.graph.outputs]
        return {
            name: output.numpy().astype(np.float64).reshape(-1) for name, output in zip(names, outputs, strict=True)
        }

    def _columns(self, name: str) -> tuple[str, slice]:
        """Returns the group of a dense feature, and its columns there."""
        group, start = self._spec.feature(name).group, 0
        for feature in self._spec.features:
            if feature.output == "dense" and feature.group == group:
                width = self._spec.flow(feature.name).high
                if feature.name == name:
                    return group, slice(start, start + width)
                start += width
        raise AssertionError(name)


def _named(entry: StagedSnapshot) -> dict[str, JsonValue]:
    return {"name": entry.name, "id": entry.id, "published_unix_ms": entry.snapshot.published_unix_ms}
