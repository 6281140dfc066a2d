"""A version's tolerance is no closer than rounding: a server that sums in another order must be able to serve it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from serving.engine.replay import compare_golden
from storage import open_version
from storage.checkpoint.manifest import GoldenEntry
from storage.errors import ParityError
from trainer import publish


class Sums(nn.Module):
    """Sums the row of an id. The halves of a row are `size` large and almost cancel each other."""

    def __init__(self, size: float) -> None:
        super().__init__()
        self.items = nn.Embedding(40, 16)
        half = size * torch.randn(40, 8)
        self.items.weight.data = torch.cat([half, 0.1 * torch.randn(40, 8) - half], dim=1)

    def forward(self, ids: Tensor) -> Tensor:
        return torch.sigmoid(self.items(ids).sum(dim=1))


@pytest.mark.parametrize(("size", "least", "most"), [(1.0, 1e-6, 3e-6), (1e5, 1e-3, 0.5)])
def test_the_tolerance_covers_what_the_order_of_a_sum_changes(
    size: float, least: float, most: float, tmp_path: Path
) -> None:
    torch.manual_seed(3)
    version = open_version(publish(Sums(size), torch.arange(12), tmp_path, name="sums"))
    golden = version.golden()
    assert least <= golden.tolerance <= most
    (shard,) = version.shards("items")
    rows = dict(zip(shard.ids.tolist(), shard.rows, strict=True))
    ids = golden.columns[next(iter(golden.columns))].values
    found = np.stack([rows.get(int(number), np.zeros(16, np.float32)) for number in np.asarray(ids).ravel()])
    logits = np.zeros(len(found), np.float32)
    for column in reversed(range(16)):  # one by one, from the end
        logits += found[:, column]
    scores = 1 / (1 + np.exp(-logits.astype(np.float64)))
    difference = float(np.abs(scores - golden.outputs["score"].ravel()).max())
    assert difference <= golden.tolerance
    if size > 1.0:
        assert difference > 1e-5, "the order of the sum changes nothing here: the test proves nothing"


class Sizes(nn.Module):
    """Gives a probability and a quantity of thousands."""

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(40, 4)

    def forward(self, ids: Tensor) -> dict[str, Tensor]:
        row = self.items(ids)
        return {"chance": torch.sigmoid(row[:, :1]), "amount": 20_000.0 + 1000.0 * row[:, 1:2]}


def test_a_large_output_does_not_loosen_the_tolerance_of_a_probability(tmp_path: Path) -> None:
    torch.manual_seed(3)
    version = open_version(publish(Sizes(), torch.arange(12), tmp_path, name="sizes"))
    golden = version.golden()
    assert golden.allowed("chance") < 1e-5 < 0.01 < golden.allowed("amount") < 0.1
    entries = version.manifest.graph.outputs
    served = [golden.outputs[entry.name].copy() for entry in entries]
    assert [entry.name for entry in entries] == ["chance", "amount"]
    served[1] += 0.01  # the rounding of a number of this size
    compare_golden(served, golden, entries)
    served[0] += 0.005
    with pytest.raises(ParityError, match=r"output 'chance' differs by 0\.005"):
        compare_golden(served, golden, entries)
    # A version of an earlier release has one for all of them.
    entry = GoldenEntry.model_validate({"batch": golden.batch, "tolerance": 1e-3})
    assert replace(golden, tolerance=entry.tolerance, tolerances=entry.tolerances).allowed("amount") == 1e-3
    assert golden.at_least(0.02).allowed("chance") == 0.02
    with pytest.raises(ValueError, match=r"tolerances\.chance is 0\.0, expected a finite number above 0"):
        GoldenEntry(batch=1, tolerance=1e-3, tolerances={"chance": 0.0})
