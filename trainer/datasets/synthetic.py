"""A generated data set with huge id spaces and a planted signal, so that the best reachable AUC is known.

The log-odds of a row are BIAS plus what its user, its item, its tags and two numbers add. An id's part is a hash of it,
so no table of effects is held, and rows are made a chunk at a time at any size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from storage.errors import ConfigError
from trainer.datasets.id_space import id_effect, spread_ids, zipf_ranks
from trainer.datasets.parts import DatasetReport, lists
from trainer.datasets.planted import PlantedAuc, write_planted

CHUNK = 500_000
BIAS = -0.4
MAX_TAGS = 8

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class _Field:
    """One id column and the effect of its ids."""

    name: str
    #: Share of all ids.
    share: float
    #: Exponent of the power law that ids are drawn by.
    exponent: float
    #: Standard deviation of the effect, in log-odds.
    strength: float
    #: Salt of both the ids and their effects.
    salt: int


USER = _Field("user", 0.6, 1.05, 0.5, 1)
ITEM = _Field("item", 0.3, 1.15, 1.0, 2)
TAGS = _Field("tags", 0.1, 1.15, 0.5, 3)


def write_synthetic(directory: Path, *, rows: int = 4_000_000, ids: int = 5_000_000, seed: int = 1) -> DatasetReport:
    """Writes train, valid and test.parquet and dataset.json with the planted best AUC on each of valid and test.

    ids: number of ids over all three id columns. Columns: user, item int64; tags list of int64 (1 to 8); price, hour
    float32; label. Raises ConfigError for sizes that make no sense.
    """
    if ids < 1000:
        raise ConfigError(f"ids is {ids}; at least 1000 are needed for three id columns", field="ids")
    return write_planted(
        directory, "synthetic", rows, seed, lambda judge: _chunks(rows, ids, seed, judge), facts={"ids": ids}
    )


def _chunks(rows: int, ids: int, seed: int, judge: PlantedAuc) -> Iterator[Any]:
    for index, start in enumerate(range(0, rows, CHUNK)):
        count = min(CHUNK, rows - start)
        generator = np.random.default_rng([seed, index])
        user, user_effect = _draw(generator, USER, count, ids)
        item, item_effect = _draw(generator, ITEM, count, ids)
        tag_counts = generator.integers(1, MAX_TAGS + 1, count)
        offsets = np.zeros(count + 1, np.int64)
        np.cumsum(tag_counts, out=offsets[1:])
        tags, tag_effect = _draw(generator, TAGS, int(offsets[-1]), ids)
        price = generator.standard_normal(count)
        hour = generator.random(count) * 24.0
        logits = (
            BIAS
            + user_effect
            + item_effect
            + np.add.reduceat(tag_effect, offsets[:-1])
            + 0.6 * price
            + 0.4 * np.cos((hour - 20.0) * np.pi / 12.0)
        )
        probabilities = 1.0 / (1.0 + np.exp(-logits))
        labels = generator.random(count) < probabilities
        judge.add(probabilities, labels)
        yield pa.table(
            {
                "user": user,
                "item": item,
                "tags": lists(tags, offsets),
                "price": np.exp(price).astype(np.float32),
                "hour": hour.astype(np.float32),
                "label": labels.astype(np.int8),
            }
        )


def _draw(generator: np.random.Generator, field: _Field, count: int, ids: int) -> tuple[Array, Array]:
    """Returns ids and what they add to the log-odds, both (count,)."""
    ranks = zipf_ranks(generator, count, max(int(ids * field.share), 1), field.exponent)
    return spread_ids(ranks, seed=field.salt), id_effect(ranks, seed=field.salt) * field.strength
