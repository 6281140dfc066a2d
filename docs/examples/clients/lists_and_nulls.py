"""Sends lists and nulls to the quickstart's model: the same rows as KServe v1, as v2 in JSON and as v2 in binary."""

from __future__ import annotations

import argparse
import json
import urllib.request
from typing import Any

import numpy as np
import tritonclient.http as triton

ROWS: list[dict[str, Any]] = [
    {"item": 50, "genres": ["Action", "War"], "release_year": 1977, "age": 24, "history": [181, 172]},
    {"item": 7, "genres": [], "release_year": None, "age": None, "history": None},
    {"item": 318, "genres": ["Drama"], "release_year": 1993, "age": 61, "history": [64]},
]


def post(address: str, content: object) -> Any:
    with urllib.request.urlopen(f"http://{address}", json.dumps(content).encode(), timeout=5) as answer:
        return json.load(answer)


def by_v1(url: str) -> list[float]:
    """Sends the rows unchanged by v1. Inputs that may be missing (gender, occupation, ...) are left out."""
    return [float(score) for score in post(f"{url}/v1/models/movielens:predict", {"instances": ROWS})["predictions"]]


def padded(name: str, filler: Any) -> tuple[list[list[Any]], list[list[int]]]:
    """Returns a list input as a matrix as wide as the longest list, and the number of values of each row."""
    lists = [row[name] or [] for row in ROWS]
    width = max(map(len, lists))
    return [values + [filler] * (width - len(values)) for values in lists], [[len(values)] for values in lists]


def by_json(url: str) -> list[float]:
    """Sends the rows by v2 in JSON, with null in the place of a value or of a whole list."""
    genres, genre_lengths = padded("genres", "")
    history, history_lengths = padded("history", 0)
    tensors = {
        "item": ("INT64", [[row["item"]] for row in ROWS]),
        "genres": ("BYTES", genres),
        "genres.lengths": ("INT32", genre_lengths),
        "release_year": ("INT64", [[row["release_year"]] for row in ROWS]),
        "age": ("INT64", [[row["age"]] for row in ROWS]),
        "history": ("INT64", [None if row["history"] is None else history[i] for i, row in enumerate(ROWS)]),
        "history.lengths": ("INT32", history_lengths),
    }
    widths = {"genres": len(genres[0]), "history": len(history[0])}
    inputs = [
        {"name": name, "datatype": dtype, "shape": [len(ROWS), widths.get(name, 1)], "data": data}
        for name, (dtype, data) in tensors.items()
    ]
    answer = post(f"{url}/v2/models/movielens/infer", {"inputs": inputs})
    return [float(score) for score in answer["outputs"][0]["data"]]


def by_bytes(url: str) -> list[float]:
    """Sends the rows by v2 in bytes; values where `.valid` is false are ignored."""
    inputs = []

    def add(name: str, dtype: str, values: Any, kind: Any) -> None:
        array = np.array(values, kind)
        inputs.append(triton.InferInput(name, list(array.shape), dtype))
        inputs[-1].set_data_from_numpy(array)

    add("item", "INT64", [[row["item"]] for row in ROWS], np.int64)
    for name, dtype, kind, filler in (("genres", "BYTES", np.object_, ""), ("history", "INT64", np.int64, 0)):
        values, lengths = padded(name, filler)
        add(name, dtype, values, kind)
        add(f"{name}.lengths", "INT32", lengths, np.int32)
    add("history.valid", "BOOL", [[row["history"] is not None] for row in ROWS], np.bool_)
    for name in ("release_year", "age"):
        add(name, "INT64", [[row[name] or 0] for row in ROWS], np.int64)
        add(f"{name}.valid", "BOOL", [[row[name] is not None] for row in ROWS], np.bool_)
    with triton.InferenceServerClient(url) as client:
        scores = client.infer("movielens", inputs).as_numpy("score")
    return [float(score) for score in scores[:, 0]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="127.0.0.1:8000", help="the server's HTTP address, without http://")
    url = parser.parse_args().url
    for name, way in (("v1", by_v1), ("json", by_json), ("bytes", by_bytes)):
        print(name, *(f"{score:.4f}" for score in way(url)))


if __name__ == "__main__":
    main()
