"""A plain torch module with embedding layers, published by its differences."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from storage.checkpoint.as_of import AsOf, find_as_of
from storage.rows import RowCodec

ROWS, DIM = 120, 4
SAMPLE = {
    "user": torch.arange(8) * 7 % ROWS,
    "items": torch.arange(24).reshape(8, 3) % ROWS,
    "price": torch.linspace(-1, 1, 8)[:, None],
}


class Ranker(nn.Module):
    """A layer whose rows are looked up, a bag with a padding id, and a dense part."""

    def __init__(self, rows: int = ROWS, hidden: int = 5, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.users = nn.Embedding(rows, DIM)
        self.items = nn.EmbeddingBag(ROWS, DIM, mode="sum", padding_idx=0)
        self.top = nn.Sequential(nn.Linear(2 * DIM + 1, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, user: Tensor, items: Tensor, price: Tensor) -> dict[str, Tensor]:
        """Returns scores (B, 1)."""
        return {"score": torch.sigmoid(self.top(torch.cat([self.users(user), self.items(items), price], 1)))}

    def change(self, users: list[int], *, by: float = 0.5, dense: bool = True) -> None:
        """Changes the rows of some users, and the dense weights."""
        with torch.no_grad():
            self.users.weight[users] += by
            if dense:
                self.get_parameter("top.0.bias").add_(by)


def rows_of(snapshot: AsOf, table: str) -> dict[int, bytes]:
    """Returns the stored rows of a table in a snapshot, by id."""
    blocks = list(snapshot.rows(table))
    return {i: row.tobytes() for block in blocks for i, row in zip(block.ids.tolist(), block.encoded, strict=True)}


def check_published(model: Ranker, folder: Path, row_types: Mapping[str, str] | None = None) -> AsOf:
    """Checks that the newest snapshot of a model's folder has the module's rows and weights; returns it."""
    snapshot = find_as_of(folder)
    for table, layer in (("users", model.users), ("items", model.items)):
        codec = RowCodec((row_types or {}).get(table, "fp32"), DIM)
        encoded = codec.encode(layer.weight.detach().numpy())
        wanted = {i: row.tobytes() for i, row in enumerate(encoded)}
        if table == "items":
            wanted.pop(0)
        assert rows_of(snapshot, table) == wanted
    weights = snapshot.weights()
    bias = next(value for name, value in weights.items() if name.endswith("top.0.bias"))
    np.testing.assert_array_equal(bias.numpy(), model.get_parameter("top.0.bias").detach().numpy())
    return snapshot
