"""Publishing modules whose bags have weights: torch's and ours, with a spec and without one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from storage.errors import ConfigError, Unsupported
from storage.features import Column, FeatureSpec, column_from_lists, column_from_numpy
from tests.integration.trainer.test_publish import replay
from trainer import EmbeddingBag, EmbeddingTable, Initializer, SparseAdagrad, publish
from trainer.publishing import Publisher

SPEC = FeatureSpec.parse(
    {
        "inputs": [
            {"name": "clicked", "dtype": "INT64", "kind": "list", "max_length": 8},
            {"name": "seconds", "dtype": "FP32", "kind": "list", "max_length": 8},
            {"name": "item", "dtype": "INT64"},
        ],
        "features": [
            {
                "name": "history",
                "inputs": ["clicked"],
                "transforms": [{"op": "truncate", "length": 3, "keep": "last"}],
                "output": "ids",
                "table": "items",
                "pooling": "weighted",
                "weights": "seconds",
            },
            {"name": "item", "inputs": ["item"], "output": "ids", "table": "items"},
        ],
    }
)


class Plain(nn.Module):
    """Model of bags with offsets and columns of a matrix, both weighted; the latter's weights are dense, too."""

    def __init__(self) -> None:
        super().__init__()
        self.tags, self.items = nn.EmbeddingBag(30, 8, mode="sum"), nn.EmbeddingBag(50, 8, mode="sum")
        self.top = nn.Linear(8 + 8 + 4, 1)

    def forward(self, tags: Tensor, offsets: Tensor, tag_weights: Tensor, history: Tensor, shares: Tensor) -> Tensor:
        parts = [
            self.tags(tags, offsets, per_sample_weights=tag_weights),
            self.items(history[:, 1:3], per_sample_weights=shares[:, 1:3]),
            shares,
        ]
        return torch.sigmoid(self.top(torch.cat(parts, dim=1)))


class Ours(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = EmbeddingTable("items", 8, seed=1, rows=Initializer("uniform", 0.5))
        self.history, self.item = EmbeddingBag(self.table, "weighted"), EmbeddingBag(self.table)
        self.top = nn.Linear(16, 1)
        self.table.lookup(np.arange(20, dtype=np.int64), train=True)

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        history = self.history(inputs["history.values"], inputs["history.offsets"], inputs["history.weights"])
        item = self.item(inputs["item.values"], inputs["item.offsets"])
        return torch.sigmoid(self.top(torch.cat([history, item], dim=1)))


def sample() -> dict[str, Column]:
    clicked = [[1, 2, 3, 4], [], [5], [6, 7]]
    seconds = [[0.5, -1.0, 2.0, 4.0], [], [3.0], [0.25, 0.0]]
    return {
        "clicked": column_from_lists("INT64", clicked),
        "seconds": column_from_lists("FP32", seconds),
        "item": column_from_numpy("INT64", np.array([3, 99, 5, 0])),
    }


def test_weights_of_torchs_layers_become_inputs(tmp_path: Path) -> None:
    torch.manual_seed(0)
    batch = (
        torch.tensor([1, 2, 3, 29]),
        torch.tensor([0, 2, 2]),
        torch.tensor([0.5, -1.0, 2.0, 0.25]),
        torch.randint(0, 50, (3, 4)),
        torch.rand(3, 4),
    )
    version = replay(publish(Plain(), batch, tmp_path, name="plain"))
    inputs = {entry.name: entry for entry in version.spec.inputs}
    assert (inputs["tag_weights"].dtype, inputs["tag_weights"].kind) == ("FP32", "list")
    assert (inputs["shares"].dtype, inputs["shares"].width) == ("FP32", 4)
    weighted = {feature.weights: feature.pooling for feature in version.spec.features if feature.weights}
    assert weighted == {"tag_weights": "weighted", "shares": "weighted"}


def test_a_module_with_a_spec_is_cut_at_its_weighted_bags(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Ours()
    version = replay(publish(module, sample(), tmp_path, name="ours", spec=SPEC))
    golden = version.golden()
    weights = golden.columns["seconds"].values
    assert isinstance(weights, np.ndarray)
    assert np.isfinite(weights).all()
    assert len(set(weights.tolist())) > 3
    assert golden.columns["clicked"].offsets is not None
    np.testing.assert_array_equal(golden.columns["clicked"].offsets, golden.columns["seconds"].offsets)


def test_a_delta_reaches_changed_rows_through_weighted_bags(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Ours()
    publisher = Publisher(module, sample(), tmp_path, name="ours", spec=SPEC)
    publisher.publish()
    module.table.add_gradients(np.arange(4, 9), np.ones((5, 8), np.float32))
    SparseAdagrad([module.table], lr=0.1).step()
    publisher.publish("delta")
    manifest = publisher.lineage.newest
    assert manifest is not None
    assert manifest.sequence == 1


def test_a_layer_and_a_spec_must_agree_on_weights(tmp_path: Path) -> None:
    module = Ours()
    module.history = EmbeddingBag(module.table, "weighted")
    plain = FeatureSpec.parse(
        {
            "inputs": [entry.model_dump() for entry in SPEC.inputs],
            "features": [
                {**SPEC.features[1].model_dump(), "name": "history"},
                SPEC.features[1].model_dump(),
            ],
        }
    )
    with pytest.raises(Exception, match=r"history\.weights"):
        publish(module, sample(), tmp_path, name="ours", spec=plain)

    class Ignoring(Ours):
        def forward(self, inputs: dict[str, Tensor]) -> Tensor:
            history = self.item(inputs["history.values"], inputs["history.offsets"])
            item = self.item(inputs["item.values"], inputs["item.offsets"])
            return torch.sigmoid(self.top(torch.cat([history, item], dim=1)))

    with pytest.raises(ConfigError, match="gives pooling sum, length 0; the feature 'history' says weighted"):
        publish(Ignoring(), sample(), tmp_path, name="ours", spec=SPEC)


def test_weights_of_two_tensors_of_ids_are_refused(tmp_path: Path) -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag = nn.EmbeddingBag(9, 4, mode="sum")

        def forward(self, a: Tensor, b: Tensor, weights: Tensor) -> Tensor:
            return self.bag(a, per_sample_weights=weights) + self.bag(b, per_sample_weights=weights)

    batch = (torch.zeros(3, 2).long(), torch.ones(3, 2).long(), torch.ones(3, 2))
    with pytest.raises(Unsupported, match=r"the weights 'weights' are those of the ids 'a' already"):
        publish(Shared(), batch, tmp_path, name="shared")
