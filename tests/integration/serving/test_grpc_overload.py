"""Many gRPC calls at once: each is answered, or refused with RESOURCE_EXHAUSTED; none ends without a reason."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import grpc
import grpc.aio
import pytest
from tritonclient.grpc import service_pb2

from serving.server import Server

_LIVE = "/inference.GRPCInferenceService/ServerLive"
_WATCH = "/grpc.health.v1.Health/Watch"


async def _status(call: grpc.aio.UnaryUnaryMultiCallable) -> str:
    try:
        await call(service_pb2.ServerLiveRequest().SerializeToString(), timeout=60)
    except grpc.aio.AioRpcError as error:
        return str(error.code().name)
    return "OK"


async def _burst(port: int, calls: int, connections: int) -> Counter[str]:
    """Makes `calls` calls at once over several connections; counts them by the status with which each ended."""
    channels = [
        grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.use_local_subchannel_pool", 1)])
        for _ in range(connections)
    ]
    try:
        for channel in channels:
            await channel.channel_ready()
        asks = [channel.unary_unary(_LIVE) for channel in channels]
        return Counter(await asyncio.gather(*(_status(asks[each % connections]) for each in range(calls))))
    finally:
        for channel in channels:
            await channel.close()


@pytest.mark.slow
def test_thousands_of_calls_at_once_are_answered(server: Server) -> None:
    ended = asyncio.run(_burst(server.grpc_port, 8000, 16))
    assert ended == {"OK": 8000}


@pytest.mark.slow
def test_calls_that_are_reset_make_no_others_fail(server: Server) -> None:
    async def storm() -> Counter[str]:
        async with grpc.aio.insecure_channel(
            f"127.0.0.1:{server.grpc_port}", options=[("grpc.use_local_subchannel_pool", 1)]
        ) as channel:
            call = channel.unary_unary(_LIVE)

            async def reset() -> None:
                for _ in range(10):
                    begun = [call(b"") for _ in range(500)]
                    await asyncio.sleep(0.002)
                    for each in begun:
                        each.cancel()

            _, ended = await asyncio.gather(reset(), _burst(server.grpc_port, 2000, 4))
            return ended

    assert asyncio.run(storm()) == {"OK": 2000}


def test_what_is_too_much_is_refused_with_a_reason(
    start_server: Callable[..., Server], repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serving.grpc.server._MAX_CONCURRENT_CALLS", 4)
    server = start_server(repository, tmp_path / "store")

    async def crowd() -> tuple[Counter[str], Counter[str]]:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
            await channel.channel_ready()
            watches = [channel.unary_stream(_WATCH)(b"") for _ in range(4)]  # they are Python's
            for each in watches:
                await each.read()
            for _ in range(100):
                refused = await _burst(server.grpc_port, 20, 2)
                if "OK" not in refused:
                    break
            for each in watches:
                each.cancel()
            await asyncio.sleep(0.2)
        return refused, await _burst(server.grpc_port, 20, 2)

    try:
        refused, afterwards = asyncio.run(crowd())
    finally:
        server.stop()
    assert refused == {"RESOURCE_EXHAUSTED": 20}
    assert afterwards["OK"] > 0
