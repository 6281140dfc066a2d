"""Makes the calls of KServe's own client; run by a Python that has it, with the HTTP and the gRPC port.

It prints a line for each call and ends with an exception at the first wrong answer.
"""

from __future__ import annotations

import asyncio
import sys

import numpy as np
from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig  # type: ignore[import-not-found]
from kserve.inference_client import InferenceGRPCClient  # type: ignore[import-not-found]

MODEL = "simple"
LEFT, RIGHT = np.arange(16, dtype=np.int32).reshape(1, 16), np.ones((1, 16), np.int32)


def request(binary: bool) -> InferRequest:
    """Returns a request of one row and two tensors, as JSON numbers or as bytes."""
    inputs = []
    for name, values in (("INPUT0", LEFT), ("INPUT1", RIGHT)):
        one = InferInput(name, list(values.shape), "INT32")
        one.set_data_from_numpy(values, binary_data=binary)
        inputs.append(one)
    return InferRequest(MODEL, inputs)


def check(what: str, answer: object) -> None:
    """Compares an answer of v2 with the sum and the difference."""
    outputs = {output.name: output.as_numpy().reshape(1, 16) for output in answer.outputs}  # type: ignore[attr-defined]
    assert np.array_equal(outputs["OUTPUT0"], LEFT + RIGHT), (what, outputs)
    assert np.array_equal(outputs["OUTPUT1"], LEFT - RIGHT), (what, outputs)
    print(what, "passed")


async def main(http_port: str, grpc_port: str) -> None:
    """Calls health, v2 as JSON and as bytes, v1, and gRPC."""
    base = f"http://127.0.0.1:{http_port}"
    rest = InferenceRESTClient(RESTConfig(protocol="v2", retries=0))
    assert await rest.is_server_live(base) is True
    assert await rest.is_server_ready(base) is True
    assert await rest.is_model_ready(base, MODEL) is True
    print("REST: health passed")
    check("REST: v2 as JSON", await rest.infer(base, request(False), model_name=MODEL))
    check("REST: v2 as bytes", await rest.infer(base, request(True), model_name=MODEL))
    old = InferenceRESTClient(RESTConfig(protocol="v1", retries=0))
    rows = {"instances": [{"INPUT0": LEFT[0].tolist(), "INPUT1": RIGHT[0].tolist()}]}
    answer = await old.infer(base, rows, model_name=MODEL)
    assert answer["predictions"][0]["OUTPUT0"] == (LEFT + RIGHT)[0].tolist(), answer
    print("REST: v1 passed")
    grpc = InferenceGRPCClient(f"127.0.0.1:{grpc_port}")
    assert await grpc.is_server_live() is True
    assert await grpc.is_server_ready() is True
    assert await grpc.is_model_ready(MODEL) is True
    print("gRPC: health passed")
    check("gRPC: as numbers", await grpc.infer(request(False)))
    check("gRPC: as bytes", await grpc.infer(request(True)))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
