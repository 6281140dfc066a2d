"""Fuzzes every call of GRPCInferenceService of a real server.

python -m tests.fuzz.grpc --seconds 600

A third of the inputs are good ModelInfer requests with changes, the rest messages of all calls made by walking their
descriptors, bytes that are no messages, and streams of all of these.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import grpc
from google.protobuf.message_factory import GetMessageClass
from tritonclient.grpc import service_pb2

from tests.fuzz import valid
from tests.fuzz.campaign import Campaign, read_options
from tests.fuzz.messages import mutate_message, random_message
from tests.fuzz.mutations import mutate_bytes
from tests.fuzz.served import ECHO, MODEL, SPARE, Sampler, Served, run_served

_SERVICE = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
_METHODS = {method.name: method for method in _SERVICE.methods}
_UNARY = sorted(name for name, method in _METHODS.items() if not method.client_streaming)
_STREAM = "ModelStreamInfer"
_IN_FLIGHT = 64
_TIMEOUT_S = 20.0
_CHECK_EVERY = 20_000
_NEVER = frozenset({grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS})
# What would take the good model away is left to the tests of those calls.
_CHANGES = frozenset({"RepositoryModelLoad", "RepositoryModelUnload"})


@dataclass(slots=True)
class _Sent:
    """A call that is under way."""

    method: str
    data: bytes
    future: Any
    at: float


class _Calls:
    """Makes calls with bytes as messages.

    Uses several connections, because the server handles one connection in one thread.
    """

    def __init__(self, port: int, channels: int = 4) -> None:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
        self._channels = [grpc.insecure_channel(f"127.0.0.1:{port}", options) for _ in range(channels)]
        self._turn = 0

    def unary(self, method: str, data: bytes, timeout_s: float) -> Any:
        """Begins a unary call."""
        return self._next().unary_unary(f"/{_SERVICE.full_name}/{method}").future(data, timeout=timeout_s)

    def stream(self, parts: list[bytes]) -> Iterator[bytes]:
        """Begins a stream; returns an iterator over its answers."""
        found: Iterator[bytes] = self._next().stream_stream(f"/{_SERVICE.full_name}/{_STREAM}")(
            iter(parts), timeout=_TIMEOUT_S
        )
        return found

    def close(self) -> None:
        """Closes the channels."""
        for channel in self._channels:
            channel.close()

    def _next(self) -> grpc.Channel:
        self._turn += 1
        return self._channels[self._turn % len(self._channels)]


def make_call(rng: Random) -> tuple[str, bytes]:
    """A method and its message."""
    if rng.random() < 0.35:
        return "ModelInfer", infer_data(rng)
    method = rng.choice(_UNARY)
    if rng.random() < 0.1:
        return method, rng.randbytes(rng.randrange(60))
    kind = GetMessageClass(_METHODS[method].input_type)
    message = random_message(rng, kind)
    for field in ("name", "model_name"):
        if field in kind.DESCRIPTOR.fields_by_name and rng.random() < 0.6:
            setattr(message, field, rng.choice((MODEL, ECHO, f"{MODEL}.item", SPARE)))
    if method in _CHANGES:
        message.model_name = rng.choice(("nope", "", "..", f"{SPARE}/../{MODEL}"))
    data = bytes(message.SerializeToString())
    if method not in _CHANGES and rng.random() < 0.1:
        data = mutate_bytes(rng, data)
    return method, data


def infer_data(rng: Random) -> bytes:
    """A ModelInferRequest with some changes."""
    message = valid.proto_request(rng)
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        mutate_message(rng, message)
    data = bytes(message.SerializeToString())
    return mutate_bytes(rng, data) if rng.random() < 0.1 else data


def run(campaign: Campaign, served: Served) -> None:
    """Sends inputs until the campaign is over."""
    calls = _Calls(served.grpc_port)
    waiting: deque[_Sent] = deque()
    checked = 0
    try:
        with Sampler(served):
            while not campaign.is_over():
                rng = campaign.rng()
                if rng.random() < 0.01:
                    _stream(campaign, calls, rng)
                    continue
                method, data = make_call(rng)
                timeout_s = rng.choice((0.0001, 0.002)) if rng.random() < 0.01 else _TIMEOUT_S
                waiting.append(_Sent(method, data, calls.unary(method, data, timeout_s), time.monotonic()))
                campaign.done += 1
                if len(waiting) >= _IN_FLIGHT:
                    _judge(campaign, waiting.popleft())
                if campaign.done - checked >= _CHECK_EVERY:
                    checked = campaign.done
                    campaign.complain(served.troubles())
            while waiting:
                _judge(campaign, waiting.popleft())
        campaign.complain(served.troubles())
    finally:
        calls.close()


def _judge(campaign: Campaign, sent: _Sent) -> None:
    code = sent.future.code()
    campaign.answers[f"{code.name}"] += 1
    if code in _NEVER:
        campaign.find(f"{sent.method}: {code.name}: {sent.future.details()[:1000]}", sent.data, sent.method)
    elif code is grpc.StatusCode.DEADLINE_EXCEEDED and time.monotonic() - sent.at >= _TIMEOUT_S:
        campaign.find(f"{sent.method}: no answer within {_TIMEOUT_S:g} s", sent.data, sent.method)


def _stream(campaign: Campaign, calls: _Calls, rng: Random) -> None:
    """A stream: one answer for each message, then the end."""
    parts = [
        rng.randbytes(rng.randrange(30)) if rng.random() < 0.02 else infer_data(rng)
        for _ in range(rng.randrange(1, 20))
    ]
    answers = 0
    started = time.monotonic()
    try:
        for data in calls.stream(parts):
            answers += 1
            if "internal error" in service_pb2.ModelStreamInferResponse.FromString(data).error_message:
                campaign.find(f"stream: {data[:500]!r}", _packed(parts), _STREAM)
        code = grpc.StatusCode.OK
    except grpc.RpcError as error:
        code = error.code()
        if code in _NEVER or time.monotonic() - started >= _TIMEOUT_S:
            campaign.find(f"stream: {code.name}: {error.details()}", _packed(parts), _STREAM)
    if code is grpc.StatusCode.OK and answers != len(parts):
        campaign.find(f"stream: {answers} answers to {len(parts)} messages", _packed(parts), _STREAM)
    campaign.note(f"stream {code.name}", len(parts))


def _packed(parts: list[bytes]) -> bytes:
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def _unpacked(data: bytes) -> list[bytes]:
    parts = []
    while data:
        size = int.from_bytes(data[:4], "big")
        parts.append(data[4 : 4 + size])
        data = data[4 + size :]
    return parts


def replay(served: Served, method: str, data: bytes) -> list[str]:
    """Sends one saved input, and says what came."""
    calls = _Calls(served.grpc_port, 1)
    try:
        if method == _STREAM:
            answers = [service_pb2.ModelStreamInferResponse.FromString(part) for part in calls.stream(_unpacked(data))]
            return [*map(str, answers), *served.troubles()]
        future = calls.unary(method, data, _TIMEOUT_S)
        return [f"{future.code()}: {future.details()}", *served.troubles()]
    finally:
        calls.close()


def main() -> int:
    """Runs the command line."""
    options = read_options()
    campaign = Campaign("grpc", options.seconds, options.inputs, options.seed)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder, Served(Path(folder)) as served:
        if options.replay is not None:
            print("\n".join(replay(served, options.replay.name.split("-")[1], options.replay.read_bytes())))
            return 0
        run_served(campaign, served, run)
    return campaign.finish()


if __name__ == "__main__":
    sys.exit(main())
