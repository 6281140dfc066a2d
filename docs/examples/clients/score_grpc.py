"""Scores two rows with tritonclient over gRPC, then several requests at once."""

from __future__ import annotations

import argparse
import queue
from typing import Any

import numpy as np
import tritonclient.grpc as triton

WORDS = np.array([[1, 2, 99], [4, 5, 6]], np.int64)
DENSE = np.array([[0.5, 0.25], [0.5, 0.25]], np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="127.0.0.1:8001", help="the server's gRPC address")
    url = parser.parse_args().url

    words = triton.InferInput("words", list(WORDS.shape), "INT64")
    words.set_data_from_numpy(WORDS)
    dense = triton.InferInput("dense", list(DENSE.shape), "FP32")
    dense.set_data_from_numpy(DENSE)

    # One client for the life of the process; any number of threads may call it.
    with triton.InferenceServerClient(url) as client:
        # client_timeout: the call's deadline, in seconds. The server does not compute a request that has waited longer.
        scores = client.infer("tiny", [words, dense], client_timeout=2.0).as_numpy("score")
        print(*scores[:, 0], sep="\n")

        done: queue.Queue[tuple[Any, Any]] = queue.Queue()
        for _ in range(8):
            client.async_infer("tiny", [words, dense], lambda result, error: done.put((result, error)))
        for _ in range(8):
            result, error = done.get(timeout=10)
            if error is not None:
                raise error
            assert np.array_equal(result.as_numpy("score"), scores)


if __name__ == "__main__":
    main()
