"""Measures what lookups cost on this machine, with a small store of generated rows, half of them in DRAM."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from storage.checkpoint.tables import Shard
from storage.features import Jagged
from storage.specs import LookupSpec, TableSpec
from storage.tiers.lookup_plan import LookupPlan
from storage.tiers.planning.budget import row_cost
from storage.tiers.planning.cost import CostModel
from storage.tiers.tiered import TieredStore

_STORE_BYTES = 128 << 20
_LEAST_ROWS = 8192
_HOT, _COLD = 200, 1
_REPEATS = 9
_MOST_ROUNDS = 8
# Rows of each lookup that reads from SSD; together they are fewer than the cold quarter of the smallest store.
_COLD_READS = (1, 16, 64, 128)
_SHARD_ROWS = 1 << 16


def measure_costs(spec: TableSpec, folder: Path, ids: int, features: int = 1) -> CostModel:
    """Measures the costs for rows like a table's, on the disk of `folder`, which is left as it was.

    ids: the number of ids of a large lookup. features: the number of the model's features, over which the ids of a
    lookup are spread; each feature has a cost of its own.

    The result is rough when other work shares the machine. Raises StoreError.
    """
    rows = max(_LEAST_ROWS, min(spec.rows, _STORE_BYTES // spec.row_bytes))
    made = _Made(TableSpec("t", spec.dim, spec.row_type, rows))
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    with (
        tempfile.TemporaryDirectory(dir=folder, prefix=".measure-") as place,
        TieredStore.open(Path(place), made.tables, dram_bytes=rows * row_cost(spec) // 2) as store,
    ):
        store.load(made)
        plan = store.plan([LookupSpec(f"x{number}", "t", "sum", 0) for number in range(features)])
        hot = made.ids[: rows // 4]
        cold = made.ids[rows * 3 // 4 :]
        # When other work disturbs the times, more rounds show what a read costs.
        for _ in range(_MOST_ROUNDS):
            _look_up(plan, hot, rng.permutation(cold), ids, features, rng)
            model = store.costs().model()
            if model is not None and not model.doubt:
                break
    assert model is not None
    return model


def _look_up(
    plan: LookupPlan, hot: np.ndarray, cold: np.ndarray, ids: int, features: int, rng: np.random.Generator
) -> None:
    """Makes a round of lookups: of up to `ids` rows that are in DRAM, and of rows that are read from SSD."""
    for _ in range(_REPEATS):
        for count in sorted({64, max(1, ids // 16), max(1, ids // 4), ids}):
            plan.lookup(1, _spread(rng.choice(hot, count), features))
    start = 0
    for count in _COLD_READS * _REPEATS:
        plan.lookup(1, _spread(cold[start : start + count], features))
        start += count


class _Made:
    """A version with one table of random rows; the first half of its ids is hot."""

    path = Path("made up to measure")
    snapshot = "0" * 32
    equals = None

    def __init__(self, spec: TableSpec) -> None:
        self.tables = (spec,)
        rng = np.random.default_rng(1)
        self.ids = np.sort(rng.choice(2**62, spec.rows, replace=False))
        self._rows = rng.standard_normal((_SHARD_ROWS, spec.dim)).astype(np.float32)

    def shards(self, table: str) -> Iterator[Shard]:
        for start in range(0, len(self.ids), _SHARD_ROWS):
            ids = self.ids[start : start + _SHARD_ROWS]
            freq = np.where(np.arange(start, start + len(ids)) < len(self.ids) // 2, _HOT, _COLD).astype(np.uint8)
            yield Shard(ids, self._rows[: len(ids)], freq)

    def uses(self, table: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for shard in self.shards(table):
            yield shard.ids, shard.freq

    def table_digest(self, table: str) -> str:
        return "made"


def _spread(ids: np.ndarray, features: int) -> list[Jagged]:
    """Divides the ids into one bag for each feature."""
    return [Jagged(part, np.array([0, len(part)])) for part in np.array_split(ids, features)]
