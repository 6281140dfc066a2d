"""Calls that end with an error leave nothing behind that only a garbage collection finds."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
import pytest

from serving._front import Observer
from serving.config import ServerConfig
from serving.grpc.gate import GrpcGate
from serving.grpc.health import HealthCalls
from serving.grpc.server import bind_grpc, grpc_server
from serving.security.gate import Gate
from storage.errors import NotFound
from tests.integration.serving.guarded import write_access

SERVICE = "/inference.GRPCInferenceService/"


class Control:
    async def call(self, method: str, data: bytes) -> bytes:
        raise NotFound("there is none")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "guarded", "code"),
    [
        ("ModelConfig", False, grpc.StatusCode.NOT_FOUND),
        ("ModelConfig", True, grpc.StatusCode.UNAUTHENTICATED),
        ("ModelInfer", True, grpc.StatusCode.UNAUTHENTICATED),
        ("Nothing", True, grpc.StatusCode.UNAUTHENTICATED),
    ],
)
def test_a_call_that_fails_leaves_no_cycle_of_frames(
    tmp_path: Path, method: str, guarded: bool, code: grpc.StatusCode
) -> None:
    access = write_access(tmp_path / "access.yaml") if guarded else None

    async def test() -> None:
        gate = GrpcGate(Gate(ServerConfig(model_repository=tmp_path, access_file=access)))
        models: Any = None
        server = grpc_server(
            models,
            Control(),
            gate,
            HealthCalls(Control()),
            Observer(0, 0),
            max_message_bytes=1 << 20,
            max_connections=8,
        )
        port = bind_grpc(server, "127.0.0.1", 0)
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            ask = channel.unary_unary(SERVICE + method)
            for _ in range(5):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await ask(b"", timeout=10)
                assert caught.value.code() == code
                assert caught.value.details()
            await asyncio.sleep(0.05)
        await server.stop(None)

    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        asyncio.run(test())
        gc.collect()
        found = Counter(type(each).__name__ for each in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert not {"AbortError", "Unauthenticated", "NotFound", "RPCState"} & found.keys(), found
