"""Makes good requests to the model of the fuzzed server, as parts that can be changed one by one."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2

from tests.integration.serving.conftest import SPEC, TAGS

# How likely a tensor is to lie in shared memory, where there is some.
_IN_REGION = 0.03
_NUMPY = {"INT64": np.int64, "FP32": np.float32, "BOOL": np.bool_}


@dataclass
class V2Request:
    """A KServe v2 request.

    header: the JSON, whose binary inputs say how many bytes of `tail` belong to them.
    """

    header: Any
    tail: bytes


def v2_request(rng: Random, *, binary: float = 0.5, region: str = "") -> V2Request:
    """A request of up to eight rows.

    binary: how likely each input is to travel as bytes. region: of shared memory, which some inputs and outputs use.
    """
    rows, inputs, tail = rng.randrange(1, 9), [], b""
    users = rng.choice((1, rows))
    for entry in SPEC["inputs"]:
        count = users if entry.get("side") == "user" else rows
        name, dtype = str(entry["name"]), str(entry["dtype"])
        if entry.get("missing") == "null" and rng.random() < 0.4:
            continue
        width = rng.randrange(4) if entry.get("kind") == "list" else int(str(entry.get("width", 1)))
        tensors = [(name, dtype, width, _values(rng, dtype, count * width))]
        if entry.get("kind") == "list" and rng.random() < 0.5:
            tensors.append((name + ".lengths", "INT64", 1, [rng.randrange(width + 1) for _ in range(count)]))
        if rng.random() < 0.2:
            flags = count * (1 if entry.get("kind") == "list" else width)
            tensors.append((name + ".valid", "BOOL", flags // count, [rng.random() < 0.8 for _ in range(flags)]))
        for key, kind, size, values in tensors:
            described: dict[str, Any] = {"name": key, "shape": [count, size], "datatype": kind}
            if region and rng.random() < _IN_REGION:
                section = packed(kind, values)
                described["parameters"] = _part(rng, region, len(section))
            elif rng.random() < binary:
                section = packed(kind, values)
                described["parameters"] = {"binary_data_size": len(section)}
                tail += section
            else:
                described["data"] = values
            inputs.append(described)
    header: dict[str, Any] = {"inputs": inputs}
    if rng.random() < 0.3:
        header["id"] = "r1"
    if rng.random() < 0.3:
        parameters = {"binary_data_output": True, "timeout": 5_000_000, "priority": 0, "routing_key": "k"}
        header["parameters"] = {key: parameters[key] for key in rng.sample(sorted(parameters), 2)}
    if rng.random() < 0.4:
        wanted = rng.choice(({}, {"binary_data": True}, {"classification": 1}, {"binary_data": False}))
        if region and rng.random() < _IN_REGION:
            wanted = _part(rng, region, rows * 4)
        header["outputs"] = [{"name": "score", "parameters": wanted}, {"name": "like"}][: rng.choice((1, 2))]
    return V2Request(header, tail)


def v1_request(rng: Random) -> Any:
    """Makes a v1 request by rows or by columns."""
    rows = [
        {
            "user": rng.randrange(100),
            "item": rng.randrange(-5, 100),
            "price": [0.5, 1],
            "history": rng.choice((None, [], [1, 2, 3])),
            "tags": rng.choice((None, [], ["war", "x"], [{"b64": "d2Fy"}])),
        }
        for _ in range(rng.randrange(1, 5))
    ]
    if rng.random() < 0.5:
        return {"instances": rows}
    return {"inputs": {name: [row[name] for row in rows] for name in rows[0]}}


def proto_request(rng: Random) -> Any:
    """Makes the same request as a ModelInferRequest, raw or typed."""
    is_raw = rng.random() < 0.6
    found = v2_request(rng, binary=0.0)
    message = service_pb2.ModelInferRequest(model_name="ranker", id=rng.choice(("", "r1")))
    for entry in found.header["inputs"]:
        tensor = message.inputs.add(name=entry["name"], datatype=entry["datatype"], shape=entry["shape"])
        dtype, values = entry["datatype"], entry["data"]
        if is_raw:
            message.raw_input_contents.append(packed(dtype, values))
        elif dtype == "BYTES":
            tensor.contents.bytes_contents.extend(value.encode() for value in values)
        else:
            field = {"INT64": "int64_contents", "FP32": "fp32_contents", "BOOL": "bool_contents"}[dtype]
            getattr(tensor.contents, field).extend(values)
    for entry in found.header.get("outputs", []):
        message.outputs.add(name=entry["name"])
    for key, value in found.header.get("parameters", {}).items():
        kind = {bool: "bool_param", int: "int64_param", str: "string_param"}[type(value)]
        setattr(message.parameters[key], kind, value)
    return message


def packed(dtype: str, values: list[Any]) -> bytes:
    """Returns values as the bytes that are sent."""
    if dtype == "BYTES":
        return b"".join(struct.pack("<I", len(value.encode())) + value.encode() for value in values)
    return np.array(values, _NUMPY[dtype]).tobytes()


def _part(rng: Random, region: str, size: int) -> dict[str, Any]:
    offset = {"shared_memory_offset": rng.choice((0, 8))} if rng.random() < 0.5 else {}
    return {"shared_memory_region": region, "shared_memory_byte_size": size, **offset}


def _values(rng: Random, dtype: str, count: int) -> list[Any]:
    if dtype == "BYTES":
        return [rng.choice(TAGS) for _ in range(count)]
    if dtype == "FP32":
        return [rng.random() for _ in range(count)]
    return [rng.randrange(-3, 100) for _ in range(count)]
