"""Serves the HTTP port by native code: ordinary inference requests never reach Python before they are a batch.

The native server answers requests to models that are published to it, when a request is a plain one: HTTP/1.1 with a
Content-Length, a JSON header in its usual form and numeric tensors as bytes. A connection with any other request,
however unusual or malformed, is handed over with its unread bytes to `HttpProtocol`, which serves it from there; it
goes back when its next request looks like an ordinary one.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from serving._front import Model, Server, ServerOptions
from serving.config import ServerConfig
from serving.engine.endpoint import Endpoint
from serving.engine.requests import (
    RequestCancelled,
    request_expired,
)
from serving.errors import status_of
from serving.http.exchange import status_line
from serving.http.limits import (
    KEEP_ALIVE_S,
    late_body,
    spare_descriptors,
    too_many_bytes,
    too_many_connections,
    too_many_of_address,
)
from serving.http.native_models import connect_queues, native_model
from serving.http.protocol import LINGER_S, HttpProtocol
from serving.repository.model_repository import ModelRepository
from serving.updates.live_model import Routes
from storage.errors import EmberlineError, Overloaded

logger = logging.getLogger("emberline.serving")

_INFER_LINE = (b"POST /v2/models/", b"/infer HTTP/1.1")
_DRAIN_LOOK_S = 0.01
# Why a request was not answered, by the native server's numbers.
_REASONS: tuple[Callable[[], Exception], ...] = (
    request_expired,
    RequestCancelled,
    lambda: Overloaded("refused"),
)


class AdoptedConnection(HttpProtocol):
    """Serves a connection that the native server has handed over."""

    def __init__(
        self, *arguments: Any, server: NativeHttpServer, ticket: int, data: bytes, may_return: bool, **options: Any
    ) -> None:
        """Further arguments are those of HttpProtocol. data: what was read, from the beginning of a request.

        may_return: whether the connection may go back to the native server, which knows it by its ticket.
        """
        super().__init__(*arguments, **options)
        self._server = server
        self._ticket = ticket
        self._first = data
        self._may_return = may_return
        self._is_returned = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Continues with the bytes that the native server has read."""
        super().connection_made(transport)
        data, self._first = self._first, b""
        if not self._transport.is_closing():
            super().data_received(data)
        if self._server.is_draining:
            self.shutdown()

    def data_received(self, data: bytes) -> None:
        """Takes bytes of requests; gives the connection back when an ordinary request begins."""
        if self._may_return and self.is_at_rest and _is_ordinary(data):
            self._is_returned = True
            self._server.give_back(self._ticket, data)
            self._transport.abort()
            return
        super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the connection, unless it was given back."""
        super().connection_lost(exc)
        if not self._is_returned:
            self._server.closed(self._ticket)


def _is_ordinary(data: bytes) -> bool:
    """Returns whether a request begins that the native server may answer."""
    begin, end = _INFER_LINE
    return data.startswith(begin) and data.find(end, 0, data.find(b"\r\n") + 1) > 0


class NativeHttpServer:
    """Accepts the connections of a port, and adopts those that are handed over. For one event loop."""

    def __init__(self, config: ServerConfig, listener: socket.socket, protocol: Callable[..., HttpProtocol]) -> None:
        """protocol: makes the protocol of a connection, as `HttpServer` does, of the class AdoptedConnection."""
        #: Whether it takes no further connections.
        self.is_draining = False
        self._protocol = protocol
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._native: Server | None = Server(_options(config), listener.fileno(), self._wake)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._wake, self._look)
        self._adopting: set[asyncio.Task[Any]] = set()
        self._keys = itertools.count()
        self._endpoints: weakref.WeakValueDictionary[int, Endpoint] = weakref.WeakValueDictionary()
        self._models: weakref.WeakKeyDictionary[Endpoint, Model | None] = weakref.WeakKeyDictionary()
        self._paths: dict[str, frozenset[str]] = {}
        self._publishing = threading.Lock()

    @property
    def native(self) -> Server:
        """Returns the native server. It must not have ended."""
        assert self._native is not None
        return self._native

    @property
    def counts(self) -> tuple[int, int] | None:
        """Returns the requests answered and the connections handed over so far; None once it has ended."""
        native = self._native
        return None if native is None else (native.answered, native.passed_on)

    def follow(self, repository: ModelRepository) -> None:
        """Answers requests for the models of a repository from now on, as they come and go."""
        repository.watch_routes(self._publish)

    async def drain(self, timeout_s: float) -> None:
        """Accepts no further connections, answers the requests that were begun, and ends.

        The server of the adopted connections ends these.
        """
        self.is_draining = True
        self.native.drain()
        deadline = time.monotonic() + timeout_s
        while self.native.connections and time.monotonic() < deadline:
            await asyncio.sleep(_DRAIN_LOOK_S)
        self._loop.remove_reader(self._wake)
        await asyncio.get_running_loop().run_in_executor(None, self.native.stop)
        for descriptor, *_ in self.native.take_handed_over():
            os.close(descriptor)
        os.close(self._wake)
        self._native = None

    def give_back(self, ticket: int, data: bytes) -> None:
        """Lets the native server go on with a connection. data: what was read of its next request."""
        if self._native is not None:
            self._native.give_back(ticket, data)

    def closed(self, ticket: int) -> None:
        """Ends a connection that was handed over."""
        if self._native is not None:
            self._native.closed(ticket)

    def _publish(self, name: str, routes: Routes) -> None:
        """Replaces the paths of a model. Called on the threads of updates."""
        with self._publishing:
            if self._native is not None:
                self._publish_one(name, routes)

    def _publish_one(self, name: str, routes: Routes) -> None:
        base = f"/v2/models/{name}"
        paths: dict[str, tuple[Model, Model | None, float]] = {}
        for version, endpoint in routes.by_version.items():
            model = self._model(endpoint)
            if model is not None:
                paths[f"{base}/versions/{version}/infer"] = (model, None, 0.0)
        served = None if routes.served is None else self._model(routes.served)
        if served is not None and routes.canary is None:
            paths[f"{base}/infer"] = (served, None, 0.0)
        elif served is not None and routes.canary is not None:
            endpoint, share = routes.canary
            canary = self._model(endpoint)
            if canary is not None:
                paths[f"{base}/infer"] = (served, canary, share)
        for path in self._paths.get(name, frozenset()) - paths.keys():
            self.native.route(path, None)
        for path, route in paths.items():
            self.native.route(path, *route)
        self._paths[name] = frozenset(paths)

    def _model(self, endpoint: Endpoint) -> Model | None:
        """Returns the native model of an endpoint, with its present canary; None where Python answers all requests."""
        if endpoint not in self._models:
            key = next(self._keys)
            self._models[endpoint] = model = native_model(endpoint, key)
            if model is not None:
                self._endpoints[key] = endpoint
                connect_queues(endpoint, model)
        model = self._models[endpoint]
        canary = endpoint.history.canary
        if model is not None:
            model.canary_share = 0.0 if canary is None else canary[1]
        return model

    def _look(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        for key, is_canary, took_ns, reason in self.native.take_missed():
            endpoint = self._endpoints.get(key)
            if endpoint is not None:
                statistics = endpoint.canary_statistics if is_canary else endpoint.statistics
                statistics.finished(took_ns, _REASONS[reason]())
        for descriptor, ticket, data, may_return in self.native.take_handed_over():
            task = self._loop.create_task(self._adopt(descriptor, ticket, data, may_return))
            self._adopting.add(task)
            task.add_done_callback(self._adopting.discard)

    async def _adopt(self, descriptor: int, ticket: int, data: bytes, may_return: bool) -> None:
        connection = socket.socket(fileno=descriptor)
        try:
            await self._loop.connect_accepted_socket(
                lambda: self._protocol(server=self, ticket=ticket, data=data, may_return=may_return), connection
            )
        except OSError:
            connection.close()
            self.closed(ticket)


def _options(config: ServerConfig) -> ServerOptions:
    options = ServerOptions()
    options.max_body_bytes = config.max_body_bytes
    options.max_inflight_bytes = config.max_inflight_bytes
    options.max_connections = config.max_connections
    options.connections_per_address = config.connections_per_address
    options.last_descriptor = spare_descriptors()
    options.body_timeout_ns = int(config.body_timeout_s * 1e9)
    options.keep_alive_ns = int(KEEP_ALIVE_S * 1e9)
    options.linger_ns = int(LINGER_S * 1e9)
    late, expired = late_body(config.body_timeout_s), request_expired()
    options.overloaded_status = _status_line(Overloaded(""))
    options.late_status, options.late = _status_line(late), str(late)
    options.expired_status, options.expired = _status_line(expired), str(expired)
    options.too_many_bytes = str(too_many_bytes(config.max_inflight_bytes))
    options.too_many_connections = str(too_many_connections())
    options.too_many_of_address = str(too_many_of_address(config.connections_per_address))
    return options


def _status_line(error: EmberlineError) -> str:
    return status_line(status_of(error)[0]).decode()
