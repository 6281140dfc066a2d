"""Tensors in system shared memory by tritonclient's own functions."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
import tritonclient.utils.shared_memory as shm
from pydantic import ValidationError
from tritonclient.utils import InferenceServerException

from serving import Server, ServerConfig
from tests.integration.serving.http_calls import ask
from tests.integration.serving.identity_models import CONFIG_TYPES, WIDTH, random_tensor, same, write_repository

DTYPES = list(CONFIG_TYPES)


class Transports:
    """Both clients of a running server.

    `memory` makes a segment that is removed after the test.
    """

    def __init__(self, running: Any, stack: ExitStack) -> None:
        self.port = running.http_port
        self.http = stack.enter_context(triton_http.InferenceServerClient(f"127.0.0.1:{running.http_port}"))
        self.grpc = stack.enter_context(triton_grpc.InferenceServerClient(f"127.0.0.1:{running.grpc_port}"))
        self._segments: list[Any] = []

    def memory(self, size: int) -> tuple[Any, str]:
        key = f"/emberline-test-{secrets.token_hex(6)}"
        handle = shm.create_shared_memory_region(key, key, size)
        self._segments.append(handle)
        return handle, key

    def clear(self) -> None:
        self.http.unregister_system_shared_memory()
        for handle in self._segments:
            shm.destroy_shared_memory_region(handle)
        self._segments = []


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Transports]:
    folder = tmp_path_factory.mktemp("regions")
    repository = write_repository(folder / "repository")
    with ExitStack() as stack:
        options: dict[str, Any] = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}
        options["shared_memory"] = ("emberline-test-", "other-")
        server = Server(ServerConfig(model_repository=repository, store=folder / "store", **options)).start()
        stack.callback(server.stop)
        yield Transports(server, stack)


@pytest.fixture
def transports(running: Transports) -> Iterator[Transports]:
    yield running
    running.clear()


@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_every_dtype_goes_through_shared_memory_and_back(transports: Transports, transport: str) -> None:
    client, kit = (transports.http, triton_http) if transport == "http" else (transports.grpc, triton_grpc)
    rng = np.random.default_rng(7)
    tensors = {dtype: random_tensor(dtype, (5, WIDTH), rng, text=False) for dtype in DTYPES}
    handle, key = transports.memory(1 << 16)
    client.register_system_shared_memory("all", key, 1 << 16)
    inputs, outputs, places = [], [], {}
    at, out = 0, 32768
    for dtype, values in tensors.items():
        raw = triton_raw(values, dtype)
        shm.set_shared_memory_region(handle, [np.frombuffer(raw, np.uint8)], offset=at)
        entry = kit.InferInput(f"in_{dtype}", list(values.shape), dtype)
        entry.set_shared_memory("all", len(raw), offset=at)
        inputs.append(entry)
        at += len(raw)
        output = kit.InferRequestedOutput(f"out_{dtype}")
        output.set_shared_memory("all", len(raw) + 3, offset=out)
        places[dtype] = out, len(raw)
        outputs.append(output)
        out += len(raw) + 5
    answer = client.infer("every", inputs, outputs=outputs)
    for dtype, (offset, size) in places.items():
        said = answer.get_output(f"out_{dtype}")
        if transport == "grpc":
            assert said.parameters["shared_memory_byte_size"].int64_param == size
            assert said.parameters["shared_memory_offset"].int64_param == offset
        else:
            assert said.keys() == {"name", "datatype", "shape"}
        content = bytes(shm.get_contents_as_numpy(handle, np.uint8, [size], offset=offset))
        assert content == triton_raw(tensors[dtype], dtype), dtype


def triton_raw(values: np.ndarray, dtype: str) -> bytes:
    """Encodes values as a binary tensor, as tritonclient writes it."""
    entry = triton_http.InferInput("x", list(values.shape), dtype)
    entry.set_data_from_numpy(values)
    return bytes(entry._raw_data)


@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_some_tensors_in_memory_and_some_in_the_request(transports: Transports, transport: str) -> None:
    client, kit = (transports.http, triton_http) if transport == "http" else (transports.grpc, triton_grpc)
    numbers = np.arange(6, dtype=np.int32).reshape(2, 3)
    words = np.array([b"a", b"", b"cc"], object)
    handle, key = transports.memory(4096)
    shm.set_shared_memory_region(handle, [numbers])
    client.register_system_shared_memory("mixed", key, 4096)
    inputs = [kit.InferInput("in_B", [3], "BYTES"), kit.InferInput("in_A", [2, 3], "INT32")]
    inputs[0].set_data_from_numpy(words)
    inputs[1].set_shared_memory("mixed", numbers.nbytes)
    outputs = [kit.InferRequestedOutput("out_A"), kit.InferRequestedOutput("out_B")]
    outputs[1].set_shared_memory("mixed", 64, offset=1024)
    answer = client.infer("flat", inputs, outputs=outputs)
    assert same(answer.as_numpy("out_A"), numbers)
    found = shm.get_contents_as_numpy(handle, np.object_, [3], offset=1024)
    assert found.tolist() == words.tolist()


def test_a_name_means_what_it_was_registered_for_last(transports: Transports) -> None:
    for value in range(12):
        handle, key = transports.memory(64)
        shm.set_shared_memory_region(handle, [np.full(4, value, np.int32)])
        transports.http.register_system_shared_memory("again", key, 64)
        for _ in range(3):
            for client, kit in ((transports.http, triton_http), (transports.grpc, triton_grpc)):
                inputs = [kit.InferInput("in_A", [2, 2], "INT32"), kit.InferInput("in_B", [0], "BYTES")]
                inputs[0].set_shared_memory("again", 16)
                inputs[1].set_data_from_numpy(np.empty(0, object))
                answer = client.infer("flat", inputs)
                assert answer.as_numpy("out_A").tolist() == [[value] * 2] * 2
            body = {
                "inputs": [
                    {"name": "in_A", "shape": [4, 1], "datatype": "INT32", "parameters": REGION},
                    {"name": "in_B", "shape": [0], "datatype": "BYTES", "data": []},
                ]
            }
            assert ask(transports.port, "POST", "/v2/models/flat/infer", body).json["outputs"][0]["data"] == [value] * 4
        (transports.grpc if value % 2 else transports.http).unregister_system_shared_memory("again")
        reply = ask(transports.port, "POST", "/v2/models/flat/infer", body)
        assert reply.status == 400
        assert "register it first" in reply.json["error"]


REGION = {"shared_memory_region": "again", "shared_memory_byte_size": 16}


def test_a_segment_without_a_name_any_more_is_still_the_region(transports: Transports) -> None:
    segment = Path("/dev/shm", f"emberline-test-{secrets.token_hex(6)}")
    segment.write_bytes(np.arange(16, dtype=np.int32).tobytes())
    transports.http.register_system_shared_memory("again", segment.name, 64)
    segment.unlink()
    body = {
        "inputs": [
            {"name": "in_A", "shape": [4, 1], "datatype": "INT32", "parameters": REGION},
            {"name": "in_B", "shape": [0], "datatype": "BYTES", "data": []},
        ]
    }
    for _ in range(6):
        assert ask(transports.port, "POST", "/v2/models/flat/infer", body).json["outputs"][0]["data"] == [0, 1, 2, 3]


def test_the_register_is_reported_as_triton_tells_it(transports: Transports) -> None:
    _, key = transports.memory(64)
    transports.http.register_system_shared_memory("one", key, 32, offset=16)
    said = {"name": "one", "key": key, "offset": 16, "byte_size": 32}
    assert transports.http.get_system_shared_memory_status() == [said]
    assert transports.http.get_system_shared_memory_status("one") == [said]
    region = transports.grpc.get_system_shared_memory_status("one").regions["one"]
    assert (region.key, region.offset, region.byte_size) == (key, 16, 32)
    with pytest.raises(InferenceServerException, match="already in manager"):
        transports.grpc.register_system_shared_memory("one", key, 8)
    with pytest.raises(InferenceServerException, match="Unable to find"):
        transports.grpc.get_system_shared_memory_status("two")
    with pytest.raises(InferenceServerException, match="Unable to open"):
        transports.http.register_system_shared_memory("two", "/other-no-such-segment-here", 8)
    with pytest.raises(InferenceServerException, match="the segment"):
        transports.http.register_system_shared_memory("two", key, 65)
    transports.grpc.unregister_system_shared_memory("one")
    transports.grpc.unregister_system_shared_memory("one")
    assert transports.http.get_system_shared_memory_status() == []
    assert transports.http.get_cuda_shared_memory_status() == []
    transports.http.unregister_cuda_shared_memory()
    transports.grpc.unregister_cuda_shared_memory()
    with pytest.raises(InferenceServerException, match="not supported"):
        transports.http.register_cuda_shared_memory("gpu", b"AA==", 0, 8)


def test_memory_that_goes_away_is_the_callers_mistake(transports: Transports) -> None:
    handle, key = transports.memory(64)
    shm.set_shared_memory_region(handle, [np.arange(4, dtype=np.int32)])
    transports.http.register_system_shared_memory("short", key, 64)
    Path("/dev/shm", key.removeprefix("/")).write_bytes(b"")
    inputs = [triton_http.InferInput("in_A", [2, 2], "INT32"), triton_http.InferInput("in_B", [0], "BYTES")]
    inputs[0].set_shared_memory("short", 16)
    inputs[1].set_data_from_numpy(np.empty(0, object))
    with pytest.raises(InferenceServerException, match="smaller"):
        transports.http.infer("flat", inputs)
    inputs[0].set_shared_memory("short", 60)
    with pytest.raises(InferenceServerException):
        transports.http.infer("flat", inputs)
    assert transports.http.is_server_live()


def test_a_server_takes_none_unless_told(tmp_path: Path) -> None:
    repository = write_repository(tmp_path / "repository")
    ports = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}
    config = ServerConfig(model_repository=repository, store=tmp_path / "store", **ports)
    with Server(config) as server:
        reply = ask(server.http_port, "POST", "/v2/systemsharedmemory/region/x/register", {"key": "/x", "byte_size": 1})
    assert reply.status == 501
    assert "--shared-memory" in reply.json["error"]


def test_a_prefix_that_can_begin_no_name_is_refused(tmp_path: Path) -> None:
    for wrong in ("", "/", "a/b", ".x", "*"):
        with pytest.raises(ValidationError, match="begin with"):
            ServerConfig(model_repository=tmp_path, shared_memory=(wrong,))


def test_names_that_begin_otherwise_are_refused(transports: Transports) -> None:
    for client in (transports.http, transports.grpc):
        with pytest.raises(InferenceServerException, match="begin with 'emberline-test-', 'other-'"):
            client.register_system_shared_memory("theirs", "/program-of-others", 8)
    assert transports.grpc.get_system_shared_memory_status(as_json=True) == {}


@pytest.mark.parametrize("sign", ["Forwarded", "X-Forwarded-For", "X-Real-IP", "Via"])
def test_what_a_proxy_passes_on_reaches_no_segment(transports: Transports, sign: str) -> None:
    handle, key = transports.memory(64)
    shm.set_shared_memory_region(handle, [np.arange(4, dtype=np.int32)])
    transports.http.register_system_shared_memory("local", key, 64)
    forwarded = {sign: "10.0.0.7"}
    refused = pytest.raises(InferenceServerException, match="proxy")
    for client, headers in ((transports.http, forwarded), (transports.grpc, {sign.lower(): "10.0.0.7"})):
        with refused:
            client.register_system_shared_memory("remote", key, 64, headers=headers)
        with refused:
            client.get_system_shared_memory_status(headers=headers)
        with refused:
            client.unregister_system_shared_memory(headers=headers)
    for client, kit, headers in (
        (transports.http, triton_http, forwarded),
        (transports.grpc, triton_grpc, {sign.lower(): "x"}),
    ):
        inputs = [kit.InferInput("in_A", [2, 2], "INT32"), kit.InferInput("in_B", [0], "BYTES")]
        inputs[1].set_data_from_numpy(np.empty(0, object))
        inputs[0].set_shared_memory("local", 16)
        with refused:
            client.infer("flat", inputs, headers=headers)
        inputs[0].set_data_from_numpy(np.zeros((2, 2), np.int32))
        output = kit.InferRequestedOutput("out_A")
        output.set_shared_memory("local", 16)
        with refused:
            client.infer("flat", inputs, outputs=[output], headers=headers)
        client.infer("flat", inputs, headers=headers)  # That request names no segment.
    assert [entry["name"] for entry in transports.http.get_system_shared_memory_status()] == ["local"]
    assert shm.get_contents_as_numpy(handle, np.int32, [4]).tolist() == [0, 1, 2, 3]
    stream_refused: list[Any] = []
    transports.grpc.start_stream(lambda result, error: stream_refused.append(error), headers={sign.lower(): "x"})
    inputs = [triton_grpc.InferInput("in_A", [2, 2], "INT32"), triton_grpc.InferInput("in_B", [0], "BYTES")]
    inputs[1].set_data_from_numpy(np.empty(0, object))
    inputs[0].set_shared_memory("local", 16)
    transports.grpc.async_stream_infer("flat", inputs)
    transports.grpc.stop_stream()
    assert "proxy" in str(stream_refused[0])
