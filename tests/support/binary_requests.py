"""Plain inference requests with binary tensors for the model `ranker`, as the native HTTP server answers them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.integration.serving.conftest import Published

PATH = "/v2/models/ranker/infer"
LENGTH = "Inference-Header-Content-Length"


def tensors(published: Published, rows: int, seed: int = 1) -> dict[str, np.ndarray]:
    """Returns the tensors of rows that have no lists."""
    raw = published.random_rows(rows, seed)
    return {
        "user": np.array([row["user"] for row in raw], np.int64),
        "item": np.array([[row["item"]] for row in raw], np.int64),
        "price": np.array([row["price"] for row in raw], np.float32),
    }


def header(values: Mapping[str, np.ndarray], **beside: Any) -> dict[str, Any]:
    """Returns the JSON header of a request. beside: further members of it."""
    names = {"int64": "INT64", "float32": "FP32", "int32": "INT32", "float64": "FP64", "uint64": "UINT64"}
    inputs = [
        {
            "name": name,
            "shape": list(value.shape),
            "datatype": names[value.dtype.name],
            "parameters": {"binary_data_size": value.nbytes},
        }
        for name, value in values.items()
    ]
    return {"inputs": inputs, "parameters": {"binary_data_output": True}, **beside}


def body_of(values: Mapping[str, np.ndarray], **beside: Any) -> tuple[bytes, int]:
    """Returns the body of a request, and the bytes of the JSON at its beginning."""
    text = json.dumps(header(values, **beside)).encode()
    return text + b"".join(value.tobytes() for value in values.values()), len(text)


def request_bytes(body: bytes, length: int, *, version: str = "1.1", headers: str = "") -> bytes:
    """Returns a whole request. headers: further lines of its head."""
    lengths = f"{LENGTH}: {length}\r\nContent-Length: {len(body)}\r\n"
    return f"POST {PATH} HTTP/{version}\r\nHost: a\r\n{lengths}{headers}\r\n".encode() + body
