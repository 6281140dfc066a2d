"""Runs the engine's process: models, sessions and metrics; front ends connect through a socket of this machine."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time

from serving.event_loop import run_on_loop
from serving.frontends.calls import EngineCalls
from serving.frontends.child import Orders, say_ready, stop_event
from serving.frontends.frontend_connection import FrontendConnection
from serving.gpu.gpus import find_gpus
from serving.grpc.control import LocalGrpcControl
from serving.http.control import LocalHttpControl
from serving.http.gate import GatedApp
from serving.http.limits import HttpLimits
from serving.http.metrics_app import MetricsApp
from serving.http.server import http_server
from serving.interpreter import freeze_heap, share_gil, thaw_heap
from serving.local_health import local_health
from serving.ports import allow_connections
from serving.repository.first_load import FirstLoad
from serving.repository.model_repository import ModelRepository
from serving.security.gate import Gate
from serving.security.tls import server_tls

logger = logging.getLogger("emberline.serving")


def run_engine(orders: Orders) -> None:
    """Runs until it is asked to stop and its front ends have gone. Raises NotFound, ConfigError."""
    share_gil()
    engine = _Engine(orders)
    try:
        run_on_loop(engine.run())
    finally:
        thaw_heap()
    if engine.loading.is_alive():
        # A load cannot be interrupted; its store recovers as it does from any crash.
        logging.shutdown()
        os._exit(0)


class _Engine:
    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._repository = ModelRepository(orders.config, gpus=find_gpus())
        self.loading = FirstLoad(self._repository, freeze_heap)
        self._connections: set[FrontendConnection] = set()

    async def run(self) -> None:
        orders, config = self._orders, self._orders.config
        loop = asyncio.get_running_loop()
        stopping = stop_event(orders)
        calls = EngineCalls(
            self._repository,
            LocalHttpControl(self._repository),
            LocalGrpcControl(self._repository),
        )
        allow_connections(config.max_connections)
        page = GatedApp(MetricsApp(self._repository), Gate(config, orders.own_digest))
        metrics = http_server(page, HttpLimits(config), config.drain_timeout_s, server_tls(config))
        with socket.socket(fileno=orders.listener) as listener, socket.socket(fileno=orders.metrics) as bound:
            listener.setblocking(False)
            loop.add_reader(listener.fileno(), self._accept, listener, calls)
            serving = asyncio.create_task(metrics.serve(sockets=[bound]))
            self.loading.start()
            say_ready(orders)
            async with local_health(orders.http_port, self._repository.is_ready):
                await stopping.wait()
            deadline = time.monotonic() + config.drain_timeout_s
            self._repository.stop_loading()
            # Front ends drain now; the requests that they still hold are answered.
            while self._connections and time.monotonic() < deadline:
                await asyncio.sleep(0.01)
            loop.remove_reader(listener.fileno())
            metrics.should_exit = True
            await serving
        left = max(0.5, deadline - time.monotonic())
        await loop.run_in_executor(None, self.loading.close, left)
        for connection in list(self._connections):
            connection.close()

    def _accept(self, listener: socket.socket, calls: EngineCalls) -> None:
        try:
            end, _ = listener.accept()
        except OSError:
            return
        self._connections.add(FrontendConnection(end, self._repository, calls, self._connections.discard))
