"""The id by which clients and proxies name a request comes back, natively and by Python, whatever the answer is."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Sequence

import grpc
import pytest
from tritonclient.grpc import service_pb2

from serving import Server
from serving.engine.endpoint import Endpoint
from serving.grpc.native_server import HAS_NATIVE_GRPC
from tests.integration.serving.conftest import Published
from tests.integration.serving.http_calls import ask
from tests.integration.serving.native_clients import BY_PYTHON, LENGTH, PATH, Client, body_of, request_bytes, tensors
from tests.integration.serving.test_native_grpc import BY_PYTHON as CALL_BY_PYTHON
from tests.integration.serving.test_native_grpc import INFER, STREAM, bytes_of, own_channel

ID = "0b3f-77aa/edge=1"
KEY = "x-request-id"
BOTH = pytest.mark.parametrize("by_python", [False, True], ids=["native", "python"])


@pytest.fixture
def channel(server: Server) -> Iterator[grpc.Channel]:
    with own_channel(server) as made:
        yield made


@BOTH
@pytest.mark.parametrize(("own", "told"), [("", ID), ("page-17", "page-17")])
def test_an_id_in_the_head_names_a_request_without_one_of_its_own(
    server: Server, published: Published, by_python: bool, own: str, told: str
) -> None:
    client = Client(server.http_port)
    assert server.native is not None
    before = server.native.native.answered
    beside = {"id": own} if own else {}
    headers = {"X-Request-Id": ID, **(BY_PYTHON if by_python else {})}
    reply = client.post(*body_of(tensors(published, 3), **beside), headers)
    client.connection.close()
    assert reply.status == 200
    assert reply.headers[KEY] == ID
    assert json.loads(reply.content[: int(reply.headers[LENGTH.lower()])])["id"] == told
    assert (server.native.native.answered == before) is by_python


@BOTH
@pytest.mark.parametrize("odd", ['a"b', "a\\b", "a b", "x" * 257, ""])
def test_an_id_that_cannot_be_echoed_as_it_is_counts_as_none(
    server: Server, published: Published, by_python: bool, odd: str
) -> None:
    client = Client(server.http_port)
    headers = {"X-Request-Id": odd, **(BY_PYTHON if by_python else {})}
    reply = client.post(*body_of(tensors(published, 1)), headers)
    client.connection.close()
    assert reply.status == 200
    assert KEY not in reply.headers
    assert b'"id"' not in reply.content


def test_answers_to_wrong_requests_and_to_control_calls_have_it_too(server: Server, published: Published) -> None:
    headers = {"X-Request-Id": ID}
    wrong = ask(server.http_port, "POST", PATH, {"inputs": []}, headers)
    assert (wrong.status, wrong.headers[KEY]) == (400, ID)
    unknown = ask(server.http_port, "POST", "/v2/models/nobody/infer", {"inputs": []}, headers)
    assert (unknown.status, unknown.headers[KEY]) == (404, ID)
    assert ask(server.http_port, "GET", "/v2/models/ranker", None, headers).headers[KEY] == ID
    assert ask(server.http_port, "GET", "/v2/health/live", None, headers).headers[KEY] == ID


@BOTH
def test_a_refusal_by_deadline_has_it(server: Server, published: Published, by_python: bool) -> None:
    body, length = body_of(tensors(published, 1), parameters={"binary_data_output": True, "timeout": 1})
    model = server.repository.get("ranker")
    assert isinstance(model, Endpoint)
    for queue in model.group._queues:
        queue.native.pause()
    try:
        with socket.create_connection(("127.0.0.1", server.http_port), timeout=30) as connection:
            extra = f"X-Request-Id: {ID}\r\n" + ("TE: trailers\r\n" if by_python else "")
            connection.sendall(request_bytes(body, length, headers=extra))
            answer = connection.recv(4096)
    finally:
        for queue in model.group._queues:
            queue.native.resume()
    assert answer.startswith(b"HTTP/1.1 504 ")
    assert f"\r\n{KEY}: {ID}\r\n".encode() in answer


def called(
    channel: grpc.Channel, data: bytes, metadata: Sequence[tuple[str, str]]
) -> tuple[grpc.StatusCode, dict[str, str], bytes]:
    """Returns the status of a call, what its head and its end say, and the message."""
    call = channel.unary_unary(INFER).future(data, metadata=metadata, timeout=30)
    code = call.code()
    said = dict((*call.initial_metadata(), *call.trailing_metadata()))
    return code, said, call.result() if code is grpc.StatusCode.OK else b""


@BOTH
@pytest.mark.parametrize(("own", "told"), [("", ID), ("page-17", "page-17")])
def test_metadata_names_a_call_as_a_header_does(
    server: Server, channel: grpc.Channel, published: Published, by_python: bool, own: str, told: str
) -> None:
    metadata = ((KEY, ID), *(CALL_BY_PYTHON if by_python else ()))
    code, said, content = called(channel, bytes_of(tensors(published, 2), id=own), metadata)
    assert code is grpc.StatusCode.OK
    assert said[KEY] == ID
    assert service_pb2.ModelInferResponse.FromString(content).id == told


@BOTH
def test_a_call_that_fails_ends_with_its_id(server: Server, channel: grpc.Channel, by_python: bool) -> None:
    metadata = ((KEY, ID), *(CALL_BY_PYTHON if by_python else ()))
    code, said, _ = called(channel, service_pb2.ModelInferRequest(model_name="nobody").SerializeToString(), metadata)
    assert code is grpc.StatusCode.NOT_FOUND
    assert said[KEY] == ID


@BOTH
def test_a_stream_has_the_id_of_its_head_and_its_requests_keep_theirs(
    server: Server, channel: grpc.Channel, published: Published, by_python: bool
) -> None:
    metadata = ((KEY, ID), *(CALL_BY_PYTHON if by_python else ()))
    sent = [bytes_of(tensors(published, 1), id=own) for own in ("a", "")]
    call = channel.stream_stream(STREAM)(iter(sent), metadata=metadata, timeout=30)
    answers = [service_pb2.ModelStreamInferResponse.FromString(each).infer_response.id for each in call]
    assert answers == ["a", ""]
    assert dict(call.initial_metadata())[KEY] == ID


@pytest.mark.skipif(not HAS_NATIVE_GRPC, reason="native code was built without nghttp2")
def test_of_two_different_ids_none_counts(server: Server, channel: grpc.Channel, published: Published) -> None:
    for by_python in ((), CALL_BY_PYTHON):
        code, said, content = called(channel, bytes_of(tensors(published, 1)), ((KEY, "a"), (KEY, "b"), *by_python))
        assert code is grpc.StatusCode.OK
        assert KEY not in said
        assert service_pb2.ModelInferResponse.FromString(content).id == ""
