"""The native gRPC server: what it answers is what the Python path answers, and what it does not take goes there."""

from __future__ import annotations

import json
import queue
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tritonclient.grpc import service_pb2

from serving.engine.endpoint import Endpoint
from serving.grpc.native_server import HAS_NATIVE_GRPC, NativeGrpcServer
from serving.server import Server
from tests.integration.serving.conftest import Published
from tests.integration.serving.http_calls import until
from tests.integration.serving.native_clients import tensors

pytestmark = pytest.mark.skipif(not HAS_NATIVE_GRPC, reason="native code was built without nghttp2")

INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
# With two of them, a call is never a plain one; without an access file, the Python path does not look at them.
BY_PYTHON = (("authorization", "Bearer none"), ("authorization", "Bearer none"))
FINAL = "triton_enable_empty_final_response"
WIRES = {"int64": "INT64", "float32": "FP32", "int32": "INT32", "float64": "FP64", "uint64": "UINT64"}
# Status, its text, and the message.
Answer = tuple[grpc.StatusCode, str, bytes]


@pytest.fixture
def native(server: Server) -> NativeGrpcServer:
    assert server.native_grpc is not None
    return server.native_grpc


@pytest.fixture
def channel(server: Server) -> Iterator[grpc.Channel]:
    with own_channel(server) as made:
        yield made


def own_channel(server: Server) -> grpc.Channel:
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
    return grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}", options)


def call(
    channel: grpc.Channel, data: bytes, metadata: Sequence[tuple[str, str]] = (), method: str = INFER, **further: Any
) -> Answer:
    further.setdefault("timeout", 30)
    try:
        return grpc.StatusCode.OK, "", channel.unary_unary(method)(data, metadata=metadata, **further)
    except grpc.RpcError as error:
        return error.code(), error.details() or "", b""


def message(values: dict[str, np.ndarray], **beside: Any) -> Any:
    made = service_pb2.ModelInferRequest(model_name="ranker", **beside)
    for name, value in values.items():
        made.inputs.add(name=name, datatype=WIRES[value.dtype.name], shape=value.shape)
        made.raw_input_contents.append(value.tobytes())
    return made


def bytes_of(values: dict[str, np.ndarray], **beside: Any) -> bytes:
    return bytes(message(values, **beside).SerializeToString())


def scores(answer: Answer, rows: int) -> dict[str, np.ndarray]:
    assert answer[0] is grpc.StatusCode.OK, answer
    response = service_pb2.ModelInferResponse.FromString(answer[2])
    found = {}
    for entry, content in zip(response.outputs, response.raw_output_contents, strict=True):
        assert list(entry.shape) == [rows, 1]
        found[entry.name] = np.frombuffer(content, np.float32).reshape(rows, 1)
    return found


def test_a_plain_call_is_answered_without_the_python_path(
    native: NativeGrpcServer, channel: grpc.Channel, published: Published
) -> None:
    plain = [{**row, "history": None, "tags": []} for row in published.random_rows(7, 5)]
    before = native.native.answered, native.native.passed_on
    answer = call(channel, bytes_of(tensors(published, 7, 5)))
    assert (native.native.answered, native.native.passed_on) == (before[0] + 1, before[1])
    expected = published.score(plain)
    for name, values in scores(answer, 7).items():
        np.testing.assert_allclose(values, expected[name], atol=1e-5)


def test_a_token_that_nobody_asked_for_changes_nothing(
    native: NativeGrpcServer, channel: grpc.Channel, published: Published
) -> None:
    data = bytes_of(tensors(published, 3))
    answer, before = call(channel, data), native.native.passed_on
    assert call(channel, data, (("authorization", "Bearer none"),)) == answer
    assert native.native.passed_on == before


def test_a_call_as_the_load_generator_of_triton_makes_it_is_answered_natively(
    native: NativeGrpcServer, channel: grpc.Channel, published: Published
) -> None:
    made = message(tensors(published, 3))
    made.parameters[FINAL].bool_param = True
    before = native.native.answered
    assert call(channel, made.SerializeToString()) == call(channel, made.SerializeToString(), BY_PYTHON)
    assert native.native.answered == before + 1


def test_one_user_with_a_list_is_answered_natively(
    native: NativeGrpcServer, channel: grpc.Channel, published: Published
) -> None:
    values = tensors(published, 9)
    values["user"] = values["user"][:1]
    values["history"] = np.array([published.items[:6]], np.int64)
    before = native.native.answered
    for lengths in ({}, {"history.lengths": np.array([2], np.int64)}, {"history.lengths": np.array([7], np.int64)}):
        data = bytes_of({**values, **lengths})
        assert call(channel, data) == call(channel, data, BY_PYTHON)
    assert native.native.answered == before + 2


def variants(published: Published) -> list[bytes]:
    """Returns plain and less plain forms of the same request."""
    values = tensors(published, 3)
    made = [message(values), message(values, id="call-17"), message(values, model_version="1")]
    made.append(message(dict(reversed(values.items()))))
    made.append(message({**values, "user": values["user"].reshape(3, 1), "item": values["item"].reshape(3)}))
    made.append(message({**values, "item": values["item"].astype(np.int32)}))
    made.append(message({**values, "user": values["user"].astype(np.uint64)}))
    made.append(message({**values, "price": values["price"].astype(np.float64)}))
    for wanted in (["like"], ["like", "score"], ["like", "like"], ["nobody"], [""]):
        each = message(values)
        for name in wanted:
            each.outputs.add(name=name)
        made.append(each)
    each = message(values)
    each.outputs.add(name="like").parameters["classification"].int64_param = 1
    made.append(each)
    for key, value in (("priority", 1), ("timeout", 20_000_000), ("unknown", 1), ("routing_key", 7), ("priority", -1)):
        each = message(values)
        each.parameters[key].int64_param = value
        made.append(each)
    each = message(values)
    each.parameters["priority"].uint64_param = 2
    each.parameters["routing_key"].string_param = "user-1"
    made.append(each)
    for key, text in (("priority", "1"), ("routing_key", ""), ("routing_key", "ü"), ("min_snapshot", "1.0")):
        each = message(values)
        each.parameters[key].string_param = text
        made.append(each)
    for key, flag in (("priority", True), (FINAL, True), (FINAL, False)):
        each = message(values)
        each.parameters[key].bool_param = flag
        made.append(each)
    each = message(values)
    each.parameters[FINAL].string_param = "true"
    made.append(each)
    each = service_pb2.ModelInferRequest(model_name="ranker")
    each.inputs.add(name="user", datatype="INT64", shape=[3]).contents.int64_contents.extend(map(int, values["user"]))
    each.inputs.add(name="item", datatype="INT64", shape=[3]).contents.int64_contents.extend(range(3))
    each.inputs.add(name="price", datatype="FP32", shape=[3, 2]).contents.fp32_contents.extend([0.5] * 6)
    made.append(each)
    each = message(values)
    each.inputs[0].contents.int64_contents.extend([1, 2, 3])
    made.append(each)
    for name in ("", "nobody", "ranker/versions/1", "ränker", "ranker\x00"):
        each = message(values)
        each.model_name = name
        made.append(each)
    made.append(message(values, model_version="17"))
    made.append(message(values, model_version="one"))
    made.append(message(values, id="ü"))
    made.append(message(values, id="x" * 2000))
    made.append(message({name: value for name, value in values.items() if name != "item"}))
    made.append(message({**values, "nobody": values["user"]}))
    made.append(message({**values, "price": values["price"][:2]}))
    made.append(message({**values, "price": np.full((3, 2), np.inf, np.float32)}))
    made.append(message({**values, "price": np.full((3, 2), 3e38, np.float32)}))
    made.append(message({name: value[:0] for name, value in values.items()}))
    made.append(message({name: np.repeat(value, 40, axis=0) for name, value in values.items()}))
    for shape in ([-3], [3, 1, 1], [], [1 << 62]):
        each = message(values)
        del each.inputs[0].shape[:]
        each.inputs[0].shape.extend(shape)
        made.append(each)
    for change in (lambda raw: raw.pop(), lambda raw: raw.append(b""), lambda raw: raw.insert(0, b"12345678" * 3)):
        each = message(values)
        change(each.raw_input_contents)
        made.append(each)
    return [bytes(each.SerializeToString()) for each in made]


def test_every_form_of_a_call_gets_the_answer_of_the_python_path(channel: grpc.Channel, published: Published) -> None:
    for data in variants(published):
        answer = call(channel, data)
        assert answer == call(channel, data, BY_PYTHON), service_pb2.ModelInferRequest.FromString(data)


def test_damaged_calls_get_the_answer_of_the_python_path(channel: grpc.Channel, published: Published) -> None:
    rng = random.Random(11)
    messages = variants(published)[:13]
    for _ in range(400):
        damaged = bytearray(rng.choice(messages))
        for _ in range(rng.randint(1, 3)):
            choice = rng.random()
            place = rng.randrange(len(damaged))
            if choice < 0.6:
                damaged[place] = rng.randrange(256)
            elif choice < 0.8:
                del damaged[place]
            else:
                damaged.insert(place, rng.randrange(256))
        answer, by_python = call(channel, bytes(damaged)), call(channel, bytes(damaged), BY_PYTHON)
        assert answer == by_python, bytes(damaged)


def test_an_unpacked_shape_and_fields_in_any_order_are_read(
    native: NativeGrpcServer, channel: grpc.Channel, published: Published
) -> None:
    values = tensors(published, 1)
    fields = [b"\x0a\x06ranker"]
    for name, value in values.items():
        shape = b"".join(b"\x18" + bytes([size]) for size in value.shape)
        dtype = WIRES[value.dtype.name].encode()
        entry = b"\x12" + bytes([len(dtype)]) + dtype + shape + b"\x0a" + bytes([len(name)]) + name.encode()
        fields.append(b"\x2a" + bytes([len(entry)]) + entry)
        fields.append(b"\x3a" + bytes([value.nbytes]) + value.tobytes())
    before = native.native.answered
    answer = call(channel, b"".join(reversed(fields[1:3])) + b"".join([fields[0], *fields[3:]]))
    assert native.native.answered == before + 1
    assert answer == call(channel, bytes_of(values), BY_PYTHON)


def test_calls_of_many_threads_on_one_connection_get_their_own_answers(server: Server, published: Published) -> None:
    expected = {
        seed: published.score([{**row, "history": None, "tags": []} for row in published.random_rows(3, seed)])
        for seed in range(20)
    }
    with own_channel(server) as channel, ThreadPoolExecutor(16) as pool:

        def ask(index: int) -> None:
            seed = index % 20
            metadata = BY_PYTHON if index % 3 == 0 else ()
            answer = call(channel, bytes_of(tensors(published, 3, seed), id=f"r{index}"), metadata)
            assert service_pb2.ModelInferResponse.FromString(answer[2]).id == f"r{index}"
            for name, values in scores(answer, 3).items():
                np.testing.assert_allclose(values, expected[seed][name], atol=1e-5)

        for done in [pool.submit(ask, index) for index in range(600)]:
            done.result()


def test_a_compressed_call_is_answered_by_the_python_path(
    native: NativeGrpcServer, channel: grpc.Channel, published: Published
) -> None:
    before = native.native.passed_on
    answer = call(channel, bytes_of(tensors(published, 30)), compression=grpc.Compression.Gzip)
    assert native.native.passed_on == before + 1
    assert answer == call(channel, bytes_of(tensors(published, 30)))


def test_a_message_that_is_too_long_is_refused_as_by_the_python_path(
    server: Server, channel: grpc.Channel, published: Published
) -> None:
    data = bytes_of(tensors(published, 1), id="x" * (server.config.max_body_bytes + 1))
    answer = call(channel, data)
    assert answer[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert answer == call(channel, data, BY_PYTHON)


def test_unknown_calls_are_unimplemented(channel: grpc.Channel) -> None:
    for method in ("/inference.GRPCInferenceService/Nothing", "/nobody/ModelInfer", "/", "/ModelInfer"):
        assert call(channel, b"", method=method)[0] is grpc.StatusCode.UNIMPLEMENTED


def test_calls_that_answer_with_a_stream_are_passed_on(channel: grpc.Channel) -> None:
    watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
    watch.cancel()


def stream(channel: grpc.Channel, requests: Iterable[bytes], metadata: Sequence[tuple[str, str]] = ()) -> list[Any]:
    """Returns the answers, and last the status with its text where that is not OK."""
    found: list[Any] = []
    call = channel.stream_stream(STREAM, response_deserializer=service_pb2.ModelStreamInferResponse.FromString)(
        iter(requests), metadata=metadata, timeout=60
    )
    try:
        found.extend(call)
    except grpc.RpcError as error:
        found.append((error.code(), error.details()))
    return found


def test_a_stream_of_requests_is_answered_in_order(
    native: NativeGrpcServer, channel: grpc.Channel, published: Published
) -> None:
    count = 500
    requests = [message(tensors(published, 1 + index % 7, index), id=f"r{index}") for index in range(count)]
    requests[50].inputs[0].name = "nobody"
    for index in range(60, 400, 11):
        requests[index].parameters["unknown"].int64_param = 1
    before = native.native.answered
    found = stream(channel, [each.SerializeToString() for each in requests])
    assert native.native.answered == before + count - 1 - len(range(60, 400, 11))
    assert [each.infer_response.id for each in found] == [f"r{index}" for index in range(count)]
    assert [index for index, each in enumerate(found) if each.error_message] == [50]


def test_every_form_of_a_request_in_a_stream_gets_the_answer_of_the_python_path(
    channel: grpc.Channel, published: Published
) -> None:
    # A class is a text with a rounded score.
    requests = [each for each in variants(published) if b"classification" not in each]
    rng = random.Random(3)
    for _ in range(20):
        chosen = rng.choices(requests, k=rng.randint(1, 100))
        answers, by_python = stream(channel, chosen), stream(channel, chosen, BY_PYTHON)
        assert len(answers) == len(by_python) == len(chosen)
        for answer, other in zip(answers, by_python, strict=True):
            # Batches differ, and with them how scores are rounded.
            for ours, theirs in zip(
                answer.infer_response.raw_output_contents, other.infer_response.raw_output_contents, strict=True
            ):
                np.testing.assert_allclose(np.frombuffer(ours, np.float32), np.frombuffer(theirs, np.float32), 1e-5)
            del answer.infer_response.raw_output_contents[:]
            del other.infer_response.raw_output_contents[:]
            assert answer == other


def test_streams_end_as_those_of_the_python_path(server: Server, channel: grpc.Channel, published: Published) -> None:
    good = bytes_of(tensors(published, 2))
    too_long = bytes_of(tensors(published, 1), id="x" * (server.config.max_body_bytes + 1))
    for requests in ([], [b""], [good, b"\xff", good]):
        assert stream(channel, requests) == stream(channel, requests, BY_PYTHON)
    # The Python path may lose what it has not sent yet.
    *answers, status = stream(channel, [good, too_long, good])
    assert status == stream(channel, [good, too_long, good], BY_PYTHON)[-1]
    assert [each.error_message for each in answers] == [""]


def test_a_stream_whose_caller_waits_for_each_answer_goes_on(channel: grpc.Channel, published: Published) -> None:
    requests: queue.Queue[bytes | None] = queue.Queue()
    answers = channel.stream_stream(STREAM, response_deserializer=service_pb2.ModelStreamInferResponse.FromString)(
        iter(requests.get, None), timeout=60
    )
    for index in range(30):
        requests.put(bytes_of(tensors(published, 2, index), id=f"r{index}"))
        assert next(answers).infer_response.id == f"r{index}"
    requests.put(None)
    assert next(answers, None) is None


@pytest.mark.parametrize("metadata", [(), BY_PYTHON])
def test_a_call_that_waits_past_its_deadline_is_ended(
    server: Server, channel: grpc.Channel, published: Published, metadata: tuple[tuple[str, str], ...]
) -> None:
    model = server.repository.get("ranker")
    assert isinstance(model, Endpoint)
    group = model.group
    statistics = server.repository.get("ranker").statistics
    before = statistics.stages["fail"].count
    for each in group._queues:
        each.native.pause()
    try:
        answer = call(channel, bytes_of(tensors(published, 1)), metadata, timeout=0.2)
        assert answer[0] is grpc.StatusCode.DEADLINE_EXCEEDED
        until(lambda: statistics.stages["fail"].count == before + 1)
        until(lambda: group.queued == 0)
    finally:
        for each in group._queues:
            each.native.resume()


@pytest.mark.parametrize("metadata", [(), BY_PYTHON])
def test_a_caller_that_gives_up_frees_its_place(
    server: Server, channel: grpc.Channel, published: Published, metadata: tuple[tuple[str, str], ...]
) -> None:
    model = server.repository.get("ranker")
    assert isinstance(model, Endpoint)
    group = model.group
    for each in group._queues:
        each.native.pause()
    try:
        calls = [
            channel.unary_unary(INFER).future(bytes_of(tensors(published, 1)), metadata=metadata) for _ in range(20)
        ]
        until(lambda: group.queued == 20)
        for each in calls:
            each.cancel()
        until(lambda: group.queued == 0)
    finally:
        for each in group._queues:
            each.native.resume()


def test_a_client_that_leaves_frees_its_place(native: NativeGrpcServer, server: Server, published: Published) -> None:
    before = native.native.connections
    for metadata in ((), BY_PYTHON):
        with own_channel(server) as channel:
            calls = [
                channel.unary_unary(INFER).future(bytes_of(tensors(published, 1)), metadata=metadata) for _ in range(50)
            ]
            calls[0].result()
    until(lambda: native.native.in_flight == 0 and native.native.connections <= before)


def test_answers_are_counted(server: Server, channel: grpc.Channel, published: Published) -> None:
    statistics = server.repository.get("ranker").statistics
    # What clients that left had asked for may be counted meanwhile.
    before, rows = statistics.stages["success"].count, statistics.inference_count
    for _ in range(50):
        assert call(channel, bytes_of(tensors(published, 12)))[0] is grpc.StatusCode.OK
    until(lambda: statistics.stages["success"].count >= before + 50)
    assert statistics.inference_count >= rows + 50 * 12


def test_the_audit_log_has_the_address_of_a_caller_that_was_passed_on(
    start_server: Callable[..., Server], repository: Path, tmp_path: Path
) -> None:
    log = tmp_path / "audit.jsonl"
    server = start_server(repository, tmp_path / "store", audit_log=log)
    data = service_pb2.RepositoryModelUnloadRequest(model_name="ranker").SerializeToString()
    with own_channel(server) as channel:
        metadata = (("emberline-client", "ipv4:9.9.9.9:9"),)  # clients have no say in it
        call(channel, data, metadata, method="/inference.GRPCInferenceService/RepositoryModelUnload")
    until(log.exists)
    assert {json.loads(line)["address"] for line in log.read_text().splitlines()} == {"127.0.0.1"}


def test_calls_that_were_begun_are_answered_when_the_server_stops(
    start_server: Callable[..., Server], repository: Path, tmp_path: Path, published: Published
) -> None:
    server = start_server(repository, tmp_path / "store")
    model = server.repository.get("ranker")
    assert isinstance(model, Endpoint)
    waiting = model.group._queues[0]
    with own_channel(server) as channel:
        waiting.native.pause()
        calls = [
            channel.unary_unary(INFER).future(bytes_of(tensors(published, 1)), metadata=metadata, timeout=30)
            for metadata in ((), BY_PYTHON) * 5
        ]
        until(lambda: len(waiting) == 10)
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        time.sleep(0.3)  # it has begun to stop
        waiting.native.resume()
        for each in calls:
            assert each.result()
        stopping.join()
