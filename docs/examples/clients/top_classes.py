"""Asks for the largest values of each row of an output, as "VALUE:INDEX" or "VALUE:INDEX:LABEL"."""

from __future__ import annotations

import argparse

import numpy as np
import tritonclient.http as triton

WORDS = np.array([[1, 2, 99], [4, 5, 6]], np.int64)
DENSE = np.array([[0.5, 0.25], [0.5, 0.25]], np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="127.0.0.1:8000", help="the server's HTTP address, without http://")
    parser.add_argument("--classes", type=int, default=3, help="how many of each row")
    options = parser.parse_args()

    words = triton.InferInput("words", list(WORDS.shape), "INT64")
    words.set_data_from_numpy(WORDS)
    dense = triton.InferInput("dense", list(DENSE.shape), "FP32")
    dense.set_data_from_numpy(DENSE)
    wanted = triton.InferRequestedOutput("score", class_count=options.classes)

    with triton.InferenceServerClient(options.url) as client:
        rows = client.infer("tiny", [words, dense], outputs=[wanted]).as_numpy("score")
    for row in rows:
        # `tiny` scores one class only, so there is one entry a row.
        for entry in row:
            value, index, *label = entry.decode().split(":", 2)
            print(index, value, *label)


if __name__ == "__main__":
    main()
