"""A snapshot whose dense weights are a difference to earlier ones is scored, and ids are forgotten in it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import emberline
from emberline.proving.local_model import LocalModel
from storage import open_delta, open_version
from storage.checkpoint.as_of import find_as_of
from storage.forgetting import Wanted
from storage.importing import KINDS, FileTable, ImportOptions
from tests.support.plain_ranker import DIM, ROWS, SAMPLE, Ranker, rows_of
from trainer.importing import import_delta, import_tables, rows_elsewhere
from trainer.publishing.target import Target
from trainer.rewriting import forget_published

USER = 7


def ranker(hidden: int = 5) -> Ranker:
    """Returns the module without rows."""
    with rows_elsewhere():
        return Ranker(hidden=hidden)


@pytest.fixture
def tables(tmp_path: Path) -> list[FileTable]:
    """The rows of the module's tables."""
    random = np.random.default_rng(0)
    for name in ("users", "items"):
        rows = random.normal(size=(ROWS, DIM)).astype(np.float32)
        np.savez(tmp_path / f"{name}.npz", ids=np.arange(ROWS), rows=rows)
    return KINDS["numpy"].open([tmp_path / "users.npz", tmp_path / "items.npz"], ImportOptions())


@pytest.fixture
def repository(tmp_path: Path, tables: list[FileTable]) -> Path:
    """A repository whose newest delta of `m` has a difference in place of its weights."""
    repository, model = tmp_path / "models", ranker(hidden=40_000)
    import_tables(tables, repository, name="m", module=model, sample_batch=SAMPLE)
    with torch.no_grad():
        model.get_parameter("top.0.weight")[::50] += 0.01
    report = import_delta(tables, repository, name="m", module=model, sample_batch=SAMPLE, memory_bytes=1 << 28)
    assert report.folder is not None
    assert open_delta(report.folder).manifest.dense is not None
    return repository


def test_it_is_scored_with_the_weights_that_it_makes(repository: Path) -> None:
    LocalModel(find_as_of(repository / "m")).check_golden()


def test_ids_are_forgotten_in_it_and_its_weights_stay(repository: Path) -> None:
    before = find_as_of(repository / "m").weights()
    done = forget_published(repository, "m", repository / "m", Wanted.of_ids({"users": [USER]}))
    after = find_as_of(repository / "m")
    assert (done.rows, after.version.version, after.deltas) == ({"users": 1}, 2, ())
    assert rows_of(after, "users").keys() == set(range(ROWS)) - {USER}
    weights = after.weights()
    assert weights.keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in weights.items())


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_every_later_version_says_when_ids_were_forgotten(
    tmp_path: Path, tables: list[FileTable], monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "models").mkdir()
    repository = f"{scheme}{tmp_path / 'models'}" if scheme else tmp_path / "models"
    import_tables(tables, repository, name="m", module=ranker(), sample_batch=SAMPLE)
    source = Target.of(repository, "m").model_dir
    done = forget_published(repository, "m", source, Wanted.of_ids({"users": [USER]}))
    assert done.version is not None
    erased = open_version(done.version).manifest.erased_unix_ms
    assert erased > 0
    imported = import_tables(tables, repository, name="m", module=ranker(), sample_batch=SAMPLE).folder
    model = Ranker()
    whole = emberline.publish(model, SAMPLE, repository, name="m")
    model.change(list(range(ROWS)))
    due = emberline.publish(model, SAMPLE, repository, name="m", delta=True)
    assert [open_version(folder).version for folder in (imported, whole, due)] == [3, 4, 5]
    assert {open_version(folder).manifest.erased_unix_ms for folder in (imported, whole, due)} == {erased}
