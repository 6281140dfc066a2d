"""Scores two rows through system shared memory, on the server's own machine: no tensor passes through a socket."""

from __future__ import annotations

import argparse
import os

import numpy as np
import tritonclient.http as triton
from tritonclient.utils import shared_memory

WORDS = np.array([[1, 2, 99], [4, 5, 6]], np.int64)
DENSE = np.array([[0.5, 0.25], [0.5, 0.25]], np.float32)
SCORES_AT = WORDS.nbytes + DENSE.nbytes
SCORES_BYTES = len(WORDS) * 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="127.0.0.1:8000", help="the server's HTTP address, without http://")
    url = parser.parse_args().url
    name = f"example-{os.getpid()}"  # the region's name; two clients must not share one by accident
    size = SCORES_AT + SCORES_BYTES

    region = shared_memory.create_shared_memory_region(name, f"/{name}", size)
    try:
        shared_memory.set_shared_memory_region(region, [WORDS, DENSE])
        with triton.InferenceServerClient(url) as client:
            client.register_system_shared_memory(name, f"/{name}", size)
            try:
                words = triton.InferInput("words", list(WORDS.shape), "INT64")
                words.set_shared_memory(name, WORDS.nbytes)
                dense = triton.InferInput("dense", list(DENSE.shape), "FP32")
                dense.set_shared_memory(name, DENSE.nbytes, WORDS.nbytes)
                wanted = triton.InferRequestedOutput("score")
                wanted.set_shared_memory(name, SCORES_BYTES, SCORES_AT)
                client.infer("tiny", [words, dense], outputs=[wanted])
                scores = shared_memory.get_contents_as_numpy(region, np.float32, [2, 1], SCORES_AT)
                print(*scores[:, 0].tolist(), sep="\n")
                del scores  # the array is a view of the region, which is about to be removed
            finally:
                client.unregister_system_shared_memory(name)
    finally:
        shared_memory.destroy_shared_memory_region(region)


if __name__ == "__main__":
    main()
