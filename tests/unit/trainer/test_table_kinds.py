"""Kinds of tables: a configuration is lowered to features of plain tables, and layers of one's own do the same."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from storage import open_version
from storage.checkpoint.table_kinds import DYNAMIC, MultiHashKind, StaticKind
from storage.errors import ConfigError, InvalidInput, Unsupported
from storage.features import FeatureEngine, column_from_lists, column_from_numpy
from tests.reference.transforms import run_feature
from trainer.config import TrainConfig, parse_text
from trainer.data import to_inputs
from trainer.embedding import (
    CombinedBag,
    CombinedEmbedding,
    EmbeddingBag,
    EmbeddingTable,
    SparseSGD,
    classes_table,
    hashed_table,
    multi_hash_table,
    quotient_remainder_table,
    static_table,
)
from trainer.models import build_model, build_tables
from trainer.publishing import publish
from trainer.settings import check_same_model, settings_of

BASE = """
model_name: shop
label: label
inputs:
  - {name: user, dtype: INT64}
  - {name: items, dtype: INT64, kind: list, max_length: 8}
  - {name: weights, dtype: FP32, kind: list, max_length: 8}
features:
  - {name: user, inputs: [user], output: ids, table: user}
  - {name: items, inputs: [items], output: ids, table: item, pooling: mean}
  - {name: strong, inputs: [items], output: ids, table: item, pooling: weighted, weights: weights}
model: {type: dlrm, bottom: [4], top: [4]}
"""
KINDS: dict[str, dict[str, Any]] = {
    "dynamic": {"dim": 4},
    "static": {"kind": "static", "dim": 4, "rows": 50},
    "hashed": {"kind": "hashed", "dim": 4, "buckets": 7},
    "quotient_remainder": {"kind": "quotient_remainder", "dim": 4, "buckets": 8},
    "wide_quotients": {"kind": "quotient_remainder", "dim": 4, "buckets": 8, "quotient_buckets": 5},
    "quotient_concat": {"kind": "quotient_remainder", "dim": 4, "buckets": 8, "combine": "concat"},
    "multi_hash": {"kind": "multi_hash", "dim": 4, "hashes": 3, "buckets": 5},
    "classes": {"kind": "classes", "dims": {"hot": 4, "cold": 2}, "buckets": 6, "admit_after": 3},
}
BATCH = {
    "user": column_from_numpy("INT64", np.array([[1], [2], [3]])),
    "items": column_from_lists("INT64", [[1, 2, 60], [], [-5, 1]]),
    "weights": column_from_lists("FP32", [[1.0, 0.5, 2.0], [], [3.0, -1.0]]),
}


def config_of(table: dict[str, Any], base: str = BASE, **changes: Any) -> TrainConfig:
    content = yaml.safe_load(base) | changes
    tables = [{"name": "user", "dim": 4}, {"name": "item", **table}]
    return parse_text(yaml.safe_dump(content | {"tables": tables}))


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"dim": 4, "buckets": 9}, "tables.1.buckets: unknown key of the kind dynamic; it is an option of: hashed, "),
        ({"kind": "static", "dim": 4, "rows": 9, "admit_after": 2}, "tables.1.admit_after: unknown key of the kind "),
        ({"kind": "hashed", "dim": 4, "bucket": 9}, "tables.1.bucket: unknown key; did you mean 'buckets'?"),
        ({"kind": "hashed", "dim": 4}, "tables.1.buckets: missing"),
        ({"kind": "hashes", "dim": 4}, "'hashes'"),
        ({"kind": "multi_hash", "dim": 5, "buckets": 9, "combine": "concat"}, "dim is 5, which concat cannot divide"),
        ({"kind": "multi_hash", "dim": 4, "buckets": 9, "hashes": 1}, "tables.1.hashes"),
        ({"kind": "classes", "dims": {"hot": 4, "cold": 8}, "buckets": 9}, "dims.cold is 8, expected no more than"),
        ({"kind": "classes", "dim": 4, "buckets": 9}, "tables.1.dim: unknown key of the kind classes"),
        (
            {"kind": "quotient_remainder", "dim": 4, "buckets": 9, "combine": "mult"},
            "feature 'items' pools up to 8 ids, and the table 'item' multiplies the rows of an id",
        ),
    ],
)
def test_a_wrong_table_is_refused_by_the_name_of_its_option(table: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        config_of(table)
    assert words in str(refused.value)


def test_a_part_cannot_have_the_name_of_a_table() -> None:
    content = yaml.safe_load(BASE)
    content["features"][0]["table"] = "item-0"
    tables = [{"name": "item-0", "dim": 4}, {"name": "item", "kind": "multi_hash", "dim": 4, "buckets": 9}]
    with pytest.raises(ConfigError, match="two are called 'item-0'"):
        parse_text(yaml.safe_dump(content | {"tables": tables}))


def test_mult_takes_single_ids_and_sequences() -> None:
    content = yaml.safe_load(BASE)
    content["features"] = [
        content["features"][0],
        {"name": "target", "inputs": ["user"], "output": "ids", "table": "item"},
        {"name": "seen", "inputs": ["items"], "output": "ids", "table": "item", "pooling": "none", "length": 3},
    ]
    content["inputs"] = content["inputs"][:2]
    content["model"] = {"type": "din", "target": "target", "sequence": "seen", "hidden": [4], "attention": [4]}
    table = {"kind": "quotient_remainder", "dim": 4, "buckets": 8, "combine": "mult"}
    tables = [{"name": "user", "dim": 4}, {"name": "item", **table}]
    config = parse_text(yaml.safe_dump(content | {"tables": tables}))
    built = build_tables(config)
    model = build_model(config, built).eval()
    for name, table_of_rows in built.items():
        table_of_rows.lookup(np.arange(4), train=True)
        if name == "item-remainder":
            assert (table_of_rows.lookup(np.arange(4), train=False) == 1.0).all(), "the product begins as init says"
    score = model(to_inputs(FeatureEngine(config.spec).run({n: BATCH[n] for n in ("user", "items")}, 3)))["score"]
    assert score.shape == (3, 1)


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_kind_gives_the_sum_of_what_its_parts_give_each_id(kind: str) -> None:
    """Pooled parts, combined, are the pooled rows that are combined id by id."""
    config = config_of(KINDS[kind])
    tables = build_tables(config)
    torch.manual_seed(1)
    model = build_model(config, tables)
    features: Any = model.features
    inputs = to_inputs(FeatureEngine(config.spec).run(BATCH, 3))
    model.train()
    for _ in range(3):
        features(inputs)
    model.eval()
    embedded = features(inputs)
    assert features.pooled_names == ("user", "items", "strong")
    combining = features.combining

    def row(item: int) -> np.ndarray:
        if kind == "static":
            return tables["item"].lookup(np.array([item]), train=False)[0]
        entry = next(table for table in config.tables if table.name == "item")
        found = []
        for part in entry.parts():
            plain = EmbeddingTable("ids", 1, transforms=part.transforms)
            found.append(tables[part.rows.name].lookup(plain.row_ids(np.array([item])), train=False))
        if combining is None:
            return found[0][0]
        with torch.no_grad():
            made: np.ndarray = combining.tables["of_item"]([torch.from_numpy(each) for each in found])[0].numpy()
        return made

    bags, weights = [[1, 2, 60], [], [-5, 1]], [[1.0, 0.5, 2.0], [], [3.0, -1.0]]
    zero = np.zeros(4, np.float32)
    means = [sum((row(item) for item in bag), zero) / max(1, len(bag)) for bag in bags]
    strong = [
        sum((weight * row(item) for item, weight in zip(bag, each, strict=True)), zero)
        for bag, each in zip(bags, weights, strict=True)
    ]
    assert np.abs(means[0]).max() > 1e-4, "rows that are all zero compare nothing"
    np.testing.assert_allclose(embedded["items"].detach(), means, atol=1e-6)
    np.testing.assert_allclose(embedded["strong"].detach(), strong, atol=1e-6)


def test_ids_of_one_bucket_share_a_row_and_others_do_not() -> None:
    config = config_of(KINDS["hashed"])
    tables = build_tables(config)
    rows = EmbeddingTable("ids", 1, transforms=config.row_tables[1].transforms).row_ids(np.arange(100))
    assert set(rows.tolist()) == set(range(7)), "100 ids fill 7 buckets"
    column = {**BATCH, "items": column_from_lists("INT64", [[k] for k in range(100)])}
    column["user"] = column_from_numpy("INT64", np.zeros((100, 1), np.int64))
    column["weights"] = column_from_lists("FP32", [[1.0]] * 100)
    bags = FeatureEngine(config.spec).run(column, 100).ids["items"]
    np.testing.assert_array_equal(bags.values, rows)
    build_model(config, tables).train()(to_inputs(FeatureEngine(config.spec).run(column, 100)))
    assert tables["item"].size() == 7


def test_two_hashes_keep_apart_what_one_joins() -> None:
    table = multi_hash_table("items", 4, 10, hashes=2)
    first, second = (part.row_ids(np.arange(100)) for part in table.parts)
    assert len(set(first.tolist())) == len(set(second.tolist())) == 10
    assert len(set(zip(first.tolist(), second.tolist(), strict=True))) > 50
    same = hashed_table("items", 4, 10, seed=5).row_ids(np.arange(100))
    np.testing.assert_array_equal(hashed_table("items", 4, 10).row_ids(np.arange(100)), same)


def test_no_two_ids_share_quotient_and_remainder() -> None:
    quotient, remainder = quotient_remainder_table("items", 4, 10).parts
    ids = np.array([-11, -1, 0, 5, 10, 15, 2**63 - 1, -(2**63)])
    np.testing.assert_array_equal(quotient.row_ids(ids) * 10 + remainder.row_ids(ids), ids)
    assert quotient.row_ids(np.array([5, 9])).tolist() == [0, 0]


def test_a_static_table_has_its_rows_from_the_start_and_no_others() -> None:
    table = static_table("items", 3, 10, seed=4)
    assert table.size() == 10
    assert table.kind == StaticKind(rows=10)
    ids = np.array([0, 9, 10, -1])
    dynamic = EmbeddingTable("items", 3, seed=4)
    np.testing.assert_array_equal(table.lookup(ids, train=True)[:2], dynamic.lookup(ids, train=True)[:2])
    assert (table.lookup(ids, train=True)[2:] == 0).all()
    assert (table.size(), table.waiting()) == (10, 0)
    bag = EmbeddingBag(table)
    assert bag(torch.tensor([10, 3]), torch.tensor([0, 1, 2]))[0].abs().sum() == 0
    _, _, _, counts, *_ = table.export_rows()
    assert counts.tolist() == [2, 0, 0, 1, 0, 0, 0, 0, 0, 2]


@pytest.mark.parametrize("rows", [1, 65_536, 65_537])
def test_a_static_table_is_made_in_pieces(rows: int) -> None:
    table = static_table("items", 1, rows)
    assert table.size() == rows
    assert table.export_rows()[0].tolist() == list(range(rows))


def test_a_hot_id_keeps_its_score_when_it_gets_its_row() -> None:
    table = classes_table("items", 6, 2, 5, admit_after=3, optimizer="sgd")
    bag = CombinedBag(table)
    ids, offsets = torch.tensor([7]), torch.tensor([0, 1])
    first, second, third = (bag(ids, offsets).detach() for _ in range(3))
    assert torch.equal(first, second)
    assert table.parts[0].size() == 1
    assert torch.equal(second, third)
    bag(ids, offsets).sum().backward()
    SparseSGD(table.parts, lr=1.0).step()
    hot = table.parts[0].lookup(np.array([7]), train=False)
    assert (hot == -1.0).all()
    assert bag.combination.project is not None
    assert bag.combination.project.weight.grad is not None


class Mine(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tables = {
            "hashed": hashed_table("hashed", 4, 11, optimizer="sgd"),
            "static": static_table("static", 4, 30, optimizer="sgd"),
        }
        self.multi = multi_hash_table("multi", 4, 9, hashes=3, optimizer="sgd")
        self.divided = quotient_remainder_table("divided", 4, 6, combine="mult", optimizer="sgd")
        self.classes = classes_table("classes", 4, 2, 6, admit_after=2, optimizer="sgd")
        self.hashed = EmbeddingBag(self.tables["hashed"], "mean")
        self.static = EmbeddingBag(self.tables["static"])
        self.many = CombinedBag(self.multi)
        self.long = CombinedEmbedding(self.divided, 3)
        self.mixed = CombinedBag(self.classes, "mean")
        self.top = torch.nn.Linear(16, 1)

    def all_tables(self) -> list[EmbeddingTable]:
        combined = (self.multi, self.divided, self.classes)
        return [*self.tables.values(), *(part for table in combined for part in table.parts)]

    def forward(self, values: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        rows, _ = self.long(values, offsets)
        parts = [self.hashed(values, offsets), self.static(values, offsets), self.many(values, offsets)]
        joined = torch.cat([*parts[:2], parts[2] + self.mixed(values, offsets), rows.sum(1)], dim=1)
        made: torch.Tensor = torch.sigmoid(self.top(joined))
        return made


def test_a_module_of_ones_own_is_published_with_its_transforms(tmp_path: Path) -> None:
    torch.manual_seed(2)
    module = Mine()
    rng = np.random.default_rng(1)
    lengths = rng.integers(0, 5, 40)
    offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]))
    values = torch.from_numpy(rng.integers(-20, 60, int(lengths.sum())))
    for _ in range(4):
        module(values, offsets).sum().backward()
        SparseSGD(module.all_tables(), lr=0.5).step()
    version = open_version(publish(module, (values, offsets), tmp_path, name="mine"))
    kinds = {entry.name: entry.kind for entry in version.manifest.tables}
    assert kinds["static"] == StaticKind(rows=30)
    assert kinds["multi-2"] == MultiHashKind(table="multi", part=2, hashes=3, buckets=9, combine="add")
    assert set(kinds) == {table.name for table in module.all_tables()}
    # The published transforms, in plain Python, make the ids of rows that the layers made.
    spec = version.spec.model_dump(mode="json")
    tables = {table.name: table for table in module.all_tables()}
    for feature in spec["features"]:
        table = tables[feature["table"]]
        row = {"values": values.tolist()}
        assert run_feature(spec, feature, row) == table.row_ids(values.numpy()).tolist()


def test_with_a_spec_a_table_makes_no_ids_of_its_own(tmp_path: Path) -> None:
    config = config_of({"dim": 4})
    tables = build_tables(config)
    tables["item"] = hashed_table("item", 4, 9)
    model = build_model(config, tables)
    with pytest.raises(Unsupported, match="makes ids of rows by itself"):
        publish(model, BATCH, tmp_path, name="shop", spec=config.spec)


def test_a_bag_refuses_a_table_that_multiplies() -> None:
    with pytest.raises(ConfigError, match="multiplies the rows of an id"):
        CombinedBag(quotient_remainder_table("items", 4, 6, combine="mult"))
    with pytest.raises(ConfigError, match="hashes"):
        multi_hash_table("items", 4, 9, hashes=1)
    bag = CombinedBag(multi_hash_table("items", 4, 9), "weighted")
    with pytest.raises(InvalidInput, match="weighted needs weights"):
        bag(torch.tensor([1]), torch.tensor([0, 1]))


def test_what_a_row_means_cannot_change_in_a_run(tmp_path: Path) -> None:
    before = settings_of(config_of(KINDS["multi_hash"]))
    check_same_model(before, config_of(KINDS["multi_hash"] | {"init": {"type": "zeros"}}), tmp_path)
    for change in ({"buckets": 6}, {"hashes": 2}, {"seed": 1}, {"combine": "concat", "hashes": 2}):
        with pytest.raises(ConfigError, match=re.escape(f"tables.item.{next(iter(change))}")):
            check_same_model(before, config_of(KINDS["multi_hash"] | change), tmp_path)
    with pytest.raises(ConfigError, match=r"tables\.item\.kind was multi_hash and is hashed"):
        check_same_model(before, config_of(KINDS["hashed"]), tmp_path)


def test_row_types_of_a_table_hold_for_its_parts() -> None:
    types = {"item": "int8", "item-1": "bf16", "default": "fp16"}
    config = config_of(KINDS["multi_hash"], publish={"row_types": types})
    assert config.row_types == {"item-0": "int8", "item-1": "bf16", "item-2": "int8", "default": "fp16"}
    assert config.row_tables[0].kind == DYNAMIC
    with pytest.raises(ConfigError, match="there is no table 'item-3'"):
        config_of(KINDS["multi_hash"], publish={"row_types": {"item-3": "int8"}})
