"""Scores two rows with tritonclient over HTTP: binary tensors cost the server a tenth of JSON."""

from __future__ import annotations

import argparse

import numpy as np
import tritonclient.http as triton

WORDS = np.array([[1, 2, 99], [4, 5, 6]], np.int64)
DENSE = np.array([[0.5, 0.25], [0.5, 0.25]], np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="127.0.0.1:8000", help="the server's HTTP address, without http://")
    url = parser.parse_args().url

    words = triton.InferInput("words", list(WORDS.shape), "INT64")
    words.set_data_from_numpy(WORDS)
    dense = triton.InferInput("dense", list(DENSE.shape), "FP32")
    dense.set_data_from_numpy(DENSE)

    # concurrency: the connections that it keeps. Use one client for the life of the process, in one thread.
    with triton.InferenceServerClient(url, concurrency=4) as client:
        scores = client.infer("tiny", [words, dense]).as_numpy("score")
        print(*scores[:, 0], sep="\n")

        # Sends several requests at once.
        waiting = [client.async_infer("tiny", [words, dense]) for _ in range(8)]
        assert all(np.array_equal(request.get_result().as_numpy("score"), scores) for request in waiting)


if __name__ == "__main__":
    main()
