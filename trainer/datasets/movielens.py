"""MovieLens-100k as clicks: time-ordered rows with what a ranking system would know when the row happened."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from trainer.datasets.id_space import spread_ids
from trainer.datasets.parts import DatasetReport, write_all
from trainer.datasets.recbole_wheel import SOURCE, TERMS, find_wheel, read_table

HISTORY = 50
LIKED_FROM = 4
USER_SEED, ITEM_SEED = 1, 2

Array = np.ndarray[Any, np.dtype[Any]]


def write_movielens(directory: Path, *, cache: Path, wheel: Path | None = None) -> DatasetReport:
    """Writes train, valid and test.parquet (80%, 10%, 10% by time).

    cache: where the fetched wheel is kept. Raises NotFound, IntegrityError and ConfigError, saying what to do.
    """
    table = movielens_table(find_wheel(cache, wheel))
    facts = {
        "name": "movielens-100k",
        "source": SOURCE,
        "terms": TERMS,
        "like_rate": float(np.mean(table["label"].to_numpy())),
    }
    return write_all(directory, table.num_rows, [table], facts)


def movielens_table(wheel: Path) -> Any:
    """All rows in the order of time, ties by user and item, as a pyarrow Table. docs/data.md has its columns."""
    ratings = _columns(wheel, "inter", ("user_id", "item_id", "rating", "timestamp"))
    numbers = np.array([[int(float(value)) for value in row] for row in ratings], dtype=np.int64)
    order = np.lexsort((numbers[:, 1], numbers[:, 0], numbers[:, 3]))
    users, items, stars, times = numbers[order].T
    user_facts = {
        int(row[0]): row for row in _columns(wheel, "user", ("user_id", "age", "gender", "occupation", "zip_code"))
    }
    item_facts = {int(row[0]): row for row in _columns(wheel, "item", ("item_id", "release_year", "class"))}
    labels = (stars >= LIKED_FROM).astype(np.int8)
    item_ids = spread_ids(items, seed=ITEM_SEED)
    about = [user_facts[user] for user in users.tolist()]
    films = [item_facts[item] for item in items.tolist()]
    return pa.table(
        {
            "user": spread_ids(users, seed=USER_SEED),
            "item": item_ids,
            "genres": pa.array([_genres(row[2]) for row in films], pa.list_(pa.string())),
            "gender": [row[2] for row in about],
            "age": np.array([int(row[1]) for row in about], np.int64),
            "occupation": [row[3] for row in about],
            "zip": [row[4] for row in about],
            "release_year": pa.array([int(row[1]) if row[1].isdigit() else None for row in films], pa.int64()),
            "timestamp": times,
            **_before(users, item_ids, times, labels),
            "rating": stars.astype(np.float32),
            "label": labels,
        }
    )


def _columns(wheel: Path, kind: str, names: tuple[str, ...]) -> list[list[str]]:
    header, rows = read_table(wheel, kind)
    at = [header.index(name) for name in names]
    return [[row[index] for index in at] for row in rows]


def _genres(text: str) -> list[str]:
    return [name for name in text.split() if name != "unknown"]


def _before(users: Array, items: Array, times: Array, labels: Array) -> dict[str, Any]:
    """Returns features from the user's ratings before the row's second: whole pages of films were rated within one."""
    rated: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    liked, disliked, counts, rates = [], [], [], []
    for user, item, time, label in zip(users.tolist(), items.tolist(), times.tolist(), labels.tolist(), strict=True):
        earlier = rated[user]
        stop = len(earlier)
        while stop and earlier[stop - 1][0] == time:
            stop -= 1
        known = earlier[:stop]
        recent = known[::-1]
        liked.append([entry for _, entry, like in recent if like][:HISTORY])
        disliked.append([entry for _, entry, like in recent if not like][:HISTORY])
        counts.append(stop)
        # Two likes and two dislikes are assumed ahead, so that the first ratings do not swing it.
        rates.append((sum(like for _, _, like in known) + 2.0) / (stop + 4.0))
        earlier.append((time, item, label))
    return {
        "history": pa.array(liked, pa.list_(pa.int64())),
        "disliked": pa.array(disliked, pa.list_(pa.int64())),
        "rated_before": np.array(counts, np.int64),
        "like_rate": np.array(rates, np.float32),
    }
