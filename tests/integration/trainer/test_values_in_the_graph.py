"""Masks that a module makes of `x.data`, and numbers that it takes out of a vector by ids, are served."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from tests.integration.trainer.test_idioms import check_served

IDS = 30


class Biased(nn.Module):
    """Scores histories (B, 4), padded with 0, by the sum of their rows and the biases of their items."""

    def __init__(self) -> None:
        super().__init__()
        self.items, self.bias = nn.Embedding(IDS, 4), nn.Parameter(torch.rand(IDS))

    def forward(self, history: Tensor) -> Tensor:
        kept = history.data.ne(0).float()
        return (self.items(history).sum(2) * kept + self.bias[history] * kept).sum(1)


def histories(rows: int) -> tuple[Tensor]:
    return (torch.randint(0, IDS, (rows, 4)),)


def test_a_mask_of_data_and_a_bias_of_each_item_are_served(tmp_path: Path) -> None:
    torch.manual_seed(3)
    check_served(Biased().eval(), histories, tmp_path)
