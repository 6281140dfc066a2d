"""Clients of the native HTTP server, and their requests."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from serving import Server
from serving.protocol.dtypes import WIRE_TYPES
from tests.integration.serving.conftest import Published
from tests.integration.serving.http_calls import Reply

PATH = "/v2/models/ranker/infer"
# With it, a request is never an ordinary one; the Python path does not look at it.
BY_PYTHON = {"TE": "trailers"}
LENGTH = "Inference-Header-Content-Length"
WIRE_NAMES = {entry.numpy: name for name, entry in WIRE_TYPES.items() if entry.family != "half"}

# A body, and the bytes of JSON at its beginning; None where no header says how many they are.
Form = tuple[bytes, int | None]


class Client:
    """Sends requests on one connection that stays open."""

    def __init__(self, port: int) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)

    def post(
        self, body: bytes, length: int | None, headers: Mapping[str, str] | None = None, path: str = PATH
    ) -> Reply:
        lengths = {} if length is None else {LENGTH: str(length)}
        self.connection.request("POST", path, body, {**lengths, **(headers or {})})
        return self.read()

    def get(self, path: str) -> Reply:
        self.connection.request("GET", path)
        return self.read()

    def read(self) -> Reply:
        answer = self.connection.getresponse()
        headers = {name.lower(): value for name, value in answer.getheaders() if name.lower() != "date"}
        return Reply(answer.status, headers, answer.read())


def tensors(published: Published, rows: int, seed: int = 1) -> dict[str, np.ndarray]:
    raw = published.random_rows(rows, seed)
    return {
        "user": np.array([row["user"] for row in raw], np.int64),
        "item": np.array([[row["item"]] for row in raw], np.int64),
        "price": np.array([row["price"] for row in raw], np.float32),
    }


def header(values: Mapping[str, np.ndarray], **beside: Any) -> dict[str, Any]:
    inputs = [
        {
            "name": name,
            "shape": list(value.shape),
            "datatype": WIRE_NAMES[value.dtype],
            "parameters": {"binary_data_size": value.nbytes},
        }
        for name, value in values.items()
    ]
    return {"inputs": inputs, "parameters": {"binary_data_output": True}, **beside}


def body_of(values: Mapping[str, np.ndarray], **beside: Any) -> tuple[bytes, int]:
    text = json.dumps(header(values, **beside)).encode()
    return text + b"".join(value.tobytes() for value in values.values()), len(text)


def request_bytes(body: bytes, length: int, *, version: str = "1.1", headers: str = "") -> bytes:
    lengths = f"{LENGTH}: {length}\r\nContent-Length: {len(body)}\r\n"
    return f"POST {PATH} HTTP/{version}\r\nHost: a\r\n{lengths}{headers}\r\n".encode() + body


def answered_alike(server: Server, form: Form, *, natively: bool | None = True) -> Reply:
    """Sends a request natively and by Python, and compares the answers.

    natively: whether the native server has to answer it, or must not; None where it may.
    """
    assert server.native is not None
    # A connection with several requests that were handed over stays with Python.
    by_native, by_python = Client(server.http_port), Client(server.http_port)
    try:
        before = server.native.native.answered
        reply = by_native.post(*form)
        is_native = server.native.native.answered > before
        assert by_python.post(*form, BY_PYTHON) == reply, form
    finally:
        by_native.connection.close()
        by_python.connection.close()
    if natively is not None:
        assert is_native is natively, form
    return reply
