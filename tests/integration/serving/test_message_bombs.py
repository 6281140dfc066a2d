"""gRPC messages of millions of tiny messages are refused before protobuf reads them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from serving.grpc.message_bounds import MAX_FIELDS, MAX_TYPED_BYTES
from serving.server import Server
from tests.integration.serving.identity_models import write_identity

SERVICE = "/inference.GRPCInferenceService/"
VARINT_KIND, BYTES_KIND = 0, 2


def framed(number: int, content: bytes) -> bytes:
    """Encodes a field with its length before it."""
    size, length = len(content), b""
    while size > 127:
        length += bytes([size & 127 | 128])
        size >>= 7
    return bytes([number << 3 | BYTES_KIND]) + length + bytes([size]) + content


BOMBS = {
    "inputs": framed(5, b"") * (16 << 20),
    "outputs": framed(6, b"") * (1 << 20),
    "parameters": framed(4, b"") * (1 << 20),
    "parameters of an input": framed(5, framed(4, b"") * (1 << 20)),
    "parameters of an output": framed(6, framed(2, b"") * (1 << 20)),
    "strings": framed(5, framed(5, framed(8, b"") * (1 << 20))),
    "numbers": framed(5, framed(5, framed(3, b"\1" * (8 << 20)))),
    "shape": framed(5, bytes([3 << 3 | VARINT_KIND, 1]) * (1 << 20)),
}


@pytest.fixture(scope="module")
def channel(
    version_dir: Path, tmp_path_factory: pytest.TempPathFactory, start_server: Callable[..., Server]
) -> Iterator[grpc.Channel]:
    place = tmp_path_factory.mktemp("message-bombs")
    shutil.copytree(version_dir.parent, place / "models" / "ranker")
    write_identity(place / "models", "words", {"A": ("BYTES", [-1]), "B": ("INT64", [-1])})
    server = start_server(place / "models", place / "store")
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}", [("grpc.max_receive_message_length", -1)]) as made:
        yield made
    server.stop()


@pytest.mark.parametrize("name", BOMBS)
def test_an_inference_request_is_refused(channel: grpc.Channel, name: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(SERVICE + "ModelInfer")(BOMBS[name], timeout=30)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "at most" in caught.value.details()


def test_a_request_of_a_stream_is_refused_and_the_stream_goes_on(channel: grpc.Channel) -> None:
    answers = channel.stream_stream(SERVICE + "ModelStreamInfer")(iter([BOMBS["strings"], b""]), timeout=30)
    first, second = [service_pb2.ModelStreamInferResponse.FromString(each) for each in answers]
    assert "at most" in first.error_message
    assert "at most" not in second.error_message


def test_other_calls_are_bounded_too(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(SERVICE + "RepositoryModelLoad")(framed(3, b"") * (1 << 20), timeout=30)
    assert "at most" in caught.value.details()


def test_large_requests_within_the_bounds_are_answered(channel: grpc.Channel) -> None:
    words, numbers = [b"word"] * (MAX_FIELDS // 2), list(range(MAX_TYPED_BYTES // 16))
    request = service_pb2.ModelInferRequest(model_name="words")
    text = request.inputs.add(name="in_A", datatype="BYTES", shape=[len(words)])
    text.contents.bytes_contents.extend(words)
    more = request.inputs.add(name="in_B", datatype="INT64", shape=[len(numbers)])
    more.contents.int64_contents.extend(numbers)
    answer = service_pb2.ModelInferResponse.FromString(
        channel.unary_unary(SERVICE + "ModelInfer")(request.SerializeToString(), timeout=30)
    )
    assert np.frombuffer(answer.raw_output_contents[1], np.int64).tolist() == numbers
    del request.inputs[:]
    raw = np.arange(4 << 20, dtype=np.int64)
    request.inputs.add(name="in_B", datatype="INT64", shape=[raw.size])
    request.outputs.add(name="out_B")
    request.inputs.add(name="in_A", datatype="BYTES", shape=[0])
    request.raw_input_contents.extend([raw.tobytes(), b""])
    answer = service_pb2.ModelInferResponse.FromString(
        channel.unary_unary(SERVICE + "ModelInfer")(request.SerializeToString(), timeout=30)
    )
    assert answer.raw_output_contents[0] == raw.tobytes()
