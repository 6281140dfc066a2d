"""Modules as people write them are published, loaded as a server loads them, and answer as torch does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from serving.scoring.scorer import Scorer
from storage.checkpoint.as_of import find_as_of
from storage.features import Column, FeatureSpec, column_from_jagged, column_from_numpy
from tests.integration.trainer.idioms import LENGTH, WORKING, Model, histories, tied
from trainer import EmbeddingBag, EmbeddingTable, Initializer, SparseSGD, publish
from trainer.publishing import Publisher


def raw_columns(spec: FeatureSpec, batch: tuple[Tensor, ...], rows: int) -> dict[str, Column]:
    """Returns a batch as a request has it: by the names of the inputs, the rows first."""
    found: dict[str, Column] = {}
    for entry, tensor in zip(spec.inputs, batch, strict=True):
        by_rows = tensor if tensor.shape[0] == rows else tensor.t()
        found[entry.name] = column_from_numpy(entry.dtype, by_rows.reshape(rows, -1).contiguous().numpy())
    return found


def named(outputs: Any) -> dict[str, Tensor]:
    if isinstance(outputs, tuple):
        return {f"output_{place}": value for place, value in enumerate(outputs)}
    return outputs if isinstance(outputs, dict) else {"score": outputs}


def check_served(module: nn.Module, draw: Any, folder: Path) -> None:
    """Publishes a module, loads it, and compares its answers with torch's at several batch sizes."""
    with torch.no_grad():
        publish(module, draw(13), folder / "models", name="idiom")
        with Scorer(find_as_of(folder / "models" / "idiom"), folder / "store") as scorer:
            for rows in (1, 2, 7, 40):
                batch = draw(rows)
                # A module that squeezes its batch away cannot run on one row.
                twice = tuple(torch.cat([each, each], each.dim() - 1 if each.shape[0] != rows else 0) for each in batch)
                wanted = {name: values[:rows] for name, values in named(module(*twice)).items() if values.dim()}
                got = scorer.score(raw_columns(scorer.spec, batch, rows), rows)
                for entry, values in zip(scorer.outputs, got, strict=True):
                    expected = wanted[entry.name].reshape(values.shape).numpy()
                    np.testing.assert_allclose(values, expected, rtol=1e-5, atol=2e-6, err_msg=f"{rows} rows")


@pytest.mark.parametrize("idiom", WORKING)
def test_an_idiom_is_served_as_torch_computes_it(idiom: str, tmp_path: Path) -> None:
    torch.manual_seed(5)
    make, draw = WORKING[idiom]
    check_served(make().eval(), draw, tmp_path)


class Followed(nn.Module):
    """Has rows of ours, whose changes are known, a mask out of ids, and positions, which are weights."""

    def __init__(self) -> None:
        super().__init__()
        self.table = EmbeddingTable("items", 4, rows=Initializer("uniform", 0.5), optimizer="sgd")
        self.bag = EmbeddingBag(self.table, "sum")
        self.places = nn.Embedding(LENGTH, 4)
        self.head = nn.Linear(4, 1)

    def forward(self, items: Tensor, offsets: Tensor, history: Tensor) -> Tensor:
        mask = (history != 0).unsqueeze(-1)
        return self.head(self.bag(items, offsets) + (self.places(torch.arange(LENGTH)) * mask).sum(1))


def test_deltas_hold_what_changed_beside_masks_and_positions(tmp_path: Path) -> None:
    torch.manual_seed(1)
    module = Followed().eval()
    module.table.lookup(np.arange(40), train=True)
    (history,) = histories(12)
    sample = (torch.arange(24) % 40, torch.arange(0, 25, 2), history)
    publisher = Publisher(module, sample, tmp_path / "models", name="idiom")
    publisher.publish()
    module.table.add_gradients(np.array([3, 4]), np.ones((2, 4), np.float32))
    SparseSGD([module.table], lr=0.1).step()
    with torch.no_grad():
        module.places.weight += 0.25
    assert publisher.publish("delta").parent.name == "deltas"
    with Scorer(find_as_of(tmp_path / "models" / "idiom"), tmp_path / "store") as scorer:
        columns = {
            "items": column_from_jagged("INT64", sample[0].numpy(), sample[1].numpy()),
            "history": column_from_numpy("INT64", history.numpy()),
        }
        (got,) = scorer.score(columns, 12)
    with torch.no_grad():
        np.testing.assert_allclose(got, module(*sample), atol=2e-6)


def test_weights_that_are_rows_too_change_with_a_delta(tmp_path: Path) -> None:
    torch.manual_seed(1)
    module = Model(tied).eval()
    (history,) = histories(12)
    publish(module, (history,), tmp_path / "models", name="idiom")
    with torch.no_grad():
        module.items.weight[7] += 0.5
    folder = publish(module, (history,), tmp_path / "models", name="idiom", delta=True)
    assert folder.parent.name == "deltas"
    with Scorer(find_as_of(tmp_path / "models" / "idiom"), tmp_path / "store") as scorer:
        (got,) = scorer.score(raw_columns(scorer.spec, (history,), 12), 12)
    with torch.no_grad():
        np.testing.assert_allclose(got, module(history), atol=2e-6)
