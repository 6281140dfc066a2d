"""Makes what the benchmark of ranks trains: a click log of Zipf(1.05) ids as Parquet, and a DLRM over it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.traffic import Traffic, random_ids
from loadtest.popularity import zipf
from trainer.config import TrainConfig, parse_content

TABLES, DENSE = 26, 13
#: Distinct ids of a table.
IDS = 200_000
BATCH = 4096
_GROUP_ROWS = 32_768


@dataclass(frozen=True)
class Task:
    """Says what a process trains. kind: `ours`, or a peer of benchmarks.rank_peers."""

    kind: str
    data: Path
    batch: int
    rank: int = 0
    size: int = 1
    port: int = 0
    core: int | None = None
    options: dict[str, Any] = field(default_factory=dict)
    #: Seconds by which each message of a rank comes later than on loopback.
    latency_s: float = 0.0


def write_clicks(path: Path, rows: int, ids: int = IDS, seed: int = 0) -> None:
    """Writes rows with an id for each table, dense values, and a label that depends on both. seed: of the rows."""
    rng = np.random.default_rng(5 + seed)
    columns: dict[str, np.ndarray] = {}
    logit = np.full(rows, -1.0)
    for table in range(TABLES):
        own = random_ids(ids, seed=table + 1)
        numbers = Traffic(zipf(ids), seed=100 + table + 1000 * seed).batches(1, rows)[0]
        columns[f"c{table}"] = own[numbers]
        logit += np.random.default_rng(1000 + table).normal(0, 0.4, ids)[numbers]
    for number in range(DENSE):
        values = rng.standard_normal(rows, np.float32)
        columns[f"i{number}"] = values
        logit += 0.2 * values
    columns["label"] = (rng.random(rows) < 1 / (1 + np.exp(-logit))).astype(np.int8)
    pq.write_table(pa.table(columns), path, row_group_size=_GROUP_ROWS)


#: Layers of a DLRM: the default ones, and some as wide as production models have them.
LAYERS: dict[str, dict[str, list[int]]] = {"small": {}, "wide": {"bottom": [512, 256], "top": [512, 256]}}


def config(batch: int, *, dim: int = 16, wire: str = "fp32", layers: str = "small") -> TrainConfig:
    """Returns the configuration of a DLRM. layers: a key of LAYERS."""
    names = [f"c{table}" for table in range(TABLES)]
    dense = [f"i{number}" for number in range(DENSE)]
    return parse_content(
        {
            "model_name": "ranks",
            "label": "label",
            "inputs": [
                *({"name": name, "dtype": "INT64"} for name in names),
                *({"name": name, "dtype": "FP32"} for name in dense),
            ],
            "features": [
                *({"name": name, "inputs": [name], "output": "ids", "table": name} for name in names),
                *({"name": name, "inputs": [name], "output": "dense"} for name in dense),
            ],
            "tables": [{"name": name, "dim": dim} for name in names],
            "model": dict[str, Any](type="dlrm", **LAYERS[layers]),
            "training": {"batch_size": batch, "epochs": 1, "shuffle_rows": 131_072, "threads": 1, "wire": wire},
        }
    )


def needed_bytes(path: Path, batch: int, ranks: int, dim: int, batches: int = 8) -> float:
    """Returns the bytes that a rank must send in a step, on average.

    Of the different ids of its part of a batch, those of other ranks go out, and gradients for them; as many rows go
    out as come in. The hash that divides ids is not asked: it is even.
    """
    rows = pq.ParquetFile(path).read_row_group(0).slice(0, batches * batch // ranks)
    part = batch // ranks
    different = [
        len(np.unique(column[first : first + part]))
        for column in (rows.column(f"c{table}").to_numpy() for table in range(TABLES))
        for first in range(0, rows.num_rows - part + 1, part)
    ]
    mean: float = sum(different) / (rows.num_rows // part)
    return mean * (ranks - 1) / ranks * float(8 + 2 * 4 * dim)
