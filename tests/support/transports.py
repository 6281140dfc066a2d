"""Sends requests in the three ways that a server accepts: KServe v2 as JSON and binary over HTTP, and over gRPC.

Binary and gRPC go through the unmodified tritonclient; JSON goes through the standard library.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.http

from loadtest.bodies import json_body
from loadtest.rows import Tensor, input_table, model_inputs, request_tensors

Array = np.ndarray[Any, np.dtype[Any]]

ROWS_A_REQUEST = 500
TIMEOUT_S = 60.0


def requests_of(url: str, model: str, data: Path, rows: int) -> list[list[Tensor]]:
    """Returns the first `rows` rows of a Parquet file as requests of ROWS_A_REQUEST rows."""
    inputs = model_inputs(url, model)
    table = input_table(data, inputs, rows)
    starts = range(0, table.num_rows, ROWS_A_REQUEST)
    return [request_tensors(inputs, table.slice(start, ROWS_A_REQUEST)) for start in starts]


def ask_all(url: str, grpc: str, model: str, requests: Sequence[Sequence[Tensor]]) -> Iterator[tuple[str, Array]]:
    """Sends all requests by each transport in turn; yields its name and the scores of all requests, (N,)."""
    transports: dict[str, Callable[[str, Sequence[Tensor]], Array]] = {
        "HTTP JSON": lambda name, tensors: ask_json(url, name, tensors),
        "HTTP binary": lambda name, tensors: ask_binary(url, name, tensors),
        "gRPC": lambda name, tensors: ask_grpc(grpc, name, tensors),
    }
    for transport, ask in transports.items():
        yield transport, np.concatenate([ask(model, tensors) for tensors in requests])


def ask_json(url: str, model: str, tensors: Sequence[Tensor]) -> Array:
    """Returns scores (B,) by JSON."""
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v2/models/{model}/infer", json_body(tensors), headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        outputs = {entry["name"]: entry["data"] for entry in json.loads(answer.read())["outputs"]}
    return np.array(outputs["score"])


def ask_binary(url: str, model: str, tensors: Sequence[Tensor]) -> Array:
    """Returns scores (B,) by tritonclient over HTTP, binary both ways."""
    inputs = []
    for tensor in tensors:
        given = tritonclient.http.InferInput(tensor.name, list(tensor.values.shape), tensor.dtype)
        given.set_data_from_numpy(tensor.values, binary_data=True)
        inputs.append(given)
    client = tritonclient.http.InferenceServerClient(url.removeprefix("http://"), network_timeout=TIMEOUT_S)
    try:
        wanted = [tritonclient.http.InferRequestedOutput("score", binary_data=True)]
        return _flat(client.infer(model, inputs, outputs=wanted).as_numpy("score"))
    finally:
        client.close()


def ask_grpc(address: str, model: str, tensors: Sequence[Tensor]) -> Array:
    """Returns scores (B,) by tritonclient over gRPC."""
    inputs = []
    for tensor in tensors:
        given = tritonclient.grpc.InferInput(tensor.name, list(tensor.values.shape), tensor.dtype)
        given.set_data_from_numpy(tensor.values)
        inputs.append(given)
    with tritonclient.grpc.InferenceServerClient(address) as client:
        return _flat(client.infer(model, inputs, client_timeout=TIMEOUT_S).as_numpy("score"))


def _flat(scores: Any) -> Array:
    return np.asarray(scores).reshape(-1)
