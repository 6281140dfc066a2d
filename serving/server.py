"""The server: its ports, its front ends on one event loop, its models; from start to drained stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import uvicorn

from serving.config import ServerConfig
from serving.engine.repository import ModelRepository
from serving.grpc.control import LocalGrpcControl
from serving.grpc.server import grpc_server
from serving.http.app import HttpApp
from serving.http.body import BodyReader
from serving.http.control import control_app
from serving.http.metrics import MetricsApp
from serving.http.slow_requests import SlowRequests
from serving.interpreter import freeze_heap, share_gil, thaw_heap
from serving.models import LocalModels
from serving.ports import BACKLOG, listen, port_message
from serving.protocol.metadata import server_version
from serving.updates.steps import OnStep
from storage.errors import ConfigError

logger = logging.getLogger("emberline.serving")

try:
    import uvloop
except ImportError:  # a platform without it; asyncio's own loop does the same, slower
    uvloop = None

_KEEP_ALIVE_S = 75
MAX_CONCURRENT_CALLS = 4096


class _HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers; ours stop all front ends together."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Server:
    """One server. `start` and `stop` run it on a thread of its own; `serve` runs it in the foreground."""

    def __init__(
        self, config: ServerConfig, on_step: OnStep | None = None, *, on_loaded: Callable[[], None] | None = None
    ) -> None:
        """Finds the models; raises NotFound when the repository is not there.

        on_step: called with (model, step) after every step of an update; `serving.updates.steps` lists them.
        on_loaded: called on a thread of the server's when the models that were there at the start are loaded.
        """
        self.config = config
        self.repository = ModelRepository(config, on_step)
        self._on_loaded = on_loaded
        self.http_port = 0
        self.grpc_port = 0
        self.metrics_port = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._thread: threading.Thread | None = None
        self._loader: threading.Thread | None = None

    def start(self, *, wait: bool = True) -> Server:
        """Starts listening and loading. wait: until every model is loaded or failed. Raises ConfigError."""
        listening = threading.Event()
        failure: list[BaseException] = []

        def run() -> None:
            try:
                run_on_loop(self.run(listening.set))
            except BaseException as error:
                failure.append(error)
            finally:
                listening.set()

        self._thread = threading.Thread(target=run, name="emberline-server", daemon=True)
        self._thread.start()
        listening.wait()
        if failure:
            self._thread.join()
            raise failure[0]
        if wait and self._loader is not None:
            self._loader.join()
        return self

    def stop(self) -> None:
        """Drains and stops; returns when everything is closed."""
        if self._loop is not None and self._stopping is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended already
                self._loop.call_soon_threadsafe(self._stopping.set)
        if self._thread is not None:
            self._thread.join()

    def request_stop(self) -> None:
        """Begins to stop; for signal handlers on the server's own loop."""
        if self._stopping is not None:
            self._stopping.set()

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def run(self, listening: Callable[[], None]) -> None:
        """Runs until asked to stop. listening: called when the ports answer."""
        config = self.config
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        with contextlib.ExitStack() as sockets:
            http_socket = sockets.enter_context(listen(config.host, config.http_port, "http_port"))
            metrics_socket = sockets.enter_context(listen(config.host, config.metrics_port, "metrics_port"))
            models = LocalModels(self.repository)
            grpc = grpc_server(
                models,
                LocalGrpcControl(self.repository),
                max_message_bytes=config.max_body_bytes,
                max_concurrent=MAX_CONCURRENT_CALLS,
            )
            self.grpc_port = _add_grpc_port(grpc, config)
            self.http_port = http_socket.getsockname()[1]
            self.metrics_port = metrics_socket.getsockname()[1]
            bodies = BodyReader(config, SlowRequests())
            http = _http_server(HttpApp(models, control_app(self.repository, bodies), bodies), config)
            metrics = _http_server(MetricsApp(self.repository), config)
            await grpc.start()
            tasks = [
                asyncio.create_task(server.serve(sockets=[bound]))
                for server, bound in ((http, http_socket), (metrics, metrics_socket))
            ]
            while not (http.started and metrics.started):
                await asyncio.sleep(0)
                for task in tasks:
                    if task.done():
                        task.result()
            self._loader = threading.Thread(target=self._load, name="emberline-loader", daemon=True)
            self._loader.start()
            self._say_hello()
            listening()
            await self._stopping.wait()
            logger.info("stopping: in-flight requests have %g s", config.drain_timeout_s)
            deadline = time.monotonic() + config.drain_timeout_s
            self.repository.stop_loading()
            http.should_exit = metrics.should_exit = True
            await asyncio.gather(grpc.stop(config.drain_timeout_s), *tasks)
        left = max(0.5, deadline - time.monotonic())
        await asyncio.get_running_loop().run_in_executor(None, self._close, left)

    def is_loading(self) -> bool:
        """Whether the loader is still at work."""
        return self._loader is not None and self._loader.is_alive()

    def _load(self) -> None:
        try:
            self.repository.load_all()
        except BaseException:
            logger.exception("loading models failed")
            return
        states = [entry.state for entry in self.repository.index()]
        ready = states.count("READY")
        logger.info("%d of %d model versions ready", ready, len(states))
        if self._on_loaded is not None:
            self._on_loaded()

    def _close(self, timeout_s: float) -> None:
        if self._loader is not None:
            self._loader.join(timeout_s)
        if not self.is_loading():
            self.repository.close(timeout_s)
        logger.info("stopped")

    def _say_hello(self) -> None:
        config, host = self.config, f"[{self.config.host}]" if ":" in self.config.host else self.config.host
        names = self.repository.names
        logger.info(
            "Emberline %s serves %d model(s) of %s\n  HTTP     http://%s:%d\n  gRPC     %s:%d\n  metrics  http://%s:%d/metrics"
            "\n  store    %s\n  models   %s",
            server_version(),
            len(names),
            config.model_repository,
            *(host, self.http_port, host, self.grpc_port, host, self.metrics_port),
            config.store_dir,
            ", ".join(names) or "none yet: publish one into the repository",
        )


def serve(config: ServerConfig) -> None:
    """Runs a server in the foreground until SIGINT or SIGTERM, then drains. A second signal ends it at once.

    Raises NotFound when the repository is not there, ConfigError when a port is taken.
    """
    share_gil()
    server = Server(config, on_loaded=freeze_heap)
    signals = 0

    def stop() -> None:
        nonlocal signals
        signals += 1
        if signals > 1:
            os._exit(1)
        server.request_stop()

    async def run() -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop)
        await server.run(lambda: None)

    try:
        run_on_loop(run())
    finally:
        thaw_heap()
    if server.is_loading():
        # A load cannot be interrupted; its store recovers as it does from any crash.
        logging.shutdown()
        os._exit(0)


def run_on_loop(work: Coroutine[Any, Any, None]) -> None:
    """Runs a coroutine on a new event loop, uvloop where there is one."""
    with asyncio.Runner(loop_factory=None if uvloop is None else uvloop.new_event_loop) as runner:
        runner.run(work)


def _http_server(app: Any, config: ServerConfig) -> _HttpServer:
    settings = uvicorn.Config(
        app,
        http="httptools",
        loop="none",
        ws="none",
        interface="asgi3",
        lifespan="off",
        access_log=False,
        log_config=None,
        log_level="warning",
        server_header=False,
        date_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=max(1, round(config.drain_timeout_s)),
    )
    return _HttpServer(settings)


def _add_grpc_port(server: Any, config: ServerConfig) -> int:
    host = f"[{config.host}]" if ":" in config.host else config.host
    # gRPC's own message says little, so the port is tried here first.
    with listen(config.host, config.grpc_port, "grpc_port"):
        pass
    try:
        return int(server.add_insecure_port(f"{host}:{config.grpc_port}"))
    except RuntimeError:
        raise ConfigError(port_message(config.host, config.grpc_port, "grpc_port", None), field="grpc_port") from None
