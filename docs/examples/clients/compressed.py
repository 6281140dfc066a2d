"""Scores two rows with a compressed request and a compressed response, over HTTP and over gRPC."""

from __future__ import annotations

import argparse

import numpy as np
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http

WORDS = np.array([[1, 2, 99], [4, 5, 6]], np.int64)
DENSE = np.array([[0.5, 0.25], [0.5, 0.25]], np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="127.0.0.1:8000", help="the server's HTTP address, without http://")
    parser.add_argument("--grpc-url", default="127.0.0.1:8001", help="the server's gRPC address")
    options = parser.parse_args()

    for algorithm in ("gzip", "deflate"):
        inputs = []
        for name, dtype, values in (("words", "INT64", WORDS), ("dense", "FP32", DENSE)):
            inputs.append(triton_http.InferInput(name, list(values.shape), dtype))
            inputs[-1].set_data_from_numpy(values)
        with triton_http.InferenceServerClient(options.url) as client:
            result = client.infer(
                "tiny",
                inputs,
                request_compression_algorithm=algorithm,
                response_compression_algorithm=algorithm,
            )
        print("http", algorithm, *result.as_numpy("score")[:, 0])

        inputs = []
        for name, dtype, values in (("words", "INT64", WORDS), ("dense", "FP32", DENSE)):
            inputs.append(triton_grpc.InferInput(name, list(values.shape), dtype))
            inputs[-1].set_data_from_numpy(values)
        with triton_grpc.InferenceServerClient(options.grpc_url) as client:
            result = client.infer("tiny", inputs, compression_algorithm=algorithm)
        print("grpc", algorithm, *result.as_numpy("score")[:, 0])


if __name__ == "__main__":
    main()
