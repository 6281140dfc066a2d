"""Runs a front end's process: HTTP and gRPC on one event loop, and a connection to the engine."""

from __future__ import annotations

import asyncio
import logging
import socket
import time

from serving.event_loop import run_on_loop
from serving.frontends.child import Orders, say_ready, stop_event
from serving.frontends.engine_connection import EngineConnection
from serving.frontends.remote import RemoteGrpcControl, RemoteHttpControl, RemoteModels
from serving.grpc.gate import GrpcGate
from serving.grpc.health import HealthCalls
from serving.grpc.server import bind_grpc, grpc_server
from serving.http.app import HttpApp
from serving.http.limits import HttpLimits
from serving.http.server import http_server
from serving.interpreter import freeze_heap, share_gil
from serving.ports import allow_connections
from serving.security.gate import Gate
from serving.security.tls import server_tls

logger = logging.getLogger("emberline.serving")

_ENGINE_WAIT_S = 1.0
_FIRST_REQUEST_S = 0.25


def run_worker(orders: Orders) -> None:
    """Runs until it is asked to stop, then drains."""
    share_gil()
    run_on_loop(_run(orders))


async def _run(orders: Orders) -> None:
    config = orders.config
    stopping = stop_event(orders)
    allow_connections(config.max_connections)
    gate, tls = Gate(config, orders.own_digest, processes=config.frontends), server_tls(config)
    # Bytes of one front end's requests that are in flight at once, their answers included.
    wanted = max(config.max_inflight_bytes, 2 * config.max_body_bytes)
    link = EngineConnection(orders.engine_path, 1 << (wanted - 1).bit_length(), lambda: models.forget_all())
    models = RemoteModels(link, config.max_body_bytes, config.max_inflight_bytes)
    app = HttpApp(models, RemoteHttpControl(link), gate)
    control = RemoteGrpcControl(link)
    health = HealthCalls(control)
    grpc = grpc_server(
        models,
        control,
        GrpcGate(gate),
        health,
        max_message_bytes=config.max_body_bytes,
        max_connections=config.max_connections,
        share_port=True,
    )
    link.start()
    # A front end that joins others refuses nothing while it finds the engine; the first ones start before it.
    await link.wait_until_up(_ENGINE_WAIT_S)
    bind_grpc(grpc, config.host, orders.grpc_port, tls, check=False)
    http = http_server(app, HttpLimits(config), config.drain_timeout_s, tls)
    await grpc.start()
    with socket.socket(fileno=orders.http) as bound:
        serving = asyncio.create_task(http.serve(sockets=[bound]))
        looking = asyncio.create_task(models.regions.keep_current())
        while not http.started and not serving.done():
            await asyncio.sleep(0.001)
        freeze_heap()
        say_ready(orders)
        await stopping.wait()
        deadline = time.monotonic() + config.drain_timeout_s
        for listening in http.servers:
            listening.close()
        # A connection that was accepted just now has yet to send its request; one without a request is closed next.
        await asyncio.sleep(min(_FIRST_REQUEST_S, config.drain_timeout_s))
        http.should_exit = True
        health.stop()
        await asyncio.gather(grpc.stop(config.drain_timeout_s), serving)
    looking.cancel()
    while link.in_flight and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
    link.close()
