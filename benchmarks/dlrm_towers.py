"""DLRM's dense part and its sizes, in torch alone: the model that we publish and the peer's model share this module."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

DIM, SPARSE, DENSE, ROWS = 16, 26, 13, 10_000


class Towers(nn.Module):
    """The dense part of DLRM: a bottom MLP, the dot products of all pairs, and a top MLP."""

    pairs: Tensor

    def __init__(self, dim: int = DIM, bottom: Sequence[int] = (64,), top: Sequence[int] = (128, 64)) -> None:
        """dim: width of a row. bottom, top: hidden widths of each MLP, without its first and last."""
        super().__init__()
        self.bottom = nn.Sequential(*_layers((DENSE, *bottom, dim)), nn.ReLU())
        count = SPARSE + 1
        rows, columns = torch.tril_indices(count, count, offset=-1)
        self.register_buffer("pairs", rows * count + columns)
        self.top = nn.Sequential(*_layers((dim + len(rows), *top, 1)))

    def forward(self, dense: Tensor, rows: Tensor) -> Tensor:
        """rows: (B, 26, dim). Returns (B, 1) scores."""
        below = self.bottom(dense)
        vectors = torch.cat([below.unsqueeze(1), rows], 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        return torch.sigmoid(self.top(torch.cat([below, products.index_select(1, self.pairs)], 1)))


def _layers(widths: Sequence[int]) -> list[nn.Module]:
    """Returns linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for width, following in zip(widths, widths[1:], strict=False):
        layers += [nn.ReLU()] if layers else []
        layers.append(nn.Linear(width, following))
    return layers
