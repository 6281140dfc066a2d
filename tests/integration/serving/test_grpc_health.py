"""grpc.health.v1 and reflection, asked by gRPC's own clients: open also where an access file guards the rest."""

from __future__ import annotations

import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from tritonclient.grpc import service_pb2

from serving import Server
from serving.grpc import health as health_module
from tests.integration.serving.guarded import Process, serve, write_access

SERVICE = "inference.GRPCInferenceService"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture(scope="module")
def guarded(version_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    place = tmp_path_factory.mktemp("health")
    shutil.copytree(version_dir, place / "models" / "ranker" / "1")
    access = write_access(place / "access.yaml")
    with serve(place / "models", place, "--access-file", str(access)) as process:
        yield process


@pytest.fixture
def channel(guarded: Process) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(guarded.grpc) as made:
        yield made


def asked(channel: grpc.Channel, service: str) -> int:
    request = health_pb2.HealthCheckRequest(service=service)
    return int(health_pb2_grpc.HealthStub(channel).Check(request, timeout=10).status)


@pytest.mark.slow
@pytest.mark.parametrize("service", ["", SERVICE])
def test_a_probe_without_a_token_is_answered(channel: grpc.Channel, service: str) -> None:
    assert asked(channel, service) == SERVING


def test_an_unknown_service_is_not_found(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        asked(channel, "ranker")
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND
    watched = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service="ranker"), timeout=10)
    assert next(watched).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    watched.cancel()


def test_reflection_shows_the_protocol(channel: grpc.Channel) -> None:
    database = ProtoReflectionDescriptorDatabase(channel)
    assert {SERVICE, "grpc.health.v1.Health"} <= set(database.get_services())
    method = DescriptorPool(database).FindServiceByName(SERVICE).methods_by_name["ModelInfer"]
    known = service_pb2.ModelInferRequest.DESCRIPTOR.fields_by_name
    assert method.input_type.fields_by_name.keys() == known.keys()


@pytest.mark.slow
def test_who_watches_is_notified_of_the_end_and_delays_it_not(version_dir: Path, tmp_path: Path) -> None:
    shutil.copytree(version_dir, tmp_path / "models" / "ranker" / "1")
    said: list[int] = []
    with serve(tmp_path / "models", tmp_path) as process, grpc.insecure_channel(process.grpc) as channel:
        watched = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=60)
        said.append(next(watched).status)
        reader = threading.Thread(target=lambda: said.extend(each.status for each in watched))
        reader.start()
        began = time.monotonic()
        process.process.send_signal(signal.SIGTERM)
        process.process.wait(30)
        took = time.monotonic() - began
        reader.join(10)
    assert said == [SERVING, NOT_SERVING]
    assert took < 8  # of ten that calls in flight have


@pytest.mark.slow
def test_calls_that_last_are_bounded_and_a_check_is_answered_beside_them(
    version_dir: Path, tmp_path: Path, start_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_module, "MAX_LASTING_CALLS", 2)
    request = health_pb2.HealthCheckRequest()
    with (
        start_server(version_dir.parent.parent, tmp_path / "store") as server,
        grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel,
    ):
        watching = [health_pb2_grpc.HealthStub(channel).Watch(request, timeout=60) for _ in range(2)]
        assert [next(each).status for each in watching] == [SERVING] * 2
        with pytest.raises(grpc.RpcError) as caught:
            next(health_pb2_grpc.HealthStub(channel).Watch(request, timeout=60))
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        with pytest.raises(grpc.RpcError):
            ProtoReflectionDescriptorDatabase(channel).get_services()
        assert asked(channel, "") == SERVING
        for each in watching:
            each.cancel()
