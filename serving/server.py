"""Runs a server from start to drained stop: its ports, its models, and its transports on one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable

from serving.config import ServerConfig
from serving.console.app import ConsoleApp
from serving.console.feed import Feed
from serving.console.state import Look
from serving.control.models import LocalModels
from serving.event_loop import run_on_loop
from serving.gpu.driver import Gpus
from serving.grpc.control import LocalGrpcControl
from serving.grpc.gate import GrpcGate
from serving.grpc.health import HealthCalls
from serving.grpc.native_server import HAS_NATIVE_GRPC, NativeGrpcServer, Upstream
from serving.grpc.server import bind_grpc, grpc_server
from serving.http.app import HttpApp
from serving.http.control import LocalHttpControl
from serving.http.event_stream import StreamingConnection
from serving.http.gate import GatedApp
from serving.http.limits import HttpLimits
from serving.http.metrics_app import MetricsApp
from serving.http.native_server import AdoptedConnection, NativeHttpServer
from serving.http.port_connections import PortConnections
from serving.http.protocol import HttpProtocol
from serving.http.server import http_server
from serving.local_health import local_health
from serving.native_path.routes import NativeRoutes
from serving.ports import Ports, allow_connections, open_ports
from serving.repository.first_load import FirstLoad, say_hello
from serving.repository.model_repository import ModelRepository
from serving.security.gate import Gate
from serving.security.own_token import own_token
from serving.security.tls import server_tls
from serving.updates.steps import OnStep

logger = logging.getLogger("emberline.serving")

_LOAD_AGAIN_S, _LOAD_LOOK_S = 10.0, 0.02
# Enough for balancers that ask every second and leave a server out after its third answer.
DRAIN_DELAY_S = 5.0


class Server:
    """One server. `start` and `stop` run it on a thread of its own; `serve` runs it in the foreground."""

    def __init__(
        self,
        config: ServerConfig,
        on_step: OnStep | None = None,
        *,
        on_loaded: Callable[[], None] | None = None,
        gpus: Gpus | None = None,
        ports: Ports | None = None,
        restarts: int = 0,
        began: float | None = None,
    ) -> None:
        """Finds the models; raises NotFound when the repository is not there.

        on_step: called with (model, step) after every step of an update; `serving.updates.steps` lists them. on_loaded:
        called on one of the server's threads when the models that were there at the start are loaded. gpus: GPUs for
        sessions; None: none. ports: those that were taken already, closed when the server stops; None: it takes its
        own. restarts: for the metrics, how many processes that served before this one have crashed. began: when it was
        started, as of time.monotonic(), for the time until it is ready; None: now.
        """
        self.config = config
        self.repository = ModelRepository(config, on_step, gpus, began)
        self.http_port = 0
        self.grpc_port = 0
        self.metrics_port = 0
        #: Answers ordinary inference requests of the HTTP port; None where all of them are for the Python path.
        self.native: NativeHttpServer | None = None
        #: The same for the gRPC port.
        self.native_grpc: NativeGrpcServer | None = None
        self._ports = ports
        self._restarts = restarts
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._may_wait = False
        self._thread: threading.Thread | None = None
        self._loading = FirstLoad(self.repository, on_loaded)

    def start(self, *, wait: bool = True) -> Server:
        """Starts listening and loading. wait: return when every model is loaded or failed. Raises ConfigError."""
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
        if wait:
            self._loading.join()
        return self

    def stop(self) -> None:
        """Drains and stops; returns when everything is closed."""
        if self._loop is not None and self._stopping is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended already
                self._loop.call_soon_threadsafe(self._stopping.set)
        if self._thread is not None:
            self._thread.join()

    def request_stop(self) -> None:
        """Begins to stop, for signal handlers on the server's own loop: where probes come, `drain_delay_s` later."""
        self._may_wait = True
        if self._stopping is not None:
            self._stopping.set()

    def __enter__(self) -> Server:
        return self.start() if self._thread is None else self

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def run(self, listening: Callable[[], None]) -> None:
        """Runs until asked to stop. listening: called when the ports answer."""
        config = self.config
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        allow_connections(config.max_connections)
        tls = server_tls(config)
        with contextlib.ExitStack() as stack:
            ports = self._ports or stack.enter_context(open_ports(config))
            stack.callback(ports.close)
            self.http_port, self.grpc_port, self.metrics_port = ports.numbers
            numbers = {"http_port": self.http_port, "grpc_port": self.grpc_port, "metrics_port": self.metrics_port}
            self.repository.config = config.model_copy(update=numbers)
            if self.repository.fleet is not None:
                self.repository.fleet.identify(self.http_port)
            observation = self.repository.observation
            stack.callback(observation.close)
            observation.on_traced = self.repository.note_traced
            observation.start()
            models = LocalModels(self.repository)
            gate = Gate(config, stack.enter_context(own_token(self.http_port)))
            calls = LocalGrpcControl(self.repository)
            health = HealthCalls(calls)
            upstream = Upstream()
            # TLS is for the Python path alone.
            is_native = tls is None
            # Callers that have to be known are let in there, and answered natively from then on.
            callers = None if gate.is_open else gate.callers
            is_native_grpc = is_native and HAS_NATIVE_GRPC
            grpc = grpc_server(
                models,
                calls,
                GrpcGate(gate, upstream.secret),
                health,
                observation.native,
                max_message_bytes=config.max_body_bytes,
                # The native server counts the connections of clients and opens at most one here for each. A connection
                # that it has closed is counted here for a while still, and must not keep out the next one.
                max_connections=2 * config.max_connections if is_native_grpc else config.max_connections,
            )
            if is_native_grpc:
                grpc.add_insecure_port(upstream.address)
            else:
                bind_grpc(grpc, config.host, self.grpc_port, tls)
            # One for each port: the utilization of the processors is that since a port's last page.
            limits, limits_of_metrics = HttpLimits(config), HttpLimits(config)
            pages = [
                MetricsApp(
                    self.repository,
                    self._native_counts,
                    self._restarts,
                    lambda: self._connections(limits, limits_of_metrics),
                )
                for _ in ("http", "metrics")
            ]
            control = LocalHttpControl(self.repository, pages[0])
            app = HttpApp(models, control, gate, observation.native)
            http = http_server(
                app,
                limits,
                config.drain_timeout_s,
                tls,
                protocol=AdoptedConnection if is_native else HttpProtocol,
            )
            feed = Feed(gate, Look(self.repository), lambda: self._connections(limits, limits_of_metrics))
            page = GatedApp(pages[1], gate)
            metrics = http_server(
                ConsoleApp(page, app, gate, feed),
                limits_of_metrics,
                config.drain_timeout_s,
                tls,
                protocol=StreamingConnection,
            )
            await grpc.start()
            stack.callback(asyncio.create_task(gate.follow()).cancel)
            tasks = [
                asyncio.create_task(server.serve(sockets=bound))
                for server, bound in ((http, [] if is_native else [ports.http]), (metrics, [ports.metrics]))
            ]
            while not (http.started and metrics.started):
                await asyncio.sleep(0)
                for task in tasks:
                    if task.done():
                        task.result()
            if is_native:
                routes = NativeRoutes(self.repository)
                stack.callback(routes.close)
                gate.natively = routes.serve
                self.native = NativeHttpServer(config, observation.native, callers, routes, ports.http, http.connection)
            self._loading.start()
            if is_native_grpc:
                bound = ports.listen_grpc()
                await self._load_again()
                self.native_grpc = NativeGrpcServer(config, observation.native, callers, routes, bound, upstream)
            say_hello(config, self.repository.names, self.http_port, self.grpc_port, self.metrics_port)
            async with local_health(self.http_port, self.repository.probes.is_ready):
                listening()
                await self._stopping.wait()
                await self._retire(limits)
            logger.info("stopping: in-flight requests have %g s", config.drain_timeout_s)
            deadline = time.monotonic() + config.drain_timeout_s
            observation.give_up()
            self.repository.stop_loading()
            http.end()
            feed.close()
            metrics.end()
            health.stop()
            for native, bound in ((self.native, ports.http), (self.native_grpc, ports.grpc)):
                if native is not None:
                    bound.close()
                    tasks.append(asyncio.create_task(native.drain(config.drain_timeout_s)))
            await asyncio.gather(grpc.stop(config.drain_timeout_s), *tasks)
        left = max(0.5, deadline - time.monotonic())
        await asyncio.get_running_loop().run_in_executor(None, self._loading.close, left)

    async def _load_again(self) -> None:
        """Lets calls of gRPC wait in the port for a while after a crash, until the models are loaded again.

        Load balancers cannot repeat a call that is refused: the refusal stands behind a status of 200.
        """
        assert self._stopping is not None
        deadline = time.monotonic() + _LOAD_AGAIN_S
        while self._restarts and self.is_loading() and not self._stopping.is_set() and time.monotonic() < deadline:
            await asyncio.sleep(_LOAD_LOOK_S)

    async def _retire(self, limits: HttpLimits) -> None:
        """Answers on while load balancers notice that this server is no longer ready, and sends clients elsewhere."""
        delay_s = self.config.drain_delay_s
        if delay_s is None:
            delay_s = DRAIN_DELAY_S if self.repository.probes.are_regular else 0.0
        if not (self._may_wait and delay_s):
            return
        logger.info("not ready from now on: load balancers have %g s to notice", delay_s)
        self.repository.probes.retire()
        limits.is_retiring = True
        for native in (self.native, self.native_grpc):
            if native is not None:
                native.retire()
        await asyncio.sleep(delay_s)

    def _native_counts(self) -> dict[str, tuple[int, int]]:
        found = {}
        for transport, native in (("http", self.native), ("grpc", self.native_grpc)):
            counts = None if native is None else native.counts
            if counts is not None:
                found[transport] = counts
        return found

    def _connections(self, http: HttpLimits, metrics: HttpLimits) -> list[PortConnections]:
        limit = self.config.max_connections
        native = None if self.native is None else self.native.connections
        # The native server counts connections that Python has, too, but waits for no client of these.
        opened, stuck = (http.open, {}) if native is None else native
        found = [
            PortConnections("http", opened, limit, Counter(stuck) + Counter(http.stuck)),
            PortConnections("metrics", metrics.open, limit, metrics.stuck),
        ]
        of_grpc = None if self.native_grpc is None else self.native_grpc.connections
        if of_grpc is not None:
            found.append(PortConnections("grpc", of_grpc[0], limit, of_grpc[1]))
        return found

    def is_loading(self) -> bool:
        """Returns whether models are still being loaded for the first time."""
        return self._loading.is_alive()
