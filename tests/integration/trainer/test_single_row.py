"""A module that takes no single row is served for one all the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from serving.scoring.scorer import Scorer
from storage.checkpoint.as_of import find_as_of
from storage.features import column_from_numpy
from trainer import publish


class Squeezes(nn.Module):
    """Drops the batch of a single row: `fails` in the middle, else at the end."""

    def __init__(self, fails: bool) -> None:
        super().__init__()
        self.items, self.head, self.fails = nn.Embedding(30, 4), nn.Linear(4, 1), fails

    def forward(self, ids: Tensor) -> Tensor:
        rows = self.items(ids)
        return self.head(rows.squeeze()).sum(1) if self.fails else self.head(rows).squeeze()


@pytest.mark.parametrize("fails", [True, False])
def test_one_row_gets_the_score_that_it_has_in_a_batch(fails: bool, tmp_path: Path) -> None:
    torch.manual_seed(2)
    module = Squeezes(fails).eval()
    ids = torch.arange(20).reshape(20, 1)
    with torch.no_grad():
        scores = module(ids)
        if fails:
            with pytest.raises(IndexError):
                module(ids[:1])
        publish(module, ids, tmp_path / "models", name="m")
        with Scorer(find_as_of(tmp_path / "models" / "m"), tmp_path / "store") as scorer:
            name = scorer.spec.inputs[0].name
            for rows in (1, 2, 20):
                column = column_from_numpy("INT64", ids[:rows].numpy())
                (got,) = scorer.score({name: column}, rows)
                np.testing.assert_allclose(got[:, 0], scores[:rows].reshape(rows), atol=1e-6)
