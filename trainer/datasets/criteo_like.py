"""A generated data set in the form of Criteo's display ads: 13 counts with nulls, 26 columns of hex ids, and a label.

Names, types, shares of nulls and numbers of ids are near those of the public Kaggle set; the rows are generated. The
signal is planted and mostly linear: each id, each count and each null adds to the log-odds, counts bend a little, and a
few pairs of columns add more. Much of the best reachable AUC lies in ids that are too rare to be learnt.
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
BIAS = -2.5
#: For I1 to I13: share of nulls, mean and standard deviation of the logarithm, and weight in the log-odds.
COUNTS = (
    (0.45, 0.8, 1.0, 0.16),
    (0.00, 2.5, 1.8, 0.10),
    (0.21, 1.8, 1.4, -0.08),
    (0.21, 1.6, 1.0, 0.06),
    (0.03, 7.2, 2.2, -0.14),
    (0.22, 3.6, 1.4, -0.12),
    (0.04, 1.5, 1.3, 0.16),
    (0.00, 2.0, 1.2, 0.04),
    (0.04, 3.8, 1.4, -0.06),
    (0.45, 0.2, 0.6, 0.14),
    (0.04, 0.8, 0.9, 0.12),
    (0.76, 0.3, 0.9, 0.08),
    (0.21, 1.7, 1.0, -0.10),
)
#: For C1 to C26: number of ids and share of nulls.
IDS = (
    (1_460, 0.0),
    (583, 0.0),
    (1_000_000, 0.03),
    (500_000, 0.03),
    (305, 0.0),
    (24, 0.12),
    (12_517, 0.0),
    (633, 0.0),
    (3, 0.0),
    (93_145, 0.0),
    (5_683, 0.0),
    (1_000_000, 0.03),
    (3_194, 0.0),
    (27, 0.0),
    (14_992, 0.0),
    (1_000_000, 0.03),
    (10, 0.0),
    (5_652, 0.0),
    (2_173, 0.44),
    (4, 0.44),
    (1_000_000, 0.03),
    (18, 0.76),
    (15, 0.0),
    (286_181, 0.03),
    (105, 0.44),
    (142_572, 0.44),
)
#: Columns below this number of ids have weaker ids.
FEW = 10_000
STRENGTH_FEW, STRENGTH_MANY, STRENGTH_PAIR = 0.19, 0.43, 0.42
#: Part of a count's weight that the square of its logarithm has.
CURVE = 0.75
EXPONENT = 1.12
#: Pairs of id columns, by number from 1, whose combinations have an effect of their own.
PAIRS = ((6, 14), (9, 23), (17, 20), (5, 14))

Array = np.ndarray[Any, np.dtype[Any]]


def write_criteo_like(directory: Path, *, rows: int = 300_000, seed: int = 1) -> DatasetReport:
    """Writes train, valid and test.parquet, and dataset.json with the best AUC on valid and on test.

    Columns: label int8; I1 to I13 int64 with nulls; C1 to C26 strings of eight hex digits, with nulls. Raises
    ConfigError for sizes that make no sense.
    """
    return write_planted(directory, "criteo-like", rows, seed, lambda judge: _chunks(rows, seed, judge))


def _chunks(rows: int, seed: int, judge: PlantedAuc) -> Iterator[Any]:
    for index, start in enumerate(range(0, rows, CHUNK)):
        count = min(CHUNK, rows - start)
        generator = np.random.default_rng([seed, index])
        logits = np.full(count, BIAS)
        columns: dict[str, Any] = {}
        for at, (null_share, mean, deviation, weight) in enumerate(COUNTS, 1):
            logs = generator.standard_normal(count)
            null = generator.random(count) < null_share
            counted = np.floor(np.exp(mean + deviation * logs)).astype(np.int64)
            # As in the public set, I2 has a few values below zero.
            counted -= 2 if at == 2 else 0
            columns[f"I{at}"] = pa.array(counted, mask=null)
            logits += np.where(null, 2.0 * weight, weight * (logs + CURVE * (logs * logs - 1.0)))
        ranks: dict[int, Array] = {}
        for at, (ids, null_share) in enumerate(IDS, 1):
            ranks[at] = zipf_ranks(generator, count, ids, EXPONENT)
            null = generator.random(count) < null_share
            ranks[at] = np.where(null, ids, ranks[at])  # a null is one more id
            columns[f"C{at}"] = _hex(ranks[at], null, at)
            logits += (STRENGTH_FEW if ids < FEW else STRENGTH_MANY) * id_effect(ranks[at], seed=300 + at)
        for number, (left, right) in enumerate(PAIRS):
            pair = ranks[left] * (IDS[right - 1][0] + 1) + ranks[right]
            logits += STRENGTH_PAIR * id_effect(pair, seed=400 + number)
        probabilities = 1.0 / (1.0 + np.exp(-logits))
        labels = generator.random(count) < probabilities
        judge.add(probabilities, labels)
        yield pa.table({"label": labels.astype(np.int8), **columns})


def _hex(ranks: Array, null: Array, salt: int) -> Any:
    """Returns ids as strings of eight hex digits, one for each rank."""
    known, inverse = np.unique(ranks, return_inverse=True)
    names = pa.array([f"{number:08x}" for number in (spread_ids(known, seed=salt) >> 31).tolist()], pa.string())
    return names.take(pa.array(inverse, mask=null))
