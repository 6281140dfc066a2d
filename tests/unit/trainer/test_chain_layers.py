"""Layers whose ids without a row read rows of a chain: what they give, where gradients go, and how rows begin."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from storage.errors import ConfigError, InvalidInput
from storage.initializers import AbsentRows
from trainer import Embedding, EmbeddingBag, EmbeddingTable, Initializer, SparseSGD
from trainer.embedding import Chain, ChainLevel, EmbeddingCollection, refresh_means
from trainer.embedding.means import row_of_mean
from trainer.ranks import Ranks

DIM, ITEMS, AUTHORS, LR = 3, 10, 6, 0.5
ABSENT = AbsentRows.of(Initializer("constant", 2.0))


class Tables:
    """Tables with some rows, and their rows as plain Python has them."""

    def __init__(self, admit_after: int = 1000) -> None:
        made = {name: EmbeddingTable(name, DIM, optimizer="sgd", seed=3) for name in ("items", "authors", "kinds")}
        self.items, self.authors, self.kinds = made.values()
        self.mean = EmbeddingTable("items-mean", DIM, optimizer="sgd")
        self.items.lookup(np.arange(ITEMS), train=True)
        self.authors.lookup(np.arange(0, AUTHORS, 2), train=True)
        self.kinds.lookup(np.arange(2), train=True)
        for table in made.values():
            table.native.set_admit_after(admit_after)
        refresh_means({"items-mean": self.mean}, {"items-mean": self.items}, all_rows=True)
        self.chain = Chain((ChainLevel(self.authors), ChainLevel(self.kinds)), self.mean)
        self.lists = Chain((ChainLevel(self.authors, parallel=True),))

    def rows(self) -> dict[str, dict[int, np.ndarray]]:
        found = {table.name: table.export_rows() for table in (self.items, self.authors, self.kinds)}
        return {name: dict(zip(ids.tolist(), rows, strict=True)) for name, (ids, rows, *_) in found.items()}

    def layers(self) -> dict[str, EmbeddingBag | Embedding]:
        return {
            "item": EmbeddingBag(self.items, chain=self.chain),
            "author": EmbeddingBag(self.authors),
            "kind": EmbeddingBag(self.kinds),
            "authors": EmbeddingBag(self.authors, "mean"),
            "bag": EmbeddingBag(self.items, "mean", absent=ABSENT, chain=self.lists),
            "weighted": EmbeddingBag(self.items, "weighted", chain=self.lists),
            "rows": Embedding(self.items, 2, absent=ABSENT, chain=self.lists),
        }


LEVELS = {"item": ["author", "kind"], "bag": ["authors"], "weighted": ["authors"], "rows": ["authors"]}


def mean_row(tables: Tables) -> np.ndarray:
    mean = row_of_mean(tables.mean)
    assert mean is not None
    return mean


def batch_of(seed: int, rows: int = 40) -> dict[str, Tensor]:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 4, rows)
    authors = np.where(rng.random(rows) < 0.2, 0, lengths)
    sizes = {"item": np.ones(rows, int), "author": rng.integers(0, 2, rows), "kind": np.ones(rows, int)}
    sizes |= {"authors": authors, "bag": lengths, "weighted": lengths, "rows": lengths}
    inputs = {}
    for name, counts in sizes.items():
        high = {"author": AUTHORS, "authors": AUTHORS, "kind": 3}.get(name, 2 * ITEMS)
        inputs[f"{name}.values"] = torch.from_numpy(rng.integers(0, high, counts.sum()))
        inputs[f"{name}.offsets"] = torch.from_numpy(np.concatenate([[0], counts.cumsum()]))
    inputs["weighted.weights"] = torch.from_numpy(rng.standard_normal(lengths.sum()).astype(np.float32))
    return inputs


def bag(inputs: dict[str, Tensor], name: str, row: int) -> list[int]:
    start, stop = inputs[f"{name}.offsets"][row : row + 2].tolist()
    return inputs[f"{name}.values"][start:stop].tolist()


def read(
    tables: Tables, rows: dict[str, dict[int, np.ndarray]], inputs: dict[str, Tensor], name: str, row: int, i: int
) -> tuple[np.ndarray, tuple[str, int] | None]:
    """Returns the row that an id reads, and the table and id that it lies under."""
    layer = tables.layers()[name]
    own = bag(inputs, name, row)[i]
    if own in rows[layer.table.name]:
        return rows[layer.table.name][own], (layer.table.name, own)
    chain = layer.chain or Chain()
    for level, feature in zip(chain.levels, LEVELS.get(name, ()), strict=True):
        given = bag(inputs, feature, row)
        at = given[i if level.parallel else 0] if given else None
        if at in rows[level.table.name]:
            return rows[level.table.name][at], (level.table.name, at)
    if chain.mean is not None:
        return mean_row(tables), None
    return np.full(DIM, 0.0 if layer.absent is None else 2.0), None


@pytest.mark.parametrize("threads", [1, 3])
def test_layers_read_their_chains_and_levels_get_the_gradients(threads: int) -> None:
    tables = Tables()
    before, inputs = tables.rows(), batch_of(threads)
    collection = EmbeddingCollection(tables.layers(), LEVELS)
    # A GPU keeps no rows of them, whatever training.hbm_bytes says.
    assert not any(table.may_leave_host for table in (tables.items, tables.authors, tables.kinds))
    torch.set_num_threads(threads)
    try:
        found = collection(inputs)
        factors = {name: torch.rand_like(found[name]) for name in collection.names}
        sum((found[name] * factors[name]).sum() for name in collection.names).backward()
        SparseSGD([tables.items, tables.authors, tables.kinds], lr=LR).step()
    finally:
        torch.set_num_threads(1)
    grads: dict[tuple[str, int], Any] = {}
    for name in collection.names:
        for row in range(40):
            ids = bag(inputs, name, row)
            ids = ids[:2] if name == "rows" else ids
            want = []
            for i in range(len(ids)):
                value, place = read(tables, before, inputs, name, row, i)
                start = int(inputs[f"{name}.offsets"][row])
                factor = float(inputs["weighted.weights"][start + i]) if name == "weighted" else 1.0
                factor /= len(ids) if name in ("bag", "authors") else 1
                want.append(value * factor)
                share = factors[name][row, i] if name == "rows" else factors[name][row]
                if place is not None:
                    grads[place] = grads.get(place, 0) + share.numpy() * factor
            got = found[name][row].detach().numpy()
            summed = np.array([*want, *np.zeros((2 - len(want), DIM))]) if name == "rows" else sum(want, np.zeros(DIM))
            np.testing.assert_allclose(got, summed, rtol=1e-5, atol=1e-6)
    after = tables.rows()
    for table, rows in before.items():
        assert after[table].keys() == rows.keys()
        for i, value in rows.items():
            np.testing.assert_allclose(after[table][i], value - LR * grads.get((table, i), 0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(mean_row(tables), np.mean(list(before["items"].values()), axis=0), rtol=1e-6)


def test_a_layer_alone_gives_what_the_collection_gives_and_counts_no_level() -> None:
    tables, inputs = Tables(), batch_of(7)
    together = EmbeddingCollection(tables.layers(), LEVELS).eval()(inputs)
    counts = tables.authors.export_counts()[0].tolist(), tables.authors.export_rows()[3].tolist()
    for name, levels in LEVELS.items():
        layer = tables.layers()[name].train()
        given = [(inputs[f"{level}.values"], inputs[f"{level}.offsets"]) for level in levels]
        weights = [inputs["weighted.weights"]] if name == "weighted" else []
        alone = layer(inputs[f"{name}.values"], inputs[f"{name}.offsets"], *weights, levels=given)
        alone = alone[0] if name == "rows" else alone
        assert torch.equal(alone, together[name])
    assert (tables.authors.export_counts()[0].tolist(), tables.authors.export_rows()[3].tolist()) == counts


def test_a_new_row_begins_as_its_id_read_until_then() -> None:
    tables = Tables(admit_after=2)
    collection = EmbeddingCollection(
        {n: tables.layers()[n] for n in ("item", "author", "kind")}, {"item": LEVELS["item"]}
    )

    def look(items: list[int], authors: list[list[int]], kinds: list[int]) -> Tensor:
        bags = {"item": [[i] for i in items], "author": authors, "kind": [[i] for i in kinds]}
        inputs = {}
        for name, given in bags.items():
            ends = np.cumsum([0, *map(len, given)])
            inputs[f"{name}.values"] = torch.tensor([i for bag in given for i in bag], dtype=torch.int64)
            inputs[f"{name}.offsets"] = torch.from_numpy(ends)
        return collection(inputs)["item"].detach()

    # 20: its author's row. 21: its author is new, and has no row before this batch. 22: no author, a new kind.
    items, authors, kinds = [20, 21, 22], [[2], [3], []], [0, 1, 7]
    first = look(items, authors, kinds)
    assert torch.equal(first, look(items, authors, kinds))
    rows = tables.rows()
    assert rows["items"][20].tobytes() == rows["authors"][2].tobytes()
    assert rows["items"][21].tobytes() == rows["kinds"][1].tobytes()
    assert 3 in rows["authors"]
    assert rows["items"][22].tobytes() == mean_row(tables).tobytes()


def test_what_does_not_fit_is_refused_by_name() -> None:
    tables, inputs = Tables(), batch_of(1)
    with pytest.raises(ConfigError, match=r"feature 'item': its levels are \['author', 'kin'\].*did you mean 'kind'"):
        EmbeddingCollection(tables.layers(), {**LEVELS, "item": ["author", "kin"]})
    with pytest.raises(InvalidInput, match="levels: expected values and offsets for each of 2 levels"):
        tables.layers()["item"](inputs["item.values"], inputs["item.offsets"])
    wrong = {**inputs, "authors.values": torch.tensor([1]), "authors.offsets": torch.tensor([0] * 40 + [1])}
    wrong |= {f"bag.{part}": wrong[f"{'item'}.{part}"] for part in ("values", "offsets")}
    wrong |= {"bag.values": torch.tensor([99, 98]), "bag.offsets": torch.tensor([0] * 40 + [2])}
    collection = EmbeddingCollection({n: tables.layers()[n] for n in ("authors", "bag")}, {"bag": ["authors"]})
    with pytest.raises(InvalidInput, match="row 39: 2 ids fall back to 1, expected as many or none"):
        collection(wrong)
    several = EmbeddingTable("items", DIM, optimizer="sgd", ranks=Ranks(0, 2))
    with pytest.raises(ConfigError, match="several ranks"):
        EmbeddingBag(several, chain=tables.lists)


def test_a_share_of_known_ids_trains_the_chain_in_their_place() -> None:
    tables = Tables()
    chain = Chain((ChainLevel(tables.authors),), share=0.25)
    layers = {"item": EmbeddingBag(tables.items, chain=chain), "author": EmbeddingBag(tables.authors)}
    collection = EmbeddingCollection(layers, {"item": ["author"]})
    optimizer = SparseSGD([tables.items, tables.authors], lr=LR)
    count, item, author = 800, 3, 2
    inputs = {"item.values": torch.full((count,), item), "author.values": torch.full((count,), author)}
    # Every other row knows no author with a row: its item reads zeros then, as one without a row does.
    inputs["author.values"][::2] = 1
    inputs |= {f"{name}.offsets": torch.arange(count + 1) for name in layers}

    def step() -> np.ndarray:
        before = tables.rows()
        found = collection(inputs)["item"]
        own = (found.detach().numpy() == before["items"][item]).all(axis=1)
        others = np.where(np.arange(count)[:, None] % 2 == 1, before["authors"][author], 0.0)
        np.testing.assert_array_equal(found.detach().numpy()[~own], others[~own])
        found.sum().backward()
        optimizer.step()
        after = tables.rows()
        for table, row, uses in (("items", item, own.sum()), ("authors", author, (~own)[1::2].sum())):
            np.testing.assert_allclose(after[table][row], before[table][row] - LR * uses, rtol=1e-5)
        return own

    first, second = step(), step()
    assert all(0.2 < 1 - first[start::2].mean() < 0.3 for start in (0, 1))
    assert (first != second).any()
    collection.eval()
    assert (collection(inputs)["item"].detach().numpy() == tables.rows()["items"][item]).all()
    with pytest.raises(ConfigError, match=r"share is 1\.5, expected 0 or more and below 1"):
        Chain(share=1.5)
