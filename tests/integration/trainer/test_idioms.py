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
from storage.features import Column, FeatureSpec, column_from_numpy
from tests.integration.trainer.idioms import WORKING
from trainer import publish


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
