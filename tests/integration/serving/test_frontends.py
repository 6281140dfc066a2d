"""A server with front ends in processes of their own answers like one without, bit for bit, and refuses alike."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from serving import Server
from tests.integration.serving.conftest import Published
from tests.integration.serving.front_processes import TIMEOUT_S, Frontends, Reply, ask, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="front ends in processes of their own need Linux"),
]

SERVICE = "/inference.GRPCInferenceService"
INFER = "/v2/models/ranker/infer"
PREDICT = "/v1/models/ranker:predict"
KEPT_HEADERS = ("content-type", "inference-header-content-length", "emberline-snapshot", "emberline-model-version")


@dataclass
class Pair:
    """The same model behind both kinds of server.

    alone: the server in one process.
    """

    alone: Server
    apart: Frontends

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> list[Reply]:
        return [ask(port, method, path, body, headers) for port in (self.alone.http_port, self.apart.port)]

    def same(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Reply:
        """Sends a request to both servers, asserts that the replies are equal, and returns the reply."""
        first, second = self.ask(method, path, body, headers)
        assert (second.status, second.content) == (first.status, first.content)
        assert [second.headers.get(name) for name in KEPT_HEADERS] == [first.headers.get(name) for name in KEPT_HEADERS]
        return first

    def call(self, method: str, request: bytes) -> list[tuple[grpc.StatusCode, str | bytes]]:
        """Calls both servers; returns the code, and the answer's bytes or the error's text, of each."""
        found: list[tuple[grpc.StatusCode, str | bytes]] = []
        for address in (f"127.0.0.1:{self.alone.grpc_port}", self.apart.grpc):
            with grpc.insecure_channel(address) as channel:
                try:
                    answer = channel.unary_unary(f"{SERVICE}/{method}")(request, timeout=TIMEOUT_S)
                    found.append((grpc.StatusCode.OK, in_order(answer) if method == "ModelInfer" else answer))
                except grpc.RpcError as error:
                    found.append((error.code(), error.details()))
        return found

    def same_call(self, method: str, request: bytes) -> tuple[grpc.StatusCode, str | bytes]:
        first, second = self.call(method, request)
        assert second == first
        return first


def in_order(answer: bytes) -> bytes:
    """Returns the same message with the entries of its maps sorted, since their order is not defined."""
    return bytes(service_pb2.ModelInferResponse.FromString(answer).SerializeToString(deterministic=True))


@pytest.fixture(scope="module")
def pair(
    version_dir: Path, tmp_path_factory: pytest.TempPathFactory, start_server: Callable[..., Server]
) -> Iterator[Pair]:
    repository = version_dir.parent.parent
    with Frontends(repository, tmp_path_factory.mktemp("apart")) as apart:
        alone = start_server(repository, tmp_path_factory.mktemp("alone"))
        yield Pair(alone, apart)
        alone.stop()


@dataclass
class Case:
    """Encodes a request of tensors (name, dtype, values).

    A None in values is null, where JSON is asked for.
    """

    tensors: list[tuple[str, str, np.ndarray]]
    parameters: dict[str, Any] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        inputs = []
        for name, dtype, values in self.tensors:
            inputs.append({"name": name, "datatype": dtype, "shape": list(values.shape), "data": values.tolist()})
        return self._with_rest({"inputs": inputs})

    def as_binary(self) -> tuple[bytes, dict[str, str]]:
        inputs, tail = [], []
        for name, dtype, values in self.tensors:
            content = raw(dtype, values)
            tail.append(content)
            size = {"binary_data_size": len(content)}
            inputs.append({"name": name, "datatype": dtype, "shape": list(values.shape), "parameters": size})
        header = self._with_rest({"inputs": inputs})
        header["parameters"] = {**self.parameters, "binary_data_output": True}
        head = json.dumps(header).encode()
        return head + b"".join(tail), {"Inference-Header-Content-Length": str(len(head))}

    def as_message(self) -> bytes:
        message = service_pb2.ModelInferRequest(model_name="ranker", id="7")
        for name, dtype, values in self.tensors:
            message.inputs.add(name=name, datatype=dtype, shape=values.shape)
            message.raw_input_contents.append(raw(dtype, values))
        for name in self.outputs:
            message.outputs.add(name=name)
        for name, value in self.parameters.items():
            kind = "int64_param" if isinstance(value, int) else "string_param"
            setattr(message.parameters[name], kind, value)
        return bytes(message.SerializeToString())

    def _with_rest(self, content: dict[str, Any]) -> dict[str, Any]:
        outputs = {"outputs": [{"name": name} for name in self.outputs]} if self.outputs else {}
        return {**content, **outputs, "parameters": self.parameters, "id": "7"}


def raw(dtype: str, values: np.ndarray) -> bytes:
    if dtype == "BYTES":
        strings = [each.encode() for each in values.ravel().tolist()]
        return b"".join(struct.pack("<I", len(each)) + each for each in strings)
    return values.tobytes()


def whole_rows(rows: list[dict[str, Any]]) -> list[tuple[str, str, np.ndarray]]:
    """Returns every input of the rows: padded lists, their lengths and which are null."""
    made: list[tuple[str, str, np.ndarray]] = [
        ("user", "INT64", np.array([[row["user"]] for row in rows], np.int64)),
        ("item", "INT64", np.array([[row["item"]] for row in rows], np.int64)),
        ("price", "FP32", np.array([row["price"] for row in rows], np.float32)),
    ]
    for name, dtype, filler in (("history", "INT64", 0), ("tags", "BYTES", "")):
        lists = [row[name] or [] for row in rows]
        width = max(map(len, lists))
        padded = [[*values, *[filler] * (width - len(values))] for values in lists]
        values = np.array(padded, object if dtype == "BYTES" else np.int64).reshape(len(rows), width)
        made.append((name, dtype, values))
        made.append((f"{name}.lengths", "INT64", np.array([[len(values)] for values in lists], np.int64)))
        made.append((f"{name}.valid", "BOOL", np.array([[row[name] is not None] for row in rows])))
    return made


def plain(batch: int) -> list[tuple[str, str, np.ndarray]]:
    return [
        ("price", "FP32", np.arange(2 * batch, dtype=np.float32).reshape(batch, 2)),
        ("user", "INT64", np.arange(batch, dtype=np.int64).reshape(batch, 1)),
        ("item", "INT64", np.arange(batch, dtype=np.int64).reshape(batch, 1)),
    ]


def cases(published: Published) -> dict[str, Case]:
    rows = published.random_rows(17, 31)
    items = np.array([[item] for item in published.items[:9]], np.int64)
    one_user: list[tuple[str, str, np.ndarray]] = [
        ("user", "INT64", np.array([[published.users[3]]], np.int64)),
        ("history", "INT64", np.array([published.items[:4]], np.int64)),
        ("item", "INT64", items),
        ("price", "FP32", np.ones((9, 2), np.float32)),
        ("tags", "BYTES", np.array([["war", "drama"]] * 9, object)),
    ]
    return {
        "lists, strings and nulls": Case(whole_rows(rows)),
        "numbers only": Case(plain(5)),
        "one row": Case(plain(1)),
        "one user of nine items": Case(one_user),
        "no rows": Case(plain(0)),
        "as many rows as are taken": Case(plain(64)),
        "a snapshot that is there": Case(plain(3), {"min_snapshot": "1.0"}),
        "a snapshot and no rows": Case(plain(0), {"min_snapshot": "1.0"}),
        "a routing key, a priority, a timeout": Case(
            plain(3), {"routing_key": "käse", "priority": 0, "timeout": 20_000_000}
        ),
        "one of its outputs": Case(plain(3), {}, ["like"]),
    }


@pytest.mark.parametrize(
    "name",
    [
        "lists, strings and nulls",
        "numbers only",
        "one row",
        "one user of nine items",
        "no rows",
        "as many rows as are taken",
        "a snapshot that is there",
        "a snapshot and no rows",
        "a routing key, a priority, a timeout",
        "one of its outputs",
    ],
)
def test_every_way_in_gives_what_one_process_gives(pair: Pair, published: Published, name: str) -> None:
    case = cases(published)[name]
    assert pair.same("POST", INFER, case.as_json()).status == 200
    assert pair.same("POST", "/v2/models/ranker/versions/1/infer", case.as_json()).status == 200
    body, headers = case.as_binary()
    reply = pair.same("POST", INFER, body, headers)
    assert reply.status == 200
    assert "inference-header-content-length" in reply.headers
    assert pair.same_call("ModelInfer", case.as_message())[0] is grpc.StatusCode.OK


def test_nulls_in_json_and_v1_give_what_one_process_gives(pair: Pair, published: Published) -> None:
    rows = published.random_rows(24, 33)
    reply = pair.same("POST", PREDICT, {"instances": rows})
    assert reply.status == 200
    scores = [row["score"] for row in reply.json["predictions"]]
    np.testing.assert_allclose(scores, published.score(rows)["score"][:, 0], rtol=0, atol=1e-6)
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    assert pair.same("POST", PREDICT, {"inputs": columns}).status == 200
    assert pair.same("POST", PREDICT, {"instances": []}).status == 200
    routed = {"Emberline-Routing-Key": "k", "Emberline-Min-Snapshot": "1.0"}
    assert pair.same("POST", PREDICT, {"instances": rows[:2]}, routed).status == 200
    nulls = Case(plain(2)).as_json()
    nulls["inputs"].append({"name": "history", "shape": [2, 2], "datatype": "INT64", "data": [None, None, 3, None]})
    nulls["inputs"][1]["data"] = [[None], [1]]
    assert pair.same("POST", INFER, nulls).json == pair.same("POST", INFER, nulls).json


def without(case: Case, name: str) -> Case:
    return Case([each for each in case.tensors if each[0] != name], case.parameters)


def with_tensor(case: Case, name: str, dtype: str, values: np.ndarray) -> Case:
    return Case([*without(case, name).tensors, (name, dtype, values)], case.parameters)


WRONG = {
    "an input is missing": (without(Case(plain(2)), "item"), 400),
    "a wrong dtype": (with_tensor(Case(plain(2)), "item", "FP32", np.zeros((2, 1), np.float32)), 400),
    "an unknown input": (with_tensor(Case(plain(2)), "itme", "INT64", np.zeros((2, 1), np.int64)), 400),
    "a wrong width": (with_tensor(Case(plain(2)), "price", "FP32", np.zeros((2, 3), np.float32)), 400),
    "batches that differ": (with_tensor(Case(plain(2)), "item", "INT64", np.zeros((3, 1), np.int64)), 400),
    "too many rows": (Case(plain(65)), 400),
    "an unknown output": (Case(plain(2), {}, ["scor"]), 400),
    "a number that is too large": (
        with_tensor(Case(plain(2)), "price", "FP32", np.full((2, 2), np.finfo(np.float32).max)),
        200,
    ),
    "a snapshot that is no name": (Case(plain(2), {"min_snapshot": "x"}), 400),
    "a snapshot that there is not": (Case(plain(2), {"min_snapshot": "0" * 32, "timeout": 1000}), 504),
    "a key that is none": (Case(plain(2), {"routing_key": "k" * 1025}), 400),
    "a timeout that is none": (Case(plain(2), {"timeout": -1}), 400),
}


@pytest.mark.parametrize("name", sorted(WRONG))
def test_what_is_wrong_is_refused_with_the_same_status_and_text(pair: Pair, name: str) -> None:
    case, status = WRONG[name]
    assert pair.same("POST", INFER, case.as_json()).status == status
    body, headers = case.as_binary()
    assert pair.same("POST", INFER, body, headers).status == status
    code, text = pair.same_call("ModelInfer", case.as_message())
    codes = {400: grpc.StatusCode.INVALID_ARGUMENT, 504: grpc.StatusCode.DEADLINE_EXCEEDED, 200: grpc.StatusCode.OK}
    assert code is codes[status]
    assert "internal error" not in str(text)


# With NaN in the text, another JSON parser reads it, which accepts half of a surrogate pair.
NOT_UNICODE = json.dumps(
    with_tensor(
        Case(plain(1), {"min_snapshot": "\ud800"}), "price", "FP32", np.full((1, 2), np.nan, np.float32)
    ).as_json()
).encode()


@pytest.mark.parametrize(
    ("path", "body", "headers"),
    [
        ("/v2/models/nope/infer", Case(plain(1)).as_json(), {}),
        ("/v2/models/ranker/versions/9/infer", Case(plain(1)).as_json(), {}),
        ("/v2/models/ranker/versions/x/infer", Case(plain(1)).as_json(), {}),
        ("/v1/models/nope:predict", {"instances": []}, {}),
        (INFER, b"", {}),
        (INFER, b"{", {}),
        (INFER, b"[1]", {}),
        (INFER, NOT_UNICODE, {}),
        (INFER, Case(plain(1), {"min_snapshot": "\ud800"}).as_json(), {}),
        (INFER, {"inputs": []}, {}),
        (INFER, {"inputs": "many"}, {}),
        (INFER, Case(plain(1)).as_json(), {"Inference-Header-Content-Length": "99999"}),
        (INFER, Case(plain(1)).as_json(), {"Content-Encoding": "gzip"}),
        (INFER, Case(plain(1)).as_json(), {"Emberline-Min-Snapshot": "nothing"}),
        (PREDICT, b'{"instances": 3}', {}),
        (PREDICT, {"instances": [{"item": "x"}]}, {}),
        (PREDICT, {"instances": [{"item": 1}]}, {}),
    ],
)
def test_bodies_and_paths_that_are_wrong_are_refused_alike(
    pair: Pair, path: str, body: Any, headers: dict[str, str]
) -> None:
    reply = pair.same("POST", path, body, headers)
    assert 400 <= reply.status < 505
    assert reply.status != 500
    assert reply.json["error"]


def test_messages_that_are_wrong_are_refused_alike(pair: Pair) -> None:
    for method in ("ModelInfer", "ModelConfig", "ServerLive"):
        assert pair.same_call(method, b"\xff" * 100)[0] is grpc.StatusCode.INVALID_ARGUMENT
    nobody = service_pb2.ModelInferRequest(model_name="nope").SerializeToString()
    assert pair.same_call("ModelInfer", nobody)[0] is grpc.StatusCode.NOT_FOUND
    other = service_pb2.ModelInferRequest(model_name="ranker", model_version="7").SerializeToString()
    assert pair.same_call("ModelInfer", other)[0] is grpc.StatusCode.NOT_FOUND
    assert pair.same_call("TraceSetting", b"")[0] is grpc.StatusCode.OK
    assert pair.same_call("SystemSharedMemoryStatus", b"\xff")[0] is grpc.StatusCode.INVALID_ARGUMENT
    assert pair.same_call("Nothing", b"")[0] is grpc.StatusCode.UNIMPLEMENTED


MODEL = "/v2/repository/models/ranker"


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v2/health/live", None),
        ("GET", "/v2/health/ready", None),
        ("GET", "/v2", None),
        ("GET", "/v2/models/ranker", None),
        ("GET", "/v2/models/ranker/versions/1", None),
        ("GET", "/v2/models/ranker/ready", None),
        ("GET", "/v2/models/nope/ready", None),
        ("GET", "/v2/models/nope", None),
        ("GET", "/v2/models/ranker/config", None),
        ("GET", "/v1/models", None),
        ("GET", "/v1/models/ranker", None),
        ("GET", "/v1/models/nope", None),
        ("GET", "/v2/systemsharedmemory/status", None),
        ("GET", "/v2/systemsharedmemory/region/r/status", None),
        ("POST", "/v2/systemsharedmemory/region/r/register", {"key": "/../x", "byte_size": 4}),
        ("POST", "/v2/systemsharedmemory/region/r/register", {"key": "/x"}),
        ("GET", "/v2/cudasharedmemory/status", None),
        ("GET", "/v2/trace/setting", None),
        ("GET", "/v2/models/nope/trace/setting", None),
        ("GET", "/v2/logging", None),
        ("GET", "/nothing", None),
        ("GET", INFER, None),
        ("POST", "/v2", None),
        ("GET", "/v2/models/r%C3%A4nker%2Fx", None),
        ("POST", "/v2/repository/index", b""),
        ("POST", "/v2/repository/index", {"ready": True}),
        ("POST", "/v2/repository/index", b"[]"),
        ("GET", f"{MODEL}/load", None),
        ("GET", "/v2/repository/models/nope/snapshots", None),
        ("POST", f"{MODEL}/rollback", {"to": "9.9"}),
        ("POST", f"{MODEL}/rollback", {"steps": 5}),
        ("POST", f"{MODEL}/rollbak", {}),
        ("POST", f"{MODEL}/pin", {}),
        ("POST", f"{MODEL}/canary", {"fraction": 0.5}),
        ("POST", f"{MODEL}/allow", {"version": 9, "inputs": ["x"]}),
        ("POST", f"{MODEL}/sessions", {"count": 0}),
        ("POST", f"{MODEL}/budget", {"dram_bytes": "much"}),
        ("POST", f"{MODEL}/load", {}),
        ("POST", "/v2/repository/models/nope/load", {}),
        ("POST", "/v2/repository/models/nope/unload", {}),
    ],
)
def test_control_routes_are_the_same(pair: Pair, method: str, path: str, body: Any) -> None:
    pair.same(method, path, body)


@pytest.mark.parametrize("path", ["/v2/models/stats", "/v2/models/ranker/stats", f"{MODEL}/snapshots"])
def test_what_differs_from_server_to_server_has_the_same_form(pair: Pair, path: str) -> None:
    first, second = (shape(reply.json) for reply in pair.ask("GET", path))
    assert second == first


def shape(content: Any) -> Any:
    """Returns the keys and types of a JSON value."""
    if isinstance(content, dict):
        return {key: shape(value) for key, value in content.items()}
    return [shape(value) for value in content] if isinstance(content, list) else type(content)


def test_grpc_control_calls_are_the_same(pair: Pair) -> None:
    model = service_pb2.ModelMetadataRequest(name="ranker").SerializeToString()
    for method, request in (
        ("ServerLive", b""),
        ("ServerReady", b""),
        ("ServerMetadata", b""),
        ("ModelReady", model),
        ("ModelMetadata", model),
        ("ModelConfig", model),
        ("RepositoryIndex", b""),
        ("RepositoryModelLoad", service_pb2.RepositoryModelLoadRequest(model_name="ranker").SerializeToString()),
    ):
        assert pair.same_call(method, request)[0] is grpc.StatusCode.OK, method
    nobody = service_pb2.ModelMetadataRequest(name="nope").SerializeToString()
    for method in ("ModelMetadata", "ModelConfig", "ModelStatistics"):
        assert pair.same_call(method, nobody)[0] is grpc.StatusCode.NOT_FOUND
    for code, answer in pair.call("ModelStatistics", model):
        assert code is grpc.StatusCode.OK
        assert isinstance(answer, bytes)
        assert service_pb2.ModelStatisticsResponse.FromString(answer).model_stats[0].name == "ranker"


def test_requests_are_counted_by_the_engine(pair: Pair) -> None:
    counted = 'emberline_requests_success_total{arm="main",model="ranker",version="1"}'
    before = pair.apart.process.metrics()[counted]
    for _ in range(5):
        assert pair.apart.ask("POST", INFER, Case(plain(1)).as_json()).status == 200
    assert pair.apart.process.metrics()[counted] == before + 5


def test_a_model_is_unloaded_and_loaded_for_all_front_ends(pair: Pair) -> None:
    request = Case(plain(2)).as_json()
    before = pair.same("POST", INFER, request)
    for _ in range(4):  # Both front ends have received a request for the model then.
        pair.apart.ask("POST", INFER, request)
    assert pair.same("POST", f"{MODEL}/unload", {}).status == 200
    for _ in range(4):
        assert pair.same("POST", INFER, request).status == 503
        assert pair.same("GET", "/v2/models/ranker").status == 503
        assert pair.same("GET", "/v2/health/ready").status == 400
        assert pair.same("GET", "/v2/health/live").status == 200
    assert pair.same_call("ModelInfer", Case(plain(2)).as_message())[0] is grpc.StatusCode.UNAVAILABLE
    assert pair.same("POST", f"{MODEL}/load", {}).status == 200
    until(pair.apart.is_ready)
    for _ in range(4):
        assert pair.same("POST", INFER, request) == before
