"""Scores two rows with a token over TLS, over HTTP and over gRPC."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import gevent.ssl
import numpy as np
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http

WORDS = np.array([[1, 2, 99], [4, 5, 6]], np.int64)
DENSE = np.array([[0.5, 0.25], [0.5, 0.25]], np.float32)


def inputs(api: Any) -> list[Any]:
    made = []
    for name, dtype, values in (("words", "INT64", WORDS), ("dense", "FP32", DENSE)):
        made.append(api.InferInput(name, list(values.shape), dtype))
        made[-1].set_data_from_numpy(values)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="the server's HTTP address, as in its certificate")
    parser.add_argument("--grpc-url", default="localhost:8001", help="the server's gRPC address")
    parser.add_argument("--token-file", type=Path, required=True, help="holds the token, which is no argument")
    parser.add_argument("--ca", type=Path, help="who signed the server's certificate; without it, no TLS")
    options = parser.parse_args()
    # Names of gRPC metadata are in lower case; HTTP allows any. Each call gets a new dictionary, because
    # tritonclient.http adds its own headers to the one that it is given.
    shown = {"authorization": f"Bearer {options.token_file.read_text().strip()}"}
    has_tls = options.ca is not None

    http = triton_http.InferenceServerClient(
        options.url,
        ssl=has_tls,
        ssl_context_factory=lambda: gevent.ssl.create_default_context(cafile=options.ca) if has_tls else None,
    )
    with http as client:
        print("http", *client.infer("tiny", inputs(triton_http), headers=dict(shown)).as_numpy("score")[:, 0])

    grpc = triton_grpc.InferenceServerClient(
        options.grpc_url, ssl=has_tls, root_certificates=str(options.ca) if has_tls else None
    )
    with grpc as client:
        print("grpc", *client.infer("tiny", inputs(triton_grpc), headers=dict(shown)).as_numpy("score")[:, 0])


if __name__ == "__main__":
    main()
