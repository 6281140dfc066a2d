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


def ask_every_output(
    url: str, grpc: str, model: str, requests: Sequence[Sequence[Tensor]], names: Sequence[str]
) -> Iterator[tuple[str, dict[str, Array]]]:
    """Sends all requests by each transport in turn; yields its name and the outputs of all rows, (N, ...) each.

    Asserts that an answer to a request that names no output has those of `names`, in this order.
    """
    transports: dict[str, Callable[[str, Sequence[Tensor]], dict[str, Array]]] = {
        "HTTP JSON": lambda name, tensors: json_outputs(url, name, tensors),
        "HTTP binary": lambda name, tensors: binary_outputs(url, name, tensors, names),
        "gRPC": lambda name, tensors: grpc_outputs(grpc, name, tensors),
    }
    for transport, ask in transports.items():
        answers = [ask(model, tensors) for tensors in requests]
        assert all(list(answer) == list(names) for answer in answers), (transport, list(answers[0]))
        yield transport, {name: np.concatenate([answer[name] for answer in answers]) for name in names}


def ask_json(url: str, model: str, tensors: Sequence[Tensor]) -> Array:
    """Returns scores (B,) by JSON."""
    return _flat(json_outputs(url, model, tensors)["score"])


def json_outputs(url: str, model: str, tensors: Sequence[Tensor]) -> dict[str, Array]:
    """Returns all outputs by JSON, in the order of the answer."""
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v2/models/{model}/infer", json_body(tensors), headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        outputs = json.loads(answer.read())["outputs"]
    return {entry["name"]: np.array(entry["data"]).reshape(entry["shape"]) for entry in outputs}


def ask_binary(url: str, model: str, tensors: Sequence[Tensor]) -> Array:
    """Returns scores (B,) by tritonclient over HTTP, binary both ways."""
    return _flat(binary_outputs(url, model, tensors, ["score"])["score"])


def binary_outputs(url: str, model: str, tensors: Sequence[Tensor], names: Sequence[str]) -> dict[str, Array]:
    """Returns the outputs that are named by tritonclient over HTTP, binary both ways."""
    inputs = []
    for tensor in tensors:
        given = tritonclient.http.InferInput(tensor.name, list(tensor.values.shape), tensor.dtype)
        given.set_data_from_numpy(tensor.values, binary_data=True)
        inputs.append(given)
    client = tritonclient.http.InferenceServerClient(url.removeprefix("http://"), network_timeout=TIMEOUT_S)
    try:
        wanted = [tritonclient.http.InferRequestedOutput(name, binary_data=True) for name in names]
        answer = client.infer(model, inputs, outputs=wanted)
        return {name: np.asarray(answer.as_numpy(name)) for name in names}
    finally:
        client.close()


def ask_grpc(address: str, model: str, tensors: Sequence[Tensor]) -> Array:
    """Returns scores (B,) by tritonclient over gRPC."""
    return _flat(grpc_outputs(address, model, tensors)["score"])


def grpc_outputs(address: str, model: str, tensors: Sequence[Tensor]) -> dict[str, Array]:
    """Returns all outputs by tritonclient over gRPC, in the order of the answer."""
    inputs = []
    for tensor in tensors:
        given = tritonclient.grpc.InferInput(tensor.name, list(tensor.values.shape), tensor.dtype)
        given.set_data_from_numpy(tensor.values)
        inputs.append(given)
    with tritonclient.grpc.InferenceServerClient(address) as client:
        answer = client.infer(model, inputs, client_timeout=TIMEOUT_S)
        return {entry.name: np.asarray(answer.as_numpy(entry.name)) for entry in answer.get_response().outputs}


def _flat(scores: Any) -> Array:
    return np.asarray(scores).reshape(-1)
