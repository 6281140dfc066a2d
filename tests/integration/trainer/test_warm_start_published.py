"""A model starts from a published version, with its deltas and whatever way its rows are stored; and is published."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from storage import open_delta, open_version
from storage.checkpoint import list_deltas
from storage.checkpoint.as_of import find_as_of
from storage.errors import ConfigError, EmberlineError, IntegrityError, InvalidInput, UnsafeArtifact
from tests.integration.trainer.update_runs import snapshots
from tests.integration.trainer.warm_starts import (
    changed,
    fates,
    of_dim,
    optimizers,
    started,
    weights_of,
    with_colors,
    without,
)
from trainer import EmbeddingBag, EmbeddingTable, SparseAdagrad, Trained, UpdateReport, load_trained, publish, train
from trainer.config import PublishConfig, TrainConfig
from trainer.start_report import StartReport
from trainer.warm_start import start_module

pytestmark = pytest.mark.slow

Make = Callable[..., TrainConfig]
Whole = tuple[Path, UpdateReport]


@pytest.fixture
def model(whole: Whole) -> Path:
    """Returns the folder of a model: a version and deltas, which also remove rows."""
    folder = whole[0] / "models" / "clicks"
    deltas = [open_delta(folder / "1" / "deltas" / f"{number:06d}") for number in list_deltas(folder / "1")]
    assert len(deltas) >= 3
    assert any(len(delta.removed("users")) for delta in deltas)
    return folder


def rows_of(trained: Trained, name: str) -> dict[object, bytes]:
    ids, rows, *_ = trained.tables[name].export_rows()
    return dict(zip(ids.tolist(), map(np.ndarray.tobytes, rows), strict=True))


def check_content(trained: Trained, content: dict[str, dict[object, bytes]]) -> None:
    for name in trained.tables:
        assert rows_of(trained, name) == content[name]
    for name, value in weights_of(trained).items():
        assert value.tobytes() == content["dense"][f"state.container.module.{name}"]


def test_every_snapshot_can_be_started_from(whole: Whole, model: Path, config_of: Make) -> None:
    content = snapshots(whole[0] / "models")
    for sequence in (0, *list_deltas(model / "1")):
        now = started(config_of(), model / f"1.{sequence}")
        assert now.report.source == f"the snapshot 1.{sequence} of {model}"
        check_content(now, content[find_as_of(model, f"1.{sequence}").id])
        assert set(fates(now.report).values()) == {"taken"}
        assert optimizers(now.report) == {False}
        for entry in now.report.tables:
            assert entry.rows == now.tables[entry.name].size()


def test_the_newest_snapshot_predicts_as_the_run_that_published_it(
    whole: Whole, model: Path, config_of: Make, fresh_clicks: Path
) -> None:
    expected = load_trained(whole[0] / "run").predict(fresh_clicks)
    for path in (model, model / "1"):
        assert started(config_of(), path).predict(fresh_clicks).tobytes() == expected.tobytes()
    counts = dict(zip(*(part.tolist() for part in exported_counts(load_trained(whole[0] / "run"))), strict=True))
    found = dict(zip(*(part.tolist() for part in exported_counts(started(config_of(), model))), strict=True))
    assert found.keys() == counts.keys()
    assert all(found[key] <= count <= found[key] * 17 / 16 + 1 for key, count in counts.items())


def exported_counts(trained: Trained) -> tuple[np.ndarray, np.ndarray]:
    ids, _, _, counts, *_ = trained.tables["items"].export_rows()
    return ids, counts


@pytest.mark.parametrize("row_type", ["fp16", "bf16", "int8"])
def test_rows_are_decoded(whole: Whole, config_of: Make, tmp_path: Path, row_type: str) -> None:
    shutil.copytree(whole[0] / "run", tmp_path / "run")
    load_trained(tmp_path / "run").publish(tmp_path / "models", row_types={"default": row_type})
    now = started(config_of(), tmp_path / "models" / "clicks")
    version = open_version(tmp_path / "models" / "clicks" / "1")
    for name in now.tables:
        stored = {
            number: row.tobytes()
            for shard in version.shards(name)
            for number, row in zip(shard.ids.tolist(), shard.rows, strict=True)
        }
        assert rows_of(now, name) == stored
    assert stored != rows_of(load_trained(tmp_path / "run"), name)


def test_features_and_dims_may_change(model: Path, config_of: Make, fresh_clicks: Path) -> None:
    before = started(config_of(), model)
    wider = started(changed(config_of(), with_colors, of_dim(12)), model)
    np.testing.assert_allclose(wider.predict(fresh_clicks), before.predict(fresh_clicks), atol=2e-6)
    fewer = started(changed(config_of(), without("tags", "tags")), model)
    (gone,) = (entry for entry in fewer.report.tables if entry.change == "gone")
    assert gone.rows == before.tables["tags"].size()


def test_the_new_run_publishes_the_next_version_and_deltas_of_it(
    whole: Whole, clicks: Path, config_of: Make, tmp_path: Path
) -> None:
    shutil.copytree(whole[0] / "models", tmp_path / "models")
    model = tmp_path / "models" / "clicks"
    before = list_deltas(model / "1")
    config = changed(config_of(epochs="1", batch_size="64"), with_colors)
    config = config.model_copy(
        update={"publish": PublishConfig(delta_every_steps=4, version_every_deltas=0, version_at_share=0.0)}
    )
    report = train(
        config,
        clicks,
        output=tmp_path / "new",
        repository=tmp_path / "models",
        start_from=whole[0] / "run",
        limit=640,
        progress=False,
    )
    assert report.published is not None
    assert list_deltas(model / "1") == before
    version = open_version(model / "2")
    assert (version.manifest.parent, version.equals, version.manifest.descends_from) == (None, None, ())
    assert list_deltas(model / "2")
    assert find_as_of(model).version.version == 2
    # The run goes on as any other.
    assert load_trained(tmp_path / "new").publish(tmp_path / "models", kind="delta").parent.parent == model / "2"


def _changed_row(model: Path) -> Path:
    path = next((model / "1" / "tables").glob("users*"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    return model


def _foreign_file(model: Path) -> Path:
    (model / "1" / "model.pkl").write_bytes(b"cos\nsystem\n")
    return model


def _half_written(model: Path) -> Path:
    (model / "1" / "dense.safetensors").unlink()
    return model / "1"


def _other_format(model: Path) -> Path:
    path = model / "1" / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b"emberline-checkpoint-1", b"emberline-checkpoint-2"))
    return model / "1"


HOSTILE: dict[str, tuple[Callable[[Path], Path], type[EmberlineError] | tuple[type[EmberlineError], ...], str]] = {
    "row": (_changed_row, IntegrityError, "users"),
    "foreign": (_foreign_file, (IntegrityError, UnsafeArtifact), r"model\.pkl"),
    "half": (_half_written, IntegrityError, r"dense\.safetensors"),
    "format": (_other_format, EmberlineError, "manifest"),
    "repository": (lambda model: model.parent, ConfigError, "it is a repository, with the models clicks"),
    "snapshot": (lambda model: model / "1.999", EmberlineError, "no snapshot '1.999'"),
    "text": (lambda model: model / "newest", InvalidInput, "a snapshot is VERSION.SEQUENCE"),
}


@pytest.mark.parametrize("fault", HOSTILE)
def test_what_is_no_version_is_refused(model: Path, config_of: Make, tmp_path: Path, fault: str) -> None:
    shutil.copytree(model.parent, tmp_path / "models")
    make, error, words = HOSTILE[fault]
    with pytest.raises(error, match=words):
        started(config_of(), make(tmp_path / "models" / "clicks"))


class Tower(nn.Module):
    """A module of a user's own."""

    def __init__(self, dim: int = 4, width: int = 6, name: str = "words") -> None:
        super().__init__()
        self.bag = EmbeddingBag(EmbeddingTable(name, dim), "sum")
        self.body = nn.Sequential(nn.Linear(dim, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, values: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.body(self.bag(values, offsets))
        return result


class Renamed(Tower):
    """The same under other names."""

    def __init__(self) -> None:
        super().__init__(name="terms")
        self.head = self.body
        del self.body

    def forward(self, values: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.bag(values, offsets))
        return result


BATCH = (torch.tensor([1, 2, 3, 2]), torch.tensor([0, 2, 4]))


@pytest.fixture
def tower(tmp_path: Path) -> tuple[Tower, Path]:
    """Trains a module for one step and publishes it."""
    torch.manual_seed(1)
    module = Tower()
    module(*BATCH).sum().backward()
    SparseAdagrad([module.bag.table]).step()
    return module, publish(module, BATCH, tmp_path / "models", name="tower").parent


def test_a_module_of_ones_own_starts_by_names(tower: tuple[Tower, Path]) -> None:
    module, path = tower
    torch.manual_seed(2)
    same, other = Tower(), Renamed()
    expected = module.eval()(*BATCH)
    report = start_module(same, path)
    assert isinstance(report, StartReport)
    assert torch.equal(same.eval()(*BATCH), expected)
    assert set(fates(report).values()) == {"taken"}
    report = start_module(other, path, renamed={"terms": "words", "head": "body"})
    assert torch.equal(other.eval()(*BATCH), expected)
    assert set(fates(report).values()) == {"taken"}
    with pytest.raises(ConfigError, match="rows already"):
        start_module(same, path)
    with pytest.raises(ConfigError, match="nothing of it fits"):
        start_module(Renamed(), path)


def test_weights_of_another_shape_are_taken_in_part_only_if_that_is_asked_for(tower: tuple[Tower, Path]) -> None:
    module, path = tower
    wider = Tower(width=9)
    before = {name: value.clone() for name, value in wider.state_dict().items()}
    report = start_module(wider, path)
    assert {entry.name for entry in report.weights if entry.change == "new"} == {
        "body.0.weight",
        "body.0.bias",
        "body.2.weight",
    }
    assert (fates(report)["words"], fates(report)["body.2.bias"]) == ("taken", "taken")
    assert torch.equal(wider.state_dict()["body.0.weight"], before["body.0.weight"])
    partly = Tower(width=9)
    report = start_module(partly, path, partial=True)
    assert fates(report)["body.0.weight"] == "widened"
    assert torch.equal(partly.state_dict()["body.0.weight"][:6], module.state_dict()["body.0.weight"])
    cut = Tower(dim=3)
    fate: dict[str, Any] = fates(start_module(cut, path, partial=True))
    assert (fate["words"], fate["body.0.weight"]) == ("cut", "cut")
    assert torch.equal(cut.state_dict()["body.0.weight"], module.state_dict()["body.0.weight"][:, :3])
