"""Publishes a large version and a small one for server starts: one table, a linear layer, golden requests."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from storage.checkpoint import Golden, GraphInput, GraphOutput, TableData, write_version
from storage.features import FeatureSpec, column_from_numpy

NAME = "starts"
DIM = 32
_GOLDEN = 256
_MADE_ROWS = 1 << 20


class _Scorer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(DIM, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"score": torch.sigmoid(self.layers(inputs["item"]))}


def publish(folder: Path, rows: int, *, seed: int = 1, uses: np.ndarray | None = None) -> Path:
    """Publishes version 1 of folder/starts with `rows` rows of 32 floats; the ids ascend.

    uses: (rows,) uint8 use counts; None: by Zipf's law.
    """
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    ids = np.arange(rows, dtype=np.int64) * 3 + 1
    values = np.empty((rows, DIM), np.float32)
    for start in range(0, rows, _MADE_ROWS):
        part = values[start : start + _MADE_ROWS]
        part[...] = rng.random(part.shape, np.float32) - 0.5
    # Logarithmic counts as a trainer publishes them: a few rows with many uses, most with one or two.
    if uses is None:
        uses = np.minimum(255, 16 * np.log2(1 + rng.zipf(1.3, rows).clip(max=1 << 15))).astype(np.uint8)
    module = _Scorer().eval()
    batch = torch.export.Dim("batch", min=1, max=1 << 16)
    asked = rng.integers(0, rows, _GOLDEN)
    tensors = {"item": torch.from_numpy(values[asked])}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(module, (tensors,), dynamic_shapes=({"item": {0: batch}},))
    with torch.inference_mode():
        scores = module(tensors)["score"].numpy()
    spec = FeatureSpec.model_validate(
        {
            "inputs": [{"name": "item", "dtype": "INT64"}],
            "features": [
                {"name": "item", "inputs": ["item"], "output": "ids", "table": "items", "pooling": "sum"},
            ],
        }
    )
    return write_version(
        folder / NAME,
        version=1,
        spec=spec,
        tables=[TableData("items", DIM, ids, values, uses)],
        graph=program,
        graph_inputs=[GraphInput(name="item", kind="pooled", source="item", shape=(-1, DIM))],
        graph_outputs=[GraphOutput(name="score", shape=(-1, 1))],
        golden=Golden({"item": column_from_numpy("INT64", ids[asked])}, _GOLDEN, {"score": scores}, 1e-5),
    )


def set_budget(folder: Path, text: str | None) -> None:
    """Writes the model's `dram_bytes` to its configuration, or removes it for None."""
    config = folder / NAME / "config.pbtxt"
    lines = [line for line in config.read_text().splitlines() if "dram_bytes" not in line]
    if text is not None:
        lines.append(f'parameters {{ key: "dram_bytes" value {{ string_value: "{text}" }} }}')
    config.write_text("\n".join(lines) + "\n")
