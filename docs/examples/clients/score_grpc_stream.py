"""Scores two rows over one gRPC stream, a request each. Answers come in the order of the requests, with their ids."""

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

    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with triton.InferenceServerClient(url) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for row in range(len(WORDS)):
            inputs = []
            for name, dtype, values in (("words", "INT64", WORDS), ("dense", "FP32", DENSE)):
                inputs.append(triton.InferInput(name, [1, values.shape[1]], dtype))
                inputs[-1].set_data_from_numpy(values[row : row + 1])
            client.async_stream_infer("tiny", inputs, request_id=str(row))

        scores = np.empty(len(WORDS), np.float32)
        for _ in scores:
            result, error = answers.get(timeout=10)
            if error is not None:  # the error of this request alone: the stream goes on
                raise error
            scores[int(result.get_response().id)] = result.as_numpy("score")[0, 0]
        client.stop_stream()
    print(*scores, sep="\n")


if __name__ == "__main__":
    main()
