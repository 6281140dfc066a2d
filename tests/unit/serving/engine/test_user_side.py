"""Tests one user with many items.

Features, lookup and graph run once a user, and the scores are the same as row by row.
"""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from serving.engine.model import LoadedModel
from serving.engine.requests import InferenceResult
from serving.engine.validation import validate
from serving.model_config.options import ModelOptions
from serving.model_config.pbtxt import read_model_config
from serving.pipeline.snapshot import Snapshot
from serving.pipeline.user_side import SidedFeatures, UserSide, take_rows
from storage import Golden, GraphInput, GraphOutput, TableData, open_version, write_version
from storage.errors import InvalidInput
from storage.features import Column, FeatureBatch, FeatureEngine, FeatureSpec, Jagged, column_from_numpy
from storage.tiers.tiered import TieredStore

DIM, IDS = 4, 300
SPEC: dict[str, Any] = {
    "inputs": [
        {"name": "user", "dtype": "INT64", "side": "user"},
        {"name": "age", "dtype": "FP32", "side": "user", "missing": "null", "default": 30.0},
        {"name": "history", "dtype": "INT64", "kind": "list", "side": "user", "missing": "null", "max_length": 50},
        {"name": "item", "dtype": "INT64"},
        {"name": "price", "dtype": "FP32"},
    ],
    "features": [
        {"name": "user", "inputs": ["user"], "output": "ids", "table": "user", "pooling": "sum"},
        {"name": "history", "inputs": ["history"], "output": "ids", "table": "item", "pooling": "mean"},
        {"name": "item", "inputs": ["item"], "output": "ids", "table": "item", "pooling": "sum"},
        {"name": "pair", "inputs": ["user", "item"], "output": "ids", "table": "pair", "pooling": "sum",
         "transforms": [{"op": "cross", "buckets": 100}]},
        {"name": "age", "inputs": ["age"], "output": "dense", "group": "who"},
        {"name": "price", "inputs": ["price"], "output": "dense", "group": "what"},
    ],
}  # fmt: skip


class Towers(torch.nn.Module):
    def __init__(self, mixes: bool = False) -> None:
        super().__init__()
        self.user = torch.nn.Linear(2 * DIM + 1, 8)
        self.item = torch.nn.Linear(2 * DIM + 1, 8)
        self.mixes = mixes

    def forward(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        who = torch.cat([inputs["user"], inputs["history"], inputs["who"]], 1)
        if self.mixes:
            who = who - who.sum(0, keepdim=True)
        user = torch.relu(self.user(who))
        item = torch.relu(self.item(torch.cat([inputs["item"], inputs["pair"], inputs["what"]], 1)))
        return {"score": torch.sigmoid((user * item).sum(1, keepdim=True))}


class World:
    def __init__(self, folder: Path, mixes: bool) -> None:
        rng = np.random.default_rng(8)
        torch.manual_seed(8)
        self.module = Towers(mixes).eval()
        names = {"user": DIM, "history": DIM, "item": DIM, "pair": DIM, "who": 1, "what": 1}
        example = {name: torch.rand(2, width) for name, width in names.items()}
        batch = torch.export.Dim("batch", min=1, max=4096)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(
                self.module, (example,), dynamic_shapes=({name: {0: batch} for name in example},)
            )
        self.spec = FeatureSpec.model_validate(SPEC)
        self.engine = FeatureEngine(self.spec)
        ids = np.arange(IDS, dtype=np.int64)
        self.tables = {name: rng.standard_normal((IDS, DIM)).astype(np.float32) for name in ("user", "item", "pair")}
        columns, rows = self.columns(rng, 60), 60
        tables = [TableData(name, DIM, ids, values, np.zeros(IDS, np.uint8)) for name, values in self.tables.items()]
        inputs = [
            GraphInput(
                name=name,
                kind="dense" if name in ("who", "what") else "pooled",
                source=name,
                shape=(-1, width),
            )
            for name, width in names.items()
        ]
        self.path = write_version(
            folder / "towers",
            version=1,
            spec=self.spec,
            tables=tables,
            graph=program,
            graph_inputs=inputs,
            graph_outputs=[GraphOutput(name="score", shape=(-1, 1))],
            golden=Golden(columns, rows, {"score": self.score(columns, rows)}, 1e-5),
            max_batch_size=4096,
        )
        self.published = open_version(self.path)
        self.store = TieredStore.open(folder / "store", self.published.tables, dram_bytes=None)
        self.store.load(self.published)
        self.snapshot = Snapshot.of_version(self.published, self.published.graph())

    def columns(self, rng: np.random.Generator, rows: int, users: int | None = None) -> dict[str, Column]:
        """Makes a request.

        users: 1 for one user-side row for all rows, None for one each.
        """
        users = rows if users is None else users
        lengths = rng.integers(0, 6, users)
        history = [rng.integers(0, IDS + 50, length) for length in lengths]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        values = np.concatenate(history).astype(np.int64)
        return {
            "user": column_from_numpy("INT64", rng.integers(0, IDS, users)),
            "age": column_from_numpy("FP32", rng.random(users).astype(np.float32)),
            "history": Column("INT64", users, 1, values, offsets, None),
            "item": column_from_numpy("INT64", rng.integers(0, IDS, rows)),
            "price": column_from_numpy("FP32", rng.random(rows).astype(np.float32)),
        }

    def score(self, columns: dict[str, Column], rows: int) -> np.ndarray:
        """Computes the scores with the module itself, one row of features at a time, each bag summed by hand."""
        features = self.engine.run(columns, rows)
        given = {"who": torch.from_numpy(features.dense["who"]), "what": torch.from_numpy(features.dense["what"])}
        tables = {"user": "user", "history": "item", "item": "item", "pair": "pair"}
        for name, table in tables.items():
            bags, pooled = features.ids[name], np.zeros((rows, DIM), np.float32)
            for row in range(rows):
                bag = bags.values[bags.offsets[row] : bags.offsets[row + 1]]
                known = [self.tables[table][i] for i in bag if 0 <= i < IDS]
                total = np.sum(known, 0) if known else np.zeros(DIM)
                pooled[row] = total / max(1, len(bag)) if name == "history" else total
            given[name] = torch.from_numpy(pooled)
        with torch.inference_mode():
            scores: np.ndarray = self.module(given)["score"].numpy()
        return scores


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("towers"), mixes=False)
    with made.store:
        yield made


@pytest.fixture
def make_model(tmp_path: Path) -> Iterator[Callable[..., LoadedModel]]:
    made: list[LoadedModel] = []

    def make(world: World, text: str = "") -> LoadedModel:
        folder = tmp_path / "towers"
        folder.mkdir(exist_ok=True)
        (folder / "config.pbtxt").write_text(text)
        model = LoadedModel(read_model_config(folder), world.published, world.store, world.snapshot)
        validate(model.parts, None, world.snapshot, world.published.golden(), None, options=ModelOptions())
        made.append(model)
        return model

    yield make
    for model in made:
        assert model.close(10.0)


def answers(model: LoadedModel, requests: list[tuple[dict[str, Column], int]]) -> list[InferenceResult]:
    """Sends all requests at once, so that they share batches where the model merges."""

    async def run() -> list[InferenceResult]:
        return await asyncio.gather(*(model.infer(columns, rows) for columns, rows in requests))

    return asyncio.run(run())


def looked_up(model: LoadedModel) -> int:
    stats = model.store_stats()
    return sum(stats.hits.values()) + stats.absent


def test_a_user_is_looked_up_once_for_all_rows_and_scores_are_the_same(
    world: World, make_model: Callable[..., LoadedModel]
) -> None:
    model = make_model(world)
    assert model.parts.user_side is not None
    assert model.parts.user_side.is_on
    assert model.parts.user_side.features == {"user", "history"}
    assert model.parts.user_side.groups == {"who"}
    rng = np.random.default_rng(1)
    columns = world.columns(rng, 200, users=1)
    (answer,) = answers(model, [(columns, 200)])
    np.testing.assert_allclose(answer.outputs[0], world.score(columns, 200), atol=1e-6)
    history = int(columns["history"].offsets[-1])  # type: ignore[index]
    assert looked_up(model) == 1 + history + 2 * 200  # user, list; item and pair of each row


@pytest.mark.parametrize("merged", [False, True])
def test_requests_of_any_kind_share_a_batch(world: World, make_model: Callable[..., LoadedModel], merged: bool) -> None:
    model = make_model(world, "dynamic_batching { max_queue_delay_microseconds: 20000 }" if merged else "")
    rng = np.random.default_rng(2)
    kinds = [(30, 1), (1, 1), (5, 5), (40, 1), (7, None), (1, None)] * 3
    requests = [(world.columns(rng, rows, users), rows) for rows, users in kinds]
    for (columns, rows), answer in zip(requests, answers(model, requests), strict=True):
        np.testing.assert_allclose(answer.outputs[0], world.score(columns, rows), atol=1e-6)


def test_one_wrong_request_of_a_batch_fails_alone(world: World, make_model: Callable[..., LoadedModel]) -> None:
    model = make_model(world, "dynamic_batching { max_queue_delay_microseconds: 20000 }")
    rng = np.random.default_rng(7)
    requests = [(world.columns(rng, rows), rows) for rows in (3, 2, 4, 1)]
    requests[1][0]["price"] = column_from_numpy("FP32", np.array([1, np.inf], np.float32))

    async def run() -> list[InferenceResult | BaseException]:
        calls = (model.infer(columns, rows) for columns, rows in requests)
        return await asyncio.gather(*calls, return_exceptions=True)

    found = asyncio.run(run())
    wrong = found.pop(1)
    assert isinstance(wrong, InvalidInput)
    assert wrong.field == "price"
    assert "row 1" in str(wrong)  # The row number counts the request's own rows.
    del requests[1]
    for (columns, rows), answer in zip(requests, found, strict=True):
        assert isinstance(answer, InferenceResult)
        np.testing.assert_allclose(answer.outputs[0], world.score(columns, rows), atol=1e-6)


def test_neighbours_with_the_same_inputs_share_one_run_of_the_engine(
    world: World, make_model: Callable[..., LoadedModel]
) -> None:
    pipeline = make_model(world).group.sessions[0].pipeline
    rng = np.random.default_rng(8)
    many = (world.columns(rng, 6, users=1), 6)
    without = (world.columns(rng, 2), 2)
    del without[0]["age"]
    plain = [(world.columns(rng, rows), rows) for rows in (1, 3, 2, 5)]
    made = pipeline.features([plain[0], plain[1], many, plain[2], without, plain[3]])
    assert [count for _, count in made] == [2, 1, 1, 1, 1]
    assert isinstance(made[1][0], SidedFeatures)


def test_requests_of_the_same_user_share_it(world: World, make_model: Callable[..., LoadedModel]) -> None:
    side = UserSide.of(world.spec, world.published.manifest.graph)
    assert side is not None
    rng = np.random.default_rng(3)
    first, other = world.columns(rng, 6, users=1), world.columns(rng, 3, users=1)
    same = {**world.columns(rng, 4, users=1), **{name: first[name] for name in ("user", "age", "history")}}
    merged = side.merge([side.run(first, 6), side.run(other, 3), side.run(same, 4)])
    assert (merged.user.batch, merged.item.batch) == (2, 13)
    assert merged.rows.tolist() == [0] * 6 + [1] * 3 + [0] * 4
    assert merged.user.batch != merged.item.batch


def test_no_user_is_without_a_row_whatever_requests_come_together(
    world: World, make_model: Callable[..., LoadedModel]
) -> None:
    # Ids that belong to no row would be looked up by the host and not by a GPU, and so counted differently.
    pipeline = make_model(world).group.sessions[0].pipeline
    side = UserSide.of(world.spec, world.published.manifest.graph)
    assert side is not None
    rng = np.random.default_rng(5)
    users = [world.columns(rng, 2, users=1) for _ in range(3)]
    for _ in range(20):
        requests: list[FeatureBatch | SidedFeatures] = []
        for rows in rng.integers(1, 9, rng.integers(1, 7)).tolist():
            if rows > 1 and rng.random() < 0.7:
                known = users[int(rng.integers(0, 3))]
                columns = {
                    **world.columns(rng, rows, users=1),
                    **{name: known[name] for name in ("user", "age", "history")},
                }
                requests.append(side.run(columns, rows))
            else:
                requests.append(pipeline.features([(world.columns(rng, rows), rows)])[0][0])
        merged = side.merge(requests)
        assert np.unique(merged.rows).tolist() == list(range(merged.user.batch))
        assert len(merged.rows) == merged.item.batch


def test_user_inputs_may_be_left_out_and_a_wrong_one_is_named(
    world: World, make_model: Callable[..., LoadedModel]
) -> None:
    model = make_model(world)
    rng = np.random.default_rng(4)
    columns = world.columns(rng, 10, users=1)
    del columns["age"], columns["history"]
    ((features, count),) = model.group.sessions[0].pipeline.features([(columns, 10)])
    assert isinstance(features, SidedFeatures)
    assert count == 1
    (answer,) = answers(model, [(columns, 10)])
    np.testing.assert_allclose(answer.outputs[0], world.score(columns, 10), atol=1e-6)
    two_ages = column_from_numpy("FP32", np.ones(2, np.float32))
    with pytest.raises(InvalidInput, match="age"):
        answers(model, [({**columns, "age": two_ages}, 10)])


def test_a_graph_that_mixes_rows_is_computed_whole(
    tmp_path: Path, make_model: Callable[..., LoadedModel], caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path, mixes=True)
    with world.store, caplog.at_level(logging.WARNING):
        model = make_model(world)
        side = model.parts.user_side
        assert side is not None
        assert not side.is_on
        assert "computed for every row" in caplog.text
        columns = world.columns(np.random.default_rng(5), 20, users=1)
        (answer,) = answers(model, [(columns, 20)])
        np.testing.assert_allclose(answer.outputs[0], world.score(columns, 20), atol=1e-6)
        # This covers a request whose features were made just before the user side was switched off.
        scored = model.group.sessions[0].pipeline.score([side.run(columns, 20)], world.snapshot)
        np.testing.assert_allclose(scored.outputs[0], world.score(columns, 20), atol=1e-6)


def test_rows_are_taken_with_their_bags() -> None:
    bags = Jagged(np.array([5, 6, 7, 8, 9]), np.array([0, 2, 2, 5]), np.array([1, 2, 3, 4, 5], np.float32))
    batch = FeatureBatch(3, {"d": np.array([[1.0], [2.0], [3.0]])}, {"b": bags})
    taken = take_rows(batch, np.array([2, 1, 0, 2]))
    assert taken.dense["d"].ravel().tolist() == [3, 2, 1, 3]
    assert taken.ids["b"].offsets.tolist() == [0, 3, 3, 5, 8]
    assert taken.ids["b"].values.tolist() == [7, 8, 9, 5, 6, 7, 8, 9]
    assert taken.ids["b"].weights is not None
    assert taken.ids["b"].weights.tolist() == [3, 4, 5, 1, 2, 3, 4, 5]
