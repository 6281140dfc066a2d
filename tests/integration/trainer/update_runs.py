"""Runs that are updated: every snapshot of a repository, and every commit, as bytes that can be compared."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from storage import open_version
from storage.checkpoint import list_deltas, open_delta
from trainer import UpdateReport, update
from trainer.checkpoint import checkpoints, load_checkpoint, read_commit, read_state
from trainer.config import PublishConfig, TrainConfig
from trainer.data import Batch
from trainer.loop import TrainingLoop
from trainer.models import build_model, build_tables
from trainer.optimizers import dense_optimizer

# Of a table: id -> bytes of its row. Of a model: table -> rows, and "dense" -> name -> bytes.
Content = dict[str, dict[object, bytes]]

NEWER_ROWS = 1600
POLICY = PublishConfig(
    delta_every_steps=4, cumulative_every=3, version_every_deltas=0, version_at_share=0.0, keep_states=32
)


def updated(place: Path, newer: Path, **options: object) -> UpdateReport:
    return update(place / "run", newer, repository=place / "models", progress=False, **options)  # type: ignore[arg-type]


def goldens(models: Path) -> list[bytes]:
    """Returns the golden requests of every version and delta in the repository, unchanged."""
    return [path.read_bytes() for path in sorted((models / "clicks").rglob("golden.safetensors"))]


def snapshots(models: Path) -> dict[str, Content]:
    """Returns every snapshot by its id: each version, and each delta applied to what it applies to."""
    found: dict[str, Content] = {}
    for folder in sorted((models / "clicks").glob("[0-9]*"), key=lambda path: int(path.name)):
        version = open_version(folder)
        content: Content = {
            entry.name: {
                int(number): row.tobytes()
                for shard in version.shards(entry.name)
                for number, row in zip(shard.ids, shard.rows, strict=True)
            }
            for entry in version.manifest.tables
        }
        content["dense"] = weights(version.graph().weights())
        found[version.manifest.snapshot] = content
        for sequence in list_deltas(folder):
            delta = open_delta(folder / "deltas" / f"{sequence:06d}")
            results = []
            for snapshot in delta.applies_to:
                tables = {name: dict(rows) for name, rows in found[snapshot].items()}
                for spec in delta.tables:
                    for gone in delta.removed(spec.name).tolist():
                        tables[spec.name].pop(gone, None)
                    for shard in delta.shards(spec.name):
                        tables[spec.name].update(
                            zip(shard.ids.tolist(), map(np.ndarray.tobytes, shard.rows), strict=True)
                        )
                tables["dense"] = weights(delta.weights())
                results.append(tables)
            assert all(result == results[0] for result in results), f"{delta.path}: depends on what it is applied to"
            found[delta.snapshot] = results[0]
    return found


def weights(tensors: Mapping[str, torch.Tensor]) -> dict[object, bytes]:
    return {name: tensor.contiguous().numpy().tobytes() for name, tensor in tensors.items()}


def restored(config: TrainConfig, folder: Path) -> tuple[dict[str, object], Content]:
    """All that a commit leads to but times and what counts commits; and its tables as servers would see them."""
    tables = build_tables(config)
    with torch.random.fork_rng(devices=[]):
        model = build_model(config, tables)
        optimizer = dense_optimizer(config.optimizer.dense, model)
        state = load_checkpoint(folder, model, tables, optimizer)
        found: dict[str, object] = {"random": torch.get_rng_state().tolist()}
    found["position"] = replace(state.position, seconds=0.0)
    found["update"] = state.update and replace(state.update, start_seconds=0.0, origin="", rebase="")
    found["model"] = weights(model.state_dict())
    found["optimizer"] = str(optimizer.state_dict())
    content: Content = {}
    for name, table in tables.items():
        ids, rows, slots, counts, *_ = table.export_rows()
        content[name] = {int(number): row.tobytes() for number, row in zip(ids, rows, strict=True)}
        found[name] = [
            ids.tobytes(),
            rows.tobytes(),
            slots.tobytes(),
            counts.tobytes(),
            *(part.tobytes() for part in table.export_counts()),
        ]
    return found, content


def check_published(place: Path, config: TrainConfig) -> list[str]:
    """Asserts that every snapshot in the repository is, bit for bit, a commit. Returns their ids, oldest first."""
    lying = snapshots(place / "models")
    commits = {
        snapshot: folder for folder in checkpoints(place / "run") for snapshot in read_commit(folder).state.snapshots
    }
    for snapshot, content in lying.items():
        assert snapshot in commits, f"{snapshot} was published and is no commit"
        state, committed = restored(config, commits[snapshot])
        assert {name: rows for name, rows in content.items() if name != "dense"} == committed
        assert set(state["model"].values()) <= set(content["dense"].values())  # type: ignore[attr-defined]
    return list(lying)


@contextmanager
def ctrl_c_at(batch: int) -> Iterator[None]:
    """Sends Ctrl-C at step `batch` of a pass within the `with` block, which interrupts what trains there."""
    real = TrainingLoop._step

    def stepping(loop: TrainingLoop, rows: Batch) -> float:
        if loop.position.batch + 1 == batch:
            signal.raise_signal(signal.SIGINT)
        return real(loop, rows)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(TrainingLoop, "_step", stepping)
        with pytest.raises(KeyboardInterrupt, match="--resume"):
            yield


def newest(place: Path) -> Path:
    return checkpoints(place / "run")[-1]


def pending(place: Path) -> object:
    publishing = read_state(newest(place)).publishing
    assert publishing is not None
    return publishing["pending"]
