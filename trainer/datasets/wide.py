"""A generated data set of 40 flat columns: strings, uint64 ids, counts and measures with nulls, and no list.

It shares no column with the other sets; it shows that a data set is a config file and nothing else. The signal is
planted, so the best reachable AUC is known.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from trainer.datasets.id_space import id_effect, spread_ids, zipf_ranks
from trainer.datasets.parts import DatasetReport
from trainer.datasets.planted import PlantedAuc, write_planted

CHUNK = 100_000
WORDS, KEYS, COUNTS, MEASURES = 16, 8, 8, 8
BIAS = -0.5
NULL_EVERY = 10

Array = np.ndarray[Any, np.dtype[Any]]


def write_wide(directory: Path, *, rows: int = 200_000, seed: int = 1) -> DatasetReport:
    """Writes train, valid and test.parquet and dataset.json.

    Columns: word_00 to word_15 strings, key_00 to key_07 uint64 over the whole range, count_00 to count_07 int64 and
    measure_00 to measure_07 float32, a tenth of them null; clicked (the label).
    """
    return write_planted(directory, "wide", rows, seed, lambda judge: _chunks(rows, seed, judge))


def _chunks(rows: int, seed: int, judge: PlantedAuc) -> Iterator[Any]:
    for index, start in enumerate(range(0, rows, CHUNK)):
        count = min(CHUNK, rows - start)
        generator = np.random.default_rng([seed, index])
        logits = np.full(count, BIAS)
        columns: dict[str, Any] = {}
        for at in range(WORDS):
            numbers = zipf_ranks(generator, count, 50 << (at // 4 * 2), 1.1)
            columns[f"word_{at:02}"] = _words(numbers, at)
            logits += 0.25 * id_effect(numbers, seed=100 + at)
        for at in range(KEYS):
            numbers = zipf_ranks(generator, count, 1000 << at, 1.2)
            # A factor of 2 plus a bit keeps the map one to one and reaches ids of 2**63 and above.
            wide = spread_ids(numbers, seed=10 + at).astype(np.uint64) * np.uint64(2) + np.uint64(at & 1)
            columns[f"key_{at:02}"] = wide
            logits += 0.3 * id_effect(numbers, seed=200 + at)
        for at in range(COUNTS):
            counted = np.floor(np.exp(generator.standard_normal(count) * 1.5)).astype(np.int64)
            null = generator.integers(0, NULL_EVERY, count) == 0
            columns[f"count_{at:02}"] = pa.array(counted, mask=null)
            logits += np.where(null, 0.0, 0.12 * (np.log1p(counted) - 0.8))
        for at in range(MEASURES):
            measured = generator.standard_normal(count).astype(np.float32)
            null = generator.integers(0, NULL_EVERY, count) == 0
            columns[f"measure_{at:02}"] = pa.array(measured, mask=null)
            logits += np.where(null, 0.0, 0.15 * measured)
        probabilities = 1.0 / (1.0 + np.exp(-logits))
        labels = generator.random(count) < probabilities
        judge.add(probabilities, labels)
        yield pa.table({**columns, "clicked": labels.astype(np.int8)})


def _words(numbers: Array, salt: int) -> Any:
    """Returns words with letters outside ASCII; the most frequent one is the empty string."""
    known, inverse = np.unique(numbers, return_inverse=True)
    names = pa.array(["" if n == 0 else f"w{salt}-\u00fc{n:x}" for n in known.tolist()], pa.string())
    return names.take(pa.array(inverse))
