"""The model of tables without a network: each answers with the rows of the ids that it is sent, or a sum or mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor, nn

from storage.features import Column, FeatureSpec, column_from_jagged, column_from_numpy
from storage.importing import FileTable

POOLINGS = ("row", "sum", "mean")
_SAMPLE_ROWS = 256
_BAG = 4


class TablesAlone(nn.Module):
    """forward(features) -> rows by name: of table T the output T_rows (B, dim).

    dims: values of a row by table. pooling: "row" for one id in each row of a request, else how a list is pooled.
    """

    def __init__(self, dims: Mapping[str, int], pooling: Mapping[str, str]) -> None:
        super().__init__()
        self._names = list(dims)
        self.layers = nn.ModuleList(
            nn.EmbeddingBag(1, dim, mode="mean" if pooling[name] == "mean" else "sum", include_last_offset=True)
            for name, dim in dims.items()
        )

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        """Returns the rows of each table."""
        return {
            f"{name}_rows": layer(features[f"{name}.values"], features[f"{name}.offsets"]).clone()
            for name, layer in zip(self._names, self.layers, strict=True)
        }


def spec_of(tables: Sequence[FileTable], pooling: Mapping[str, str]) -> FeatureSpec:
    """Returns the features: each table has an input of its name, a single id or a list of ids."""
    inputs, features = [], []
    for table in tables:
        single = pooling[table.name] == "row"
        inputs.append({"name": table.name, "dtype": "INT64", "nulls": "error"} | ({} if single else {"kind": "list"}))
        features.append(
            {
                "name": table.name,
                "inputs": [table.name],
                "output": "ids",
                "table": table.name,
                "pooling": "mean" if pooling[table.name] == "mean" else "sum",
            }
        )
    return FeatureSpec.model_validate({"inputs": inputs, "features": features})


def sample_of(ids: Mapping[str, np.ndarray], pooling: Mapping[str, str]) -> dict[str, Column]:
    """Returns raw rows that hold these ids by table, each again where a table has fewer than others."""
    columns: dict[str, Column] = {}
    for name, given in ids.items():
        some = np.resize(given if len(given) else np.zeros(1, np.int64), _SAMPLE_ROWS)
        if pooling[name] == "row":
            columns[name] = column_from_numpy("INT64", some)
        else:
            bags = np.concatenate([np.roll(some, shift)[:, None] for shift in range(_BAG)], axis=1)
            offsets = np.arange(0, _BAG * _SAMPLE_ROWS + 1, _BAG)
            columns[name] = column_from_jagged("INT64", bags.reshape(-1), offsets)
    return columns


def first_ids(table: FileTable) -> np.ndarray:
    """Returns some ids of a table, the first in its files."""
    return next((ids[:_SAMPLE_ROWS] for ids in table.ids() if len(ids)), np.zeros(1, np.int64))
