"""Publishes modules that use none of our layers: checks what is derived from the sample, and that both halves agree."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from storage import PublishedVersion, open_version
from storage.errors import CheckpointError, InvalidInput
from storage.features import FeatureEngine, column_from_jagged, column_from_numpy
from tests.reference.initial import absent_row, of_feature
from trainer import Embedding, EmbeddingBag, EmbeddingTable, Initializer, publish

B = 6


def served(version: PublishedVersion, columns: Mapping[str, Any], rows: int) -> dict[str, np.ndarray]:
    """Computes scores from the published files alone: dictionaries of rows, float64 sums, the loaded graph."""
    features = FeatureEngine(version.spec).run(columns, rows)
    rows_of: dict[str, dict[int, np.ndarray]] = {}
    for table in version.manifest.tables:
        shards = list(version.shards(table.name))
        rows_of[table.name] = {int(i): r.astype(np.float64) for s in shards for i, r in zip(s.ids, s.rows, strict=True)}
    entries = {table.name: table.model_dump() for table in version.manifest.tables}
    graph = version.graph()
    tensors = []
    for entry in graph.inputs:
        if entry.kind == "dense":
            tensors.append(torch.from_numpy(features.dense[entry.source]))
            continue
        feature = version.spec.feature(entry.source)
        bags = features.ids[entry.source]
        lists = [bags.values[a:b].tolist() for a, b in zip(bags.offsets, bags.offsets[1:], strict=False)]
        entry_of = entries[feature.table]
        zero = np.zeros(entry_of["dim"])
        known, absent = rows_of[feature.table], of_feature(feature.model_dump(), entry_of)
        if entry.kind == "lengths":
            tensors.append(torch.tensor([min(len(ids), feature.length) for ids in lists]))
            continue
        found = [[known[i] if i in known else absent_row(absent, len(zero), i) for i in ids] for ids in lists]
        cut: list[Any]
        if entry.kind == "rows":
            cut = [(bag[: feature.length] + [zero] * feature.length)[: feature.length] for bag in found]
        else:
            if bags.weights is not None:
                flat = [row * float(w) for row, w in zip((r for bag in found for r in bag), bags.weights, strict=True)]
                found = [flat[a:b] for a, b in zip(bags.offsets, bags.offsets[1:], strict=False)]
            divide = [max(len(bag), 1) if feature.pooling == "mean" else 1 for bag in found]
            cut = [sum(bag, zero) / n for bag, n in zip(found, divide, strict=True)]
        tensors.append(torch.from_numpy(np.array(cut, dtype=np.float32)))
    return {out.name: value.numpy() for out, value in zip(graph.outputs, graph.run(tensors), strict=True)}


def replay(folder: Path) -> PublishedVersion:
    """Opens a version and replays its golden requests against the reference above."""
    version = open_version(folder)
    golden = version.golden()
    assert golden.batch >= 256
    outputs = served(version, dict(golden.columns), golden.batch)
    for name, wanted in golden.outputs.items():
        np.testing.assert_allclose(outputs[name], wanted, rtol=0, atol=max(golden.tolerance, 1e-6))
    return version


class Ctr(nn.Module):
    """Module with the usual parts.

    It has columns of an id matrix, a shared table, bags with offsets, a padded history, dropout and batch norm.
    """

    def __init__(self) -> None:
        super().__init__()
        self.items, self.users = nn.Embedding(50, 8), nn.Embedding(20, 4)
        self.tags = nn.EmbeddingBag(30, 8, mode="mean")
        self.norm = nn.BatchNorm1d(3)
        self.top = nn.Sequential(nn.Linear(3 + 4 + 8 * 4, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 1))

    def forward(self, dense: Tensor, ids: Tensor, tags: Tensor, tag_offsets: Tensor, history: Tensor) -> Tensor:
        parts = [
            self.norm(dense),
            self.users(ids[:, 0]),
            self.items(ids[:, 1]),
            self.items(ids[:, 2:3]).squeeze(1),
            self.items(history).mean(dim=1),
            self.tags(tags, tag_offsets),
        ]
        return torch.sigmoid(self.top(torch.cat(parts, dim=1))).squeeze(1)


def ctr_sample() -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    return (
        torch.randn(B, 3, generator=generator),
        torch.randint(0, 20, (B, 3), generator=generator),
        torch.randint(0, 30, (11,), generator=generator),
        torch.tensor([0, 2, 2, 5, 7, 10]),
        torch.randint(0, 50, (B, 4), generator=generator),
    )


@pytest.mark.slow
def test_a_plain_module_is_published_and_left_as_it_was(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Ctr().train()
    module.norm.eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    version = replay(publish(module, ctr_sample(), tmp_path, name="ctr"))
    assert module.training
    assert not module.norm.training
    assert isinstance(module.items, nn.Embedding)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert [(entry.name, entry.kind, entry.width) for entry in version.spec.inputs] == [
        ("dense", "fixed", 3),
        ("ids", "fixed", 3),
        ("tags", "list", 1),
        ("history", "fixed", 4),
    ]
    assert {table.name: table.rows for table in version.manifest.tables} == {"users": 20, "items": 50, "tags": 30}
    tables = {feature.name: feature.table for feature in version.spec.ids_features}
    assert tables == {"ids_0": "users", "ids_1": "items", "ids_2": "items", "history": "items", "tags": "tags"}
    # The rows are in the tables; the dense half must not carry them again.
    assert version.graph().weight_bytes() < 4 * (39 * 16 + 16 + 16 + 1 + 20)


def test_the_scores_of_a_plain_module_are_its_own(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, sample = Ctr().eval(), ctr_sample()
    version = open_version(publish(module, sample, tmp_path, name="ctr"))

    columns = {
        "dense": column_from_numpy("FP32", sample[0].numpy()),
        "ids": column_from_numpy("INT64", sample[1].numpy()),
        "tags": column_from_jagged("INT64", sample[2].numpy(), np.array([0, 2, 2, 5, 7, 10, 11])),
        "history": column_from_numpy("INT64", sample[4].numpy()),
    }
    got = served(version, columns, B)["score"]
    np.testing.assert_allclose(got.ravel(), module(*sample).detach().numpy(), atol=1e-6)
    one = {name: column.slice(3, 4) for name, column in columns.items()}
    np.testing.assert_allclose(served(version, one, 1)["score"], got[3:4], atol=1e-6)


class Dlrm(nn.Module):
    """Calls its bags as DLRM's reference code does: with a list of id tensors, and a matrix of their offsets."""

    def __init__(self) -> None:
        super().__init__()
        self.emb_l = nn.ModuleList([nn.EmbeddingBag(n, 4, mode="sum") for n in (10, 20, 30)])
        self.emb_l[2].weight = nn.Parameter(torch.randn(30, 4))
        self.bottom, self.top = nn.Linear(5, 4), nn.Linear(4 + 6, 1)

    def forward(self, dense_x: Tensor, offsets: Tensor, indices: list[Tensor]) -> dict[str, Tensor]:
        x = self.bottom(dense_x)
        ly = [layer(indices[k], offsets[k]) for k, layer in enumerate(self.emb_l)]
        t = torch.stack([x, *ly], dim=1)
        z = torch.bmm(t, t.transpose(1, 2))
        li, lj = torch.tril_indices(4, 4, offset=-1)
        logit = self.top(torch.cat([x, z[:, li, lj]], dim=1))
        return {"ctr": torch.sigmoid(logit), "logit": logit}


def test_lists_of_bags_with_rows_of_an_offsets_matrix_are_published(tmp_path: Path) -> None:
    torch.manual_seed(0)
    indices = [torch.randint(0, n, (7,)) for n in (10, 20, 30)]
    offsets = torch.tensor([[0, 1, 3, 5], [0, 0, 2, 6], [0, 2, 4, 7]])
    version = replay(publish(Dlrm(), (torch.randn(4, 5), offsets, indices), tmp_path, name="dlrm"))
    assert [entry.name for entry in version.spec.inputs] == ["dense_x", "indices_0", "indices_1", "indices_2"]
    assert [output.name for output in version.graph().outputs] == ["ctr", "logit"]


class TwoTowers(nn.Module):
    """Takes one mapping as its argument, and has one table for both sides, called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.EmbeddingBag(40, 8, mode="sum", padding_idx=0)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return (self.embedding(batch["left"]) * self.embedding(batch["right"])).sum(dim=1, keepdim=True)


def test_a_layer_called_twice_is_two_features_on_one_table_and_padding_adds_nothing(tmp_path: Path) -> None:
    module = TwoTowers()
    with torch.no_grad():
        module.embedding.weight[0] = 5.0  # The padding row is not zero; it must be left out all the same.
    sample = {"left": torch.randint(0, 40, (B, 3)), "right": torch.randint(1, 40, (B, 2))}
    sample["left"][0] = torch.tensor([0, 7, 0])
    version = replay(publish(module, sample, tmp_path, name="towers"))
    assert [(f.name, f.table) for f in version.spec.ids_features] == [("left", "embedding"), ("right", "embedding")]
    assert version.manifest.tables[0].rows == 39


class Ours(nn.Module):
    """Uses our layers in a user's own module: bags, and an attention over a sequence."""

    def __init__(self) -> None:
        super().__init__()
        table = EmbeddingTable("words", 6, seed=1, rows=Initializer("uniform", 1.0))
        self.query, self.words = EmbeddingBag(table, "mean"), Embedding(table, 3)

    def forward(self, query: Tensor, query_offsets: Tensor, words: Tensor, word_offsets: Tensor) -> Tensor:
        q = self.query(query, query_offsets)
        rows, lengths = self.words(words, word_offsets)
        mask = torch.arange(3) < lengths.unsqueeze(1)
        weights = torch.softmax((rows @ q.unsqueeze(2)).squeeze(2).masked_fill(~mask, -1e9), dim=1)
        return ((weights.unsqueeze(2) * rows).sum(dim=1) * q).sum(dim=1, keepdim=True)


def test_our_layers_in_a_module_of_the_users_own_are_published_with_frequencies(tmp_path: Path) -> None:
    module = Ours()
    sample = (
        torch.tensor([1, 2, -1, 4]),
        torch.tensor([0, 2, 2, 4]),
        torch.tensor([5, 2, 1, 2, 9]),
        torch.tensor([0, 4, 4, 5]),
    )
    module(*sample)
    version = replay(publish(module, sample, tmp_path, name="ours"))
    shard = next(iter(version.shards("words")))
    counts = dict(zip(shard.ids.tolist(), shard.freq.tolist(), strict=True))
    # The fourth word of the first row is beyond length 3, so 2 was seen twice.
    assert counts == {-1: 1, 1: 2, 2: 2, 4: 1, 5: 1, 9: 1}


def test_versions_count_up_and_a_taken_number_is_refused(tmp_path: Path) -> None:
    module, sample = TwoTowers(), {"left": torch.ones(2, 1).long(), "right": torch.ones(2, 1).long()}
    assert publish(module, sample, tmp_path, name="m").name == "1"
    assert publish(module, sample, tmp_path, name="m").name == "2"
    assert publish(module, sample, tmp_path, name="m", version=9).name == "9"
    with pytest.raises(CheckpointError, match="exists"):
        publish(module, sample, tmp_path, name="m", version=2)
    assert sorted(entry.name for entry in (tmp_path / "m").iterdir()) == ["1", "2", "9", "config.pbtxt"]


def test_golden_requests_hold_absent_ids_and_empty_bags_and_no_nulls(tmp_path: Path) -> None:
    version = open_version(publish(Ctr(), ctr_sample(), tmp_path, name="ctr"))
    golden = version.golden()
    features = FeatureEngine(version.spec).run(golden.columns, golden.batch)
    for table, feature in (("users", "ids_0"), ("tags", "tags"), ("items", "history")):
        known = set(next(iter(version.shards(table))).ids.tolist())
        given = set(features.ids[feature].values.tolist())
        assert given & known
        assert given - known
    assert (features.ids["tags"].lengths() == 0).any()
    assert all(column.valid is None for column in golden.columns.values())
    assert len(np.unique(golden.outputs["score"])) > 200


def test_golden_requests_are_made_even_when_the_sample_misses_a_table(tmp_path: Path) -> None:
    module = TwoTowers()
    zeros = torch.zeros(2, 2).long()  # The padding id alone: the table has no rows.
    version = replay(publish(module, {"left": zeros, "right": zeros}, tmp_path, name="m"))
    assert np.abs(version.golden().outputs["score"]).max() > 0


def test_fewer_golden_requests_than_a_server_wants_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="256 or more"):
        publish(TwoTowers(), {}, tmp_path, name="m", golden_requests=10)


@pytest.mark.slow
def test_publishing_again_and_again_leaves_nothing_in_torch(tmp_path: Path) -> None:
    module = nn.Sequential(nn.EmbeddingBag(50, 4, mode="mean"), nn.Linear(4, 1))
    sample = torch.randint(0, 50, (B, 3))
    counts = []
    for _ in range(4):
        publish(module, sample, tmp_path, name="m")
        gc.collect()
        counts.append(sum(type(entry) is ShapeEnv for entry in gc.get_objects()))
    assert len(set(counts)) == 1
