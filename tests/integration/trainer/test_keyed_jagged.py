"""Modules that take TorchRec's KeyedJaggedTensor are published: each key is a list of ids."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from serving.scoring.scorer import Scorer
from storage.checkpoint.as_of import find_as_of
from storage.errors import InvalidInput, Unsupported
from storage.features import Column, column_from_jagged, column_from_numpy
from tests.integration.trainer.keyed_jagged import KeyedJaggedTensor
from tests.support.with_torchrec import run_with_torchrec
from trainer import EmbeddingBag, EmbeddingCollection, EmbeddingTable, Initializer, publish
from trainer.publishing import Publisher

LENGTHS = {"item": [2, 0, 1, 3], "shop": [1, 1, 0, 2], "liked": [0, 2, 2, 1]}


@dataclass
class Config:
    """Names a table and its features, as TorchRec's configurations do."""

    name: str
    feature_names: list[str]


class Collection(nn.Module):
    """Looks bags up as TorchRec's EmbeddingBagCollection does."""

    def __init__(self, mode: str, *, is_weighted: bool = False) -> None:
        super().__init__()
        self._tables = [Config("goods", ["item", "liked"]), Config("shops", ["shop"])]
        self._is_weighted = is_weighted
        self.embedding_bags = nn.ModuleDict(
            {each.name: nn.EmbeddingBag(50, 4, mode=mode, include_last_offset=True) for each in self._tables}
        )

    def embedding_bag_configs(self) -> list[Config]:
        return self._tables

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        by_key = features.to_dict()
        found = []
        for config, bag in zip(self._tables, self.embedding_bags.values(), strict=True):
            for name in config.feature_names:
                jagged = by_key[name]
                weights = jagged.weights() if self._is_weighted else None
                found.append(bag(input=jagged.values(), offsets=jagged.offsets(), per_sample_weights=weights))
        return torch.cat(found, 1)


class Ranker(nn.Module):
    def __init__(self, collection: nn.Module) -> None:
        super().__init__()
        self.sparse, self.over = collection, nn.Linear(12 + 3, 1)

    def forward(self, dense: Tensor, features: KeyedJaggedTensor) -> Tensor:
        rows = self.sparse(features)
        return self.over(torch.cat([dense, rows if isinstance(rows, Tensor) else rows.pooled], 1)).sigmoid()


def drawn(*, is_weighted: bool = False) -> tuple[Tensor, KeyedJaggedTensor]:
    lengths = torch.tensor([count for own in LENGTHS.values() for count in own])
    count = int(lengths.sum())
    weights = torch.rand(count) if is_weighted else None
    return torch.rand(4, 3), KeyedJaggedTensor(list(LENGTHS), torch.randint(0, 50, (count,)), lengths, weights)


def columns_of(dense: Tensor, features: KeyedJaggedTensor) -> dict[str, Column]:
    """Returns a batch as a request has it."""
    found = {"dense": column_from_numpy("FP32", dense.numpy())}
    for key in features.keys():  # noqa: SIM118 (not a mapping)
        bags = features[key]
        found[key] = column_from_jagged("INT64", bags.values().numpy(), bags.offsets().numpy())
        if (weights := bags.weights_or_none()) is not None:
            found[f"{key}_weights"] = column_from_jagged("FP32", weights.numpy(), bags.offsets().numpy())
    return found


@pytest.mark.parametrize(("mode", "is_weighted"), [("sum", False), ("mean", False), ("sum", True)])
def test_a_collection_of_bags_is_served_as_torch_computes_it(mode: str, is_weighted: bool, tmp_path: Path) -> None:
    torch.manual_seed(1)
    module = Ranker(Collection(mode, is_weighted=is_weighted)).eval()
    folder = publish(module, drawn(is_weighted=is_weighted), tmp_path / "models", name="ranker")
    features = {each["name"]: each for each in json.loads((folder / "features.json").read_text())["features"]}
    assert {name: features[name]["table"] for name in LENGTHS} == {"item": "goods", "liked": "goods", "shop": "shops"}
    assert features["item"]["pooling"] == ("weighted" if is_weighted else mode)
    dense, keyed = drawn(is_weighted=is_weighted)
    with Scorer(find_as_of(tmp_path / "models" / "ranker"), tmp_path / "store") as scorer:
        scores = scorer.score(columns_of(dense, keyed), 4)[0]
    with torch.no_grad():
        np.testing.assert_allclose(scores, module(dense, keyed), rtol=1e-5, atol=1e-6)


def test_our_own_collection_takes_the_same_keys(tmp_path: Path) -> None:
    torch.manual_seed(2)
    tables = [EmbeddingTable(name, 4, rows=Initializer("uniform", 0.5)) for name in ("goods", "shops")]
    items, shops = (EmbeddingBag(table, "mean") for table in tables)
    module = Ranker(EmbeddingCollection({"item": items, "liked": items, "shop": shops}))
    batch = drawn()
    module(*batch)  # rows come with training
    folder = publish(module.eval(), batch, tmp_path, name="ranker")
    with Scorer(find_as_of(folder.parent), tmp_path / "store") as scorer, torch.no_grad():
        np.testing.assert_allclose(scorer.score(columns_of(*batch), 4)[0], module(*batch), rtol=1e-5, atol=1e-6)


def test_what_is_trained_on_becomes_a_delta(tmp_path: Path) -> None:
    torch.manual_seed(3)
    module, batch = Ranker(Collection("sum")).eval(), drawn()
    publish(module, batch, tmp_path, name="ranker")
    with torch.no_grad():
        module.get_parameter("sparse.embedding_bags.goods.weight")[7] += 1
    delta = publish(module, batch, tmp_path, name="ranker", delta="only")
    changed = {each["name"]: each["rows"] for each in json.loads((delta / "manifest.json").read_text())["tables"]}
    assert changed == {"goods": 1, "shops": 0}


def test_a_publisher_knows_the_inputs_of_the_user(tmp_path: Path) -> None:
    publisher = Publisher(Ranker(Collection("sum")), drawn(), tmp_path, name="ranker", user_inputs=["liked", "shop"])
    folder = publisher.publish("version")
    inputs = json.loads((folder / "features.json").read_text())["inputs"]
    assert {each["name"] for each in inputs if each.get("side") == "user"} == {"liked", "shop"}
    with pytest.raises(InvalidInput, match=r"no input 'like'.*did you mean 'liked'"):
        Publisher(Ranker(Collection("sum")), drawn(), tmp_path, name="other", user_inputs=["like"]).publish("version")


class Asking(Ranker):
    def forward(self, dense: Tensor, features: KeyedJaggedTensor) -> Tensor:
        return super().forward(dense, features) + features.length_per_key()[0]


def test_what_a_keyed_tensor_cannot_be_asked_for_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match=r"asks the KeyedJaggedTensor for 'length_per_key'.*to_dict\(\)"):
        publish(Asking(Collection("sum")), drawn(), tmp_path, name="m")
    with pytest.raises(InvalidInput, match="no weights; a weighted collection needs them"):
        publish(Ranker(Collection("sum", is_weighted=True)), drawn(), tmp_path, name="m")
    uneven = KeyedJaggedTensor(["a", "b"], torch.arange(5), torch.tensor([1, 2, 2]), None, bags=[1, 2])
    with pytest.raises(Unsupported, match=r"different numbers of bags \('a' 1, 'b' 2\)"):
        publish(Ranker(Collection("sum")), (torch.rand(2, 3), uneven), tmp_path, name="m")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_torchrecs_own_models_are_served_as_they_compute(tmp_path: Path) -> None:
    printed = run_with_torchrec("tests.integration.trainer.torchrec_models", tmp_path)
    assert printed.split() == ["dlrm", "dlrm_dcn", "dlrm_projection", "deepfm", "weighted"]
