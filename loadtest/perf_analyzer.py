"""Has Triton's perf_analyzer send all requests in turn, over HTTP or gRPC, and reads the times that it exports."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from tritonclient.grpc import service_pb2
from tritonclient.utils import deserialize_bytes_tensor

from loadtest.counts import SecondCounts
from loadtest.program import Load, Program
from loadtest.records import PhaseRecord
from loadtest.rows import NUMPY_DTYPES, Tensor
from storage.errors import ConfigError, Unavailable

# Values of all requests together at most: they are written as JSON, which it reads before it begins.
_MOST_VALUES = 2_000_000


class PerfAnalyzer(Program):
    """Runs perf_analyzer."""

    package = "it is in Triton's SDK container, and in the wheel tritonclient 2.50 for Linux"
    note = (
        "perf_analyzer sent the load, with the rows of the requests in turn. It counts latency from the sending, and "
        "ends at the first request that fails."
    )

    def __init__(self, load: Load) -> None:
        self._load, self._data, self._export = load, load.folder / "data.json", load.folder / "export.json"
        parts = urlsplit(load.target.url)
        if parts.scheme == "https" or parts.path.strip("/"):
            raise ConfigError(
                f"--generator: with perf_analyzer the server is asked at http://HOST:PORT, got {load.target.url}",
                field="generator",
            )
        self._rows, values = 0, 0
        samples: list[dict[str, Any]] = []
        for place in range(load.prepared.count):
            tensors = _tensors(load.kind, load.prepared.body(place), load.prepared.headers[place])
            self._check(tensors)
            values += sum(each.values.size for each in tensors)
            if samples and values > _MOST_VALUES:
                break
            samples += list(_samples(tensors))
        self._data.write_text(json.dumps({"data": samples}))

    def command(self, rate: float, seconds: int) -> list[str]:
        """Returns the command line."""
        load = self._load
        self._export.unlink(missing_ok=True)
        address = load.target.grpc if load.kind == "grpc" else urlsplit(load.target.url).netloc
        # Both sides of the colon are sent as they are; HTTP/2 wants no capitals on the left and no blank on the right.
        token = ["-H", f"authorization:Bearer {load.target.token}"] if load.target.token else []
        json_tensors = ["--input-tensor-format=json", "--output-tensor-format=json"]
        return [
            *("perf_analyzer", "-m", load.target.model, "-u", address, "-i", load.kind.split("_")[0], *token),
            *("-b", str(self._rows), "--input-data", str(self._data), "--request-rate-range", f"{rate:.6g}"),
            *("--request-count", str(max(1, round(rate * seconds))), "-a", "--max-threads", str(load.threads)),
            *("--profile-export-file", str(self._export), *(json_tensors if load.kind == "http_json" else [])),
        ]

    def read(self, record: PhaseRecord, printed: str) -> None:
        """Reads the exported times, in nanoseconds, of each request and its response."""
        try:
            (experiment,) = json.loads(self._export.read_text())["experiments"]
            times = [(each["timestamp"], each["response_timestamps"][-1]) for each in experiment["requests"]]
            first = min(sent for sent, _ in times)
        except (OSError, ValueError, KeyError, IndexError):
            raise Unavailable(f"perf_analyzer: {printed.strip()[-500:]}") from None
        counts: dict[int, SecondCounts] = {}
        for sent, answered in times:
            counts.setdefault((sent - first) // 10**9, SecondCounts()).latency.add((answered - sent) / 1e6)
            counts.setdefault((answered - first) // 10**9, SecondCounts()).answered += 1
        for second, each in counts.items():
            record.add(second, each)

    def _check(self, tensors: Sequence[Tensor]) -> None:
        rows = {len(each.values) for each in tensors}
        self._rows = self._rows or max(rows)
        if rows != {self._rows}:
            raise ConfigError(
                "--generator: perf_analyzer sends the same number of rows for every input and in every request, got "
                f"{', '.join(map(str, sorted(rows | {self._rows})))}; leave out --user-inputs, or use another",
                field="generator",
            )


def _samples(tensors: Sequence[Tensor]) -> Iterator[dict[str, Any]]:
    for row in range(len(tensors[0].values)):
        yield {each.name: {"content": _content(each, row), "shape": list(each.values.shape[1:])} for each in tensors}


def _content(tensor: Tensor, row: int) -> list[Any]:
    values = tensor.values[row].ravel().tolist()
    return [value.decode() for value in values] if tensor.dtype == "BYTES" else values


def _tensors(kind: str, body: bytes, json_bytes: int) -> list[Tensor]:
    """Returns the tensors of an encoded request."""
    if kind == "grpc":
        request = service_pb2.ModelInferRequest.FromString(body)
        found = zip(request.inputs, request.raw_input_contents, strict=True)
        return [_raw(each.name, each.datatype, list(each.shape), content) for each, content in found]
    header = json.loads(body[:json_bytes] if json_bytes else body)
    if not json_bytes:
        return [
            Tensor(
                each["name"],
                each["datatype"],
                np.array(
                    [value.encode() for value in each["data"]] if each["datatype"] == "BYTES" else each["data"],
                    NUMPY_DTYPES.get(each["datatype"], np.object_),
                ).reshape(each["shape"]),
            )
            for each in header["inputs"]
        ]
    tensors, at = [], json_bytes
    for each in header["inputs"]:
        size = each["parameters"]["binary_data_size"]
        tensors.append(_raw(each["name"], each["datatype"], each["shape"], body[at : at + size]))
        at += size
    return tensors


def _raw(name: str, dtype: str, shape: Sequence[int], content: bytes) -> Tensor:
    if dtype == "BYTES":
        return Tensor(name, dtype, deserialize_bytes_tensor(content).reshape(shape))
    return Tensor(name, dtype, np.frombuffer(content, NUMPY_DTYPES[dtype]).reshape(shape))
