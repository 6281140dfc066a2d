"""Publishing what ids without a row read as: derived from a sample, kept by deltas, changed by a version alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from storage.checkpoint import open_delta, open_version
from storage.errors import ConfigError, Unsupported
from storage.features import FeatureSpec
from tests.integration.trainer.published_line import CHAIN, SPEC, Training, columns, some_rows
from tests.integration.trainer.test_publish import replay
from trainer import AbsentRows, Embedding, EmbeddingBag, EmbeddingTable, Initializer, publish
from trainer.publishing import Publisher

OWN = AbsentRows.of(Initializer("uniform", 0.7), 12)


class Bags(nn.Module):
    """Two ways to read the absent ids of one table, and a sequence."""

    def __init__(self) -> None:
        super().__init__()
        table = EmbeddingTable("t", 4, optimizer="sgd", absent=Initializer("normal", 0.6))
        table.lookup(np.arange(20, dtype=np.int64), train=True)
        table.native.set_admit_after(1000)
        self.plain, self.own = EmbeddingBag(table, "mean"), EmbeddingBag(table, absent=OWN)
        self.rows = Embedding(table, 3)
        self.top = nn.Linear(12, 1)

    def forward(self, values: Tensor, offsets: Tensor) -> Tensor:
        parts = [self.plain(values, offsets), self.own(values, offsets), self.rows(values, offsets)[0].sum(dim=1)]
        return self.top(torch.cat(parts, dim=1))


def test_what_layers_say_becomes_the_spec_and_the_golden_scores(tmp_path: Path) -> None:
    torch.manual_seed(0)
    sample = (torch.tensor([1, 2, 900, 3, 901]), torch.tensor([0, 2, 3, 5]))
    version = replay(publish(Bags(), sample, tmp_path, name="bags"))
    assert [feature.absent_rows for feature in version.spec.ids_features] == [None, OWN, None]
    (table,) = version.tables
    assert table.absent.initializer == Initializer("normal", 0.6)


def published(training: Training, models: Path, spec: FeatureSpec = SPEC, **options: object) -> Publisher:
    sample = columns(some_rows(64, 5))
    return Publisher(training.model, sample, models, name="m", spec=spec, policy=CHAIN, **options)  # type: ignore[arg-type]


def training_with(absent: Initializer) -> Training:
    training = Training()
    for name in ("users", "words"):
        table = training.model.tables[name]
        training.model.tables[name] = EmbeddingTable(name, table.dim, optimizer="sgd", seed=1, absent=absent)
    training.model.user = EmbeddingBag(training.model.tables["users"])
    training.model.words = EmbeddingBag(training.model.tables["words"], "mean")
    training.sparse = type(training.sparse)(training.model.tables.values(), lr=0.5)
    for seed in range(4):
        training.step(some_rows(64, seed))
    return training


def test_a_delta_keeps_them_and_auto_makes_a_version_where_they_change(tmp_path: Path) -> None:
    training = training_with(Initializer("constant", 0.25))
    publisher = published(training, tmp_path)
    base = replay(publisher.publish())
    assert {spec.name: str(spec.absent) for spec in base.tables} == {
        "users": "constant(0.25)",
        "tags": "zeros",
        "words": "constant(0.25)",
    }
    training.step(some_rows(16, 40))
    assert open_delta(publisher.publish("auto")).sequence == 1
    other = published(training_with(Initializer("constant", 0.5)), tmp_path, lineage=publisher.lineage)
    with pytest.raises(Unsupported, match=r"table 'users': ids without a row read as constant\(0.5\), but not in"):
        other.publish("delta")
    version = replay(other.publish("auto"))
    constants = {"users": "constant(0.5)", "tags": "zeros", "words": "constant(0.5)"}
    assert {spec.name: str(spec.absent) for spec in version.tables} == constants
    assert version.manifest.equals is None


def test_a_layer_and_a_spec_that_differ_are_refused(tmp_path: Path) -> None:
    content = SPEC.model_dump(mode="json")
    content["features"][0]["absent"] = {"type": "uniform", "scale": 0.7, "seed": 12}
    training = training_with(Initializer())
    with pytest.raises(ConfigError, match=r"as the table says; the feature 'user' says uniform\(0.7\) of seed 12"):
        published(training, tmp_path, FeatureSpec.parse(content)).publish()
    training.model.user = EmbeddingBag(training.model.tables["users"], absent=OWN)
    version = open_version(published(training, tmp_path, FeatureSpec.parse(content)).publish())
    assert version.spec.feature("user").absent_rows == OWN
