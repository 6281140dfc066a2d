"""Values and dtypes that a model cannot take are refused alike over every protocol, and when a file is scored."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor, nn
from tritonclient.grpc import service_pb2, service_pb2_grpc

from emberline import publish
from serving import Server
from serving.scoring import Scorer, find_as_of, open_source, score_parquet
from storage import open_version
from storage.errors import InvalidInput
from storage.features import Column, FeatureSpec, column_from_numpy
from tests.integration.serving.http_calls import ask
from trainer import EmbeddingBag, EmbeddingTable, Initializer

DECLARED = ("INT64", "INT32", "UINT64", "BYTES", "FP32", "FP64", "BOOL")
ON_THE_WIRE = (
    *DECLARED,
    *("INT8", "UINT8", "INT16", "UINT16", "UINT32", "FP16", "BF16"),
)
INTEGERS = ("INT64", "INT32", "UINT64")
# What may stand in for what; every other pair is refused.
TAKEN = {
    **{dtype: set(INTEGERS) for dtype in INTEGERS},
    "BYTES": {"BYTES"},
    "FP32": {"FP32", *INTEGERS},
    "FP64": {"FP64", "FP32", *INTEGERS},
    "BOOL": {"BOOL"},
}
CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "INT64": "int64_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
NUMPY = {
    "INT8": np.int8,
    "UINT8": np.uint8,
    "INT16": np.int16,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "INT32": np.int32,
    "INT64": np.int64,
    "UINT64": np.uint64,
    "FP32": np.float32,
    "FP64": np.float64,
    "FP16": np.float16,
    "BF16": np.uint16,
    "BOOL": np.bool_,
}


class Sent(NamedTuple):
    """One input of a request. values: flat Python values; FP16 and BF16 are sent as their two bytes."""

    name: str
    dtype: str
    shape: list[int]
    values: list[Any]

    def raw(self) -> bytes:
        if self.dtype == "BYTES":
            return b"".join(len(value).to_bytes(4, "little") + value.encode() for value in self.values)
        return np.array(self.values, NUMPY[self.dtype]).tobytes()


class Answer(NamedTuple):
    """Outcome of one request.

    status: 200, 400 or another HTTP status; over gRPC the status that its code stands for.
    text: the text of the error.
    """

    status: int
    text: str


class Ways:
    """Sends a tensor to a server in each of the ways in which it may come."""

    def __init__(self, server: Server) -> None:
        self.port = server.http_port
        self._http = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=20)
        self._channel = grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}")
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def close(self) -> None:
        self._http.close()
        self._channel.close()

    def http_json(self, model: str, inputs: list[Sent]) -> Answer:
        entries = [{"name": one.name, "datatype": one.dtype, "shape": one.shape, "data": one.values} for one in inputs]
        return self._post(f"/v2/models/{model}/infer", json.dumps({"inputs": entries}).encode(), {})

    def http_binary(self, model: str, inputs: list[Sent]) -> Answer:
        raws = [one.raw() for one in inputs]
        entries = [
            {
                "name": one.name,
                "datatype": one.dtype,
                "shape": one.shape,
                "parameters": {"binary_data_size": len(raw)},
            }
            for one, raw in zip(inputs, raws, strict=True)
        ]
        head = json.dumps({"inputs": entries}).encode()
        headers = {"Inference-Header-Content-Length": str(len(head))}
        return self._post(f"/v2/models/{model}/infer", head + b"".join(raws), headers)

    def v1(self, model: str, inputs: list[Sent]) -> Answer:
        columns = {one.name: np.array(one.values, object).reshape(one.shape).tolist() for one in inputs}
        return self._post(f"/v1/models/{model}:predict", json.dumps({"inputs": columns}).encode(), {})

    def grpc_raw(self, model: str, inputs: list[Sent]) -> Answer:
        message = _message(model, inputs)
        message.raw_input_contents.extend(one.raw() for one in inputs)
        return self._infer(message)

    def grpc_contents(self, model: str, inputs: list[Sent]) -> Answer:
        return self._infer(_with_contents(model, inputs))

    def grpc_stream(self, model: str, inputs: list[Sent]) -> Answer:
        (answer,) = self._stub.ModelStreamInfer(iter([_with_contents(model, inputs)]), timeout=20)
        return Answer(400, answer.error_message) if answer.error_message else Answer(200, "")

    def _post(self, path: str, body: bytes, headers: dict[str, str]) -> Answer:
        self._http.request("POST", path, body, headers)
        response = self._http.getresponse()
        text = response.read().decode()
        return Answer(response.status, text)

    def _infer(self, message: Any) -> Answer:
        try:
            self._stub.ModelInfer(message, timeout=20)
        except grpc.RpcError as error:
            codes = {grpc.StatusCode.INVALID_ARGUMENT: 400}
            return Answer(codes.get(error.code(), 500), error.details())
        return Answer(200, "")


def _message(model: str, inputs: list[Sent]) -> Any:
    message = service_pb2.ModelInferRequest(model_name=model)
    for one in inputs:
        message.inputs.add(name=one.name, datatype=one.dtype, shape=one.shape)
    return message


def _with_contents(model: str, inputs: list[Sent]) -> Any:
    message = _message(model, inputs)
    for entry, one in zip(message.inputs, inputs, strict=True):
        values = [value.encode() for value in one.values] if one.dtype == "BYTES" else one.values
        getattr(entry.contents, CONTENTS[one.dtype]).extend(values)
    return message


class Plain(nn.Module):
    """Module that uses none of our layers: a list of numbers, one item, and a bag with weights."""

    def __init__(self) -> None:
        super().__init__()
        self.items, self.seen = nn.EmbeddingBag(50, 4, mode="sum"), nn.EmbeddingBag(50, 4, mode="sum")
        self.top = nn.Linear(3 + 8, 1)

    def forward(self, dense: Tensor, item: Tensor, history: Tensor, seconds: Tensor) -> Tensor:
        seen = self.seen(history, per_sample_weights=seconds)
        return torch.sigmoid(self.top(torch.cat([dense, self.items(item), seen], dim=1)))


class Kinds(nn.Module):
    """Takes an input of every dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.table = EmbeddingTable("words", 4, seed=1, rows=Initializer("uniform", 0.5))
        self.words = EmbeddingBag(self.table)
        self.top = nn.Linear(4 + len(DECLARED) - 1, 1)
        self.table.lookup(np.arange(10, dtype=np.int64), train=True)

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        words = self.words(inputs["word.values"], inputs["word.offsets"])
        return torch.sigmoid(self.top(torch.cat([words, inputs["dense"]], dim=1)))


def plain_sample() -> dict[str, Tensor]:
    torch.manual_seed(0)
    return {
        "dense": torch.rand(64, 3),
        "item": torch.randint(0, 50, (64, 1)),
        "history": torch.randint(0, 50, (64, 2)),
        "seconds": torch.rand(64, 2),
    }


KINDS = FeatureSpec.parse(
    {
        "inputs": [{"name": dtype, "dtype": dtype} for dtype in DECLARED],
        "features": [
            {
                "name": "word",
                "inputs": ["BYTES"],
                "transforms": [{"op": "vocabulary", "values": [f"w{i}" for i in range(10)]}],
                "output": "ids",
                "table": "words",
            },
            *({"name": d, "inputs": [d], "output": "dense"} for d in DECLARED if d != "BYTES"),
        ],
    }
)


def kinds_sample() -> dict[str, Column]:
    numbers = np.arange(10)
    columns = {d: column_from_numpy(d, (numbers % 2).astype(NUMPY[d])) for d in DECLARED if d != "BYTES"}
    return {**columns, "BYTES": column_from_numpy("BYTES", np.array([f"w{i}" for i in numbers]))}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("values")
    publish(Plain(), plain_sample(), repository, name="plain")
    publish(Kinds(), kinds_sample(), repository, name="kinds", spec=KINDS)
    return repository


@pytest.fixture(scope="module")
def ways(models: Path, tmp_path_factory: pytest.TempPathFactory, start_server: Callable[..., Server]) -> Iterator[Ways]:
    running = start_server(models, tmp_path_factory.mktemp("store"))
    made = Ways(running)
    yield made
    made.close()
    running.stop()


def plain_inputs(**changes: list[float]) -> list[Sent]:
    values: dict[str, list[Any]] = {
        "dense": [0.5] * 6,
        "item": [1, 2],
        "history": [1, 2, 3, 4],
        "seconds": [1.0] * 4,
        **changes,
    }
    dtypes = {"dense": "FP32", "item": "INT64", "history": "INT64", "seconds": "FP32"}
    return [Sent(name, dtypes[name], [2, len(given) // 2], given) for name, given in values.items()]


def one_of(dtype: str) -> Any:
    return {"BYTES": "w1", "BOOL": True}.get(dtype, 1)


EVERY_WAY = ("http_json", "http_binary", "grpc_raw", "grpc_contents", "grpc_stream", "v1")
NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize("way", EVERY_WAY)
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dense": [0, 1, 2, 3, NAN, 5]}, ["'dense', row 1", "NaN"]),
        ({"dense": [0, INFINITY, 2, 3, 4, 5]}, ["'dense', row 0", "finite"]),
        ({"dense": [0, 1, 2, 3, 4, -INFINITY]}, ["'dense', row 1", "finite"]),
        ({"seconds": [1, 1, 1, NAN]}, ["'seconds', row 1", "NaN"]),
        ({"seconds": [INFINITY, 1, 1, 1]}, ["'seconds', row 0", "finite"]),
    ],
)
def test_a_number_that_a_published_module_cannot_take_is_refused_with_its_input_and_row(
    ways: Ways, way: str, changes: dict[str, list[float]], words: list[str]
) -> None:
    ask = getattr(ways, way)
    assert ask("plain", plain_inputs()).status == 200
    answer = ask("plain", plain_inputs(**changes))
    assert answer.status == 400, answer
    assert all(word in answer.text for word in words), answer.text


@pytest.mark.parametrize("way", ["http_json", "v1"])
@pytest.mark.parametrize(
    ("changes", "word"),
    [({"dense": [0, 1, 2, 3, None, 5]}, "'dense', row 1: null"), ({"item": [1, None]}, "'item', row 1")],
)
def test_a_null_is_refused_by_a_module_that_was_published_without_a_spec(
    ways: Ways, way: str, changes: dict[str, Any], word: str
) -> None:
    answer = getattr(ways, way)("plain", plain_inputs(**changes))
    assert answer.status == 400
    assert word in answer.text


def test_golden_requests_hold_nulls_where_the_spec_takes_them(models: Path) -> None:
    for name, expected in (("kinds", True), ("plain", False)):
        columns = open_version(models / name / "1").golden().columns.values()
        assert any(column.valid is not None and not column.valid.all() for column in columns) is expected


def test_such_a_module_lists_no_companions_for_nulls(ways: Ways) -> None:
    for path, key in (("/v2/models/plain", "inputs"), ("/v2/models/plain/config", "input")):
        named = {entry["name"] for entry in ask(ways.port, "GET", path).json[key]}
        assert named == {"dense", "item", "history", "seconds"}
    assert "FP32.valid" in {entry["name"] for entry in ask(ways.port, "GET", "/v2/models/kinds").json["inputs"]}
    with_companion = [*plain_inputs(), Sent("item.valid", "BOOL", [2, 1], [True, False])]
    for way in ("http_json", "http_binary", "grpc_raw"):
        answer = getattr(ways, way)("plain", with_companion)
        assert (answer.status, "no input 'item.valid'" in answer.text) == (400, True)


def test_rows_scored_from_a_file_are_refused_as_requests_are(models: Path, tmp_path: Path) -> None:
    with Scorer(find_as_of(models / "plain", "1.0"), tmp_path / "store") as scorer:
        for given, refused in ((0.25, False), (NAN, True), (INFINITY, True)):
            rows = {one.name: np.array(one.values).reshape(one.shape).tolist() for one in plain_inputs()}
            rows["dense"][1][2] = given
            table = pa.table({name: values if name != "item" else [1, 2] for name, values in rows.items()})
            pq.write_table(table, tmp_path / "rows.parquet")
            if refused:
                with pytest.raises(InvalidInput, match=r"'dense', row 1"):
                    score_parquet(
                        scorer, open_source(scorer.spec, tmp_path / "rows.parquet"), tmp_path / "scores.parquet"
                    )
            else:
                assert (
                    score_parquet(
                        scorer, open_source(scorer.spec, tmp_path / "rows.parquet"), tmp_path / "scores.parquet"
                    )
                    == 2
                )


def test_a_sample_with_nan_is_not_published(tmp_path: Path) -> None:
    sample = plain_sample()
    sample["dense"][5, 1] = NAN
    with pytest.raises(InvalidInput, match=r"'dense', row 5: NaN"):
        publish(Plain(), sample, tmp_path, name="plain")


@pytest.mark.parametrize("way", ["http_json", "http_binary", "grpc_raw", "grpc_contents"])
@pytest.mark.parametrize("declared", DECLARED)
def test_every_datatype_is_taken_or_refused_alike_over_every_way(ways: Ways, way: str, declared: str) -> None:
    refused = set()
    usual = [Sent(d, d, [1, 1], [one_of(d)]) for d in DECLARED if d != declared]
    for given in ON_THE_WIRE:
        if way == "grpc_contents" and given not in CONTENTS:
            continue  # has no field of its own in `contents`
        answer = getattr(ways, way)("kinds", [*usual, Sent(declared, given, [1, 1], [one_of(given)])])
        if answer.status == 200:
            continue
        assert answer.status == 400, (given, answer)
        assert f"'{declared}': expected datatype {declared}, got {given}" in answer.text
        refused.add(given)
    sent = {given for given in ON_THE_WIRE if way != "grpc_contents" or given in CONTENTS}
    assert sent - refused == TAKEN[declared]
