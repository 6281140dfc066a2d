"""Every dtype, order of inputs, choice of outputs, wire form, transport and compression: the same tensors come back."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from serving import Server, ServerConfig
from tests.integration.serving.http_calls import ask, until
from tests.integration.serving.identity_models import (
    BINARY_ONLY,
    CONFIG_TYPES,
    MAX_BATCH,
    WIDTH,
    random_tensor,
    same,
    write_identity,
    write_repository,
)
from tests.support.examples import examples

DTYPES = list(CONFIG_TYPES)


@dataclass
class Transports:
    """A running server and its clients."""

    http: triton_http.InferenceServerClient
    grpc: triton_grpc.InferenceServerClient
    port: int
    repository: Path


@pytest.fixture(scope="module")
def transports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Transports]:
    folder = tmp_path_factory.mktemp("identity")
    repository = write_repository(folder / "repository")
    ports = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}
    config = ServerConfig(model_repository=repository, store=folder / "store", open_admin=True, **ports)
    with (
        Server(config) as running,
        triton_http.InferenceServerClient(f"127.0.0.1:{running.http_port}") as http,
        triton_grpc.InferenceServerClient(f"127.0.0.1:{running.grpc_port}") as grpc,
    ):
        yield Transports(http, grpc, running.http_port, repository)


@dataclass
class Case:
    """One random request: its tensors, their order, the outputs it asks for, and the encodings."""

    seed: int
    batch: int
    order: list[str]
    wanted: list[str]
    as_json: list[str]
    json_outputs: list[str]
    request_encoding: str | None
    response_encoding: str | None

    def tensors(self) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(self.seed)
        text = bool(self.as_json or self.json_outputs)
        return {dtype: random_tensor(dtype, (self.batch, WIDTH), rng, text=text) for dtype in DTYPES}


def cases() -> st.SearchStrategy[Case]:
    in_json = [dtype for dtype in DTYPES if dtype not in BINARY_ONLY]
    encodings = st.sampled_from([None, "gzip", "deflate"])
    return st.builds(
        Case,
        seed=st.integers(0, 2**32 - 1),
        batch=st.sampled_from([0, 1, 2, 7, MAX_BATCH]),
        order=st.permutations(DTYPES),
        wanted=st.lists(st.sampled_from(DTYPES), unique=True),
        as_json=st.lists(st.sampled_from(in_json), unique=True),
        json_outputs=st.lists(st.sampled_from(in_json), unique=True),
        request_encoding=encodings,
        response_encoding=encodings,
    )


@settings(deadline=None, max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=cases())
def test_over_http_everything_comes_back_as_it_was(transports: Transports, case: Case) -> None:
    tensors = case.tensors()
    inputs = []
    for dtype in case.order:
        entry = triton_http.InferInput(f"in_{dtype}", list(tensors[dtype].shape), dtype)
        entry.set_data_from_numpy(tensors[dtype], binary_data=dtype not in case.as_json)
        inputs.append(entry)
    outputs = [
        triton_http.InferRequestedOutput(f"out_{dtype}", binary_data=dtype not in case.json_outputs)
        for dtype in case.wanted
    ]
    answer = transports.http.infer(
        "every",
        inputs,
        outputs=outputs or None,
        request_id=str(case.seed),
        request_compression_algorithm=case.request_encoding,
        response_compression_algorithm=case.response_encoding,
    )
    said = answer.get_response()
    assert said["id"] == str(case.seed)
    assert [entry["name"] for entry in said["outputs"]] == [f"out_{dtype}" for dtype in case.wanted or DTYPES]
    for dtype in case.wanted or DTYPES:
        assert same(answer.as_numpy(f"out_{dtype}"), tensors[dtype]), dtype


@settings(deadline=None, max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=cases(), typed=st.booleans(), streamed=st.booleans())
def test_over_grpc_everything_comes_back_as_it_was(
    transports: Transports, case: Case, typed: bool, streamed: bool
) -> None:
    tensors = case.tensors()
    # Typed contents have no half floats, and all inputs of a request use one form.
    order = [dtype for dtype in case.order if not (typed and dtype in BINARY_ONLY)]
    if typed:
        typed_answer(transports, order, tensors)
        return
    inputs = []
    for dtype in order:
        entry = triton_grpc.InferInput(f"in_{dtype}", list(tensors[dtype].shape), dtype)
        entry.set_data_from_numpy(tensors[dtype])
        inputs.append(entry)
    outputs = [triton_grpc.InferRequestedOutput(f"out_{dtype}") for dtype in case.wanted] or None
    if streamed:
        answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
        transports.grpc.start_stream(lambda result, error: answers.put((result, error)))
        try:
            transports.grpc.async_stream_infer("every", inputs, outputs=outputs, request_id="s")
            answer, error = answers.get(timeout=30)
        finally:
            transports.grpc.stop_stream()
        assert error is None
        assert answer.get_response().parameters["triton_final_response"].bool_param is True
    else:
        answer = transports.grpc.infer(
            "every", inputs, outputs=outputs, request_id="s", compression_algorithm=case.request_encoding
        )
    assert answer.get_response().id == "s"
    for dtype in case.wanted or DTYPES:
        assert same(answer.as_numpy(f"out_{dtype}"), tensors[dtype]), dtype


FIELDS = {
    **dict.fromkeys(["INT8", "INT16", "INT32"], "int_contents"),
    **dict.fromkeys(["UINT8", "UINT16", "UINT32"], "uint_contents"),
    "BOOL": "bool_contents",
    "INT64": "int64_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


def typed_answer(transports: Transports, order: list[str], tensors: dict[str, np.ndarray]) -> None:
    request = service_pb2.ModelInferRequest(model_name="typed")
    for dtype in order:
        entry = request.inputs.add(name=f"in_{dtype}", datatype=dtype, shape=tensors[dtype].shape)
        getattr(entry.contents, FIELDS[dtype]).extend(tensors[dtype].reshape(-1).tolist())
    answer = triton_grpc.InferResult(transports.grpc._client_stub.ModelInfer(request))
    for dtype in order:
        assert same(answer.as_numpy(f"out_{dtype}"), tensors[dtype]), dtype


def statuses(transports: Transports, model: str, inputs: list[dict[str, Any]], **others: Any) -> tuple[int, Any]:
    answer = ask(transports.port, "POST", f"/v2/models/{model}/infer", {"inputs": inputs, **others})
    return answer.status, answer.json


def flat(a: Any = None, b: Any = None) -> list[dict[str, Any]]:
    return [
        a or {"name": "in_A", "shape": [2, 2], "datatype": "INT32", "data": [1, 5, -3, 4]},
        b or {"name": "in_B", "shape": [1], "datatype": "BYTES", "data": ["x"]},
    ]


def test_tensors_without_a_batch_are_of_any_shape(transports: Transports) -> None:
    status, answer = statuses(transports, "flat", flat())
    assert status == 200
    assert [entry["data"] for entry in answer["outputs"]] == [[1, 5, -3, 4], ["x"]]
    assert [entry["shape"] for entry in answer["outputs"]] == [[2, 2], [1]]
    assert "parameters" not in answer or answer["parameters"] == {}
    metadata = ask(transports.port, "GET", "/v2/models/flat").json
    assert [entry["shape"] for entry in metadata["inputs"]] == [[-1, -1], [-1]]
    config = ask(transports.port, "GET", "/v2/models/flat/config").json
    assert (config["backend"], config["max_batch_size"]) == ("identity", 0)


def test_classes_are_the_places_of_the_largest_values(transports: Transports) -> None:
    outputs = [{"name": "out_A", "parameters": {"classification": 2}}]
    status, answer = statuses(transports, "flat", flat(), outputs=outputs)
    assert status == 200
    (output,) = answer["outputs"]
    assert (output["datatype"], output["shape"], output["data"]) == ("BYTES", [2], ["5:1", "4:3"])
    entry = triton_grpc.InferInput("in_A", [2, 2], "INT32")
    entry.set_data_from_numpy(np.array([[1, 5], [-3, 4]], np.int32))
    other = triton_grpc.InferInput("in_B", [1], "BYTES")
    other.set_data_from_numpy(np.array([b"x"], object))
    wanted = [triton_grpc.InferRequestedOutput("out_A", class_count=3)]
    assert transports.grpc.infer("flat", [entry, other], outputs=wanted).as_numpy("out_A").tolist() == [
        b"5:1",
        b"4:3",
        b"1:0",
    ]


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        (flat()[:1], "'in_B' (BYTES) is missing"),
        (flat(a={"name": "in_A", "shape": [4], "datatype": "INT32", "data": [1, 2, 3, 4]}), "expected shape [-1, -1]"),
        (flat(a={"name": "in_A", "shape": [1, 1], "datatype": "INT64", "data": [1]}), "expected datatype INT32"),
        (flat(a={"name": "in_A", "shape": [1, 1], "datatype": "INT32", "data": [2**31]}), "outside INT32"),
        (flat(a={"name": "in_A", "shape": [1, 1], "datatype": "INT32", "data": [None]}), "null is not allowed"),
        (flat(a={"name": "in_X", "shape": [1, 1], "datatype": "INT32", "data": [1]}), "its inputs are 'in_A', 'in_B'"),
    ],
)
def test_what_does_not_fit_is_named(transports: Transports, inputs: list[dict[str, Any]], text: str) -> None:
    status, answer = statuses(transports, "flat", inputs)
    assert status == 400
    assert text in answer["error"]


def test_numbers_that_are_none_travel_in_json_too(transports: Transports) -> None:
    zeros = [{"name": f"in_{d}", "shape": [1, WIDTH], "datatype": d, "data": [0] * WIDTH} for d in FIELDS]
    for entry in zeros:
        if entry["datatype"] == "BYTES":
            entry["data"] = ["a"] * WIDTH
        elif entry["datatype"] == "BOOL":
            entry["data"] = [True] * WIDTH
        elif entry["datatype"] == "FP32":
            entry["data"] = [float("nan"), float("inf"), -1.5]
    status, answer = statuses(transports, "typed", zeros, outputs=[{"name": "out_FP32"}, {"name": "out_BYTES"}])
    assert status == 200
    assert str(answer["outputs"][0]["data"]) == "[nan, inf, -1.5]"
    assert answer["outputs"][1]["data"] == ["a"] * WIDTH


def test_what_json_cannot_carry_is_the_callers_to_ask_for_as_bytes(transports: Transports) -> None:
    tensors = {dtype: random_tensor(dtype, (1, WIDTH), np.random.default_rng(1), text=False) for dtype in DTYPES}
    tensors["BYTES"][0, 0] = b"\xff"
    inputs = []
    for dtype, values in tensors.items():
        entry = triton_http.InferInput(f"in_{dtype}", list(values.shape), dtype)
        entry.set_data_from_numpy(values)
        inputs.append(entry)
    for dtype in ("FP16", "BF16", "BYTES"):
        wanted = [triton_http.InferRequestedOutput(f"out_{dtype}", binary_data=False)]
        with pytest.raises(InferenceServerException, match="ask for binary_data"):
            transports.http.infer("every", inputs, outputs=wanted)


def test_requests_are_counted_as_of_any_model(transports: Transports) -> None:
    def counted() -> tuple[int, int, int]:
        (entry,) = ask(transports.port, "GET", "/v2/models/flat/versions/1/stats").json["model_stats"]
        stats = entry["inference_stats"]
        return entry["inference_count"], stats["queue"]["count"], stats["success"]["count"]

    before = counted()
    assert statuses(transports, "flat", flat())[0] == 200
    assert counted() == tuple(value + 1 for value in before)
    assert "flat" in [e["name"] for e in ask(transports.port, "GET", "/v2/models/stats").json["model_stats"]]


def test_a_model_that_changes_is_asked_as_it_is_now(tmp_path: Path) -> None:
    repository = write_repository(tmp_path / "repository")
    ports = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}
    config = ServerConfig(model_repository=repository, store=tmp_path / "store", open_admin=True, **ports)
    with Server(config) as server, triton_http.InferenceServerClient(f"127.0.0.1:{server.http_port}") as client:
        assert client.is_server_ready()
        client.unload_model("flat")
        assert not client.is_model_ready("flat")
        assert not client.is_server_ready()
        index = {entry["name"]: entry for entry in client.get_model_repository_index()}
        assert (index["flat"]["state"], index["flat"]["reason"]) == ("UNAVAILABLE", "unloaded")
        write_identity(repository, "flat", {"A": ("FP64", [-1])}, max_batch=2)
        client.load_model("flat")
        entry = triton_http.InferInput("in_A", [2, 1], "FP64")
        entry.set_data_from_numpy(np.array([[1.5], [2.5]]))
        assert client.infer("flat", [entry]).as_numpy("out_A").tolist() == [[1.5], [2.5]]
        write_identity(repository, "flat", {"A": ("FP64", [0])})
        with pytest.raises(InferenceServerException, match="dims of 1 or more"):
            client.load_model("flat")
        assert client.infer("flat", [entry]).as_numpy("out_A").shape == (2, 1), "what was served before goes on"
        write_identity(repository, "late", {"A": ("INT32", [1])})
        client.load_model("late")
        assert client.get_model_metadata("late")["inputs"][0]["shape"] == [1]
        answer = ask(server.http_port, "POST", "/v2/repository/models/late/rollback", {})
        assert answer.status == 501
        assert "identity" in answer.json["error"]
        answer = ask(server.http_port, "POST", "/v1/models/late:predict", {"instances": [{"in_A": 1}]})
        assert answer.status == 501


@pytest.mark.parametrize("by", ["load", "look"])
def test_a_model_that_was_seen_before_its_configuration_was_whole_is_served(tmp_path: Path, by: str) -> None:
    repository = write_repository(tmp_path / "repository")
    ports = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}
    config = ServerConfig(model_repository=repository, store=tmp_path / "store", open_admin=True, poll_s=0.2, **ports)
    with Server(config) as server, triton_http.InferenceServerClient(f"127.0.0.1:{server.http_port}") as client:
        (repository / "late").mkdir()
        (repository / "late" / "config.pbtxt").touch()
        deadline = time.monotonic() + 20
        while "late" not in {entry["name"] for entry in client.get_model_repository_index()}:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        with pytest.raises(InferenceServerException, match="late"):
            client.load_model("late")
        write_identity(repository, "late", {"A": ("INT32", [1])})
        if by == "load":
            client.load_model("late")
        while not client.is_model_ready("late"):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert client.get_model_metadata("late")["inputs"][0]["shape"] == [1]


def test_a_new_model_wakes_none_that_was_unloaded(tmp_path: Path) -> None:
    repository = write_repository(tmp_path / "repository")
    ports = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}
    config = ServerConfig(model_repository=repository, store=tmp_path / "store", open_admin=True, poll_s=0.05, **ports)
    with Server(config) as server, triton_http.InferenceServerClient(f"127.0.0.1:{server.http_port}") as client:
        client.unload_model("flat")
        write_identity(repository, "late", {"A": ("INT32", [1])})
        until(lambda: client.is_model_ready("late"))
        assert not client.is_model_ready("flat")
        assert client.is_model_ready("every")


def test_a_dtype_that_there_is_not_keeps_nobody_else_from_being_served(tmp_path: Path) -> None:
    repository = write_repository(tmp_path / "repository")
    write_identity(repository, "odd", {"A": ("INT32", [1])})
    config = repository / "odd" / "config.pbtxt"
    config.write_text(config.read_text().replace("TYPE_INT32", "99"))
    ports = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}
    with Server(ServerConfig(model_repository=repository, store=tmp_path / "store", **ports)) as server:
        index = {entry["name"]: entry for entry in ask(server.http_port, "POST", "/v2/repository/index", {}).json}
        assert index["every"]["state"] == "READY"
        assert index["odd"]["state"] == "UNAVAILABLE"
        assert "data_type: is 99" in index["odd"]["reason"]


def test_a_delay_is_for_tests_of_timeouts(tmp_path: Path) -> None:
    slow = 'parameters { key: "execute_delay_ms" value { string_value: "60000" } }'
    write_identity(tmp_path / "repository", "slow", {"A": ("INT32", [1])}, extra=slow)
    ports = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}
    config = ServerConfig(model_repository=tmp_path / "repository", store=tmp_path / "store", **ports)
    with Server(config) as server, triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        entry = triton_grpc.InferInput("in_A", [1], "INT32")
        entry.set_data_from_numpy(np.zeros(1, np.int32))
        with pytest.raises(InferenceServerException, match="Deadline"):
            client.infer("slow", [entry], client_timeout=0.2)
