"""A version's tolerance is no closer than rounding: a server that sums in another order must be able to serve it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from storage import open_version
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
