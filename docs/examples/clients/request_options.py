"""Sends a request with all its options: outputs, an id, a version, a timeout, a priority, a snapshot, a routing key."""

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

    with triton.InferenceServerClient(url) as client:
        result = client.infer(
            "tiny",
            [words, dense],
            model_version="1",  # only if version_policy keeps it loaded; default: the version that is served
            outputs=[triton.InferRequestedOutput("score", binary_data=False)],  # default: all outputs
            request_id="page-17",  # returned with the response
            timeout=500_000,  # longest wait in the queue, in microseconds
            priority=1,  # before requests of priority 2; ignored without priority_levels in config.pbtxt
            parameters={
                "min_snapshot": "1.0",  # no answer from an older snapshot
                "routing_key": "user-7",  # always the same side of a canary
            },
        )
    answer = result.get_response()
    print(*result.as_numpy("score")[:, 0], sep="\n")
    print(f"request {answer['id']}, snapshot {answer['model_version']}.{answer['parameters']['sequence']}")


if __name__ == "__main__":
    main()
