"""Scores two rows with tritonclient's asyncio client over gRPC, one request each, both at once."""

from __future__ import annotations

import argparse
import asyncio

import numpy as np
import tritonclient.grpc.aio as triton

WORDS = np.array([[1, 2, 99], [4, 5, 6]], np.int64)
DENSE = np.array([[0.5, 0.25], [0.5, 0.25]], np.float32)


async def score(client: triton.InferenceServerClient, row: int) -> float:
    inputs = []
    for name, dtype, values in (("words", "INT64", WORDS), ("dense", "FP32", DENSE)):
        inputs.append(triton.InferInput(name, [1, values.shape[1]], dtype))
        inputs[-1].set_data_from_numpy(values[row : row + 1])
    result = await client.infer("tiny", inputs, client_timeout=2.0)
    return float(result.as_numpy("score")[0, 0])


async def run(url: str) -> None:
    # One connection carries every call; client_timeout is the deadline, in seconds, and is sent with the request.
    async with triton.InferenceServerClient(url) as client:
        print(*await asyncio.gather(score(client, 0), score(client, 1)), sep="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="127.0.0.1:8001", help="the server's gRPC address")
    asyncio.run(run(parser.parse_args().url))


if __name__ == "__main__":
    main()
