"""MovieLens as the libraries' examples have it: ids counted from 1, lists padded with 0. B rows, L length of a list."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from trainer.datasets import write_movielens

FOLDER = Path(__file__).parents[2] / "build" / "movielens"
CACHE = Path.home() / ".cache" / "emberline"
#: Rows that are trained on; those behind them are the sample of `publish` and the requests.
ROWS, SAMPLE, FRESH = 8_000, 512, 256
LENGTH, GENRES = 10, 3

Array = np.ndarray[Any, np.dtype[Any]]


@cache
def films() -> dict[str, Array]:
    """Returns the first ratings with at least one film before them, by column.

    user, item, gender, occupation, genre: (B,) int64; history, disliked (B, LENGTH) and genres (B, GENRES) int64; age
    and year, in [0, 1], and label: (B,) float32.
    """
    if not (FOLDER / "train.parquet").is_file():
        write_movielens(FOLDER, cache=CACHE)
    table = pq.read_table(FOLDER / "train.parquet")
    table = table.filter(pc.greater(pc.list_value_length(table["history"]), 0)).slice(0, ROWS + SAMPLE + FRESH)
    lists = {name: table[name].to_pylist() for name in ("history", "disliked", "genres")}
    items = np.unique(np.concatenate([table["item"].to_numpy(), *map(np.array, lists["history"] + lists["disliked"])]))
    genres = np.unique(np.concatenate(lists["genres"]))
    first = np.array([names[0] if names else "" for names in lists["genres"]])
    found = {"item": places(table["item"].to_numpy(), items), "genre": places(first, np.unique(first))}
    for name in ("user", "gender", "occupation"):
        values = np.array(table[name].to_pylist())
        found[name] = places(values, np.unique(values))
    found["genres"] = padded([places(names, genres) for names in lists["genres"]], GENRES)
    for name in ("history", "disliked"):
        found[name] = padded([places(seen[-LENGTH:], items) for seen in lists[name]], LENGTH)
    found["age"] = table["age"].to_numpy().astype(np.float32) / 100
    found["year"] = np.nan_to_num((table["release_year"].to_numpy().astype(np.float32) - 1900) / 100)
    found["label"] = table["label"].to_numpy().astype(np.float32)
    return found


def sizes() -> dict[str, int]:
    """Returns how many ids a table of each column needs, with the 0 of padding."""
    data = films()
    items = 1 + max(int(data[name].max()) for name in ("item", "history", "disliked"))
    others = {name: 1 + int(data[name].max()) for name in ("user", "gender", "occupation", "genre", "genres")}
    return {"item": items, **others}


def places(values: Sequence[Any] | Array, known: Array) -> Array:
    """Returns the places of values among sorted known values, counted from 1, as int64."""
    return np.searchsorted(known, np.asarray(values, known.dtype)).astype(np.int64) + 1


def padded(lists: Sequence[Array], length: int) -> Array:
    """Returns the first `length` values of each list, with zeros behind, (B, length) int64."""
    out = np.zeros((len(lists), length), np.int64)
    for row, values in zip(out, lists, strict=True):
        kept = values[:length]
        row[: len(kept)] = kept
    return out
