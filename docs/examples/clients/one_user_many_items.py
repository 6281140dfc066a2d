"""Ranks films for one user: the inputs of the user are sent, looked up and computed once."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import tritonclient.grpc as triton

FILMS = {50: (1977, ["Action", "War"]), 7: (1995, ["Sci-Fi"]), 318: (1993, ["Drama"]), 1: (1995, ["Animation"])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="127.0.0.1:8001", help="the server's gRPC address")
    url = parser.parse_args().url
    inputs = []

    def add(name: str, dtype: str, values: Any, kind: Any) -> None:
        array = np.array(values, kind)
        inputs.append(triton.InferInput(name, list(array.shape), dtype))
        inputs[-1].set_data_from_numpy(array)

    # Inputs of `side: user` have one row, whatever the batch of the others. A list of one row needs no lengths.
    add("gender", "BYTES", [["F"]], np.object_)
    add("age", "INT64", [[24]], np.int64)
    add("history", "INT64", [[181, 172, 64]], np.int64)

    # Each item is a row.
    width = max(len(genres) for _, genres in FILMS.values())
    add("item", "INT64", [[item] for item in FILMS], np.int64)
    add("release_year", "INT64", [[year] for year, _ in FILMS.values()], np.int64)
    add("genres", "BYTES", [genres + [""] * (width - len(genres)) for _, genres in FILMS.values()], np.object_)
    add("genres.lengths", "INT32", [[len(genres)] for _, genres in FILMS.values()], np.int32)

    with triton.InferenceServerClient(url) as client:
        scores = client.infer("movielens", inputs, client_timeout=2.0).as_numpy("score")[:, 0]
    for place in np.argsort(-scores):
        print(list(FILMS)[place], f"{scores[place]:.4f}")


if __name__ == "__main__":
    main()
