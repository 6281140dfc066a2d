"""The trainer's own fingerprints: what is lost or damaged between its tables and what is written is not published."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from storage.checkpoint import list_deltas, open_delta, open_version
from storage.errors import ParityError
from tests.integration.trainer.published_line import Follower, go_on, some_rows
from trainer import EmbeddingTable, publish
from trainer.publishing import delta_content, delta_writer
from trainer.publishing import publisher as publisher_module
from trainer.publishing.delta_content import Changes

Fault = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


def lose_the_last(ids: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return ids[:-1], rows[:-1]


def flip_one_bit(ids: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    damaged = rows.copy()
    damaged.view(np.uint32)[-1, 0] ^= 1
    return ids, damaged


def give_a_row_to_another_id(ids: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    damaged = rows.copy()
    damaged[[0, 1]] = rows[[1, 0]]
    return ids, damaged


@pytest.mark.parametrize("fault", [lose_the_last, flip_one_bit, give_a_row_to_another_id])
def test_a_row_that_is_lost_or_damaged_on_its_way_to_a_delta_is_found_out(
    models: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    training, publisher = go_on(models)
    publisher.offer(training.step(some_rows(12, 7, low=7, high=400)))
    real = delta_content.tracked_changes

    def faulty(*arguments: Any) -> Changes:
        changes = real(*arguments)
        tables = list(changes.tables)
        at = next(place for place, table in enumerate(tables) if len(table.ids) > 2)
        ids, rows = fault(tables[at].ids, tables[at].rows)
        tables[at] = replace(tables[at], ids=ids, rows=rows, freq=tables[at].freq[: len(ids)])
        return replace(changes, tables=tables)

    monkeypatch.setattr(publisher_module, "tracked_changes", faulty)
    publisher.prepare()
    with pytest.raises(ParityError, match=r"table '\w+': what is to be written is not what the trainer has"):
        publisher.write()
    assert list_deltas(models / "m" / "1") == []
    monkeypatch.undo()
    follower = Follower(models / "m" / "1")
    follower.apply(open_delta(publisher.write()))
    assert follower.agrees(training)


def test_a_weight_that_is_damaged_on_its_way_to_a_delta_is_found_out(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training, publisher = go_on(models)
    publisher.offer(training.step(some_rows(12, 7, low=7, high=400)))
    real = delta_content.weight_arrays

    def faulty(weights: Any) -> Any:
        arrays, dtypes = real(weights)
        name = next(name for name, array in arrays.items() if array.dtype == np.float32 and array.ndim)
        arrays[name] = np.nextafter(arrays[name], np.float32(9))
        return arrays, dtypes

    monkeypatch.setattr(delta_writer, "weight_arrays", faulty)
    with pytest.raises(ParityError, match="dense weights"):
        publisher.publish()
    assert list_deltas(models / "m" / "1") == []


@pytest.mark.parametrize("fault", [lose_the_last, flip_one_bit])
def test_a_row_that_is_lost_or_damaged_on_its_way_to_a_version_is_found_out(
    models: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    training, publisher = go_on(models)
    training.step(some_rows(12, 7, low=300, high=400))  # users whom the sample does not reach
    real = EmbeddingTable.export_rows

    def faulty(table: EmbeddingTable) -> Any:
        ids, rows, *others = real(table)
        if table.name == "users":
            ids, rows = fault(ids, rows)
        return ids, rows, *(part[: len(ids)] for part in others)

    monkeypatch.setattr(EmbeddingTable, "export_rows", faulty)
    with pytest.raises(ParityError, match="table 'users': what is to be written is not what the trainer has"):
        publisher.publish("version")
    assert sorted(path.name for path in (models / "m").iterdir() if path.is_dir()) == ["1"]


def _save_otherwise(_: torch.nn.Module, saved: dict[str, Any], prefix: str, __: object) -> None:
    for name in [name for name in saved if name.startswith(prefix)]:
        saved[f"{prefix}model.{name.removeprefix(prefix)}"] = saved.pop(name).half()


class Renaming(torch.nn.Module):
    """Saves its weights under other names and in another type, as modules of some libraries do."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = torch.nn.Embedding(10, 4)
        self.top = torch.nn.Linear(4, 1)
        self.register_buffer("shift", torch.tensor([0.5]))
        self.tied = self.top
        self.register_state_dict_post_hook(_save_otherwise)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.tied(self.rows(ids)) + self.shift


def test_a_module_that_saves_its_weights_by_other_names_is_published(tmp_path: Path) -> None:
    torch.manual_seed(1)
    module = Renaming()
    publish(module, {"ids": torch.arange(8) % 10}, tmp_path, name="renaming")
    version = open_version(tmp_path / "renaming" / "1")
    weights = version.graph().weights()
    assert any(torch.equal(value, module.top.weight) for value in weights.values())
    assert version.manifest.dense_fingerprint
