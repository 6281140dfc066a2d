"""One small exported program with every kind of weight, and the pieces that a version is made of."""

from __future__ import annotations

import itertools
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from storage.checkpoint import Golden, TableData, write_version
from storage.checkpoint.manifest import GraphEntry, GraphInput, GraphOutput
from storage.checkpoint.program import PackedProgram, pack_program

if TYPE_CHECKING:
    from storage.features import FeatureSpec


class Attention(torch.nn.Module):
    """Module with linear, batch norm, masked attention over a sequence, a buffer, a constant and dropout."""

    shift: torch.Tensor
    scratch: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 4)
        self.norm = torch.nn.BatchNorm1d(4)
        self.dropout = torch.nn.Dropout(0.5)
        self.register_buffer("shift", torch.arange(4.0))
        self.register_buffer("scratch", torch.ones(4), persistent=False)
        self.constant = torch.full((4,), 0.5)

    def forward(self, dense: torch.Tensor, rows: torch.Tensor, lengths: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = torch.relu(self.norm(self.linear(dense)))
        mask = torch.arange(rows.shape[1]) < lengths[:, None]
        weights = torch.einsum("bld,bd->bl", rows, hidden).masked_fill(~mask, -torch.inf)
        weights = torch.nan_to_num(weights.softmax(-1))
        pooled = torch.einsum("bl,bld->bd", weights, rows)
        left, right = torch.cat([pooled, hidden], 1).chunk(2, dim=1)
        mixed = torch.cat([right, left], 1).reshape(rows.shape[0], -1)
        total = self.dropout(mixed).sum(1, keepdim=True) + (self.shift * self.scratch).sum() + self.constant.sum()
        return {"score": torch.sigmoid(total)}


def export(module: torch.nn.Module, arguments: tuple[torch.Tensor, ...]) -> torch.export.ExportedProgram:
    """Exports with a dynamic batch."""
    batch = torch.export.Dim("batch", min=1, max=65_536)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.export(module.eval(), arguments, dynamic_shapes=tuple({0: batch} for _ in arguments))


INPUTS = (
    GraphInput(name="dense", kind="dense", source="dense", shape=(-1, 3)),
    GraphInput(name="history", kind="rows", source="history", shape=(-1, 5, 4)),
    GraphInput(name="history.lengths", kind="lengths", source="history", shape=(-1,), dtype="INT64"),
)
OUTPUTS = (GraphOutput(name="score", shape=(-1, 1)),)


def arguments(batch: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(batch, 3, generator=generator),
        torch.randn(batch, 5, 4, generator=generator),
        torch.randint(0, 6, (batch,), generator=generator),
    )


@pytest.fixture(scope="session")
def attention() -> Attention:
    torch.manual_seed(7)
    module = Attention()
    mean, variance = module.norm.running_mean, module.norm.running_var
    assert mean is not None
    assert variance is not None
    mean.normal_()
    variance.uniform_(0.5, 2.0)
    return module.eval()


@pytest.fixture(scope="session")
def program(attention: Attention) -> torch.export.ExportedProgram:
    return export(attention, arguments(3))


@pytest.fixture(scope="session")
def packed(program: torch.export.ExportedProgram) -> PackedProgram:
    return pack_program(program, INPUTS, OUTPUTS)


@pytest.fixture(scope="session")
def graph_entry(packed: PackedProgram) -> GraphEntry:
    return GraphEntry(inputs=packed.inputs, outputs=packed.outputs, torch_version=packed.torch_version)


@pytest.fixture(scope="session")
def make_export() -> Callable[..., torch.export.ExportedProgram]:
    return export


@pytest.fixture(scope="session")
def make_arguments() -> Callable[..., tuple[torch.Tensor, ...]]:
    return arguments


@pytest.fixture(scope="session")
def published_tables() -> list[TableData]:
    rng = np.random.default_rng(5)
    ids = np.unique(rng.integers(-(2**63), 2**63 - 1, 100))
    return [
        TableData(
            "item", 4, ids, rng.standard_normal((100, 4)).astype(np.float32), rng.integers(0, 256, 100).astype(np.uint8)
        ),
        TableData("empty", 2, np.empty(0, np.int64), np.empty((0, 2), np.float32), np.empty(0, np.uint8)),
    ]


@pytest.fixture(scope="session")
def golden() -> Golden:
    from storage.features import column_from_lists, column_from_numpy

    columns = {
        "price": column_from_numpy("FP32", np.arange(15, dtype=np.float32).reshape(5, 3)),
        "history": column_from_lists("INT64", [[1, 2], [], [3], [4, 5, 6], [7]]),
    }
    return Golden(columns, 5, {"score": np.linspace(0, 1, 5, dtype=np.float32).reshape(5, 1)})


@pytest.fixture(scope="session")
def feature_spec() -> FeatureSpec:
    from storage.features import FeatureSpec

    return FeatureSpec.model_validate(
        {
            "inputs": [
                {"name": "price", "dtype": "FP32", "kind": "fixed", "width": 3},
                {"name": "history", "dtype": "INT64", "kind": "list"},
            ],
            "features": [
                {"name": "price", "inputs": ["price"], "output": "dense", "group": "dense"},
                {
                    "name": "history",
                    "inputs": ["history"],
                    "output": "ids",
                    "table": "item",
                    "pooling": "none",
                    "length": 5,
                },
            ],
        }
    )


@pytest.fixture(scope="session")
def version_parts(
    feature_spec: FeatureSpec,
    published_tables: list[TableData],
    program: torch.export.ExportedProgram,
    golden: Golden,
) -> dict[str, Any]:
    return {
        "version": None,
        "spec": feature_spec,
        "tables": published_tables,
        "graph": program,
        "graph_inputs": INPUTS,
        "graph_outputs": OUTPUTS,
        "golden": golden,
        "metadata": {"auc": 0.75},
    }


@pytest.fixture
def publish(tmp_path: Path, version_parts: dict[str, Any]) -> Callable[..., Path]:
    """Publishes to a model of this test, with changed parts if given."""
    return lambda **changes: write_version(tmp_path / "ranker", **{**version_parts, **changes})


@pytest.fixture(scope="session")
def published_once(tmp_path_factory: pytest.TempPathFactory, version_parts: dict[str, Any]) -> Path:
    return write_version(tmp_path_factory.mktemp("repository") / "ranker", **version_parts)


@pytest.fixture
def copy_version(tmp_path: Path, published_once: Path) -> Callable[[], Path]:
    """Copies one published version, to be damaged."""
    counter = itertools.count()
    return lambda: Path(shutil.copytree(published_once, tmp_path / f"copy{next(counter)}" / "1"))
