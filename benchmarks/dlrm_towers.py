"""DLRM's dense part and its sizes, in torch alone: what we publish and what a peer runs are this one module."""

from __future__ import annotations

import torch
from torch import Tensor, nn

DIM, SPARSE, DENSE, ROWS = 16, 26, 13, 10_000


class Towers(nn.Module):
    """What DLRM does with its rows: a bottom MLP, products of all pairs, a top MLP."""

    pairs: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(DENSE, 64), nn.ReLU(), nn.Linear(64, DIM), nn.ReLU())
        count = SPARSE + 1
        rows, columns = torch.tril_indices(count, count, offset=-1)
        self.register_buffer("pairs", rows * count + columns)
        self.top = nn.Sequential(
            nn.Linear(DIM + len(rows), 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1)
        )

    def forward(self, dense: Tensor, rows: Tensor) -> Tensor:
        """rows: (B, 26, 16). Returns (B, 1) scores."""
        below = self.bottom(dense)
        vectors = torch.cat([below.unsqueeze(1), rows], 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        return torch.sigmoid(self.top(torch.cat([below, products.index_select(1, self.pairs)], 1)))
