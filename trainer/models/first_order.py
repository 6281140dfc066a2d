"""The linear part that Wide & Deep and DeepFM have in common: a weight for each id and for each dense feature.

It has no table of its own: the first value of a row is the id's weight. B batch, D dim, W dense columns, K heads.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from trainer.models import blocks
from trainer.models.base import FeatureEmbeddings


class FirstOrder(nn.Module):
    """Log-odds of a linear model over pooled rows and dense features.

    forward(rows (B, D) of each pooled feature, dense (B, W) or None) -> (B, K). Several heads share the weights of the
    ids, each by a factor of its own.
    """

    def __init__(self, features: FeatureEmbeddings) -> None:
        super().__init__()
        heads, width = features.heads, features.dense_width
        self.bias = nn.Parameter(torch.zeros(heads))
        self.share = nn.Parameter(torch.ones(heads)) if heads > 1 else None
        self.dense = nn.Linear(width, heads, bias=False) if width else None

    def forward(self, pooled: Sequence[Tensor], dense: Tensor | None) -> Tensor:
        ids = torch.cat([rows[:, :1] for rows in pooled], dim=1).sum(dim=1, keepdim=True)
        result: Tensor = self.bias + (ids if self.share is None else ids * self.share)
        if self.dense is not None and dense is not None:
            result = result + self.dense(dense)
        return result


def first_order_layouts(name: str, inputs: blocks.InputLayout) -> dict[str, blocks.WeightLayout]:
    """Returns the layouts of its weights. name: of the part in its model."""
    return {
        f"{name}.bias": blocks.WeightLayout(f"{name}.bias", (inputs.heads,)),
        f"{name}.share": blocks.WeightLayout(f"{name}.share", (inputs.heads,)),
        f"{name}.dense.weight": blocks.WeightLayout(f"{name}.dense.weight", (inputs.heads, inputs.dense())),
    }
