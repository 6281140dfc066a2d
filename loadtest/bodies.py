"""Encodes requests in the three forms of the wire: KServe v2 binary, KServe v2 JSON, gRPC."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence

from tritonclient.grpc import service_pb2

from loadtest.rows import Tensor


def raw_bytes(tensor: Tensor) -> bytes:
    """Returns a tensor's bytes: little-endian, row by row; BYTES as length and content."""
    if tensor.dtype == "BYTES":
        return b"".join(struct.pack("<I", len(value)) + value for value in tensor.values.ravel())
    return tensor.values.tobytes()


def binary_body(tensors: Sequence[Tensor]) -> tuple[bytes, int]:
    """Returns a KServe v2 body with binary tensors, and the length of its JSON part."""
    parts = [raw_bytes(tensor) for tensor in tensors]
    inputs = [
        {
            "name": tensor.name,
            "datatype": tensor.dtype,
            "shape": list(tensor.values.shape),
            "parameters": {"binary_data_size": len(part)},
        }
        for tensor, part in zip(tensors, parts, strict=True)
    ]
    header = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    return header + b"".join(parts), len(header)


def json_body(tensors: Sequence[Tensor]) -> bytes:
    """Returns a KServe v2 body, all JSON."""
    inputs = []
    for tensor in tensors:
        data = tensor.values.ravel().tolist()
        if tensor.dtype == "BYTES":
            data = [value.decode() for value in data]
        inputs.append({"name": tensor.name, "datatype": tensor.dtype, "shape": list(tensor.values.shape), "data": data})
    return json.dumps({"inputs": inputs}).encode()


def grpc_request(model: str, tensors: Sequence[Tensor]) -> service_pb2.ModelInferRequest:
    """Returns a gRPC request with raw contents."""
    request = service_pb2.ModelInferRequest(model_name=model)
    for tensor in tensors:
        request.inputs.add(name=tensor.name, datatype=tensor.dtype, shape=list(tensor.values.shape))
        request.raw_input_contents.append(raw_bytes(tensor))
    return request
