"""Operators that published graphs may not use are published as the accepted ones that torch makes of them."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from trainer import publish

IDS = torch.tensor([[1, 2, 0, 3], [4, 5, 6, 7], [8, 0, 1, 1], [2, 2, 0, 0]])
WEIGHTS = torch.linspace(-1, 1, 12).reshape(4, 3)


class Sequence(nn.Module):
    """Rows of a sequence through a layer, and a number of the result."""

    def __init__(self, over: Callable[[Tensor], Any], layer: nn.Module | None = None) -> None:
        super().__init__()
        self.items, self.layer = nn.Embedding(9, 4), layer
        self.over = over

    def forward(self, ids: Tensor) -> Tensor:
        rows = self.items(ids)
        return self.over(rows if self.layer is None else self.layer(rows)[0]).flatten(1).sum(1)


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("gru", lambda: Sequence(torch.tanh, nn.GRU(4, 3, num_layers=2, batch_first=True))),
        ("gru", lambda: Sequence(torch.tanh, nn.GRU(4, 3, bias=False, bidirectional=True, batch_first=True))),
        ("lstm", lambda: Sequence(torch.tanh, nn.LSTM(4, 3, batch_first=True))),
        ("rnn_tanh", lambda: Sequence(torch.tanh, nn.RNN(4, 3, batch_first=True))),
        ("tensordot", lambda: Sequence(lambda rows: torch.tensordot(rows, WEIGHTS, dims=([-1], [0])).exp())),
        ("repeat_interleave", lambda: Sequence(lambda rows: rows.repeat_interleave(3, dim=2) * torch.arange(12))),
        ("__and__", lambda: Sequence(lambda rows: rows * ((rows > 0) & (rows < 0.5)))),
    ],
)
def test_a_composed_operator_is_published_in_parts(name: str, module: Callable[[], nn.Module], tmp_path: Path) -> None:
    torch.manual_seed(1)
    folder = publish(module(), IDS, tmp_path, name="m")
    with zipfile.ZipFile(folder / "dense.pt2") as archive:
        text = archive.read("graph.json").decode()
    assert "torch.ops.aten" in text
    assert f"torch.ops.aten.{name}." not in text
