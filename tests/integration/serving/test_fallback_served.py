"""New items as users meet them: their author's row until a delta brings their own, over HTTP and gRPC, and counted."""

from __future__ import annotations

import time
import urllib.request
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from serving import Server, ServerConfig
from storage.features import Column, FeatureSpec, column_from_lists, column_from_numpy
from tests.integration.serving.http_calls import ask
from trainer import EmbeddingBag, EmbeddingTable
from trainer.embedding import Chain, ChainLevel, EmbeddingCollection
from trainer.publishing import DeltaPolicy, Publisher

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # gevent, which tritonclient.http imports, warns about what it patches
    import tritonclient.grpc as triton

DIM, KNOWN = 4, 40
SPEC = FeatureSpec.parse(
    {
        "inputs": [
            {"name": "user", "dtype": "INT64", "side": "user"},
            {"name": "item", "dtype": "INT64"},
            {"name": "author", "dtype": "INT64", "missing": "null"},
            {"name": "seen", "dtype": "INT64", "kind": "list"},
            {"name": "authors", "dtype": "INT64", "kind": "list"},
        ],
        "features": [
            {"name": "user", "inputs": ["user"], "output": "ids", "table": "users"},
            {"name": "item", "inputs": ["item"], "output": "ids", "table": "items", "fallback": ["author", "mean"]},
            {"name": "author", "inputs": ["author"], "output": "ids", "table": "authors"},
            {
                "name": "seen",
                "inputs": ["seen"],
                "output": "ids",
                "table": "items",
                "pooling": "mean",
                "fallback": ["authors"],
            },
            {"name": "authors", "inputs": ["authors"], "output": "ids", "table": "authors", "pooling": "mean"},
        ],
    }
)


class Shop(nn.Module):
    """Gives the rows that it reads, and a score of them."""

    def __init__(self) -> None:
        super().__init__()
        made = {name: EmbeddingTable(name, DIM, optimizer="sgd", seed=4) for name in ("users", "items", "authors")}
        self.items, self.authors = made["items"], made["authors"]
        for table, ids in zip(made.values(), (range(20), range(KNOWN), range(KNOWN // 5)), strict=True):
            table.lookup(np.array(ids, np.int64), train=True)
        self.mean = EmbeddingTable("items-mean", DIM, optimizer="sgd")
        layers = {
            "user": EmbeddingBag(made["users"]),
            "item": EmbeddingBag(self.items, chain=Chain((ChainLevel(self.authors),), self.mean)),
            "author": EmbeddingBag(self.authors),
            "seen": EmbeddingBag(self.items, "mean", chain=Chain((ChainLevel(self.authors, parallel=True),))),
            "authors": EmbeddingBag(self.authors, "mean"),
        }
        self.features = EmbeddingCollection(layers, {"item": ["author"], "seen": ["authors"]})

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        found = self.features(inputs)
        return {"score": torch.sigmoid(found.pooled.sum(dim=1, keepdim=True)), "row": found["item"] * 1.0}


def columns(rows: int) -> dict[str, Column]:
    rng = np.random.default_rng(5)
    item = rng.integers(0, KNOWN, rows)
    seen = [rng.integers(0, KNOWN, n).tolist() for n in rng.integers(0, 4, rows)]
    return {
        "user": column_from_numpy("INT64", rng.integers(0, 20, rows)),
        "item": column_from_numpy("INT64", item),
        "author": column_from_numpy("INT64", item // 5),
        "seen": column_from_lists("INT64", seen),
        "authors": column_from_lists("INT64", [[i // 5 for i in bag] for bag in seen]),
    }


class World:
    """A server over a repository, the module that publishes into it, and what it reads for an item."""

    def __init__(self, folder: Path) -> None:
        self.shop = Shop()
        policy = DeltaPolicy(cumulative_every=0, version_every_deltas=0, version_at_share=0.0)
        models = folder / "models"
        self.publisher = Publisher(self.shop, columns(64), models, name="shop", spec=SPEC, policy=policy)
        self.publisher.publish()
        config = ServerConfig(
            model_repository=models, store=folder / "store", http_port=0, grpc_port=0, metrics_port=0, poll_s=0.1
        )
        self.server = Server(config).start()

    def delta(self) -> None:
        self.publisher.publish("delta")
        newest = self.publisher.lineage.newest
        assert newest is not None
        give_up = time.monotonic() + 20
        (model,) = self.server.repository.loaded()
        while model.snapshot != newest.snapshot:
            assert time.monotonic() < give_up
            time.sleep(0.02)

    def row_of(self, table: EmbeddingTable, id_: int) -> np.ndarray:
        rows, has_row = table.read(np.array([id_]))
        assert has_row[0]
        return rows[0]

    def by_http(self, items: list[int], authors: list[int | None], asked: list[str]) -> dict[str, Any]:
        rows = len(items)
        inputs = [
            {"name": "user", "datatype": "INT64", "shape": [1, 1], "data": [3]},
            {"name": "item", "datatype": "INT64", "shape": [rows, 1], "data": items},
            {"name": "author", "datatype": "INT64", "shape": [rows, 1], "data": authors},
            {"name": "seen", "datatype": "INT64", "shape": [rows, 2], "data": [[i, 1] for i in items]},
            {"name": "authors", "datatype": "INT64", "shape": [rows, 2], "data": [[1, 0]] * rows},
            {"name": "seen.lengths", "datatype": "INT64", "shape": [rows, 1], "data": [2] * (rows - 1) + [1]},
            {"name": "authors.lengths", "datatype": "INT64", "shape": [rows, 1], "data": [2] * (rows - 1) + [1]},
        ]
        content = {"inputs": inputs, "outputs": [{"name": name} for name in asked]}
        reply = ask(self.server.http_port, "POST", "/v2/models/shop/infer", content)
        assert reply.status == 200, reply.json
        return {each["name"]: np.array(each["data"]).reshape(each["shape"]) for each in reply.json["outputs"]}

    def by_grpc(self, items: list[int], authors: list[int], asked: list[str]) -> dict[str, np.ndarray]:
        rows = len(items)
        given = {"user": [[3]], "item": [[i] for i in items], "author": [[a] for a in authors]}
        given |= {"seen": [[i, 1] for i in items], "authors": [[1, 0]] * rows}
        tensors = []
        for name, values in given.items():
            tensors.append(triton.InferInput(name, [len(values), len(values[0])], "INT64"))
            tensors[-1].set_data_from_numpy(np.array(values, np.int64))
        with triton.InferenceServerClient(f"127.0.0.1:{self.server.grpc_port}") as client:
            outputs = [triton.InferRequestedOutput(name) for name in asked]
            answer = client.infer("shop", tensors, outputs=outputs)
            return {name: answer.as_numpy(name) for name in asked}

    def counted(self) -> dict[tuple[str, str], float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.server.metrics_port}/metrics") as page:
            lines = [line for line in page.read().decode().splitlines() if "emberline_fallback_ids_total{" in line]
        found = {}
        for line in lines:
            labels, value = line.split("{", 1)[1].split("} ")
            named = dict(part.split("=", 1) for part in labels.replace('"', "").split(","))
            found[named["feature"], named["rows"]] = float(value)
        return found


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    try:
        yield made
    finally:
        made.server.stop()


ASKED = ["row", "fallback_level.item", "fallback_level.seen"]


def test_a_new_item_reads_its_authors_row_until_a_delta_brings_its_own(world: World) -> None:
    shop = world.shop
    new, nobody = 500, 77  # an item without a row, an author without one
    items, authors = [2, new, new, new], [0, 3, nobody, None]
    answer = world.by_http(items, authors, ASKED)
    mean = world.row_of(shop.mean, 0)
    want = [world.row_of(shop.items, 2), world.row_of(shop.authors, 3), mean, mean]
    np.testing.assert_allclose(answer["row"], want, rtol=1e-6)
    np.testing.assert_allclose(mean, shop.items.export_rows()[1].mean(axis=0), rtol=1e-5)
    assert answer["fallback_level.item"].tolist() == [0, 1, 2, 2]
    # The last row has one id.
    assert answer["fallback_level.seen"].tolist() == [[0, 0], [1, 0], [1, 0], [1, 255]]

    shop.items.lookup(np.array([new]), train=True)
    world.delta()
    answer = world.by_http(items, authors, ASKED)
    assert answer["fallback_level.item"].tolist() == [0, 0, 0, 0]
    np.testing.assert_allclose(answer["row"][1:], [world.row_of(shop.items, new)] * 3, rtol=1e-6)
    # The delta has another mean, too, and an erased item falls back again.
    shop.items.erase(np.array([2]))
    world.delta()
    answer = world.by_http([2, 501], [0, None], ASKED)
    assert answer["fallback_level.item"].tolist() == [1, 2]
    moved = world.row_of(shop.mean, 0)
    assert not np.allclose(moved, mean)
    np.testing.assert_allclose(answer["row"], [world.row_of(shop.authors, 0), moved], rtol=1e-6)


def test_levels_are_answered_by_grpc_to_those_who_ask_and_counted_for_all(world: World) -> None:
    before = world.counted()
    assert set(before) == {
        *(("item", rows) for rows in ("item", "author", "mean", "absent", "unresolved")),
        *(("seen", rows) for rows in ("seen", "authors", "absent", "unresolved")),
    }
    items, authors = [1, 600, 601], [0, 2, 99]
    asked = world.by_grpc(items, authors, ["fallback_level.item", "fallback_level.seen", "score"])
    assert asked["fallback_level.item"].dtype == np.uint8
    assert asked["fallback_level.item"].tolist() == [0, 1, 2]
    assert asked["fallback_level.seen"].tolist() == [[0, 0], [1, 0], [1, 0]]
    plain = world.by_grpc(items, authors, ["score"])
    np.testing.assert_array_equal(plain["score"], asked["score"])
    reply = world.by_http(items, [0, 2, 99], [])
    assert set(reply) == {"score", "row"}
    change = {key: value - before[key] for key, value in world.counted().items()}
    assert change["item", "item"] == change["item", "author"] == change["item", "mean"] == 3
    assert change["seen", "authors"] == 6
    assert change["seen", "seen"] == 2 * 4 + 3
    assert not any(change[feature, rows] for feature in ("item", "seen") for rows in ("absent", "unresolved"))


def test_requests_that_do_not_fit_are_refused_by_name(world: World) -> None:
    port = world.server.http_port
    one = {"datatype": "INT64", "shape": [1, 1], "data": [1]}
    inputs = [{"name": name, **one} for name in ("user", "item", "author", "seen")]
    inputs.append({"name": "authors", "datatype": "INT64", "shape": [1, 2], "data": [1, 2]})
    reply = ask(port, "POST", "/v2/models/shop/infer", {"inputs": inputs})
    assert reply.status == 400
    assert "feature 'authors', row 0: has 2 ids, which stand one by one for the 1 of 'seen'" in reply.json["error"]
    asked = {"inputs": inputs, "outputs": [{"name": "fallback_level.itme"}]}
    reply = ask(port, "POST", "/v2/models/shop/infer", asked)
    assert reply.status == 400
    assert "did you mean 'fallback_level.item'" in reply.json["error"]
