"""Callers that send what no client library would."""

from __future__ import annotations

import json
import logging
import resource
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
from tritonclient.grpc import service_pb2

from serving import Server
from trainer import publish

SERVICE = "/inference.GRPCInferenceService"


@pytest.mark.parametrize("method", ["ModelInfer", "ServerLive", "ModelConfig"])
def test_bytes_that_are_no_message_are_invalid_and_not_a_fault_of_ours(
    server: Server, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    with (
        caplog.at_level(logging.WARNING),
        grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel,
        pytest.raises(grpc.RpcError) as refused,
    ):
        channel.unary_unary(f"{SERVICE}/{method}")(b"\xff" * 100, timeout=20)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert not caplog.records


def test_callers_that_give_up_leave_no_traceback(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    request = service_pb2.ModelInferRequest(model_name="ranker")
    with caplog.at_level(logging.WARNING), grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        infer = channel.unary_unary(
            f"{SERVICE}/ModelInfer", request_serializer=service_pb2.ModelInferRequest.SerializeToString
        )
        calls = [infer.future(request, timeout=0.002) for _ in range(300)]
        for call in calls[::3]:
            call.cancel()
        for call in calls:
            call.exception() if not call.cancelled() else None
        alive = channel.unary_unary(f"{SERVICE}/ServerLive", response_deserializer=None)(b"", timeout=20)
    assert service_pb2.ServerLiveResponse.FromString(alive).live
    assert not caplog.records


def ask(url: str, body: Any) -> tuple[int, Any]:
    request = urllib.request.Request(url, json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


class Differences(torch.nn.Module):
    """Model with finite results for ordinary inputs, and inf - inf for very large ones."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = torch.nn.Embedding(10, 1)

    def forward(self, ids: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return self.rows(ids) + (x * x - x * x * 0.5)


def test_a_score_that_is_not_a_number_is_an_error_and_spoils_no_other_request(
    tmp_path: Path, start_server: Callable[..., Server]
) -> None:
    torch.manual_seed(1)
    module = Differences()
    publish(module, {"ids": torch.arange(8) % 10, "x": torch.rand(8, 1)}, tmp_path / "models", name="differences")
    server = start_server(tmp_path / "models", tmp_path / "store")
    try:
        url = f"http://127.0.0.1:{server.http_port}/v1/models/differences:predict"
        code, answer = ask(url, {"instances": [{"ids": 1, "x": 1.0}, {"ids": 1, "x": 1e30}]})
        assert code == 400
        assert answer["error"].startswith("output 'score', row 1: not a finite number")
        code, answer = ask(url, {"instances": [{"ids": 1, "x": 1.0}]})
    finally:
        server.stop()
    assert code == 200
    assert abs(answer["predictions"][0] - (float(module.rows.weight[1].detach()) + 0.5)) <= 1e-6


@pytest.mark.parametrize("shape", [[0, 2**40], [2**40, 0], [0, 2**29], [2**62, 2**62]])
def test_a_shape_with_a_zero_in_it_allocates_nothing(url: str, server: Server, shape: list[int]) -> None:
    history = {"name": "history", "datatype": "INT64", "shape": shape, "data": []}
    lengths = {"name": "history.lengths", "datatype": "INT64", "shape": [0, 1], "data": []}
    user = {"name": "user", "datatype": "INT64", "shape": [0, 1], "data": []}
    resource.setrlimit(resource.RLIMIT_AS, (_address_space() + 2**30, resource.RLIM_INFINITY))
    try:
        code, answer = ask(f"{url}/v2/models/ranker/infer", {"inputs": [user, history, lengths]})
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert code == 400
    assert "history" in answer["error"] or "batch-size" in answer["error"]


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
